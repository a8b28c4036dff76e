"""The findings and the page of ``assay threshold run``: answers, speedups over size, points, parity, kernels."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.core.page import Column, LinePlot, PlotLine, Section, Table, Text, build_table
from assay.core.results import Estimate, Finding
from assay.core.values import Done
from assay.experiments.reporting import compose_page, gather_findings, monitor_table, notes_table
from assay.experiments.threshold.answers import build_answer, format_location, format_speedup
from assay.experiments.threshold.plan import judge_thresholds, replay_run
from assay.experiments.threshold.results_file import time_point
from assay.experiments.threshold.spec import TIME_KINDS
from assay.stats.crossover import TOO_LOW_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Findings, Parity, Verdict
    from assay.experiments.threshold.answers import ThresholdAnswer, ThresholdLocation
    from assay.experiments.threshold.cells import JudgedPoint, SizeCell
    from assay.experiments.threshold.plan import ThresholdProgress
    from assay.experiments.threshold.spec import ThresholdOptions, TimeKind
    from assay.machine.model import Machine
    from assay.stats.crossover import SizeState, SpeedupBound, ThresholdKind
    from assay.store.records import Records

    AnswerCell = Callable[[ThresholdAnswer], Cell]
    PointCell = Callable[[JudgedPoint], Cell]


STATE_TONES: dict[SizeState, Tone] = {"clears": "good", "fails": "plain", "open": "unsure"}


def answers_table(answers: Sequence[ThresholdAnswer]) -> Table:
    """Return one row for each threshold."""
    taken_times = [time for time in TIME_KINDS if any(time in answer.by_time for answer in answers)]
    times = taken_times if len(taken_times) > 1 else []

    def by_time(time: TimeKind) -> AnswerCell:
        return lambda answer: format_location(answer.by_time[time]) if time in answer.by_time else None

    columns: dict[str, AnswerCell] = {
        "threshold": lambda answer: answer.name,
        "from": lambda answer: format_location(answer.location),
        **{f"by {time}": by_time(time) for time in times},
        "parity": lambda answer: answer.parity,
        "to write": lambda answer: "nothing" if answer.value is None else f"{answer.key}: {answer.value}",
    }
    both = (
        "Call: what a caller waits, as eager code does. Span: from the first kernel's start to the last one's end, "
        "as in graphs and compiled models."
    )
    return build_table(
        f"From which size on the fast path is faster by {' or '.join(_list_margins(answers))}",
        answers,
        columns,
        tone=_answer_tone,
        note=both if times else "By what a caller waits.",
    )


def _list_margins(answers: Sequence[ThresholdAnswer]) -> list[str]:
    return [f"{margin:g}×" for margin in sorted({answer.judgement.threshold.margin for answer in answers})]


def _answer_tone(answer: ThresholdAnswer) -> Tone:
    if answer.parity != "passed":
        return "bad"
    tones: dict[ThresholdKind, Tone] = {"unsure": "unsure", "threshold": "good", "disable": "plain"}
    return tones[answer.location.decision]


def speedup_figures(answer: ThresholdAnswer, number: int) -> list[Element]:
    """Return the speed-up over the size by each time, with its bounds and the margin."""
    threshold = answer.judgement.threshold
    cells = [cell for cell in answer.judgement.cells if any(map(_is_finite, cell.bounds.values()))]
    lines = [_speedup_line(cells, time) for time in TIME_KINDS if any(_is_finite(cell.bounds[time]) for cell in cells)]
    if not lines:
        return []
    sizes = tuple(cell.size for cell in cells)
    lines.append(
        PlotLine(label=f"margin {threshold.margin:g}×", x=sizes, y=(threshold.margin,) * len(sizes), limit=True)
    )
    values = [y for line in lines for part in (line.y, line.low or (), line.high or ()) for y in part if y is not None]
    several = "Of several points of one size the worst is drawn. " if any(len(c.points) > 1 for c in cells) else ""
    return [
        LinePlot(
            title=f"{answer.name}: speed-up of {threshold.points[0].fast.label}",
            name=f"speed_up_{number}",
            x_axis=f"size: {threshold.axis}",
            y_axis="speed-up, ×",
            lines=tuple(lines),
            log_x=True,
            log_y=max(values) > 8 * min(values),
            note=f"{several}Bands are the bounds that the decision rests on.",
        )
    ]


def _is_finite(bound: SpeedupBound | None) -> bool:
    return bound is not None and math.isfinite(bound.mean)


def _speedup_line(cells: Sequence[SizeCell], time: TimeKind) -> PlotLine:
    bounds = [bound if _is_finite(bound := cell.bounds[time]) else None for cell in cells]
    y, low, high = (
        tuple(None if bound is None else math.exp(getattr(bound, name)) for bound in bounds)
        for name in ("mean", "low", "high")
    )
    return PlotLine(label=f"by {time}", x=tuple(cell.size for cell in cells), y=y, low=low, high=high)


def points_table(answer: ThresholdAnswer) -> Table:
    """Return every point of a grid, the largest last."""
    judgement, first = answer.judgement, answer.judgement.threshold.points[0]
    times = [time for time in TIME_KINDS if any(time in point.observations.times for point in judgement.points)]

    def parameter(axis: str) -> PointCell:
        return lambda judged_point: _table_cell(judged_point.point.params.get(axis))

    def speedup(time: TimeKind) -> PointCell:
        return lambda point: format_speedup(point.bounds[time]) if time in point.observations.times else None

    def medians(time: TimeKind) -> PointCell:
        def write(point: JudgedPoint) -> Cell:
            if time not in point.observations.times:
                return None
            timed = time_point(point, time)
            return f"{timed.masked_ms:.3g} → {timed.fa2_ms:.3g}"

        return write

    def pairs(point: JudgedPoint) -> Cell:
        count = max((sum(map(len, point.observations.logs(time))) for time in times), default=0)
        return f"{count} in {point.processes}" if count else None

    columns: dict[str, PointCell] = {
        "size": lambda judged_point: judged_point.point.size,
        **{axis: parameter(axis) for axis in judgement.threshold.axes},
        "margin": _describe_state,
        **{f"× by {time}": speedup(time) for time in times},
        **{f"ms by {time}": medians(time) for time in times},
        "pairs": pairs,
    }
    return build_table(
        f"{answer.name}: {first.fast.label} against {first.reference.label}",
        judgement.points,
        columns,
        numeric=set(columns) - {"margin"},
        tone=lambda point: "plain" if point.decisive is None else STATE_TONES[point.decisive.state],
        note=(
            "The mean speed-up with the bounds that the decision rests on; milliseconds of the reference and the fast "
            "path, medians of all processes; pairs, and in how many processes."
        ),
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


class _CheckedPoint(NamedTuple):
    """A point with the check of its fast path's results that is worth a look: the first that did not pass."""

    answer: ThresholdAnswer
    judged_point: JudgedPoint
    check: Parity | None

    def cell(self, name: str) -> Cell:
        """Write a number of the check."""
        value = getattr(self.check, name, None)
        return None if value is None else f"{value:.3g}"


