"""What processes measured of each point (log speedups, parity), and the cells that points of one size form.

A cell clears the margin only if every point of it does:

    size 32                      size 64
S=256   S=512   S=1024        S=256   S=512   S=1024
clears  clears  open          clears  clears  clears
└────── open ────────┘        └────── clears ──────┘

Parity: whether the fast path's results match its reference's wherever it was measured. Skipped is not passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.threshold.spec import MIN_BLOCKS, TIME_KINDS
from assay.stats.crossover import SpeedupBound, bound_speedup, decide_threshold, variance_between_processes
from assay.timing.interleaved import TINY_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Parity, Record, SubjectFacts
    from assay.experiments.threshold.spec import DecideOn, GridPoint, Threshold, TimeKind
    from assay.stats.crossover import ThresholdDecision
    from assay.store.records import Records

    Samples = NDArray[np.float64]


TIME_QUANTITIES: dict[TimeKind, tuple[str, ...]] = {"call": ("call_us",), "span": ("span_us", "busy_us")}
"""The quantities that each time is read from, the best first; both of a pair must have the same."""
ParityState = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class PathTimes:
    """What a point's reference and its fast path took in one process, in microseconds, round by round."""

    reference_us: Samples
    fast_us: Samples

    @property
    def logs(self) -> Samples:
        """The logarithms of the speed-ups."""
        logs: Samples = np.log(np.maximum(self.reference_us, TINY_US) / np.maximum(self.fast_us, TINY_US))
        return logs


@dataclass(frozen=True)
class PointMeasurement:
    """One process's measurement of a point."""

    trial: str
    times: Mapping[TimeKind, PathTimes]


@dataclass(frozen=True)
class PointObservations:
    """All that is known of a point.

    Attributes:
        measurements: What each process measured.
        refused: Why it cannot be measured here, and so does not count; null where it can.
        failure: Why the fast path does not work there though the reference does; null where it does.
        facts: What the latest process found out about the reference and the fast path.
        checked: What the processes found out about the fast path where they looked at its results.
        single: The logarithm of a speed-up that an older file has, without any interval; null otherwise.
    """

    measurements: tuple[PointMeasurement, ...] = ()
    refused: str | None = None
    failure: str | None = None
    facts: tuple[SubjectFacts, SubjectFacts] | None = None
    checked: tuple[SubjectFacts, ...] = ()
    single: float | None = None

    @property
    def measured(self) -> bool:
        """Whether a speed-up is known of it."""
        return bool(self.measurements) or self.single is not None

    @property
    def checks(self) -> list[Parity]:
        """The checks of the fast path's results."""
        return [facts.parity for facts in self.checked if facts.parity is not None]

    @property
    def parity(self) -> ParityState:
        """What the checks say together."""
        if any(check.passed is False for check in self.checks):
            return "failed"
        return "passed" if self.checks and all(check.passed for check in self.checks) else "skipped"

    @property
    def times(self) -> tuple[TimeKind, ...]:
        """The times that were taken of it."""
        return tuple(time for time in TIME_KINDS if any(time in one.times for one in self.measurements))

    def logs(self, time: TimeKind) -> list[Samples]:
        """Return the log speed-ups of each process by one time."""
        return [one.times[time].logs for one in self.measurements if time in one.times]


@dataclass
class GridObservations:
    """What is known of every point, by threshold and point."""

    points: dict[tuple[int, int], PointObservations] = field(default_factory=dict)

    def add_record(self, chosen: Iterable[tuple[int, int]], record: Record, records: Records) -> None:
        """Add a record whose pairs are these points."""
        if record.status != "ok":
            return
        facts = record.evidence[0].subjects if record.evidence else ()
        quantities = {quantity for names in TIME_QUANTITIES.values() for quantity in names}
        series = {(s.subject, s.quantity): records.samples(s) for s in record.series if s.quantity in quantities}
        for pair, index in enumerate(chosen):
            if 2 * pair + 1 < len(facts) and facts[2 * pair].is_reached:
                before = self.points.get(index, PointObservations())
                both = (facts[2 * pair], facts[2 * pair + 1])
                self.points[index] = _add_process(before, record.trial, both, _pair_times(series, pair))


def _pair_times(series: Mapping[tuple[int, str], Samples], pair: int) -> dict[TimeKind, PathTimes]:
    """Return the times that both of a pair have."""
    result: dict[TimeKind, PathTimes] = {}
    for time, names in TIME_QUANTITIES.items():
        for quantity in names:
            reference, fast = series.get((2 * pair, quantity)), series.get((2 * pair + 1, quantity))
            if time not in result and reference is not None and fast is not None and len(reference):
                result[time] = PathTimes(reference, fast)
    return result


def _add_process(
    before: PointObservations, trial: str, facts: tuple[SubjectFacts, SubjectFacts], times: Mapping[TimeKind, PathTimes]
) -> PointObservations:
    """Return what is known of a point with one more process."""
    reference, fast = facts
    checked = (*before.checked, *([fast] if fast.parity is not None else []))
    measurements = (*before.measurements, PointMeasurement(trial, times)) if times else before.measurements
    missing = reference.skipped or fast.skipped
    if missing is None or measurements:
        return PointObservations(measurements, facts=facts, checked=checked)
    if reference.skipped is not None or missing.code == "out_of_memory":
        return PointObservations(refused=missing.detail, facts=facts, checked=checked)
    return PointObservations(failure=missing.detail, facts=facts, checked=checked)


DOES_NOT_WORK = SpeedupBound(0, -math.inf, -math.inf, -math.inf, "fails")
"""Of a point where the fast path does not work: no speed-up can be worse."""

