"""The findings and the page of ``assay threshold run``: answers, speedups over size, points, parity, kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.page import Column, LinePlot, Page, PlotLine, Section, Table, Text
from assay.core.results import Estimate, Finding, Findings
from assay.core.values import Done
from assay.experiments.base import Report
from assay.experiments.reporting import compose_page, gather_findings, monitor_table, notes_table
from assay.experiments.threshold.answers import build_answer, format_location, format_speedup
from assay.experiments.threshold.cells import point_parity
from assay.experiments.threshold.options import TIME_KINDS
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.results_file import build_files, time_point
from assay.stats.crossover import TOO_LOW_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Findings, SubjectFacts, Verdict
    from assay.core.values import Params
    from assay.experiments.threshold.answers import ThresholdAnswer, ThresholdLocation
    from assay.experiments.threshold.cells import JudgedPoint, SizeCell
    from assay.experiments.threshold.options import GridPoint, ThresholdOptions, TimeKind
    from assay.experiments.threshold.plan import ThresholdProgress
    from assay.machine.model import Machine
    from assay.stats.crossover import SizeState, SpeedupBound, ThresholdKind
    from assay.store.records import Records


STATE_TONES: dict[SizeState, Tone] = {"clears": "good", "fails": "plain", "open": "unsure"}


def answers_table(answers: Sequence[ThresholdAnswer]) -> Table:
    """Return one row for each threshold."""
    taken_times = [time for time in TIME_KINDS if any(time in answer.by_time for answer in answers)]
    times = taken_times if len(taken_times) > 1 else []
    margins = " or ".join(
        f"{margin:g}×" for margin in sorted({answer.judged_threshold.threshold.margin for answer in answers})
    )
    rows: list[tuple[Cell, ...]] = [
        (
            answer.name,
            format_location(answer.location),
            *(format_location(answer.by_time[time]) if time in answer.by_time else None for time in times),
            answer.parity,
            "nothing" if answer.value is None else f"{answer.key}: {answer.value}",
        )
        for answer in answers
    ]
    return Table(
        title=f"From which size on the fast path is faster by {margins}",
        columns=tuple(
            Column(title=title)
            for title in ("threshold", "from", *(f"by {time}" for time in times), "parity", "to write")
        ),
        rows=tuple(rows),
        tones=tuple(_answer_tone(answer) for answer in answers),
        note=(
            "Call: what a caller waits, as eager code does. Span: from the first kernel's start to the last one's end, "
            "as in graphs and compiled models."
            if times
            else "By what a caller waits."
        ),
    )


def _answer_tone(answer: ThresholdAnswer) -> Tone:
    if answer.parity != "passed":
        return "bad"
    return (
        "unsure"
        if answer.location.decision == "unsure"
        else "good"
        if answer.location.decision == "threshold"
        else "plain"
    )


def speedup_figures(answer: ThresholdAnswer, number: int) -> list[Element]:
    """Return the speed-up over the size by each time, with its bounds and the margin."""
    cells = [cell for cell in answer.judged_threshold.cells if _is_drawable(cell)]
    lines = [_speedup_line(cells, time) for time in TIME_KINDS if any(_is_finite(cell.bounds[time]) for cell in cells)]
    if not lines:
        return []
    margin = answer.judged_threshold.threshold.margin
    sizes = [cell.size for cell in cells]
    edge = PlotLine(label=f"margin {margin:g}×", x=tuple(sizes), y=(margin,) * len(sizes), limit=True)
    several = any(len(cell.points) > 1 for cell in cells)
    return [
        LinePlot(
            title=f"{answer.name}: speed-up of {answer.judged_threshold.threshold.points[0].fast.label}",
            name=f"speed_up_{number}",
            x_axis=f"size: {answer.judged_threshold.threshold.axis}",
            y_axis="speed-up, ×",
            lines=(*lines, edge),
            log_x=True,
            log_y=_needs_log_axis([*lines, edge]),
            note=("Of several points of one size the worst is drawn. " if several else "")
            + "Bands are the bounds that the decision rests on.",
        )
    ]


def _needs_log_axis(lines: Sequence[PlotLine]) -> bool:
    values = [y for line in lines for part in (line.y, line.low or (), line.high or ()) for y in part if y is not None]
    return max(values) > 8 * min(values)


def _is_finite(bound: SpeedupBound | None) -> bool:
    return bound is not None and math.isfinite(bound.mean)


def _is_drawable(cell: SizeCell) -> bool:
    return any(_is_finite(bound) for bound in cell.bounds.values())


def _speedup_line(cells: Sequence[SizeCell], time: TimeKind) -> PlotLine:
    bounds = [bound if _is_finite(bound := cell.bounds[time]) else None for cell in cells]
    return PlotLine(
        label=f"by {time}",
        x=tuple(cell.size for cell in cells),
        y=tuple(None if bound is None else math.exp(bound.mean) for bound in bounds),
        low=tuple(None if bound is None else math.exp(bound.low) for bound in bounds),
        high=tuple(None if bound is None else math.exp(bound.high) for bound in bounds),
    )


def points_table(answer: ThresholdAnswer) -> Table:
    """Return every point of a grid, the largest last."""
    judged_threshold = answer.judged_threshold
    times_taken = {time for judged_point in judged_threshold.points for time in judged_point.observations.times}
    times = [time for time in TIME_KINDS if time in times_taken]
    titles = (
        "size",
        *judged_threshold.threshold.axes,
        "margin",
        *(f"× by {time}" for time in times),
        *(f"ms by {time}" for time in times),
        "pairs",
    )
    named = list(zip(judged_threshold.threshold.points, judged_threshold.points, strict=True))
    first = judged_threshold.threshold.points[0]
    return Table(
        title=f"{answer.name}: {first.fast.label} against {first.reference.label}",
        columns=tuple(Column(title=title, numeric=title != "margin") for title in titles),
        rows=tuple(
            _point_row(point, judged_point, judged_threshold.threshold.axes, times) for point, judged_point in named
        ),
        tones=tuple(
            "plain" if judged_point.decisive is None else STATE_TONES[judged_point.decisive.state]
            for _, judged_point in named
        ),
        note=(
            "The mean speed-up with the bounds that the decision rests on; milliseconds of the reference and the fast "
            "path, medians of all processes; pairs, and in how many processes."
        ),
    )


def _point_row(
    point: GridPoint, judged_point: JudgedPoint, axes: Sequence[str], times: Sequence[TimeKind]
) -> tuple[Cell, ...]:
    by_time = {time: time_point(judged_point, time) for time in times if time in judged_point.observations.times}
    pairs = max((sum(map(len, judged_point.observations.logs(time))) for time in times), default=0)
    return (
        point.size,
        *(_table_cell(point.params.get(axis)) for axis in axes),
        _describe_state(judged_point),
        *(format_speedup(judged_point.bounds[time]) if time in by_time else None for time in times),
        *(f"{by_time[time].masked_ms:.3g} → {by_time[time].fa2_ms:.3g}" if time in by_time else None for time in times),
        f"{pairs} in {judged_point.processes}" if pairs else None,
    )


def _describe_state(judged_point: JudgedPoint) -> str:
    if judged_point.observations.refused is not None:
        return "could not be measured"
    if judged_point.observations.failure is not None:
        return "does not work"
    words: dict[SizeState, str] = {"clears": "clears", "fails": "fails", "open": "cannot be told"}
    return "not looked at" if judged_point.decisive is None else words[judged_point.decisive.state]


def _table_cell(value: object) -> Cell:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else str(value)


def parity_table(answers: Sequence[ThresholdAnswer]) -> list[Element]:
    """Return how the results of the fast path compare with what they must be, at every point that was looked at."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    measures: dict[str, None] = {}
    for answer in answers:
        for point, judged_point in zip(
            answer.judged_threshold.threshold.points, answer.judged_threshold.points, strict=True
        ):
            checks = [facts.parity for facts in judged_point.observations.checked if facts.parity is not None]
            if not judged_point.observations.measured and not checks:
                continue
            state = point_parity(judged_point.observations)
            worst = next((check for check in checks if not check.passed), checks[-1] if checks else None)
            if worst is not None:
                measures[worst.measure] = None
            rows.append(
                (
                    answer.name,
                    ", ".join(f"{axis} {point.params.get(axis)}" for axis in answer.judged_threshold.threshold.axes),
                    state,
                    *(_format_error(worst, name) for name in ("mean_error", "mean_limit", "max_error", "max_limit")),
                    None if worst is None or worst.deterministic is None else "yes" if worst.deterministic else "no",
                    None if worst is None else worst.reason,
                )
            )
            tones.append("plain" if state == "passed" else "bad")
    if not rows:
        return []
    numeric = ("mean error", "mean at most", "largest error", "largest at most")
    titles = ("threshold", "point", "parity", *numeric, "same bits again", "why")
    return [
        Table(
            title="Results of the fast path against what they must be",
            columns=tuple(Column(title=title, numeric=title in numeric) for title in titles),
            rows=tuple(rows),
            tones=tuple(tones),
            note="; ".join(list(measures)[:3]).capitalize() + "." if measures else None,
        )
    ]