def parity_table(answers: Sequence[ThresholdAnswer]) -> list[Element]:
    """Return how the results of the fast path compare with what they must be, at every point that was looked at."""
    rows = []
    for answer in answers:
        for point in answer.judgement.points:
            checks = point.observations.checks
            if point.observations.measured or checks:
                worst = next((check for check in checks if not check.passed), checks[-1] if checks else None)
                rows.append(_CheckedPoint(answer, point, worst))
    if not rows:
        return []
    measures = list(dict.fromkeys(row.check.measure for row in rows if row.check is not None))
    again = {True: "yes", False: "no", None: None}
    columns: dict[str, Callable[[_CheckedPoint], Cell]] = {
        "threshold": lambda row: row.answer.name,
        "point": lambda row: ", ".join(
            f"{axis} {row.judged_point.point.params.get(axis)}" for axis in row.answer.judgement.threshold.axes
        ),
        "parity": lambda row: row.judged_point.observations.parity,
        "mean error": lambda row: row.cell("mean_error"),
        "mean at most": lambda row: row.cell("mean_limit"),
        "largest error": lambda row: row.cell("max_error"),
        "largest at most": lambda row: row.cell("max_limit"),
        "same bits again": lambda row: again[getattr(row.check, "deterministic", None)],
        "why": lambda row: None if row.check is None else row.check.reason,
    }
    return [
        build_table(
            "Results of the fast path against what they must be",
            rows,
            columns,
            numeric=("mean error", "mean at most", "largest error", "largest at most"),
            tone=lambda row: "plain" if row.judged_point.observations.parity == "passed" else "bad",
            note="; ".join(measures[:3]).capitalize() + "." if measures else None,
        )
    ]


def paths_table(answers: Sequence[ThresholdAnswer]) -> list[Element]:
    """Return which kernels ran on either path, and how each was timed; equal ones once."""
    rows: Counter[tuple[Cell, ...]] = Counter()
    for answer in answers:
        for judged_point in answer.judgement.points:
            for side, facts in zip(("reference", "fast"), judged_point.observations.facts or (), strict=False):
                if facts.skipped is None:
                    kernels = None if facts.kernels is None else ", ".join(dict.fromkeys(facts.kernels))
                    timed_by = None if facts.timed is None else facts.timed.method
                    rows[answer.name, side, facts.backend, kernels, timed_by] += 1
    titles = ("threshold", "path", "done by", "kernels", "timed by", "points")
    table = Table(
        title="What ran, and how it was timed",
        columns=tuple(Column(title=title, numeric=title == "points") for title in titles),
        rows=tuple((*row, count) for row, count in rows.items()),
    )
    return [table] if rows else []


