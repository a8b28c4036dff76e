"""What was seen of each phase of each cell: one window of one process each, with its samples, joules and facts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.metered import Draw, mean_spread, rate_spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.core.results import Estimate, Record, Stage, SubjectFacts
    from assay.experiments.energy.phases import Place
    from assay.stats.summary import Samples
    from assay.store.records import Records

NEVER_CAME = "its turn did not come before the time was up"
NOTHING = np.empty(0)


@dataclass(frozen=True)
class Seen:
    """One window: a place, in one process of a record. ``facts`` are what its worker found out about it."""

    place: Place
    record: Record
    stage: Stage
    facts: SubjectFacts | None
    series: Mapping[str, Samples] = field(repr=False)

    @property
    def process(self) -> tuple[str, int, int]:
        """Which process it was."""
        return self.record.trial, self.record.take, self.stage.restart

    @property
    def window_s(self) -> float:
        """How long it was, from its first call's start to its last one's end."""
        return (self.stage.end_ns - self.stage.start_ns) / 1e9

    def samples(self, name: str) -> Samples:
        """Return what calls reported under a name, in order; nothing where they did not."""
        return self.series.get(name, NOTHING)

    def count(self, *names: str) -> float:
        """Return what calls counted under some names, all of them together."""
        return math.fsum(float(self.samples(name).sum()) for name in names)

    def draw(self, value: float, share: float | None, *counted: str) -> Draw:
        """Return a value that was counted over its calls, with how far the sensor and the calls leave it open."""
        return Draw(value, share, self.stage.calls, self.spread(*counted))

    def spread(self, *counted: str) -> float | None:
        """Return how far its calls leave open how much is made in a time; half an interval, as a share.

        Of a single call, from how its tokens followed each other. Null where that was not seen either.
        """
        times = self.samples("call_us")
        counts = [samples for name in counted if len(samples := self.samples(name)) == len(times)]
        if not counts:
            return None
        if len(times) == 1:
            return mean_spread(self.samples("gap_us"))
        return rate_spread(np.sum(counts, axis=0), times)

    def fact(self, name: str) -> float | None:
        """Return a number that the worker found out; null where it did not."""
        measured = self.facts.measured if self.facts is not None else None
        value = None if measured is None else measured.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def host_energy(self) -> Estimate | None:
        """What processors and their memory spent meanwhile; null where it is not told."""
        parts = [energy for name, energy in self.stage.host_energy.items() if name.startswith("package")]
        if not parts:
            return None
        value = math.fsum(part.value for part in parts)
        off = math.fsum(part.value - part.low for part in parts if part.low is not None)
        return parts[0].model_copy(update={"value": value, "low": value - off, "high": value + off})


@dataclass(frozen=True)
class Missed:
    """A place that a process did not measure, or not to its end, and why."""

    place: Place
    record: Record
    restart: int
    reason: str
    reached: bool = True


@dataclass(frozen=True)
class Gathered:
    """All windows, all that was missed, and the records they are of."""

    seen: tuple[Seen, ...]
    missed: tuple[Missed, ...]
    records: tuple[Record, ...]


def gather(taken: Iterable[tuple[tuple[Place, ...], Record]], records: Records) -> Gathered:
    """Return what records say, each given with the places of its subjects."""
    windows: list[Seen] = []
    missed: list[Missed] = []
    pairs = list(taken)
    for phases, record in pairs:
        facts = {(e.restart, f.subject): f for e in record.evidence if e.rank == 0 for f in e.subjects}
        of_stages = _by_stage(record, records)
        for stage in record.stages:
            key = stage.restart, stage.subject
            windows.append(Seen(phases[stage.subject], record, stage, facts.get(key), of_stages.get(key, {})))
        for (restart, subject), facts_of_subject in facts.items():
            if facts_of_subject.left_out is not None:
                reason = facts_of_subject.left_out if facts_of_subject.reached else (record.reason or NEVER_CAME)
                missed.append(Missed(phases[subject], record, restart, reason, facts_of_subject.reached))
    return Gathered(tuple(windows), tuple(missed), tuple(record for _, record in pairs))


def _by_stage(record: Record, records: Records) -> dict[tuple[int, int], dict[str, Samples]]:
    """Return the samples of each stage by their names; of ranks those of the first, where tokens arrive."""
    by_stage: dict[tuple[int, int], dict[str, Samples]] = {}
    for series in record.series:
        if series.rank == 0:
            by_stage.setdefault((series.restart, series.subject), {})[series.quantity] = records.samples(series)
    return by_stage
