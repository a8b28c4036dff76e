"""The answer to one threshold (a size with its interval, never, or unsure), and its reasons in sentences."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.format import format_list, format_ratio
from assay.experiments.threshold.spec import MIN_BLOCKS, TIME_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar
    from assay.experiments.threshold.cells import JudgedThreshold, ParityState, SizeCell
    from assay.experiments.threshold.spec import DecideOn, GridPoint, TimeKind
    from assay.stats.crossover import SpeedupBound, ThresholdDecision, ThresholdKind

    Size = int | float


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
    within = "" if location.low == location.high else f" ({location.low:g}–{location.high:g})"
    return f"{location.size:g}{within}"


def format_speedup(bound: SpeedupBound | None) -> str:
    """Write a speed-up with its bounds."""
    if bound is None:
        return "not measured"
    if not math.isfinite(bound.mean):
        return "not working"
    return format_ratio(math.exp(bound.mean), math.exp(bound.low), math.exp(bound.high))


def _name_points(judgement: JudgedThreshold, points: Sequence[GridPoint]) -> str:
    """Name the first of some points by what sets it apart, and how many more there are."""
    axes = ", ".join(f"{name} {points[0].params[name]}" for name in judgement.threshold.axes)
    return f"{axes or f'size {points[0].size:g}'}{f' (and {len(points) - 1} more)' if len(points) > 1 else ''}"


def explain_answer(
    judgement: JudgedThreshold,
    location: ThresholdLocation,
    decide_on: DecideOn,
    *,
    alone: Sequence[SizeCell],
    ranges: Sequence[tuple[float, float]],
) -> tuple[str, ...]:
    """Return the reasons of an answer, the most serious first."""
    reasons = _parity_reasons(judgement)
    if alone:
        sizes = format_list([f"{cell.size:g}" for cell in alone])
        reasons.append(f"Only one process measured {sizes}, and what differs between processes is not seen in one.")
    if location.decision == "unsure":
        reasons += _unsure_reasons(judgement, location)
    else:
        reasons += _decided_reasons(judgement, location, decide_on)
    if ranges:
        cleared = ", ".join(f"{first:g}" if first == last else f"{first:g} to {last:g}" for first, last in ranges)
        reasons.append(f"The speed-up does not rise with the size: it clears the margin at {cleared}, and not between.")
    return (*reasons, *_left_out_reasons(judgement))


def _decided_reasons(judgement: JudgedThreshold, location: ThresholdLocation, decide_on: DecideOn) -> list[str]:
    cells, decision, margin = judgement.cells, judgement.decision, judgement.threshold.margin
    times_taken = [time for time, by_time in judgement.by_time.items() if by_time is not None]
    by = DECIDED_BY[times_taken[0] if decide_on == "cautious" and len(times_taken) == 1 else decide_on]
    fast, reference = judgement.threshold.points[0].fast.label, judgement.threshold.points[0].reference.label
    if location.decision == "disable":
        speedup = format_speedup(cells[-1].decisive)
        at = f"Even at the largest size, {cells[-1].size:g}, {fast} is {speedup} as fast as {reference}"
        return [f"{at}, {by}, below the margin of {margin:g}×."]
    sizes = f"From {location.size:g} up to the largest size, {cells[-1].size:g}"
    sentences = [f"{sizes}, {fast} is at least {margin:g}× as fast as {reference}, {by}."]
    some = [c for c in cells[decision.low : decision.index] if c.decisive is None or c.decisive.state != "clears"]
    if some:
        speeds = ", ".join(format_speedup(cell.decisive) for cell in some)
        open_sizes = format_list([f"{cell.size:g}" for cell in some])
        sentences.append(f"Whether it already is at {open_sizes} could not be told: {speeds}.")
    if decision.low:
        below = cells[decision.low - 1]
        sentences.append(f"At {below.size:g} it is not: {format_speedup(below.decisive)}.")
    return sentences


def _unsure_reasons(judgement: JudgedThreshold, location: ThresholdLocation) -> list[str]:
    if not judgement.measured:
        return ["Nothing could be measured."]
    if judgement.decision.kind != "unsure":
        return []
    last = judgement.cells[-1]
    if last.decisive is None:
        return [f"The largest size, {last.size:g}, was not measured, so that nothing holds from any size on."]
    speedup, margin = format_speedup(last.decisive), judgement.threshold.margin
    below = "" if location.low is None else f"; below {location.low:g} it fails"
    return [f"At the largest size, {last.size:g}, it is {speedup}, too near the margin of {margin:g}× to tell{below}."]


def _parity_reasons(judgement: JudgedThreshold) -> list[str]:
    """Say where the fast path did not pass, and why."""
    if judgement.parity == "passed":
        return []
    examined = [point for point in judgement.points if point.observations.measured or point.observations.checked]
    unpassed = [point for point in examined if point.observations.parity != "passed"]
    if not unpassed:
        return ["Nothing is recommended: no result of the fast path was checked."]
    check = next((check for check in unpassed[0].observations.checks if not check.passed), None)
    why = "it was not checked, which is not passed" if check is None else str(check.reason).rstrip(".")
    at = _name_points(judgement, [point.point for point in unpassed])
    return [f"Nothing is recommended, as the fast path did not pass at {at}: {why}."]


def _left_out_reasons(judgement: JudgedThreshold) -> list[str]:
    """Say what could not be measured, and where the fast path does not work."""
    by_reason: dict[tuple[str, str], list[GridPoint]] = defaultdict(list)
    for judged_point in judgement.points:
        observations, point = judged_point.observations, judged_point.point
        if observations.refused is not None:
            by_reason["could not be measured, and does not count", observations.refused].append(point)
        if observations.failure is not None:
            by_reason["counts as failing, as the fast path does not work there", observations.failure].append(point)
    return [
        f"{_name_points(judgement, points)} {what}: {why.rstrip('.')}." for (what, why), points in by_reason.items()
    ]


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

    judgement: JudgedThreshold
    location: ThresholdLocation
    value: Scalar
    by_time: dict[TimeKind, ThresholdLocation]
    ranges: tuple[tuple[Size, Size], ...]
    parity: ParityState
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """The threshold's name."""
        return self.judgement.threshold.name

    @property
    def key(self) -> str:
        """Where the answer is written."""
        return self.judgement.threshold.key

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        if self.parity != "passed":
            return f"{self.name}: nothing is recommended, as parity {PARITY_PHRASES[self.parity]}"
        return f"{self.name}: {describe_location(self.location)}"


