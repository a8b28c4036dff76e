"""Answers and their reasons in sentences."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from assay.experiments.threshold.checked import objections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.threshold.answers import Place
    from assay.experiments.threshold.cells import Cell, Judged
    from assay.experiments.threshold.checked import Checked
    from assay.experiments.threshold.options import DecideOn, Point
    from assay.stats.crossover import Bound

BY: dict[DecideOn, str] = {
    "call": "by the time of a call",
    "span": "by the time of its kernels",
    "cautious": "by both times",
}
"""What was decided on."""

PARITY: dict[Checked, str] = {"passed": "passed", "failed": "failed", "skipped": "was not checked"}


def in_words(place: Place) -> str:
    """Write where a threshold is."""
    if place.decision == "disable":
        return "never"
    if place.decision == "unsure":
        return "cannot be told" if place.low is None else f"cannot be told, but not below {place.low:g}"
    within = "" if place.low == place.high else f" (between {place.low:g} and {place.high:g})"
    return f"from {place.size:g} on{within}"


def briefly(place: Place) -> str:
    """Write where a threshold is, in a cell of a table."""
    if place.decision == "disable":
        return "never"
    if place.decision == "unsure":
        return "not known" if place.low is None else f"not known, from {place.low:g} on at the earliest"
    return f"{place.size:g}" if place.low == place.high else f"{place.size:g} ({place.low:g} to {place.high:g})"


def speed_up(bound: Bound | None) -> str:
    """Write a speed-up with its bounds."""
    if bound is None:
        return "not measured"
    if not math.isfinite(bound.mean):
        return "not working"
    return f"{math.exp(bound.mean):.2f}× ({math.exp(bound.low):.2f} to {math.exp(bound.high):.2f})"


def ratio(bound: Bound | None) -> str | None:
    """Write a speed-up with its bounds, in a cell of a table."""
    if bound is None or not math.isfinite(bound.mean):
        return None
    return f"{math.exp(bound.mean):.2f} ({math.exp(bound.low):.2f}–{math.exp(bound.high):.2f})"


def where(judged: Judged, point: Point) -> str:
    """Name a point by what sets it apart."""
    return ", ".join(f"{name} {point.params[name]}" for name in judged.threshold.axes) or f"size {point.size:g}"


def reasons(
    judged: Judged,
    place: Place,
    decide_on: DecideOn,
    *,
    parity: Checked,
    alone: Sequence[Cell],
    ranges: Sequence[tuple[float, float]],
) -> tuple[str, ...]:
    """Return what an answer rests on, the gravest first."""
    return (
        *_parity(judged, parity),
        *_alone(alone),
        *(_unsure(judged, place) if place.decision == "unsure" else _decided(judged, place, decide_on)),
        *_ranges(ranges),
        *_left_out(judged),
    )


def _decided(judged: Judged, place: Place, decide_on: DecideOn) -> list[str]:
    cells, decision, margin = judged.cells, judged.decision, judged.threshold.margin
    times_taken = [time for time, sentences in judged.by_time.items() if sentences is not None]
    by = BY[times_taken[0] if decide_on == "cautious" and len(times_taken) == 1 else decide_on]
    fast, reference = (getattr(judged.threshold.points[0], side).label for side in ("fast", "reference"))
    if place.decision == "disable":
        at = f"Even at the largest size, {cells[-1].size:g}, {fast} is {speed_up(cells[-1].decisive)} as fast as"
        return [f"{at} {reference}, {by}, below the margin of {margin:g}×."]
    up_to = f"From {place.size:g} up to the largest size, {cells[-1].size:g}, {fast} is at least {margin:g}× as fast as"
    sentences = [f"{up_to} {reference}, {by}."]
    some = [cell for cell in cells[decision.low : decision.place] if not _clears(cell)]
    if some:
        speeds = ", ".join(speed_up(cell.decisive) for cell in some)
        sentences.append(f"Whether it already is at {_sizes(some)} could not be told: {speeds}.")
    if decision.low:
        below = cells[decision.low - 1]
        sentences.append(f"At {below.size:g} it is not: {speed_up(below.decisive)}.")
    return sentences


def _clears(cell: Cell) -> bool:
    return cell.decisive is not None and cell.decisive.state == "clears"


def _unsure(judged: Judged, place: Place) -> list[str]:
    cells = judged.cells
    if not judged.measured:
        return ["Nothing could be measured."]
    if judged.decision.kind != "unsure":
        return []
    if cells[-1].decisive is None:
        return [f"The largest size, {cells[-1].size:g}, was not measured, so that nothing holds from any size on."]
    text = (
        f"At the largest size, {cells[-1].size:g}, it is {speed_up(cells[-1].decisive)}, too near the margin of "
        f"{judged.threshold.margin:g}× to tell"
    )
    return [f"{text}; below {place.low:g} it fails." if place.low is not None else f"{text}."]


def _alone(alone: Sequence[Cell]) -> list[str]:
    if not alone:
        return []
    return [f"Only one process measured {_sizes(alone)}, and what differs between processes is not seen in one."]


def _ranges(ranges: Sequence[tuple[float, float]]) -> list[str]:
    if not ranges:
        return []
    ranges_text = ", ".join(f"{first:g}" if first == last else f"{first:g} to {last:g}" for first, last in ranges)
    return [f"The speed-up does not rise with the size: it clears the margin at {ranges_text}, and not between."]


def _parity(judged: Judged, parity: Checked) -> list[str]:
    if parity == "passed":
        return []
    unpassed = list(objections(judged))
    if not unpassed:
        return ["Nothing is recommended: no result of the fast path was checked."]
    point, check = unpassed[0]
    why = "it was not checked, which is not passed" if check is None else str(check.reason).rstrip(".")
    more = f" (and {len(unpassed) - 1} more)" if len(unpassed) > 1 else ""
    return [f"Nothing is recommended, as the fast path did not pass at {where(judged, point)}{more}: {why}."]


def _left_out(judged: Judged) -> list[str]:
    """Say what could not be measured, and where the fast path does not work."""
    by_reason: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point, judged_point in zip(judged.threshold.points, judged.points, strict=True):
        if judged_point.seen.refused is not None:
            by_reason["could not be measured, and does not count", judged_point.seen.refused].append(point)
        if judged_point.seen.cannot is not None:
            by_reason["counts as failing, as the fast path does not work there", judged_point.seen.cannot].append(point)
    return [
        f"{where(judged, points[0])}{f' (and {len(points) - 1} more)' if len(points) > 1 else ''} {what}: "
        f"{why.rstrip('.')}."
        for (what, why), points in by_reason.items()
    ]


def _sizes(cells: Sequence[Cell]) -> str:
    return " and ".join(f"{cell.size:g}" for cell in cells)
