"""What processes measured of each point: log speed-ups round by round, and what was found out about the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.threshold.options import TIMES
from assay.timing.turns import TINY_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from assay.core.results import Record, SubjectFacts
    from assay.experiments.threshold.options import Time
    from assay.store.records import Records

    Samples = NDArray[np.float64]

QUANTITIES: dict[Time, tuple[str, ...]] = {"call": ("call_us",), "span": ("span_us", "busy_us")}
"""By what each time is told, the best first; both of a pair must have the same."""

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Sides:
    """What a point's reference and its fast path took in one process, in microseconds, round by round."""

    reference_us: Samples
    fast_us: Samples

    @property
    def logs(self) -> Samples:
        """The logarithms of the speed-ups."""
        logs: Samples = np.log(np.maximum(self.reference_us, TINY_US) / np.maximum(self.fast_us, TINY_US))
        return logs


@dataclass(frozen=True)
class Taken:
    """One process's measurement of a point."""

    trial: str
    times: Mapping[Time, Sides]


@dataclass(frozen=True)
class Seen:
    """All that is known of a point.

    Attributes:
        taken: What each process measured.
        refused: Why it cannot be measured here, and so does not count; null where it can.
        cannot: Why the fast path does not work there though the reference does; null where it does.
        facts: What the latest process found out about the reference and the fast path.
        checked: What the processes found out about the fast path where they looked at its results.
        single: The logarithm of a speed-up that an older file has, without any interval; null otherwise.
    """

    taken: tuple[Taken, ...] = ()
    refused: str | None = None
    cannot: str | None = None
    facts: tuple[SubjectFacts, SubjectFacts] | None = None
    checked: tuple[SubjectFacts, ...] = ()
    single: float | None = None

    @property
    def measured(self) -> bool:
        """Whether a speed-up is known of it."""
        return bool(self.taken) or self.single is not None

    def logs(self, time: Time) -> list[Samples]:
        """Return the log speed-ups of each process by one time."""
        return [measurement.times[time].logs for measurement in self.taken if time in measurement.times]

    def sides(self, time: Time) -> Sides | None:
        """Return what all processes took together by one time; null where it was not taken."""
        path_times = [measurement.times[time] for measurement in self.taken if time in measurement.times]
        if not path_times:
            return None
        return Sides(
            np.concatenate([times.reference_us for times in path_times]),
            np.concatenate([times.fast_us for times in path_times]),
        )

    @property
    def told(self) -> tuple[Time, ...]:
        """The times that were taken of it."""
        return tuple(time for time in TIMES if any(time in measurement.times for measurement in self.taken))


@dataclass
class Gathered:
    """What is known of every point, by threshold and point."""

    points: dict[tuple[int, int], Seen] = field(default_factory=dict)

    def of(self, threshold: int, count: int) -> list[Seen]:
        """Return what is known of the points of a threshold, in order."""
        return [self.points.get((threshold, point), Seen()) for point in range(count)]

    def add(self, chosen: Iterable[tuple[int, int]], record: Record, records: Records) -> None:
        """Add a record whose pairs are these points."""
        if record.status != "ok":
            return
        facts = record.evidence[0].subjects if record.evidence else ()
        series = _series(record, records)
        for pair, index in enumerate(chosen):
            before = self.points.get(index, Seen())
            both = (facts[2 * pair], facts[2 * pair + 1]) if 2 * pair + 1 < len(facts) else None
            self.points[index] = _with(before, record.trial, both, _times(series, pair))


def _series(record: Record, records: Records) -> dict[tuple[int, str], Samples]:
    quantities = {quantity for names in QUANTITIES.values() for quantity in names}
    return {(s.subject, s.quantity): records.samples(s) for s in record.series if s.quantity in quantities}


def _times(series: Mapping[tuple[int, str], Samples], pair: int) -> dict[Time, Sides]:
    """Return the times that both of a pair have."""
    result: dict[Time, Sides] = {}
    for time, names in QUANTITIES.items():
        for quantity in names:
            reference, fast = series.get((2 * pair, quantity)), series.get((2 * pair + 1, quantity))
            if reference is not None and fast is not None and len(reference):
                result[time] = Sides(reference, fast)
                break
    return result


def _with(
    before: Seen, trial: str, facts: tuple[SubjectFacts, SubjectFacts] | None, times: Mapping[Time, Sides]
) -> Seen:
    """Return what is known of a point with one more process."""
    if facts is None or not facts[0].reached:
        return before
    reference, fast = facts
    checked_facts = (*before.checked, *([fast] if fast.parity is not None else []))
    measurements = (*before.taken, Taken(trial, times)) if times else before.taken
    why = reference.left_out or fast.left_out
    if why is None or measurements:
        return Seen(measurements, facts=facts, checked=checked_facts)
    lacking = reference.left_out is not None or why.startswith(OUT_OF_MEMORY)
    return Seen(
        (), refused=why if lacking else None, cannot=None if lacking else why, facts=facts, checked=checked_facts
    )
