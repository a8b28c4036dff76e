"""The answer to one threshold (a size with its interval, never, or unsure), and its reasons in sentences."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.format import format_list, format_ratio
from assay.experiments.threshold.cells import list_unpassed_points, threshold_parity
from assay.experiments.threshold.options import MIN_BLOCKS, TIME_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar
    from assay.experiments.threshold.cells import JudgedThreshold, ParityState, SizeCell
    from assay.experiments.threshold.options import DecideOn, GridPoint, TimeKind
    from assay.stats.crossover import SpeedupBound, ThresholdDecision, ThresholdKind


DECIDED_BY: dict[DecideOn, str] = {
    "call": "by the time of a call",
    "span": "by the time of its kernels",
    "cautious": "by both times",
}
"""What was decided on."""

PARITY_PHRASES: dict[ParityState, str] = {"passed": "passed", "failed": "failed", "skipped": "was not checked"}


def describe_location(location: ThresholdLocation) -> str:
    """Write where a threshold is."""
    if location.decision == "disable":
        return "never"
    if location.decision == "unsure":
        return "cannot be told" if location.low is None else f"cannot be told, but not below {location.low:g}"
    within = "" if location.low == location.high else f" (between {location.low:g} and {location.high:g})"
    return f"from {location.size:g} on{within}"


def format_location(location: ThresholdLocation) -> str:
    """Write where a threshold is, in a cell of a table."""
    if location.decision == "disable":
        return "never"
    if location.decision == "unsure":
        return "not known" if location.low is None else f"not known, from {location.low:g} on at the earliest"
    return (
        f"{location.size:g}"
        if location.low == location.high
        else f"{location.size:g} ({location.low:g}–{location.high:g})"
    )


def format_speedup(bound: SpeedupBound | None) -> str:
    """Write a speed-up with its bounds."""
    if bound is None:
        return "not measured"
    if not math.isfinite(bound.mean):
        return "not working"
    return format_ratio(math.exp(bound.mean), math.exp(bound.low), math.exp(bound.high))


def name_point(judged_threshold: JudgedThreshold, point: GridPoint) -> str:
    """Name a point by what sets it apart."""
    return (
        ", ".join(f"{name} {point.params[name]}" for name in judged_threshold.threshold.axes) or f"size {point.size:g}"
    )


def explain_answer(
    judged_threshold: JudgedThreshold,
    location: ThresholdLocation,
    decide_on: DecideOn,
    *,
    parity: ParityState,
    alone: Sequence[SizeCell],
    ranges: Sequence[tuple[float, float]],
) -> tuple[str, ...]:
    """Return what an answer rests on, the gravest first."""
    return (
        *_parity_reasons(judged_threshold, parity),
        *_single_process_reasons(alone),
        *(
            _unsure_reasons(judged_threshold, location)
            if location.decision == "unsure"
            else _decided_reasons(judged_threshold, location, decide_on)
        ),
        *_range_reasons(ranges),
        *_left_out_reasons(judged_threshold),
    )


def _decided_reasons(judged_threshold: JudgedThreshold, location: ThresholdLocation, decide_on: DecideOn) -> list[str]:
    cells, decision, margin = judged_threshold.cells, judged_threshold.decision, judged_threshold.threshold.margin
    times_taken = [time for time, sentences in judged_threshold.by_time.items() if sentences is not None]
    by = DECIDED_BY[times_taken[0] if decide_on == "cautious" and len(times_taken) == 1 else decide_on]
    fast, reference = (getattr(judged_threshold.threshold.points[0], side).label for side in ("fast", "reference"))
    if location.decision == "disable":
        at = f"Even at the largest size, {cells[-1].size:g}, {fast} is {format_speedup(cells[-1].decisive)} as fast as"
        return [f"{at} {reference}, {by}, below the margin of {margin:g}×."]
    up_to = (
        f"From {location.size:g} up to the largest size, {cells[-1].size:g}, {fast} is at least {margin:g}× as fast as"
    )
    sentences = [f"{up_to} {reference}, {by}."]
    some = [cell for cell in cells[decision.low : decision.index] if not _is_clearing(cell)]
    if some:
        speeds = ", ".join(format_speedup(cell.decisive) for cell in some)
        sentences.append(
            f"Whether it already is at {format_list([f'{cell.size:g}' for cell in some])} could not be told: {speeds}."
        )
    if decision.low:
        below = cells[decision.low - 1]
        sentences.append(f"At {below.size:g} it is not: {format_speedup(below.decisive)}.")
    return sentences


def _is_clearing(cell: SizeCell) -> bool:
    return cell.decisive is not None and cell.decisive.state == "clears"


def _unsure_reasons(judged_threshold: JudgedThreshold, location: ThresholdLocation) -> list[str]:
    cells = judged_threshold.cells
    if not judged_threshold.measured:
        return ["Nothing could be measured."]
    if judged_threshold.decision.kind != "unsure":
        return []
    if cells[-1].decisive is None:
        return [f"The largest size, {cells[-1].size:g}, was not measured, so that nothing holds from any size on."]
    text = (
        f"At the largest size, {cells[-1].size:g}, it is {format_speedup(cells[-1].decisive)}, too near the margin of "
        f"{judged_threshold.threshold.margin:g}× to tell"
    )
    return [f"{text}; below {location.low:g} it fails." if location.low is not None else f"{text}."]


def _single_process_reasons(alone: Sequence[SizeCell]) -> list[str]:
    if not alone:
        return []
    sizes = format_list([f"{cell.size:g}" for cell in alone])
    return [f"Only one process measured {sizes}, and what differs between processes is not seen in one."]


def _range_reasons(ranges: Sequence[tuple[float, float]]) -> list[str]:
    if not ranges:
        return []
    ranges_text = ", ".join(f"{first:g}" if first == last else f"{first:g} to {last:g}" for first, last in ranges)
    return [f"The speed-up does not rise with the size: it clears the margin at {ranges_text}, and not between."]


def _parity_reasons(judged_threshold: JudgedThreshold, parity: ParityState) -> list[str]:
    if parity == "passed":
        return []
    unpassed = list(list_unpassed_points(judged_threshold))
    if not unpassed:
        return ["Nothing is recommended: no result of the fast path was checked."]
    point, check = unpassed[0]
    why = "it was not checked, which is not passed" if check is None else str(check.reason).rstrip(".")
    more = f" (and {len(unpassed) - 1} more)" if len(unpassed) > 1 else ""
    return [
        f"Nothing is recommended, as the fast path did not pass at {name_point(judged_threshold, point)}{more}: {why}."
    ]


def _left_out_reasons(judged_threshold: JudgedThreshold) -> list[str]:
    """Say what could not be measured, and where the fast path does not work."""
    by_reason: dict[tuple[str, str], list[GridPoint]] = defaultdict(list)
    for point, judged_point in zip(judged_threshold.threshold.points, judged_threshold.points, strict=True):
        if judged_point.observations.refused is not None:
            by_reason["could not be measured, and does not count", judged_point.observations.refused].append(point)
        if judged_point.observations.failure is not None:
            by_reason[
                "counts as failing, as the fast path does not work there", judged_point.observations.failure
            ].append(point)
    return [
        f"{_name_points(judged_threshold, points)} {what}: {why.rstrip('.')}."
        for (what, why), points in by_reason.items()
    ]


def _name_points(judged_threshold: JudgedThreshold, points: Sequence[GridPoint]) -> str:
    more = f" (and {len(points) - 1} more)" if len(points) > 1 else ""
    return f"{name_point(judged_threshold, points[0])}{more}"


if TYPE_CHECKING:
    Size = int | float


@dataclass(frozen=True)
class ThresholdLocation:
    """Where a threshold is by one time: the size, and the smallest and the largest it may be.

    ``low`` and ``high`` are null where nothing is known of that side; all are where it is never. ``fails`` is the
    largest size that surely fails.
    """

    decision: ThresholdKind
    size: Size | None = None
    low: Size | None = None
    high: Size | None = None
    fails: Size | None = None


@dataclass(frozen=True)
class ThresholdAnswer:
    """The answer to one threshold.

    Attributes:
        location: Where it is by what is decided on.
        value: What to write; null where nothing is to be written.
        by_time: Where it is by each time that was taken.
        ranges: Stretches of sizes that clear the margin, where one that fails lies between them; otherwise none.
        parity: Whether the fast path gave what its reference gives.
        reasons: The reasons, in sentences.
    """

    judged_threshold: JudgedThreshold
    location: ThresholdLocation
    value: Scalar
    by_time: dict[TimeKind, ThresholdLocation]
    ranges: tuple[tuple[Size, Size], ...]
    parity: ParityState
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """The threshold's name."""
        return self.judged_threshold.threshold.name

    @property
    def key(self) -> str:
        """Where the answer is written."""
        return self.judged_threshold.threshold.key

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        if self.parity != "passed":
            return f"{self.name}: nothing is recommended, as parity {PARITY_PHRASES[self.parity]}"
        return f"{self.name}: {describe_location(self.location)}"