NO_INTERVAL_FACTOR = 1.25
"""A speed-up without an interval counts only where it is above or below the margin by this factor."""


@dataclass(frozen=True)
class JudgedPoint:
    """A point: what is known of it, and what that says by each time and by what is decided on."""

    point: GridPoint
    observations: PointObservations
    bounds: Mapping[TimeKind, SpeedupBound | None]
    decisive: SpeedupBound | None

    @property
    def processes(self) -> int:
        """How many processes measured it; of a number without samples that cannot be asked."""
        return len(self.observations.measurements) if self.observations.single is None else MIN_BLOCKS


@dataclass(frozen=True)
class SizeCell:
    """A size: its points, by their numbers within the threshold, and what all of them together say."""

    size: int | float
    points: tuple[int, ...]
    bounds: Mapping[TimeKind, SpeedupBound | None]
    decisive: SpeedupBound | None
    processes: int


@dataclass(frozen=True)
class JudgedThreshold:
    """A threshold with all that is known about it.

    Attributes:
        points: Every point of its grid.
        cells: Sizes that can be measured here, in order.
        decision: Where the threshold is by what is decided on, as a place among the cells.
        by_time: The same by each time alone; null for one that was not taken.
    """

    threshold: Threshold
    points: tuple[JudgedPoint, ...]
    cells: tuple[SizeCell, ...]
    decision: ThresholdDecision
    by_time: Mapping[TimeKind, ThresholdDecision | None]

    @property
    def measured(self) -> bool:
        """Whether anything is known."""
        return any(cell.decisive is not None for cell in self.cells)

    @property
    def measurements(self) -> list[PointMeasurement]:
        """Every measurement of every point."""
        return [one for point in self.points for one in point.observations.measurements]

    @property
    def parity(self) -> ParityState:
        """What the checks say together: passed only if every point that was measured passed."""
        if any(point.observations.parity == "failed" for point in self.points):
            return "failed"
        states = {point.observations.parity for point in self.points if point.observations.measured}
        return "passed" if states == {"passed"} else "skipped"


def judge_threshold(
    threshold: Threshold, observations: Sequence[PointObservations], decide_on: DecideOn
) -> JudgedThreshold:
    """Return what is known about a threshold."""
    between = {time: variance_between_processes([point.logs(time) for point in observations]) for time in TIME_KINDS}
    points = tuple(
        _judge_point(point, of_point, threshold.margin, between, decide_on)
        for point, of_point in zip(threshold.points, observations, strict=True)
    )
    cells = tuple(_build_cells(threshold, points))
    times_taken = {time for point in observations for time in point.times}
    by_time = {
        time: decide_threshold([cell.bounds[time] for cell in cells]) if time in times_taken else None
        for time in TIME_KINDS
    }
    return JudgedThreshold(threshold, points, cells, decide_threshold([cell.decisive for cell in cells]), by_time)


def _judge_point(
    point: GridPoint,
    observations: PointObservations,
    margin: float,
    between: Mapping[TimeKind, float],
    decide_on: DecideOn,
) -> JudgedPoint:
    if observations.failure is not None:
        return JudgedPoint(point, observations, dict.fromkeys(TIME_KINDS, DOES_NOT_WORK), DOES_NOT_WORK)
    if observations.single is not None:
        alone = bound_without_interval(observations.single, margin)
        return JudgedPoint(point, observations, {"call": alone, "span": None}, alone)
    bounds = {time: bound_speedup(observations.logs(time), margin, between[time]) for time in TIME_KINDS}
    counted = observations.times if decide_on == "cautious" else (decide_on,)
    return JudgedPoint(point, observations, bounds, worst_bound([bounds[time] for time in counted]))


def bound_without_interval(log: float, margin: float) -> SpeedupBound:
    """Return what a speed-up says that has no interval: something only where it is far from the margin."""
    low, high, edge = log - math.log(NO_INTERVAL_FACTOR), log + math.log(NO_INTERVAL_FACTOR), math.log(margin)
    return SpeedupBound(1, log, low, high, "clears" if low > edge else "fails" if high < edge else "open")


def _build_cells(threshold: Threshold, points: Sequence[JudgedPoint]) -> Iterable[SizeCell]:
    for size in threshold.sizes:
        numbers = [n for n, p in enumerate(points) if p.point.size == size and p.observations.refused is None]
        within = [points[number] for number in numbers]
        if within:
            bounds = {time: worst_bound([point.bounds[time] for point in within]) for time in TIME_KINDS}
            decisive = worst_bound([point.decisive for point in within])
            yield SizeCell(size, tuple(numbers), bounds, decisive, _count_processes(within))


def _count_processes(points: Sequence[JudgedPoint]) -> int:
    """Return how many processes a cell rests on: the fewest of its points, or those of one that fails."""
    failing = [point for point in points if point.decisive is not None and point.decisive.state == "fails"]
    if any(point.decisive is DOES_NOT_WORK for point in failing):
        return MIN_BLOCKS
    return max(point.processes for point in failing) if failing else min(point.processes for point in points)


def worst_bound(bounds: Sequence[SpeedupBound | None]) -> SpeedupBound | None:
    """Return what several bounds say together: it clears only if all do, fails if any does; null if one is missing."""
    present = [item for item in bounds if item is not None]
    if not present or (len(present) < len(bounds) and all(item.state != "fails" for item in present)):
        return None
    state = min(present, key=lambda item: ("fails", "open", "clears").index(item.state)).state
    pairs, mean, low, high = (min(getattr(item, name) for item in present) for name in ("pairs", "mean", "low", "high"))
    return SpeedupBound(pairs, mean, low, high, state)
