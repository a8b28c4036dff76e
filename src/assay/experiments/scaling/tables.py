"""The tables of the answer: what more ranks buy, where the efficiency goes, what communication costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.experiments.scaling.findings import EXPECTED
from assay.experiments.scaling.gate import gate, judge
from assay.experiments.scaling.numbers import SPLIT
from assay.experiments.scaling.shapes import brief, sentences, skipped
from assay.experiments.scaling.written import (
    bare,
    bytes_cell,
    factor_cell,
    percent_cell,
    rate_cell,
    ratio_cell,
    time_cell,
)

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.options import ScalingOptions

TONES: dict[str, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}


def columns(first: str, *numbers: str) -> tuple[Column, ...]:
    """Return a column of words and columns of numbers."""
    return (Column(title=first), *(Column(title=title, numeric=True) for title in numbers))


def shape_head(options: ScalingOptions) -> str:
    """Return the heading of the column that names shapes."""
    if not options.is_attention:
        return "ranks"
    return "tokens a rank: ranks" if options.mode == "weak" else "tokens: ranks"


def name_of(options: ScalingOptions, each: Scaled) -> str:
    """Name a shape so that its row can be told from all others."""
    return brief(each.shape, is_attention=options.is_attention)


def how_sure(options: ScalingOptions, found: Analysis) -> str:
    """Say what intervals are of, or why there is none."""
    times = [result["time"] for result in found.all if result["time"].estimate is not None]
    if times and all(result.ends is None for result in times):
        why = times[0].why_unsure or "no interval"
        return f"{why[:1].upper()}{why[1:]}."
    if options.repeat > 1:
        return f"95 % intervals over {options.repeat} repeats, each started afresh (Student's t)."
    return "95 % intervals within one start of each, which say nothing of the next start; --repeat 3 gives those."


def buys_table(options: ScalingOptions, found: Analysis) -> Table:
    """Return the answer: time, throughput, speedup and efficiency of every shape."""
    least = options.min_efficiency or EXPECTED
    unit = "tokens/s" if options.is_attention else "calls/s"
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for result in found.all:
        if result.facts is None:
            rows.append((name_of(options, result), result.status or "not yet measured", None, None, None))
            tones.append("bad" if result.status == "failed" else "unsure")
            continue
        several = result.shape.world > 1
        rows.append(
            (
                name_of(options, result),
                time_cell(bare(result["time"])),
                rate_cell(bare(result["throughput"])),
                ratio_cell(result["speedup"]),
                percent_cell(result["efficiency"]),
            )
        )
        tones.append(TONES[judge(result["efficiency"], least)] if several else "plain")
    passes = ", forward and backward" if options.is_attention else ""
    return Table(
        title=f"What more ranks buy, {options.mode} scaling: {options.subject.label}",
        columns=columns(shape_head(options), "time", unit, "speedup", "efficiency"),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            f"Time: median over iterations of the slowest rank{passes}. Speedup: {unit} over one rank's; efficiency: "
            f"speedup over ranks. {how_sure(options, found)} Marked against an efficiency of {least:.0%}."
        ),
    )


FACTORS = ("shards", "contention", "balance", "exposed", "rest")
SHORTLY = (
    "Their product is the efficiency. In turn: what is left of it by smaller shapes, neighbours, waiting for the "
    "slowest rank, transfers that are not hidden, and all else."
)


def split_table(options: ScalingOptions, found: Analysis, *, with_intervals: bool) -> list[Element]:
    """Return the factors of each efficiency: short for the answer, with intervals for who asks more."""
    measured = [result for result in found.measured if result["split_shard"].estimate is not None]
    if not measured:
        return []
    keep = (lambda result: result) if with_intervals else bare
    rows = tuple(
        (name_of(options, result), *(factor_cell(keep(result[name])) for name in SPLIT)) for result in measured
    )
    meant = (
        "Shards: a rank's share computed alone, against the whole computed alone over the ranks of a ring. Contention: "
        "that share alone, against the same beside neighbours. Balance: mean computing, against the slowest rank's. "
        "Exposed: computing, against computing and transfers that are not hidden. Rest: those two, against the time."
    )
    return [
        Table(
            title=f"Where the efficiency goes: its factors{', with intervals' if with_intervals else ''}",
            columns=columns(shape_head(options), *FACTORS),
            rows=rows,
            note=meant if with_intervals else SHORTLY,
        )
    ]


def communication_tables(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the three runs of one plan: all of it, computing only, transfers only; and what follows from them."""
    sent = [result for result in found.scaled if result["communication"].estimate is not None]
    silent: dict[str, list[str]] = {}
    for result in found.scaled:
        if result.facts is not None and result not in sent:
            silent.setdefault(result["communication"].reason or "", []).append(name_of(options, result))
    notes = [Text(text=f"{reason[:1].upper()}{reason[1:]} ({'; '.join(those)}).") for reason, those in silent.items()]
    if not sent:
        return list(notes)
    return [
        Table(
            title="Three runs of one plan",
            columns=columns(shape_head(options), "all of it", "computing only", "transfers only"),
            rows=tuple(
                (name_of(options, result), *(time_cell(result[name]) for name in ("time", "compute", "communication")))
                for result in sent
            ),
            note="Each the median over iterations of its slowest rank, taken in turns in one process.",
        ),
        Table(
            title="What communication costs",
            columns=columns(shape_head(options), "exposed", "of the time", "hidden", "received"),
            rows=tuple(
                (
                    name_of(options, result),
                    time_cell(result["exposed"]),
                    percent_cell(result["exposed_share"]),
                    percent_cell(result["overlap"]),
                    bytes_cell(result.facts.received_bytes if result.facts is not None else None),
                )
                for result in sent
            ),
            note=(
                "Exposed: all of it less computing only. Hidden: the share of the transfers that is not exposed; below "
                "0 % both together take longer than one after the other. Received: by all ranks in one call."
            ),
        ),
        *notes,
    ]


def sharing(options: ScalingOptions) -> str:
    """Say how many ranks share how many devices."""
    there = len(options.devices)
    one, several = ("GPU", "GPUs") if options.kind == "cuda" else ("group of cores", "groups of cores")
    return f"{options.crowd} ranks share {there} {one if there == 1 else several}"


def remarks(options: ScalingOptions, found: Analysis) -> list[Element]:
    """Return the gate's answer, what was skipped, and what crowds the cores."""
    texts: list[Element] = []
    answer = gate(options, found)
    if answer is not None:
        texts.append(Text(text=answer.sentence, tone=TONES[answer.verdict]))
    texts += [Text(text=f"Skipped: {sentence}") for sentence in sentences(skipped(options))]
    if options.crowd > len(options.devices):
        texts.append(Text(text=f"{sharing(options)}: efficiency counts ranks, not devices.", tone="unsure"))
    if options.link is None and options.is_attention and found.scaled:
        texts.append(Text(text="Nothing was predicted before it was measured, as no --link says what transfers take."))
    return texts
