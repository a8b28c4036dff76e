"""From points to cells: all points of one size make one, which clears the margin only if every one of them does.

    size 32                      size 64
S=256   S=512   S=1024        S=256   S=512   S=1024
clears  clears  open          clears  clears  clears
└────── open ────────┘        └────── clears ──────┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.threshold.options import FEWEST_BLOCKS, TIMES
from assay.stats.crossover import Bound, between_processes, bound, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.experiments.threshold.measured import Seen
    from assay.experiments.threshold.options import DecideOn, Threshold, Time
    from assay.stats.crossover import Decision

NOT_AT_ALL = Bound(0, -math.inf, -math.inf, -math.inf, "fails")
"""Of a point where the fast path does not work: no speed-up can be worse."""

FAR = 1.25
"""A speed-up without an interval counts only where it is so many times above the margin, or below it."""


@dataclass(frozen=True)
class PointJudged:
    """A point: what is known of it, and what that says by each time and by what is decided on."""

    seen: Seen
    bounds: Mapping[Time, Bound | None]
    decisive: Bound | None

    @property
    def processes(self) -> int:
        """How many processes measured it; of a number without samples that cannot be asked."""
        return len(self.seen.taken) if self.seen.single is None else FEWEST_BLOCKS


@dataclass(frozen=True)
class Cell:
    """A size: its points, by their numbers within the threshold, and what all of them together say."""

    size: int | float
    points: tuple[int, ...]
    bounds: Mapping[Time, Bound | None]
    decisive: Bound | None
    processes: int


@dataclass(frozen=True)
class Judged:
    """A threshold with all that is known about it.

    Attributes:
        points: Every point of its grid.
        cells: Sizes that can be measured here, in order.
        decision: Where the threshold is by what is decided on, as a place among the cells.
        by_time: The same by each time alone; null for one that was not taken.
    """

    threshold: Threshold
    points: tuple[PointJudged, ...]
    cells: tuple[Cell, ...]
    decision: Decision
    by_time: Mapping[Time, Decision | None]

    @property
    def measured(self) -> bool:
        """Whether anything is known."""
        return any(cell.decisive is not None for cell in self.cells)


def judge(threshold: Threshold, seen: Sequence[Seen], decide_on: DecideOn) -> Judged:
    """Return what is known about a threshold."""
    between = {time: between_processes([point.logs(time) for point in seen]) for time in TIMES}
    points = tuple(_point(point, threshold.margin, between, decide_on) for point in seen)
    cells = tuple(_cells(threshold, points))
    times_taken = {time for point in seen for time in point.told}
    return Judged(
        threshold,
        points,
        cells,
        decide([cell.decisive for cell in cells]),
        {time: decide([cell.bounds[time] for cell in cells]) if time in times_taken else None for time in TIMES},
    )


def _point(seen: Seen, margin: float, between: Mapping[Time, float], decide_on: DecideOn) -> PointJudged:
    if seen.cannot is not None:
        return PointJudged(seen, dict.fromkeys(TIMES, NOT_AT_ALL), NOT_AT_ALL)
    if seen.single is not None:
        alone = without_interval(seen.single, margin)
        return PointJudged(seen, {"call": alone, "span": None}, alone)
    bounds = {time: bound(seen.logs(time), margin, between[time]) for time in TIMES}
    counted = seen.told if decide_on == "cautious" else (decide_on,)
    return PointJudged(seen, bounds, worst([bounds[time] for time in counted]))


def without_interval(log: float, margin: float) -> Bound:
    """Return what a speed-up says that has no interval: something only where it is far from the margin."""
    low, high, edge = log - math.log(FAR), log + math.log(FAR), math.log(margin)
    return Bound(1, log, low, high, "clears" if low > edge else "fails" if high < edge else "open")


def _cells(threshold: Threshold, points: Sequence[PointJudged]) -> Iterable[Cell]:
    for size in threshold.sizes:
        within = [
            number
            for number, point in enumerate(threshold.points)
            if point.size == size and points[number].seen.refused is None
        ]
        if within:
            yield Cell(
                size,
                tuple(within),
                {time: worst([points[number].bounds[time] for number in within]) for time in TIMES},
                worst([points[number].decisive for number in within]),
                _processes([points[number] for number in within]),
            )


def _processes(points: Sequence[PointJudged]) -> int:
    """Return how many processes a cell rests on: the fewest of its points, or those of one that fails."""
    failing = [point for point in points if point.decisive is not None and point.decisive.state == "fails"]
    if any(point.decisive is NOT_AT_ALL for point in failing):
        return FEWEST_BLOCKS
    return max(point.processes for point in failing) if failing else min(point.processes for point in points)


def worst(bounds: Sequence[Bound | None]) -> Bound | None:
    """Return what several bounds say together: it clears only if all do, fails if any does; null if one is missing."""
    present = [item for item in bounds if item is not None]
    if not present or (len(present) < len(bounds) and all(item.state != "fails" for item in present)):
        return None
    state = min(present, key=lambda item: ("fails", "open", "clears").index(item.state)).state
    return Bound(
        min(item.pairs for item in present),
        min(item.mean for item in present),
        min(item.low for item in present),
        min(item.high for item in present),
        state,
    )