DECISION_VERDICTS: dict[ThresholdKind, Verdict] = {"threshold": "yes", "disable": "no", "unsure": "unsure"}
THRESHOLD_METHOD = "from the largest size down, the last whose speed-up is surely above the margin"


@dataclass(frozen=True)
class ThresholdStudy:
    """All that the records say: how far the run has come, and the answer to each threshold."""

    progress: ThresholdProgress
    answers: tuple[ThresholdAnswer, ...]


def build_study(options: ThresholdOptions, records: Records) -> ThresholdStudy:
    """Return what the records say."""
    progress = replay_run(options, records)
    return ThresholdStudy(
        progress,
        tuple(
            build_answer(threshold, options.decide_on) for threshold in judge_thresholds(options, progress.observations)
        ),
    )


def build_findings(options: ThresholdOptions, answers: Sequence[ThresholdAnswer], records: Records) -> Findings:
    """Return where each threshold is, by what is decided on and by each time, and whether parity passed."""
    findings = (finding for answer in answers for finding in _answer_findings(answer, options))
    return gather_findings(write_headline(answers), findings, records)


def write_headline(answers: Sequence[ThresholdAnswer]) -> str:
    """Return all answers in one sentence."""
    clauses = "; ".join(answer.headline for answer in answers)
    return f"Faster by {' and '.join(_list_margins(answers))}: {clauses}."


def _answer_findings(answer: ThresholdAnswer, options: ThresholdOptions) -> Iterable[Finding]:
    trials = tuple(dict.fromkeys(measurement.trial for measurement in answer.judgement.measurements))
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
    threshold = answer.judgement.threshold
    fast, reference = threshold.points[0].fast.label, threshold.points[0].reference.label
    where, estimate = "from some size on", None
    if location.size is not None:
        where = f"from {location.size:g} on"
        estimate = Estimate(
            value=location.size,
            low=location.low,
            high=location.high,
            unit="size",
            scope="run",
            method=THRESHOLD_METHOD,
            confidence=1 - TOO_LOW_ERROR,
            n=max(1, sum(len(measurement.times) for measurement in answer.judgement.measurements)),
        )
    return Finding(
        kind=kind,
        claim=f"{where} {fast} is at least {threshold.margin:g}× as fast as {reference} ({answer.name}, {by})",
        estimate=estimate,
        verdict=DECISION_VERDICTS[location.decision],
        records=trials,
        reason=" ".join(answer.reasons).rstrip(".") or None if kind == "threshold" else None,
        facts={
            "name": answer.name,
            "key": answer.key,
            "decision": location.decision,
            "low": location.low,
            "high": location.high,
            "margin": threshold.margin,
            "decided_on": by,
            "parity": answer.parity,
            "value": answer.value if kind == "threshold" else location.size,
        },
    )


def build_page(
    machine: Machine, options: ThresholdOptions, study: ThresholdStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    answers, step = study.answers, study.progress.next_step
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    ended = [Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) and step.why else []
    elements: dict[str, Iterable[Element]] = {
        "Results": (answers_table(answers), *reason_texts(answers), *_unreached_texts(records)),
        "Speed-ups over size": [f for number, answer in enumerate(answers) for f in speedup_figures(answer, number)],
        "Every point": map(points_table, answers),
        "Is the fast path right?": parity_table(answers),
        "What it rests on": (
            *paths_table(answers),
            *monitor_table(records, labels),
            *notes_table(records, labels),
            *ended,
        ),
    }
    decided = {"cautious": "both times, the more cautious", "call": "call", "span": "span"}[options.decide_on]
    pairs = f"{options.rounds} pairs of a point in each"
    if options.growth > 1:
        pairs = f"{options.rounds} pairs of a point in the first two, {options.growth} times as many in each next"
    return compose_page(
        machine,
        records,
        title=f"assay threshold run: {', '.join(answer.name for answer in answers)}",
        lead=findings.headline,
        lead_tone=_lead_tone(answers),
        sections=[Section(title=title, elements=tuple(of_section)) for title, of_section in elements.items()],
        facts={
            "device": options.device,
            "decided on": decided,
            "processes": f"{len(records)} of {options.blocks} at most, {pairs}",
            "seed": str(options.seed),
        },
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