def _format_error(check: object, name: str) -> Cell:
    value = getattr(check, name, None)
    return None if value is None else f"{value:.3g}"


def paths_table(answers: Sequence[ThresholdAnswer]) -> list[Element]:
    """Return which kernels ran on either path, and how each was timed; equal ones are told once."""
    rows: dict[tuple[Cell, ...], int] = {}
    for answer in answers:
        for judged_point in answer.judged_threshold.points:
            for side, facts in zip(("reference", "fast"), judged_point.observations.facts or (), strict=False):
                if facts.skipped is None:
                    row = (answer.name, side, *_path_cells(facts))
                    rows[row] = rows.get(row, 0) + 1
    if not rows:
        return []
    titles = ("threshold", "path", "done by", "kernels", "timed by", "points")
    return [
        Table(
            title="What ran, and how it was timed",
            columns=tuple(Column(title=title, numeric=title == "points") for title in titles),
            rows=tuple((*row, count) for row, count in rows.items()),
        )
    ]


def _path_cells(facts: SubjectFacts) -> tuple[Cell, ...]:
    kernels = None if facts.kernels is None else ", ".join(dict.fromkeys(facts.kernels))
    return (facts.backend, kernels, None if facts.timed is None else facts.timed.method)


DECISION_VERDICTS: dict[ThresholdKind, Verdict] = {"threshold": "yes", "disable": "no", "unsure": "unsure"}
THRESHOLD_METHOD = "from the largest size down, the last whose speed-up is surely above the margin"