def build_answer(judgement: JudgedThreshold, decide_on: DecideOn) -> ThresholdAnswer:
    """Return the answer that is known so far."""
    cells, decision, parity = judgement.cells, judgement.decision, judgement.parity
    # The cells that carry the answer and that only one process measured.
    carrying = [cells[index] for index in (decision.low - 1, decision.index) if 0 <= index < len(cells)]
    alone = [cell for cell in carrying if cell.decisive is not None and cell.processes < MIN_BLOCKS]
    location = _locate_threshold(cells, decision, unsettled=bool(alone))
    by_time = {
        time: _locate_threshold(cells, of_time, unsettled=bool(alone))
        for time in TIME_KINDS
        if (of_time := judgement.by_time[time]) is not None
    }
    ranges: tuple[tuple[Size, Size], ...] = ()
    if any(last < decision.low for _, last in decision.cleared):
        ranges = tuple((cells[first].size, cells[last].size) for first, last in decision.cleared)
    value: Scalar = None
    if parity == "passed":
        value = {"threshold": location.size, "disable": judgement.threshold.never, "unsure": None}[location.decision]
    why = explain_answer(judgement, location, decide_on, alone=alone, ranges=ranges)
    return ThresholdAnswer(judgement, location, value, by_time, ranges, parity, why)


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
