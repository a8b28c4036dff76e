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

from assay.experiments.threshold.options import MIN_BLOCKS, TIME_KINDS
from assay.stats.crossover import SpeedupBound, bound_speedup, decide_threshold, variance_between_processes
from assay.timing.interleaved import TINY_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Parity, Record, SubjectFacts
    from assay.experiments.threshold.options import DecideOn, GridPoint, Threshold, TimeKind
    from assay.stats.crossover import ThresholdDecision
    from assay.store.records import Records


DOES_NOT_WORK = SpeedupBound(0, -math.inf, -math.inf, -math.inf, "fails")
"""Of a point where the fast path does not work: no speed-up can be worse."""

NO_INTERVAL_FACTOR = 1.25
"""A speed-up without an interval counts only where it is so many times above the margin, or below it."""


@dataclass(frozen=True)
class JudgedPoint:
    """A point: what is known of it, and what that says by each time and by what is decided on."""

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


def judge_threshold(
    threshold: Threshold, observations: Sequence[PointObservations], decide_on: DecideOn
) -> JudgedThreshold:
    """Return what is known about a threshold."""
    between = {time: variance_between_processes([point.logs(time) for point in observations]) for time in TIME_KINDS}
    points = tuple(_judge_point(point, threshold.margin, between, decide_on) for point in observations)
    cells = tuple(_build_cells(threshold, points))
    times_taken = {time for point in observations for time in point.times}
    return JudgedThreshold(
        threshold,
        points,
        cells,
        decide_threshold([cell.decisive for cell in cells]),
        {
            time: decide_threshold([cell.bounds[time] for cell in cells]) if time in times_taken else None
            for time in TIME_KINDS
        },
    )


def _judge_point(
    observations: PointObservations, margin: float, between: Mapping[TimeKind, float], decide_on: DecideOn
) -> JudgedPoint:
    if observations.failure is not None:
        return JudgedPoint(observations, dict.fromkeys(TIME_KINDS, DOES_NOT_WORK), DOES_NOT_WORK)
    if observations.single is not None:
        alone = bound_without_interval(observations.single, margin)
        return JudgedPoint(observations, {"call": alone, "span": None}, alone)
    bounds = {time: bound_speedup(observations.logs(time), margin, between[time]) for time in TIME_KINDS}
    counted = observations.times if decide_on == "cautious" else (decide_on,)
    return JudgedPoint(observations, bounds, worst_bound([bounds[time] for time in counted]))


def bound_without_interval(log: float, margin: float) -> SpeedupBound:
    """Return what a speed-up says that has no interval: something only where it is far from the margin."""
    low, high, edge = log - math.log(NO_INTERVAL_FACTOR), log + math.log(NO_INTERVAL_FACTOR), math.log(margin)
    return SpeedupBound(1, log, low, high, "clears" if low > edge else "fails" if high < edge else "open")


def _build_cells(threshold: Threshold, points: Sequence[JudgedPoint]) -> Iterable[SizeCell]:
    for size in threshold.sizes:
        within = [
            number
            for number, point in enumerate(threshold.points)
            if point.size == size and points[number].observations.refused is None
        ]
        if within:
            yield SizeCell(
                size,
                tuple(within),
                {time: worst_bound([points[number].bounds[time] for number in within]) for time in TIME_KINDS},
                worst_bound([points[number].decisive for number in within]),
                _count_processes([points[number] for number in within]),
            )


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
    return SpeedupBound(
        min(item.pairs for item in present),
        min(item.mean for item in present),
        min(item.low for item in present),
        min(item.high for item in present),
        state,
    )


if TYPE_CHECKING:
    Samples = NDArray[np.float64]

TIME_QUANTITIES: dict[TimeKind, tuple[str, ...]] = {"call": ("call_us",), "span": ("span_us", "busy_us")}
"""By what each time is told, the best first; both of a pair must have the same."""


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

    def logs(self, time: TimeKind) -> list[Samples]:
        """Return the log speed-ups of each process by one time."""
        return [measurement.times[time].logs for measurement in self.measurements if time in measurement.times]

    def sides(self, time: TimeKind) -> PathTimes | None:
        """Return what all processes took together by one time; null where it was not taken."""
        path_times = [measurement.times[time] for measurement in self.measurements if time in measurement.times]
        if not path_times:
            return None
        return PathTimes(
            np.concatenate([times.reference_us for times in path_times]),
            np.concatenate([times.fast_us for times in path_times]),
        )

    @property
    def times(self) -> tuple[TimeKind, ...]:
        """The times that were taken of it."""
        return tuple(time for time in TIME_KINDS if any(time in measurement.times for measurement in self.measurements))


