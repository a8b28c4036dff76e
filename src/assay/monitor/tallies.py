"""Statistics in one pass and little memory: sample after sample is added, and at the end it is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.monitor.lines import BusyProcess, GpuMeterSample, GpuSample
from assay.monitor.quantities import meaning, numbers
from assay.monitor.summary import Counted, Level, SourceStatistics

if TYPE_CHECKING:
    from assay.monitor.lines import Sample, TopProcesses

MOST = 5
FEWEST_TICKS = 4
TICK_S = 0.1
"""An energy counter must have ticked so often between two readings; most tick ten times a second or faster."""


@dataclass
class LevelTally:
    """Something that goes up and down."""

    n: int = 0
    total: float = 0.0
    area: float = 0.0
    lasted_s: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    last: tuple[int, float] | None = None

    def add(self, t_ns: int, value: float, gap_ns: float = math.inf) -> None:
        """Take a reading; no line leads over a gap longer than ``gap_ns``."""
        if self.last is not None and t_ns - self.last[0] <= gap_ns:
            took_s = (t_ns - self.last[0]) / 1e9
            self.area += took_s * (value + self.last[1]) / 2
            self.lasted_s += took_s
        self.last = t_ns, value
        self.n += 1
        self.total += value
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)

    def told(self, quantity: str, unit: str, until_ns: int) -> Level:
        """Return what was seen, of one reading or more."""
        return Level(
            quantity=quantity,
            unit=unit,
            n=self.n,
            mean=self.total / self.n,
            time_mean=self.area / self.lasted_s if self.lasted_s > 0 else None,
            minimum=self.minimum,
            maximum=self.maximum,
            silent_s=_silent_s(self.last, until_ns),
        )


@dataclass
class CountedTally:
    """Something that counts up, and should never go back."""

    n: int = 0
    first: tuple[int, float] | None = None
    last: tuple[int, float] | None = None
    back: float | None = None
    ticks: int = 0
    """How often a reading was higher than the one before."""

    def add(self, t_ns: int, value: float) -> None:
        """Take a reading."""
        if self.last is not None and value < self.last[1] and self.back is None:
            self.back = self.last[1] - value
        self.ticks += self.last is not None and value > self.last[1]
        self.first = self.first or (t_ns, value)
        self.last = t_ns, value
        self.n += 1

    def told(self, quantity: str, unit: str, until_ns: int, fewest: int = 0) -> Counted:
        """Return how far it went; null where it moved fewer than ``fewest`` times, or not known that often."""
        (start_ns, low), (end_ns, high) = self.first or (0, 0.0), self.last or (0, 0.0)
        over_s = (end_ns - start_ns) / 1e9
        few = fewest > 0 and self.ticks < fewest and over_s < fewest * TICK_S
        is_known = self.back is None and over_s > 0 and not few
        return Counted(
            quantity=quantity,
            unit=unit,
            n=self.n,
            difference=high - low if is_known else None,
            per_s=(high - low) / over_s if is_known else None,
            over_s=over_s,
            note=self._note(unit, few=few, over_s=over_s, fewest=fewest),
            silent_s=_silent_s(self.last, until_ns),
        )

    def _note(self, unit: str, *, few: bool, over_s: float, fewest: int) -> str | None:
        if self.back is not None:
            return f"the counter went back by {self.back:g} {unit}".rstrip()
        if few:
            return f"{over_s:.2g} s are too short for the energy counter: it must tick {fewest} times at least"
        return None


def _silent_s(last: tuple[int, float] | None, until_ns: int) -> float:
    """Return for how long before the last sample nothing was read."""
    return 0.0 if last is None else max(0.0, (until_ns - last[0]) / 1e9)


@dataclass
class TopTally:
    """Who used most CPU time, over all looks."""

    looks: int = 0
    used: dict[tuple[int, str], tuple[float, tuple[int, ...] | None]] = field(default_factory=dict)

    def add(self, top: TopProcesses) -> None:
        """Take a look."""
        self.looks += 1
        for one in top.processes:
            before, _ = self.used.get((one.pid, one.name), (0.0, None))
            self.used[one.pid, one.name] = before + one.cores, one.cpus

    def told(self) -> tuple[BusyProcess, ...]:
        """Return the busiest, each with its mean over all looks and where it was allowed to run at last."""
        ranked = sorted(self.used.items(), key=lambda item: -item[1][0])[:MOST]
        return tuple(
            BusyProcess(pid=pid, name=name, cores=cores / self.looks, cpus=cpus)
            for (pid, name), (cores, cpus) in ranked
        )


@dataclass
class SourceTally:
    """All samples of one GPU or of the host; ``stride`` is how many ticks lie between two of them.

    What was between two samples further apart than ``gap_ns`` is not known, and no mean over time counts it.
    """

    title: str
    stride: int
    gpu: bool
    gap_ns: float = math.inf
    uuid: str | None = None
    n: int = 0
    ticks: tuple[int, int] = (0, 0)
    levels: dict[str, LevelTally] = field(default_factory=dict)
    counted: dict[str, CountedTally] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    held_s: float = 0.0
    reasons: tuple[int, tuple[str, ...]] | None = None
    most_processes: int | None = None
    ended: str | None = None
    first_ns: int = 0
    last_ns: int = 0

    def add(self, sample: Sample) -> None:
        """Take a sample; the dear counters come beside the ticks and are not counted as ticks kept."""
        if not isinstance(sample, GpuMeterSample):
            self.ticks = (self.ticks[0] if self.n else sample.tick, sample.tick)
            self.n += 1
        self.first_ns = min(self.first_ns or sample.t_ns, sample.t_ns)
        self.last_ns = max(self.last_ns, sample.t_ns)
        for quantity, value in numbers(sample):
            if meaning(quantity, gpu=self.gpu).counts:
                self.counted.setdefault(quantity, CountedTally()).add(sample.t_ns, value)
            else:
                self.levels.setdefault(quantity, LevelTally()).add(sample.t_ns, value, self.gap_ns)
        if isinstance(sample, GpuSample):
            self._hold(sample)

    def _hold(self, sample: GpuSample) -> None:
        """Let each reason count from the sample that gave it to the next."""
        if self.reasons is not None:
            since_ns, reasons = self.reasons
            took_s = (sample.t_ns - since_ns) / 1e9
            if sample.t_ns - since_ns <= self.gap_ns:
                self.held_s += took_s
                for reason in reasons:
                    self.held[reason] = self.held.get(reason, 0.0) + took_s
        self.reasons = None if sample.throttle is None else (sample.t_ns, sample.throttle)

    def told(self, source: str) -> SourceStatistics:
        """Return what the samples say."""
        expected = (self.ticks[1] - self.ticks[0]) // self.stride + 1 if self.n else 0
        return SourceStatistics(
            source=source,
            title=self.title,
            uuid=self.uuid,
            n=self.n,
            lasted_s=(self.last_ns - self.first_ns) / 1e9,
            missed=max(0, expected - self.n),
            levels=tuple(
                level.told(q, meaning(q, gpu=self.gpu).unit, self.last_ns) for q, level in self.levels.items()
            ),
            counted=tuple(
                counted.told(q, meaning(q, gpu=self.gpu).unit, self.last_ns, FEWEST_TICKS if q == "energy_j" else 0)
                for q, counted in self.counted.items()
            ),
            throttle_share={reason: held / self.held_s for reason, held in self.held.items() if self.held_s > 0},
            most_processes=self.most_processes,
            ended=self.ended,
        )
