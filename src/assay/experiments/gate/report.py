"""The findings and the page of ``assay gate``.

The verdict in one sentence, changes in percent against the limit, every restart, the two revisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import format_change, format_percent
from assay.core.page import Column, Page, Section, StripPlot, StripRow, Table, Text
from assay.core.results import Estimate, Finding, Findings
from assay.experiments.base import Report
from assay.experiments.gate.analysis import build_answers, overall_verdict
from assay.experiments.gate.plan import expected_restart_s, head_first, next_restart
from assay.experiments.reporting import CLAIM_TONES, compose_page, gather_findings, monitor_table, notes_table
from assay.stats.blocks import estimate_restarts_needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Page
    from assay.core.results import Findings, Verdict
    from assay.experiments.gate.analysis import GateAnswer, GateQuestion
    from assay.experiments.gate.plan import GateOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


VERDICT_TEXTS: dict[Verdict, str] = {"yes": "passes", "no": "fails", "unsure": "not enough data"}
SAFETY_FACTOR = 1.3
"""Of the time that is reckoned to be needed: more than that is advised."""


def limit_text(options: GateOptions, question: GateQuestion) -> str:
    """Write how much of a change is too much."""
    edge = 1 + options.minimum_effect
    change = 100 * ((1 / edge if question.higher_is_better else edge) - 1)
    return f"{'+' if change > 0 else '−'}{abs(change):.3g} %"


def change_text(answer: GateAnswer) -> str:
    """Write a change with its interval, or why there is none."""
    ratio = answer.change
    if ratio is None:
        return answer.reason or "not measured"
    value, low, high = ratio
    return f"{format_change(value)}, a single restart" if low is None else format_change(value, low, high)


def headline(options: GateOptions, results: Sequence[GateAnswer], records: Records) -> str:
    """Return the answer in one sentence, and what would help where there is none."""
    verdict = overall_verdict(results)
    telling = [answer for answer in results if answer.verdict == verdict] or list(results)
    details = "; ".join(
        f"{a.question.name} {change_text(a)}, the limit is {limit_text(options, a.question)}" for a in telling
    )
    same = ", the same commit twice" if options.same_commit else ""
    n = len([record for record in records if record.status == "ok"])
    count = f"{n} restart{'' if n == 1 else 's'}"
    sentence = f"{VERDICT_TEXTS[verdict].capitalize()}: head against base{same}, {details} ({count})."
    return sentence if verdict != "unsure" else f"{sentence} {advice(options, telling, records)}".strip()


def advice(options: GateOptions, unsure: Sequence[GateAnswer], records: Records) -> str:
    """Say what would decide it, as far as can be foreseen."""
    bad = [record for record in records if record.status != "ok"]
    if bad:
        return f"{bad[-1].reason}."
    if any(answer.reason is not None for answer in unsure):
        return ""
    needed = [estimate_restarts_needed(answer.logs, options.minimum_effect, len(unsure)) for answer in unsure]
    disturbed = sum(bool(record.disturbed) for record in records)
    if disturbed > len(records) / 2:
        busy = f"{disturbed} of {len(records)} restarts"
        return f"Others kept the machine busy in {busy}; --on-interference wait waits for them."
    if None in needed:
        return "It is too near the limit for this machine's noise; with a longer --duration restarts agree better."
    most = max(n for n in needed if n is not None)
    seconds = SAFETY_FACTOR * most * expected_restart_s(options, records)
    return f"About {most} restarts would decide it: --budget {max(1, round(seconds))}s."


def build_report(machine: Machine, options: GateOptions, records: Records) -> Report:
    """Return the findings and the page."""
    results = build_answers(options, records)
    findings = build_findings(options, results, records)
    return Report(findings, build_page(machine, options, results, findings, records))


def build_page(
    machine: Machine, options: GateOptions, results: Sequence[GateAnswer], findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    sections = [
        Section(
            title="Results",
            elements=(answers_table(options, results), *_revision_notes(options), *_ratio_figure(results)),
        ),
        Section(title="Every restart", elements=tuple(_restarts_table(options, answer) for answer in results)),
        Section(title="The revisions", elements=(_revisions_table(options),)),
        Section(
            title="What it rests on",
            elements=(
                *monitor_table(records, labels),
                *notes_table(records, labels),
                *_end_reason(options, records, results),
            ),
        ),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay gate: {options.subject.label}",
        lead=findings.headline,
        lead_tone=CLAIM_TONES[overall_verdict(results)],
        sections=sections,
        facts={
            "device": options.device,
            "isolation asked": options.isolation,
            "repository": options.checkouts.repository,
            "minimum effect": f"{100 * options.minimum_effect:.3g} %",
            "seed": str(options.seed),
        },
    )


def answers_table(options: GateOptions, results: Sequence[GateAnswer]) -> Table:
    """Return what is known about each quantity."""
    titles = ("quantity", "base", "head", "change", "interval", "limit", "answer")
    return Table(
        title="Head against base",
        columns=tuple(Column(title=title, numeric=1 <= index <= 5) for index, title in enumerate(titles)),
        rows=tuple(_answer_row(options, answer) for answer in results),
        tones=tuple(CLAIM_TONES[answer.verdict] for answer in results),
        note="Typical medians of the restarts. The interval is over restarts and holds at every look together with the "
        "others (95 %): it passes where all of it is within the limit, and fails where all of it is beyond.",
    )


def _answer_row(options: GateOptions, answer: GateAnswer) -> tuple[Cell, ...]:
    question, ratio = answer.question, answer.change
    verdict = VERDICT_TEXTS[answer.verdict]
    if ratio is None:
        return (question.name, None, None, None, None, limit_text(options, question), answer.reason or verdict)
    value, low, high = ratio
    base = sorted(pair.base for pair in answer.pairs)[len(answer.pairs) // 2]
    interval = None if low is None or high is None else f"{format_change(low)} to {format_change(high)}"
    cells = (question.format_value(base), question.format_value(base * value), format_change(value), interval)
    return (question.name, *cells, limit_text(options, question), verdict)


def _revision_notes(options: GateOptions) -> list[Element]:
    return [Text(text=f"{note[:1].upper()}{note[1:]}.") for note in options.notes]


def _ratio_figure(results: Sequence[GateAnswer]) -> list[Element]:
    strips = []
    for answer in results:
        change = answer.change
        if change is not None:
            ratios = tuple(pair.ratio for pair in answer.pairs if pair.ratio is not None)
            value, low, high = change
            strips.append(StripRow(label=answer.question.name, samples=ratios, value=value, low=low, high=high))
    if not strips:
        return []
    return [
        StripPlot(
            title="Head over base",
            name="ratios",
            axis="head over base",
            unit="×",
            strips=tuple(strips),
            centre=1.0,
            note="A dot a restart.",
        )
    ]


def _restarts_table(options: GateOptions, answer: GateAnswer) -> Table:
    titles = ("restart", "first turn", "base", "head", "change")
    format_value = answer.question.format_value
    rows = tuple(
        (
            number,
            "head" if head_first(options, number - 1) else "base",
            format_value(pair.base),
            format_value(pair.head),
            None if pair.ratio is None else format_change(pair.ratio),
        )
        for pair in answer.pairs
        for number in [int(pair.block.rpartition("-")[2])]
    )
    columns = tuple(Column(title=title, numeric=title != "first turn") for title in titles)
    note = "Both in processes of their own. The medians are of all turns; the change is that of neighbouring ones."
    return Table(title=answer.question.name.capitalize(), columns=columns, rows=rows, note=note)


def _revisions_table(options: GateOptions) -> Table:
    titles = ("revision", "as named", "commit", "checked out in", "interpreter")
    return Table(
        title="What was measured",
        columns=tuple(Column(title=title) for title in titles),
        rows=tuple((r.name, r.ref, r.commit, r.checkout, r.interpreter) for r in options.checkouts.revisions),
        note="The checkouts are removed when all is measured."
        + ("" if options.checkouts.setup is None else f" Set up by: {options.checkouts.setup}"),
    )


def _end_reason(options: GateOptions, records: Records, results: Sequence[GateAnswer]) -> list[Element]:
    following = next_restart(options, records, results)
    return [] if hasattr(following, "trials") else [Text(text=f"It ended as {following.why}.")]


METHOD = "geometric mean over restarts of the ratio of medians, Student's t; all looks together miss it in 5 % at most"


def build_findings(options: GateOptions, results: Sequence[GateAnswer], records: Records) -> Findings:
    """Return whether head is within the limit, by everything that is judged and by each of it."""
    sentence = headline(options, results, records)
    every = (
        _gate_finding(options, results, sentence, records),
        *(_quantity_finding(options, answer) for answer in results),
    )
    return gather_findings(sentence, every, records)


def _gate_finding(options: GateOptions, results: Sequence[GateAnswer], sentence: str, records: Records) -> Finding:
    verdict = overall_verdict(results)
    is_failed = verdict == "no" or (verdict == "unsure" and options.unsure == "fail")
    return Finding(
        kind="gate",
        claim=f"head is not worse than base by more than {format_percent(options.minimum_effect, digits=3)}",
        estimate=None,
        verdict=verdict,
        reason=sentence,
        records=tuple(record.trial for record in records),
        facts={
            "answer": VERDICT_TEXTS[verdict],
            "unsure": options.unsure,
            "base": options.base.commit,
            "head": options.head.commit,
            "restarts": len(records),
            "minimum_effect": options.minimum_effect,
        },
        gate="failed" if is_failed else "passed",
    )


def _quantity_finding(options: GateOptions, answer: GateAnswer) -> Finding:
    interval = answer.change
    estimate = None
    if interval is not None:
        value, low, high = interval
        n = len(answer.pairs)
        estimate = Estimate(value=value, low=low, high=high, unit="×", scope="run", method=METHOD, n=n)
    return Finding(
        kind="quantity",
        claim=f"the {answer.question.name} of head over that of base is within {limit_text(options, answer.question)}",
        estimate=estimate,
        verdict=answer.verdict,
        reason=answer.reason or change_text(answer),
        records=tuple(pair.trial for pair in answer.pairs),
        facts={
            "quantity": answer.question.quantity,
            "higher_is_better": answer.question.higher_is_better,
        },
    )