@dataclass
class GridObservations:
    """What is known of every point, by threshold and point."""

    points: dict[tuple[int, int], PointObservations] = field(default_factory=dict)

    def points_of(self, threshold: int, count: int) -> list[PointObservations]:
        """Return what is known of the points of a threshold, in order."""
        return [self.points.get((threshold, point), PointObservations()) for point in range(count)]

    def add_record(self, chosen: Iterable[tuple[int, int]], record: Record, records: Records) -> None:
        """Add a record whose pairs are these points."""
        if record.status != "ok":
            return
        facts = record.evidence[0].subjects if record.evidence else ()
        series = _pair_series(record, records)
        for pair, index in enumerate(chosen):
            before = self.points.get(index, PointObservations())
            both = (facts[2 * pair], facts[2 * pair + 1]) if 2 * pair + 1 < len(facts) else None
            self.points[index] = _add_process(before, record.trial, both, _pair_times(series, pair))


def _pair_series(record: Record, records: Records) -> dict[tuple[int, str], Samples]:
    quantities = {quantity for names in TIME_QUANTITIES.values() for quantity in names}
    return {(s.subject, s.quantity): records.samples(s) for s in record.series if s.quantity in quantities}


def _pair_times(series: Mapping[tuple[int, str], Samples], pair: int) -> dict[TimeKind, PathTimes]:
    """Return the times that both of a pair have."""
    result: dict[TimeKind, PathTimes] = {}
    for time, names in TIME_QUANTITIES.items():
        for quantity in names:
            reference, fast = series.get((2 * pair, quantity)), series.get((2 * pair + 1, quantity))
            if reference is not None and fast is not None and len(reference):
                result[time] = PathTimes(reference, fast)
                break
    return result


def _add_process(
    before: PointObservations,
    trial: str,
    facts: tuple[SubjectFacts, SubjectFacts] | None,
    times: Mapping[TimeKind, PathTimes],
) -> PointObservations:
    """Return what is known of a point with one more process."""
    if facts is None or not facts[0].is_reached:
        return before
    reference, fast = facts
    checked_facts = (*before.checked, *([fast] if fast.parity is not None else []))
    measurements = (*before.measurements, PointMeasurement(trial, times)) if times else before.measurements
    missing = reference.skipped or fast.skipped
    if missing is None or measurements:
        return PointObservations(measurements, facts=facts, checked=checked_facts)
    if reference.skipped is not None or missing.code == "out_of_memory":
        return PointObservations((), refused=missing.detail, facts=facts, checked=checked_facts)
    return PointObservations((), failure=missing.detail, facts=facts, checked=checked_facts)


ParityState = Literal["passed", "failed", "skipped"]


def point_parity(observations: PointObservations) -> ParityState:
    """Return what the checks of one point say together."""
    checks = [facts.parity for facts in observations.checked if facts.parity is not None]
    if any(check.passed is False for check in checks):
        return "failed"
    return "passed" if checks and all(check.passed for check in checks) else "skipped"


def threshold_parity(judged_threshold: JudgedThreshold) -> ParityState:
    """Return what the checks of a threshold say: passed only if every point that was measured passed."""
    states = {point_parity(point.observations) for point in judged_threshold.points if point.observations.measured}
    if any(point_parity(point.observations) == "failed" for point in judged_threshold.points):
        return "failed"
    return "passed" if states == {"passed"} else "skipped"


def list_unpassed_points(judged_threshold: JudgedThreshold) -> Iterable[tuple[GridPoint, Parity | None]]:
    """Give the points that did not pass, each with the check that says why; null where there was none."""
    for point, judged_point in zip(judged_threshold.threshold.points, judged_threshold.points, strict=True):
        if point_parity(judged_point.observations) == "passed" or not (
            judged_point.observations.measured or judged_point.observations.checked
        ):
            continue
        failed = [
            facts.parity
            for facts in judged_point.observations.checked
            if facts.parity is not None and not facts.parity.passed
        ]
        yield point, failed[0] if failed else None