def build_answer(judged_threshold: JudgedThreshold, decide_on: DecideOn) -> ThresholdAnswer:
    """Return the answer that is known so far."""
    parity, alone = threshold_parity(judged_threshold), _single_process_cells(judged_threshold)
    location = _locate_threshold(judged_threshold.cells, judged_threshold.decision, unsettled=bool(alone))
    by_time = {
        time: _locate_threshold(judged_threshold.cells, decision, unsettled=bool(alone))
        for time in TIME_KINDS
        if (decision := judged_threshold.by_time[time]) is not None
    }
    ranges = _cleared_ranges(judged_threshold.cells, judged_threshold.decision)
    value: Scalar = None
    if parity == "passed":
        value = {"threshold": location.size, "disable": judged_threshold.threshold.never, "unsure": None}[
            location.decision
        ]
    why = explain_answer(judged_threshold, location, decide_on, parity=parity, alone=alone, ranges=ranges)
    return ThresholdAnswer(judged_threshold, location, value, by_time, ranges, parity, why)


def _single_process_cells(judged_threshold: JudgedThreshold) -> list[SizeCell]:
    """Return the cells that carry the answer and that only one process measured."""
    cells, decision = judged_threshold.cells, judged_threshold.decision
    carrying = [cells[index] for index in (decision.low - 1, decision.index) if 0 <= index < len(cells)]
    return [cell for cell in carrying if cell.decisive is not None and cell.processes < MIN_BLOCKS]


def _locate_threshold(cells: Sequence[SizeCell], decision: ThresholdDecision, *, unsettled: bool) -> ThresholdLocation:
    if unsettled or all(cell.decisive is None for cell in cells):
        return ThresholdLocation("unsure")
    fails = cells[decision.low - 1].size if decision.low else None
    if decision.kind == "disable":
        return ThresholdLocation("disable", fails=fails)
    low = cells[decision.low].size
    if decision.kind == "unsure":
        return ThresholdLocation("unsure", low=low if decision.low else None, fails=fails)
    return ThresholdLocation("threshold", cells[decision.index].size, low, cells[decision.index].size, fails)


def _cleared_ranges(cells: Sequence[SizeCell], decision: ThresholdDecision) -> tuple[tuple[Size, Size], ...]:
    """Return the stretches that clear the margin where a size that surely fails lies above one of them."""
    if all(last >= decision.low for _, last in decision.cleared):
        return ()
    return tuple((cells[first].size, cells[last].size) for first, last in decision.cleared)
