"""Answers, points, checks and paths as tables, and speed-ups over size as lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.page import Column, Line, Lines, Table
from assay.experiments.threshold.checked import parity_at
from assay.experiments.threshold.older import timed
from assay.experiments.threshold.options import TIMES
from assay.experiments.threshold.words import briefly, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import SubjectFacts
    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.cells import Cell as SizeCell
    from assay.experiments.threshold.cells import PointJudged
    from assay.experiments.threshold.options import Point, Time
    from assay.stats.crossover import Bound, State

TONES: dict[State, Tone] = {"clears": "good", "fails": "plain", "open": "unsure"}


def answers_table(answers: Sequence[Answer]) -> Table:
    """Return one row for each threshold."""
    taken_times = [time for time in TIMES if any(time in answer.by_time for answer in answers)]
    times = taken_times if len(taken_times) > 1 else []
    margins = " or ".join(f"{margin:g}×" for margin in sorted({answer.judged.threshold.margin for answer in answers}))
    rows: list[tuple[Cell, ...]] = [
        (
            answer.name,
            briefly(answer.place),
            *(briefly(answer.by_time[time]) if time in answer.by_time else None for time in times),
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


def _answer_tone(each: Answer) -> Tone:
    if each.parity != "passed":
        return "bad"
    return "unsure" if each.place.decision == "unsure" else "good" if each.place.decision == "threshold" else "plain"


def speed_ups(found: Answer, number: int) -> list[Element]:
    """Return the speed-up over the size by each time, with its bounds and the margin."""
    cells = [cell for cell in found.judged.cells if _drawn(cell)]
    lines = [_line(cells, time) for time in TIMES if any(_known(cell.bounds[time]) for cell in cells)]
    if not lines:
        return []
    margin = found.judged.threshold.margin
    sizes = [cell.size for cell in cells]
    edge = Line(label=f"margin {margin:g}×", x=tuple(sizes), y=(margin,) * len(sizes), limit=True)
    several = any(len(cell.points) > 1 for cell in cells)
    return [
        Lines(
            title=f"{found.name}: speed-up of {found.judged.threshold.points[0].fast.label}",
            name=f"speed_up_{number}",
            x_axis=f"size: {found.judged.threshold.axis}",
            y_axis="speed-up, ×",
            lines=(*lines, edge),
            log_x=True,
            log_y=_wide([*lines, edge]),
            note=("Of several points of one size the worst is drawn. " if several else "")
            + "Bands are the bounds that the decision rests on.",
        )
    ]


def _wide(lines: Sequence[Line]) -> bool:
    values = [y for line in lines for part in (line.y, line.low or (), line.high or ()) for y in part if y is not None]
    return max(values) > 8 * min(values)


def _known(bound: Bound | None) -> bool:
    return bound is not None and math.isfinite(bound.mean)


def _drawn(cell: SizeCell) -> bool:
    return any(_known(bound) for bound in cell.bounds.values())


def _line(cells: Sequence[SizeCell], time: Time) -> Line:
    bounds = [bound if _known(bound := cell.bounds[time]) else None for cell in cells]
    return Line(
        label=f"by {time}",
        x=tuple(cell.size for cell in cells),
        y=tuple(None if bound is None else math.exp(bound.mean) for bound in bounds),
        low=tuple(None if bound is None else math.exp(bound.low) for bound in bounds),
        high=tuple(None if bound is None else math.exp(bound.high) for bound in bounds),
    )


def points_table(found: Answer) -> Table:
    """Return every point of a grid, the largest last."""
    judged_threshold = found.judged
    times_taken = {time for judged_point in judged_threshold.points for time in judged_point.seen.told}
    times = [time for time in TIMES if time in times_taken]
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
        title=f"{found.name}: {first.fast.label} against {first.reference.label}",
        columns=tuple(Column(title=title, numeric=title != "margin") for title in titles),
        rows=tuple(
            _point_row(point, judged_point, judged_threshold.threshold.axes, times) for point, judged_point in named
        ),
        tones=tuple(
            "plain" if judged_point.decisive is None else TONES[judged_point.decisive.state]
            for _, judged_point in named
        ),
        note=(
            "The mean speed-up with the bounds that the decision rests on; milliseconds of the reference and the fast "
            "path, medians of all processes; pairs, and in how many processes."
        ),
    )


def _point_row(point: Point, each: PointJudged, axes: Sequence[str], times: Sequence[Time]) -> tuple[Cell, ...]:
    by_time = {time: timed(each, time) for time in times if time in each.seen.told}
    pairs = max((sum(map(len, each.seen.logs(time))) for time in times), default=0)
    return (
        point.size,
        *(_shown(point.params.get(axis)) for axis in axes),
        _state(each),
        *(ratio(each.bounds[time]) if time in by_time else None for time in times),
        *(f"{by_time[time].masked_ms:.3g} → {by_time[time].fa2_ms:.3g}" if time in by_time else None for time in times),
        f"{pairs} in {each.processes}" if pairs else None,
    )


def _state(each: PointJudged) -> str:
    if each.seen.refused is not None:
        return "could not be measured"
    if each.seen.cannot is not None:
        return "does not work"
    words: dict[State, str] = {"clears": "clears", "fails": "fails", "open": "cannot be told"}
    return "not looked at" if each.decisive is None else words[each.decisive.state]


def _shown(value: object) -> Cell:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else str(value)


def parity_table(answers: Sequence[Answer]) -> list[Element]:
    """Return how the results of the fast path compare with what they must be, at every point that was looked at."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    measures: dict[str, None] = {}
    for answer in answers:
        for point, judged_point in zip(answer.judged.threshold.points, answer.judged.points, strict=True):
            checks = [facts.parity for facts in judged_point.seen.checked if facts.parity is not None]
            if not judged_point.seen.measured and not checks:
                continue
            state = parity_at(judged_point.seen)
            worst = next((check for check in checks if not check.passed), checks[-1] if checks else None)
            if worst is not None:
                measures[worst.measure] = None
            rows.append(
                (
                    answer.name,
                    ", ".join(f"{axis} {point.params.get(axis)}" for axis in answer.judged.threshold.axes),
                    state,
                    *(_error(worst, name) for name in ("mean_error", "mean_limit", "max_error", "max_limit")),
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


def _error(check: object, name: str) -> Cell:
    value = getattr(check, name, None)
    return None if value is None else f"{value:.3g}"


def paths_table(answers: Sequence[Answer]) -> list[Element]:
    """Return which kernels ran on either path, and how each was timed; equal ones are told once."""
    rows: dict[tuple[Cell, ...], int] = {}
    for answer in answers:
        for judged_point in answer.judged.points:
            for side, facts in zip(("reference", "fast"), judged_point.seen.facts or (), strict=False):
                if facts.left_out is None:
                    row = (answer.name, side, *_path(facts))
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


def _path(facts: SubjectFacts) -> tuple[Cell, ...]:
    kernels = None if facts.kernels is None else ", ".join(dict.fromkeys(facts.kernels))
    return (facts.backend, kernels, None if facts.timed is None else facts.timed.method)