def build_report(machine: Machine, options: ThresholdOptions, records: Records) -> Report:
    """Return the findings, the page and the results file."""
    study = build_study(options, records)
    findings = build_findings(options, study.answers, records)
    return Report(
        findings,
        build_page(machine, options, study, findings, records),
        build_files(machine, options, study.answers, records),
    )


@dataclass(frozen=True)
class ThresholdStudy:
    """All that the records say: how far the run has come, and the answer to each threshold."""

    progress: ThresholdProgress
    answers: tuple[ThresholdAnswer, ...]


def build_study(options: ThresholdOptions, records: Records) -> ThresholdStudy:
    """Return what the records say."""
    progress = replay_run(options, records)
    return ThresholdStudy(
        progress, tuple(build_answer(threshold, options.decide_on) for threshold in progress.judge(options))
    )


def build_findings(options: ThresholdOptions, answers: Sequence[ThresholdAnswer], records: Records) -> Findings:
    """Return where each threshold is, by what is decided on and by each time, and whether parity passed."""
    findings = (finding for answer in answers for finding in _answer_findings(answer, options))
    return gather_findings(write_headline(answers), findings, records)


def write_headline(answers: Sequence[ThresholdAnswer]) -> str:
    """Return all answers in one sentence."""
    clauses = "; ".join(answer.headline for answer in answers)
    margins = sorted({answer.judged_threshold.threshold.margin for answer in answers})
    by = " and ".join(f"{margin:g}×" for margin in margins)
    return f"Faster by {by}: {clauses}."


def _answer_findings(answer: ThresholdAnswer, options: ThresholdOptions) -> Iterable[Finding]:
    trials = tuple(
        dict.fromkeys(
            measurement.trial
            for point in answer.judged_threshold.points
            for measurement in point.observations.measurements
        )
    )
    yield _location_finding(answer, answer.location, options.decide_on, trials, kind="threshold")
    for time in TIME_KINDS:
        if time in answer.by_time:
            yield _location_finding(answer, answer.by_time[time], time, trials, kind="time")
    yield Finding(
        kind="parity",
        claim=f"the fast path of {answer.name} gives what its reference gives",
        estimate=None,
        verdict="yes" if answer.parity == "passed" else "no" if answer.parity == "failed" else "unsure",
        records=trials,
        reason=None if answer.parity == "passed" else answer.reasons[0].rstrip("."),
        facts={"name": answer.name, "parity": answer.parity},
    )


