"""Statistics in one pass and little memory: sample after sample is added, and at the end it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.monitor.lines import BusyProcess, GpuMeterSample, GpuSample
from assay.monitor.quantities import meaning, numbers
from assay.monitor.summary import Counted, Level, SourceStatistics

if TYPE_CHECKING:
    from assay.monitor.lines import Sample, TopProcesses

MOST = 5


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

    def add(self, t_ns: int, value: float) -> None:
        """Take a reading."""
        if self.last is not None:
            took_s = (t_ns - self.last[0]) / 1e9
            self.area += took_s * (value + self.last[1]) / 2
            self.lasted_s += took_s
        self.last = t_ns, value
        self.n += 1
        self.total += value
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)

    def told(self, quantity: str, unit: str) -> Level:
        """Return what was seen, of one reading or more."""
        return Level(
            quantity=quantity,
            unit=unit,
            n=self.n,
            mean=self.total / self.n,
            time_mean=self.area / self.lasted_s if self.lasted_s > 0 else None,
            minimum=self.minimum,
            maximum=self.maximum,
        )


@dataclass
class CountedTally:
    """Something that counts up, and should never go back."""

    n: int = 0
    first: tuple[int, float] | None = None
    last: tuple[int, float] | None = None
    back: float | None = None

    def add(self, t_ns: int, value: float) -> None:
        """Take a reading."""
        if self.last is not None and value < self.last[1] and self.back is None:
            self.back = self.last[1] - value
        self.first = self.first or (t_ns, value)
        self.last = t_ns, value
        self.n += 1

    def told(self, quantity: str, unit: str) -> Counted:
        """Return how far it went."""
        (start_ns, low), (end_ns, high) = self.first or (0, 0.0), self.last or (0, 0.0)
        over_s = (end_ns - start_ns) / 1e9
        known = self.back is None and over_s > 0
        return Counted(
            quantity=quantity,
            unit=unit,
            n=self.n,
            difference=high - low if known else None,
            per_s=(high - low) / over_s if known else None,
            over_s=over_s,
            note=None if self.back is None else f"the counter went back by {self.back:g} {unit}".rstrip(),
        )


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
    """All samples of one GPU or of the host; ``stride`` is how many ticks lie between two of them."""

    title: str
    stride: int
    gpu: bool
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

    def add(self, sample: Sample) -> None:
        """Take a sample; the dear counters come beside the ticks and are not counted as ticks kept."""
        if not isinstance(sample, GpuMeterSample):
            self.ticks = (self.ticks[0] if self.n else sample.tick, sample.tick)
            self.n += 1
        for quantity, value in numbers(sample):
            if meaning(quantity, gpu=self.gpu).counts:
                self.counted.setdefault(quantity, CountedTally()).add(sample.t_ns, value)
            else:
                self.levels.setdefault(quantity, LevelTally()).add(sample.t_ns, value)
        if isinstance(sample, GpuSample):
            self._hold(sample)

    def _hold(self, sample: GpuSample) -> None:
        """Let each reason count from the sample that gave it to the next."""
        if self.reasons is not None:
            since_ns, reasons = self.reasons
            took_s = (sample.t_ns - since_ns) / 1e9
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
            missed=max(0, expected - self.n),
            levels=tuple(level.told(q, meaning(q, gpu=self.gpu).unit) for q, level in self.levels.items()),
            counted=tuple(counted.told(q, meaning(q, gpu=self.gpu).unit) for q, counted in self.counted.items()),
            throttle_share={reason: held / self.held_s for reason, held in self.held.items() if self.held_s > 0},
            most_processes=self.most_processes,
            ended=self.ended,
        )
