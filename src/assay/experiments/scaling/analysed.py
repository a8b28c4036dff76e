"""What results that are there say: a judged claim for each shape, and a page with the tables and the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.results import Estimate, Finding, Findings
from assay.core.units import format_time
from assay.experiments.scaling.drawn import NOT_COMPARABLE
from assay.experiments.scaling.judging import judged, verdict_of
from assay.experiments.scaling.rows import labels, with_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Verdict
    from assay.experiments.scaling.drawn import Drawn
    from assay.experiments.scaling.judging import Judged
    from assay.experiments.scaling.rows import Row, Span
    from assay.experiments.scaling.sources import Sources

ENOUGH = 0.7
"""The efficiency that is asked about unless told: what the older tool's recipe for CI asked for."""
TONES: dict[Verdict, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}


def findings(sources: Sources, least: float) -> Findings:
    """Return whether each shape of several ranks uses them well enough."""
    rows = judged(sources.rows, least)
    names = labels(sources.rows)
    return Findings(
        headline=headline(sources.rows, rows, least),
        findings=tuple(_finding(one, names[one.row], least) for one in rows),
    )


def headline(rows: Sequence[Row], each: Sequence[Judged], least: float) -> str:
    """Return the answer in one sentence."""
    if not each:
        return f"{len(rows)} shape{'' if len(rows) == 1 else 's'} of one rank; of several ranks there is none to judge."
    with_efficiency = [one for one in each if one.row.efficiency is not None and one.row.by is not None]
    if not with_efficiency:
        why = "all are of the older tool, whose speedups mean nothing" if each[0].row.by is None else "no baseline fits"
        return f"How efficient {len(each)} shapes of several ranks are cannot be said: {why}."
    worst = min(with_efficiency, key=lambda one: one.row.efficiency.value if one.row.efficiency else 0.0)
    share = worst.row.efficiency
    lowest = (
        f"; the lowest is {percent(share)} at {worst.row.asked:,} tokens over {worst.row.world} ranks" if share else ""
    )
    return f"Of {len(each)} shapes of several ranks {_counted(each, least)}{lowest}."


def _counted(each: Sequence[Judged], least: float) -> str:
    """Say how many are efficient enough, are not, and cannot be told."""
    yes, no, unsure = (sum(one.verdict == verdict for one in each) for verdict in ("yes", "no", "unsure"))
    clauses = [
        f"{yes or 'none'} {'is' if yes == 1 else 'are'} {'' if yes else 'surely '}at least {whole(least)} efficient"
    ]
    clauses += [f"{no} {'is' if no == 1 else 'are'} not"] if no else []
    clauses += [f"of {unsure} it cannot be told"] if unsure else []
    return ", ".join(clauses)


def whole(share: float) -> str:
    """Write a share in percent."""
    return f"{100 * share:.0f} %"


def percent(span: Span) -> str:
    """Write a share and its interval in percent."""
    if span.low is None or span.high is None or span.low == span.high:
        return whole(span.value)
    return f"{whole(span.value)} ({100 * span.low:.0f} – {100 * span.high:.0f})"


def _finding(one: Judged, label: str, least: float) -> Finding:
    row, share = one.row, one.row.efficiency
    estimate = None
    if share is not None:
        method = "speedup over ranks, as the source has it"
        estimate = Estimate(value=share.value, low=share.low, high=share.high, unit="", scope="run", method=method, n=1)
    return Finding(
        claim=f"{with_ranks(row, label)} are at least {whole(least)} efficient",
        estimate=estimate,
        verdict=one.verdict,
        records=(),
        reason=one.reason,
        facts={
            "source": row.source,
            "assay": row.by,
            "sequence": row.tokens or None,
            "batch": row.batch,
            "world": row.world,
            "ring": row.ring,
            "time_ms": row.time_ms.value,
            "tokens_per_s": None if row.throughput is None else row.throughput.value,
            "speedup": None if row.speedup is None else row.speedup.value,
            "communication_ms": row.communication_ms,
            "memory_gib": row.memory_gib,
        },
    )


def page(sources: Sources, found: Findings, drawn: Drawn, name: str, least: float) -> Page:
    """Return the whole page."""
    verdict = verdict_of(judged(sources.rows, least))
    sections = [
        Section(title="Results", elements=_results(sources, least)),
        Section(title="Scaling", elements=drawn.scaling),
        Section(title="Memory", elements=drawn.memory),
        Section(title="At a glance", elements=drawn.heat_maps),
        Section(
            title="What could not be used", elements=tuple(Text(text=f"{t}.", tone="unsure") for t in sources.unusable)
        ),
    ]
    return Page(
        title=f"assay scaling analyse: {name}",
        lead=found.headline,
        lead_tone=TONES[verdict],
        sections=tuple(section for section in sections if section.elements),
        facts=(("sources", ", ".join(dict.fromkeys(row.source for row in sources.rows))),),
    )


def _results(sources: Sources, least: float) -> tuple[Element, ...]:
    """Return a table of what Assay measured, one of what the older tool did, and what to know of both."""
    own = [row for row in sources.rows if row.by is not None]
    older = [row for row in sources.rows if row.by is None]
    names = labels(sources.rows)
    shown: list[Element] = []
    if own:
        shown.append(table(own, "What Assay measured", least, None))
    if older:
        shown.append(table(older, "What the older tool measured", least, NOT_COMPARABLE))
    notes = dict.fromkeys(f"{with_ranks(row, names[row])}: {row.note}." for row in own if row.note)
    return (*shown, *(Text(text=text, tone="unsure") for text in (*notes, *sources.notes)))


def table(rows: Sequence[Row], title: str, least: float, note: str | None) -> Table:
    """Return one row for each shape; marked by the verdict where there are several ranks."""
    titles = ("shape", "time", "tokens/s", "speedup", "efficiency", "transfers", "GiB a rank")
    names, verdicts = labels(rows), {one.row: one.verdict for one in judged(rows, least)}
    plain = f"Marked by whether at least {whole(least)} efficiency is sure, surely missed, or neither."
    return Table(
        title=title,
        columns=tuple(Column(title=title, numeric=title != "shape") for title in titles),
        rows=tuple(_cells(row, names[row]) for row in rows),
        tones=tuple(TONES[verdicts[row]] if row in verdicts else "plain" for row in rows),
        note=note or f"{plain} Transfers are those of a call by themselves; GiB are the allocator's peak.",
    )


def _cells(row: Row, name: str) -> tuple[Cell, ...]:
    return (
        with_ranks(row, name.removesuffix(", older tool")),
        format_time(row.time_ms.value * 1e3),
        None if row.throughput is None else f"{row.throughput.value:,.0f}",
        None if row.speedup is None else f"{row.speedup.value:.3g}×",
        None if row.efficiency is None else percent(row.efficiency),
        None if row.communication_ms is None else format_time(row.communication_ms * 1e3),
        row.memory_gib,
    )