def _location_finding(
    answer: ThresholdAnswer, location: ThresholdLocation, by: str, trials: tuple[str, ...], *, kind: str
) -> Finding:
    threshold = answer.judged_threshold.threshold
    fast, reference = threshold.points[0].fast.label, threshold.points[0].reference.label
    facts: Params = {
        "name": answer.name,
        "key": answer.key,
        "decision": location.decision,
        "low": location.low,
        "high": location.high,
        "margin": threshold.margin,
        "decided_on": by,
        "parity": answer.parity,
        "value": answer.value if kind == "threshold" else location.size,
    }
    where = f"from {location.size:g} on" if location.size is not None else "from some size on"
    return Finding(
        kind=kind,
        claim=f"{where} {fast} is at least {threshold.margin:g}× as fast as {reference} ({answer.name}, {by})",
        estimate=_location_estimate(location, answer),
        verdict=DECISION_VERDICTS[location.decision],
        records=trials,
        reason=" ".join(answer.reasons).rstrip(".") or None if kind == "threshold" else None,
        facts=facts,
    )


def _location_estimate(location: ThresholdLocation, answer: ThresholdAnswer) -> Estimate | None:
    """Return a threshold as a number with its interval; null where it is none."""
    if location.size is None:
        return None
    return Estimate(
        value=location.size,
        low=location.low,
        high=location.high,
        unit="size",
        scope="run",
        method=THRESHOLD_METHOD,
        confidence=1 - TOO_LOW_ERROR,
        n=max(
            1,
            sum(
                len(measurement.times)
                for point in answer.judged_threshold.points
                for measurement in point.observations.measurements
            ),
        ),
    )


def build_page(
    machine: Machine, options: ThresholdOptions, study: ThresholdStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    answers = study.answers
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    figures = [figure for number, answer in enumerate(answers) for figure in speedup_figures(answer, number)]
    sections = [
        Section(title="Results", elements=(answers_table(answers), *reason_texts(answers), *_unreached_texts(records))),
        Section(title="Speed-ups over size", elements=tuple(figures)),
        Section(title="Every point", elements=tuple(points_table(answer) for answer in answers)),
        Section(title="Is the fast path right?", elements=tuple(parity_table(answers))),
        Section(
            title="What it rests on",
            elements=(
                *paths_table(answers),
                *monitor_table(records, labels),
                *notes_table(records, labels),
                *_end_texts(study.progress),
            ),
        ),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay threshold run: {', '.join(answer.name for answer in answers)}",
        lead=findings.headline,
        lead_tone=_lead_tone(answers),
        sections=sections,
        facts=_page_facts(options, records),
    )


def _lead_tone(answers: Sequence[ThresholdAnswer]) -> Tone:
    if any(answer.parity == "failed" for answer in answers):
        return "bad"
    unsure = any(answer.parity == "skipped" or answer.location.decision == "unsure" for answer in answers)
    return "unsure" if unsure else "plain"


def reason_texts(answers: Sequence[ThresholdAnswer]) -> list[Element]:
    """Return the reasons of each answer as a paragraph."""
    return [
        Text(
            text=f"{answer.name}: {' '.join(answer.reasons)}",
            tone="bad" if answer.parity == "failed" else "unsure" if answer.value is None else "plain",
        )
        for answer in answers
        if answer.reasons
    ]


def _unreached_texts(records: Records) -> list[Element]:
    """Say so where the time of the last process was up before it had looked at all that it was to look at."""
    facts = records[-1].evidence[0].subjects if len(records) and records[-1].evidence else ()
    count = sum(not subject.is_reached for subject in facts) // 2
    if not count:
        return []
    pairs = "1 pair was" if count == 1 else f"{count} pairs were"
    text = f"{pairs} not reached in the last process before its time was up; a longer --duration reaches more."
    return [Text(text=text, tone="unsure")]


def _end_texts(progress: ThresholdProgress) -> list[Element]:
    step = progress.next_step
    return [Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) and step.why else []


def _describe_pairs(options: ThresholdOptions) -> str:
    if options.growth == 1:
        return f"{options.rounds} pairs of a point in each"
    return f"{options.rounds} pairs of a point in the first two, {options.growth} times as many in each next"


def _page_facts(options: ThresholdOptions, records: Records) -> dict[str, str]:
    decided = {"cautious": "both times, the more cautious", "call": "call", "span": "span"}[options.decide_on]
    return {
        "device": options.device,
        "decided on": decided,
        "processes": f"{len(records)} of {options.blocks} at most, {_describe_pairs(options)}",
        "seed": str(options.seed),
    }
