"""Statistics of a recording or of windows of it, in one pass over its lines and with little memory.

mean            of the samples
time mean       of the straight lines between samples: also correct where ticks were missed
difference      of a counter: the last reading minus the first, over the time between the two

`summarise_windows` returns what a record holds of the windows in which a trial was timed: levels, throttling, and the
interference of other programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.results import GpuWindowStats, Interference, Note, Origin, WindowStats
from assay.core.values import SCHEMA_VERSION, Value
from assay.machine.interference import hypervisor_interference
from assay.monitor.samples import (
    POWER_QUANTITIES,
    BusyProcess,
    GpuLost,
    GpuMeterSample,
    GpuProcesses,
    GpuSample,
    Heartbeat,
    HostSample,
    Mark,
    RecordingEnd,
    RecordingHeader,
    TopProcesses,
    quantity_info,
    sample_values,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.monitor.samples import RecordingLine, Sample


class LevelStatistics(Value):
    """Statistics of a quantity that goes up and down."""

    quantity: str
    unit: str
    n: int = Field(description="Samples that had it; the statistics are of these alone.")
    mean: float
    time_mean: float | None = Field(description="Weighted by time, without gaps; null: of one sample.")
    minimum: float
    maximum: float
    silent_s: float = Field(default=0.0, description="From when it was last read to the last sample.")


class CounterStatistics(Value):
    """Increase of a cumulative quantity from the first sample to the last."""

    quantity: str
    unit: str
    n: int
    difference: float | None = Field(description="Null: one sample, it decreased, or too few ticks.")
    per_s: float | None
    over_s: float = Field(description="From the first sample to the last.")
    note: str | None = None
    silent_s: float = Field(default=0.0, description="From when it was last read to the last sample.")


class SourceStatistics(Value):
    """Statistics of the samples of one GPU or of the host."""

    source: str = Field(description="gpu:0 or host")
    title: str
    uuid: str | None = None
    n: int
    lasted_s: float = Field(default=0.0, description="From the first sample to the last.")
    missed: int = Field(description="Samples that should lie between the first and the last and do not.")
    levels: tuple[LevelStatistics, ...] = ()
    counted: tuple[CounterStatistics, ...] = ()
    throttle_share: dict[str, float] = Field(
        default_factory=dict, description="Share of the time in which the clock was throttled for a reason."
    )
    most_processes: int | None = None
    ended: str | None = Field(default=None, description="Why it stopped answering.")

    def level(self, quantity: str) -> LevelStatistics | None:
        """Return the statistics of a level; null where there are none."""
        return next((level for level in self.levels if level.quantity == quantity), None)

    def difference(self, quantity: str) -> float | None:
        """Return a counter's difference; null where it is unknown."""
        counted = self.counter(quantity)
        return None if counted is None else counted.difference

    def counter(self, quantity: str) -> CounterStatistics | None:
        """Return the statistics of a counter; null where there are none."""
        return next((counted for counted in self.counted if counted.quantity == quantity), None)


class GpuTotals(Value):
    """All GPUs together. Null: not every GPU provides the quantity."""

    peak_power_w: float | None = Field(description="The highest sum of their power at one tick.")
    peak_power_of: str | None = Field(description="Which readings were summed: of each GPU the one that follows best.")
    energy_j: float | None = Field(
        description="The sum of their counter differences; null also where these are not of the same time."
    )


class MarkedSpan(Value):
    """A named moment or span, in s since the recording began."""

    name: str
    start_s: float
    end_s: float | None


class MonitorStatistics(Value):
    """Statistics of a recording, or of a window of it."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    started_at_ns: int = Field(description="Monotonic, of the first sample.")
    wall_ns: int = Field(description="Since 1970, at the same moment.")
    lasted_s: float
    interval_s: float
    sources: tuple[SourceStatistics, ...]
    together: GpuTotals
    marks: tuple[MarkedSpan, ...] = ()
    busiest: tuple[BusyProcess, ...] = Field(default=(), description="Mean over all samples.")
    notes: tuple[str, ...] = ()
    finished: bool = Field(description="Whether the recording was ended in good order.")
    partial: bool = Field(default=False, description="Whether a GPU was lost before the end.")
    origin: Origin

    def of(self, source: str) -> SourceStatistics | None:
        """Return the statistics of one source; null where there is none."""
        return next((candidate for candidate in self.sources if candidate.source == source), None)


MAX_TOP_PROCESSES = 5
MIN_ENERGY_TICKS = 4
ENERGY_TICK_S = 0.1
"""An energy counter must have ticked this often between two readings; most tick ten times a second or faster."""


@dataclass
class RunningLevel:
    """A quantity that goes up and down."""

    n: int = 0
    total: float = 0.0
    area: float = 0.0
    lasted_s: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    last: tuple[int, float] | None = None

    def add(self, t_ns: int, value: float, gap_ns: float = math.inf) -> None:
        """Add a reading; gaps longer than ``gap_ns`` are not interpolated."""
        if self.last is not None and t_ns - self.last[0] <= gap_ns:
            took_s = (t_ns - self.last[0]) / 1e9
            self.area += took_s * (value + self.last[1]) / 2
            self.lasted_s += took_s
        self.last = t_ns, value
        self.n += 1
        self.total += value
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)

    def result(self, quantity: str, unit: str, until_ns: int) -> LevelStatistics:
        """Return the statistics, of at least one reading."""
        return LevelStatistics(
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
class RunningCounter:
    """A cumulative quantity, which should never decrease."""

    n: int = 0
    first: tuple[int, float] | None = None
    last: tuple[int, float] | None = None
    back: float | None = None
    ticks: int = 0
    """How often a reading was higher than the previous one."""

    def add(self, t_ns: int, value: float) -> None:
        """Add a reading."""
        if self.last is not None and value < self.last[1] and self.back is None:
            self.back = self.last[1] - value
        self.ticks += self.last is not None and value > self.last[1]
        self.first = self.first or (t_ns, value)
        self.last = t_ns, value
        self.n += 1

    def result(self, quantity: str, unit: str, until_ns: int, fewest: int = 0) -> CounterStatistics:
        """Return the increase; null if the counter decreased, or may have ticked fewer than ``fewest`` times."""
        (start_ns, low), (end_ns, high) = self.first or (0, 0.0), self.last or (0, 0.0)
        over_s = (end_ns - start_ns) / 1e9
        few = fewest > 0 and self.ticks < fewest and over_s < fewest * ENERGY_TICK_S
        is_known = self.back is None and over_s > 0 and not few
        return CounterStatistics(
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
    """Return the time in s before the last sample in which the quantity was not read."""
    return 0.0 if last is None else max(0.0, (until_ns - last[0]) / 1e9)


@dataclass
class RunningTopProcesses:
    """The processes that used most CPU time, over all samples."""

    sample_count: int = 0
    used: dict[tuple[int, str], tuple[float, tuple[int, ...] | None]] = field(default_factory=dict)

    def add(self, top: TopProcesses) -> None:
        """Add a sample."""
        self.sample_count += 1
        for process in top.processes:
            before, _ = self.used.get((process.pid, process.name), (0.0, None))
            self.used[process.pid, process.name] = before + process.cores, process.cpus

    def result(self) -> tuple[BusyProcess, ...]:
        """Return the busiest, each with its mean over all samples and the CPUs it was last allowed to run on."""
        ranked = sorted(self.used.items(), key=lambda item: -item[1][0])[:MAX_TOP_PROCESSES]
        return tuple(
            BusyProcess(pid=pid, name=name, cores=cores / self.sample_count, cpus=cpus)
            for (pid, name), (cores, cpus) in ranked
        )


@dataclass
class RunningSource:
    """All samples of one GPU or of the host; ``stride`` is the number of ticks between two of them.

    What happened between two samples more than ``gap_ns`` apart is unknown, and no time mean includes it.
    """

    title: str
    stride: int
    gpu: bool
    gap_ns: float = math.inf
    uuid: str | None = None
    n: int = 0
    ticks: tuple[int, int] = (0, 0)
    levels: dict[str, RunningLevel] = field(default_factory=dict)
    counted: dict[str, RunningCounter] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    held_s: float = 0.0
    reasons: tuple[int, tuple[str, ...]] | None = None
    most_processes: int | None = None
    ended: str | None = None
    first_ns: int = 0
    last_ns: int = 0

    def add(self, sample: Sample) -> None:
        """Add a sample; expensive counters are read between ticks and do not count as ticks."""
        if not isinstance(sample, GpuMeterSample):
            self.ticks = (self.ticks[0] if self.n else sample.tick, sample.tick)
            self.n += 1
        self.first_ns = min(self.first_ns or sample.t_ns, sample.t_ns)
        self.last_ns = max(self.last_ns, sample.t_ns)
        for quantity, value in sample_values(sample):
            if quantity_info(quantity, gpu=self.gpu).counts:
                self.counted.setdefault(quantity, RunningCounter()).add(sample.t_ns, value)
            else:
                self.levels.setdefault(quantity, RunningLevel()).add(sample.t_ns, value, self.gap_ns)
        if isinstance(sample, GpuSample):
            self._add_throttle(sample)

    def _add_throttle(self, sample: GpuSample) -> None:
        """Count each reason from the sample that gave it to the next."""
        if self.reasons is not None:
            since_ns, reasons = self.reasons
            took_s = (sample.t_ns - since_ns) / 1e9
            if sample.t_ns - since_ns <= self.gap_ns:
                self.held_s += took_s
                for reason in reasons:
                    self.held[reason] = self.held.get(reason, 0.0) + took_s
        self.reasons = None if sample.throttle is None else (sample.t_ns, sample.throttle)

    def result(self, source: str) -> SourceStatistics:
        """Return the statistics of the source."""
        expected = (self.ticks[1] - self.ticks[0]) // self.stride + 1 if self.n else 0
        return SourceStatistics(
            source=source,
            title=self.title,
            uuid=self.uuid,
            n=self.n,
            lasted_s=(self.last_ns - self.first_ns) / 1e9,
            missed=max(0, expected - self.n),
            levels=tuple(
                level.result(q, quantity_info(q, gpu=self.gpu).unit, self.last_ns) for q, level in self.levels.items()
            ),
            counted=tuple(
                counted.result(
                    q, quantity_info(q, gpu=self.gpu).unit, self.last_ns, MIN_ENERGY_TICKS if q == "energy_j" else 0
                )
                for q, counted in self.counted.items()
            ),
            throttle_share={reason: held / self.held_s for reason, held in self.held.items() if self.held_s > 0},
            most_processes=self.most_processes,
            ended=self.ended,
        )


SAME_TIME_SHARE, READ_EVERY_S = 0.1, 1.0
"""Counters cover the same time if their times differ by less than this share plus one reading."""
MAX_GAP_S, GAP_INTERVALS = 3.0, 5
"""What happened between two samples more than this, and this many intervals, apart is unknown."""
JUMP_NS = 500_000_000
"""A wall clock that moves by this much against the monotonic one was set, not just disciplined."""


def summarise(lines: Iterable[RecordingLine], *, window: tuple[int, int] | None = None) -> MonitorStatistics:
    """Return the statistics of lines that start with the header; of a window, given in ns, with its own duration.

    Raises:
        BadInput: The header is missing.
    """
    running = RunningStatistics()
    for line in lines:
        running.add(line)
    return running.result(window)


class RunningStatistics:
    """The statistics accumulated in one pass."""

    def __init__(self) -> None:
        self._header: RecordingHeader | None = None
        self._sources: dict[str, RunningSource] = {}
        self._sum = _PowerSum()
        self._top = RunningTopProcesses()
        self._marks: list[Mark] = []
        self._offset_ns = 0
        self._jumps: list[str] = []
        self._last_ns = 0
        self._finished = False

    def add(self, line: RecordingLine) -> None:
        """Add a line of the recording."""
        self._last_ns = max(self._last_ns, line.t_ns)
        match line:
            case RecordingHeader():
                self._begin(line)
            case GpuSample():
                self._sources[source_of(line)].add(line)
                self._sum.add(line)
            case GpuMeterSample() | HostSample():
                self._sources[source_of(line)].add(line)
            case GpuProcesses():
                tally = self._sources[f"gpu:{line.gpu}"]
                tally.most_processes = max(line.count, tally.most_processes or 0)
            case GpuLost():
                self._sources[f"gpu:{line.gpu}"].ended = line.reason
            case TopProcesses():
                self._top.add(line)
            case Mark():
                self._marks.append(line)
            case Heartbeat() | RecordingEnd():
                self._check_clock(line)
                self._finished = self._finished or isinstance(line, RecordingEnd)

    def _begin(self, header: RecordingHeader) -> None:
        self._header = header
        self._offset_ns = header.wall_ns - header.t_ns
        self._sum.gpus = len(header.gpus)
        for gpu in header.gpus:
            title = f"GPU {gpu.index}" if gpu.name is None else f"GPU {gpu.index}, {gpu.name}"
            self._sources[f"gpu:{gpu.index}"] = RunningSource(
                title=title, stride=1, gpu=True, gap_ns=_gap_ns(header, 1), uuid=gpu.uuid
            )
        if header.host_every is not None:
            stride = header.host_every
            gap_ns = _gap_ns(header, stride)
            self._sources["host"] = RunningSource(title="Host", stride=stride, gpu=False, gap_ns=gap_ns)

    def _check_clock(self, line: Heartbeat | RecordingEnd) -> None:
        offset_ns = line.wall_ns - line.t_ns
        moved_ns = offset_ns - self._offset_ns
        if abs(moved_ns) >= JUMP_NS and self._header is not None:
            after_s = (line.t_ns - self._header.t_ns) / 1e9
            self._jumps.append(
                f"the wall clock was set by {moved_ns / 1e9:+.1f} s, {after_s:.1f} s after the start; "
                "times here are of the monotonic clock and not touched by it"
            )
        self._offset_ns = offset_ns

    def result(self, window: tuple[int, int] | None) -> MonitorStatistics:
        """Return the statistics of the lines so far."""
        header = self._header
        if header is None:
            raise BadInput("There is no header, so that it cannot be known what was recorded.")
        start_ns, end_ns = window or (header.t_ns, max(self._last_ns, header.t_ns))
        sources = tuple(tally.result(name) for name, tally in self._sources.items())
        peak_w, peak_of = self._sum.peak()
        return MonitorStatistics(
            started_at_ns=start_ns,
            wall_ns=start_ns + header.wall_ns - header.t_ns,
            lasted_s=(end_ns - start_ns) / 1e9,
            interval_s=header.interval_s,
            sources=sources,
            together=GpuTotals(
                peak_power_w=peak_w,
                peak_power_of=peak_of,
                energy_j=_total_energy_j([source for source in sources if source.source != "host"]),
            ),
            marks=tuple(
                MarkedSpan(
                    name=mark.name,
                    start_s=(mark.start_ns - header.t_ns) / 1e9,
                    end_s=None if mark.end_ns is None else (mark.end_ns - header.t_ns) / 1e9,
                )
                for mark in self._marks
            ),
            busiest=self._top.result(),
            notes=(*([f"no GPU is watched: {header.gpu_note}"] if header.gpu_note else []), *self._jumps),
            finished=self._finished,
            partial=any(source.ended for source in sources),
            origin=header.origin,
        )


def _gap_ns(header: RecordingHeader, stride: int) -> float:
    return 1e9 * max(MAX_GAP_S, GAP_INTERVALS * stride * header.interval_s)


def _total_energy_j(gpus: list[SourceStatistics]) -> float | None:
    """Return the energy of all GPUs; null if one has none, was lost, or its counter covers another time."""
    counted = [gpu.counter("energy_j") for gpu in gpus]
    counters = [counter for counter in counted if counter is not None and counter.difference is not None]
    if not counters or len(counters) < len(gpus) or any(gpu.ended for gpu in gpus):
        return None
    longest_s, shortest_s = max(counter.over_s for counter in counters), min(counter.over_s for counter in counters)
    if longest_s - shortest_s > SAME_TIME_SHARE * longest_s + READ_EVERY_S:
        return None
    return sum(counter.difference for counter in counters if counter.difference is not None)


class _PowerSum:
    """The sum of all GPUs' power per tick; a tick at which one of them has no reading does not count."""

    def __init__(self) -> None:
        self.gpus = 0
        self._tick = -1
        self._now: list[float] = []
        self._peak: float | None = None
        self._names: set[str] = set()

    def add(self, sample: GpuSample) -> None:
        if sample.tick != self._tick:
            self._close()
            self._tick = sample.tick
        name = next((name for name in POWER_QUANTITIES if getattr(sample, name) is not None), None)
        if name is not None:
            self._now.append(getattr(sample, name))
            self._names.add(name)

    def _close(self) -> None:
        if self._now and len(self._now) == self.gpus:
            self._peak = max(sum(self._now), self._peak or 0.0)
        self._now = []

    def peak(self) -> tuple[float | None, str | None]:
        """Return the highest sum and the readings it is made of; null where there is none."""
        self._close()
        return self._peak, None if self._peak is None else ", ".join(sorted(self._names))


Window = tuple[int, int]

MAX_STEAL_PERCENT = 2.0
MAX_FORCED_SHARE = 0.01
"""Share of the time throttled by heat or by the power brake. The power cap is caused by the work, and only reported."""
MAX_BUSY_PERCENT = 5.0
MAX_PCIE_MB_PER_S = 100.0
MAX_MEMORY_SHARE = 0.02
"""What a GPU does or holds before a worker of the trial could have used it belongs to another program."""

FORCED_THROTTLE_REASONS = ("hardware slowdown", "too hot (software)", "too hot (hardware)", "power brake")
THROTTLE_REASONS = (*FORCED_THROTTLE_REASONS, "power cap", "sync boost", "board limit", "reliability voltage")


@dataclass(frozen=True)
class SourceWindows:
    """Statistics of one GPU or of the host, over several windows."""

    parts: tuple[SourceStatistics, ...]

    def levels(self, quantity: str) -> list[LevelStatistics]:
        """Return the statistics of a quantity in each window."""
        return [level for part in self.parts if (level := part.level(quantity)) is not None]

    def mean(self, quantity: str) -> float | None:
        """Return the mean over all samples; null where there is none."""
        levels = self.levels(quantity)
        n = sum(level.n for level in levels)
        return sum(level.mean * level.n for level in levels) / n if n else None

    def over_time(self, quantity: str) -> float | None:
        """Return the time mean, also correct where ticks were missed; windows are weighted by their samples."""
        levels = self.levels(quantity)
        n = sum(level.n for level in levels)
        means = [level.mean if level.time_mean is None else level.time_mean for level in levels]
        return sum(mean * level.n for mean, level in zip(means, levels, strict=True)) / n if n else None

    def least(self, quantity: str) -> float | None:
        """Return the lowest value; null where there is none."""
        return min((level.minimum for level in self.levels(quantity)), default=None)

    def most(self, quantity: str) -> float | None:
        """Return the highest value; null where there is none."""
        return max((level.maximum for level in self.levels(quantity)), default=None)

    def per_s(self, *quantities: str) -> float | None:
        """Return the summed rate of the counters per second; null where no window has a difference."""
        rates = []
        for quantity in quantities:
            counted = [c for part in self.parts for c in part.counted if c.quantity == quantity]
            differences = [(c.difference, c.over_s) for c in counted if c.difference is not None]
            over_s = sum(seconds for _, seconds in differences)
            if over_s > 0:
                rates.append(sum(difference for difference, _ in differences) / over_s)
        return sum(rates) if rates else None

    def throttle_share(self) -> dict[str, float]:
        """Return the share of time throttled, by reason; windows are weighted by their samples."""
        sampled = [part for part in self.parts if part.n]
        n = sum(part.n for part in sampled)
        reasons = dict.fromkeys(reason for part in sampled for reason in part.throttle_share)
        return {r: sum(part.throttle_share.get(r, 0.0) * part.n for part in sampled) / n for r in reasons}


def summarise_windows(
    lines: Sequence[RecordingLine], timed: Sequence[Window], before: Window | None, gpus: dict[int, str]
) -> WindowStats:
    """Return the statistics of the windows in which a trial was timed.

    Args:
        lines: Of the recording: its header, and what was recorded around the trial.
        timed: Start and end of each timed window, in ns.
        before: A window in which no worker of the trial could have used a GPU; null where there was none.
        gpus: UUIDs of the GPUs in use, by index.
    """
    observed_s = sum(end_ns - start_ns for start_ns, end_ns in timed) / 1e9
    inside = _windows_by_source(lines, timed)
    earlier = _windows_by_source(lines, [before] if before is not None else [])
    totals = {gpu.index: gpu.memory_mib for line in lines if isinstance(line, RecordingHeader) for gpu in line.gpus}
    host = inside.get("host", SourceWindows(()))
    gpu_stats = tuple(
        _gpu_window_stats(n, uuid, inside[f"gpu:{n}"], observed_s) for n, uuid in gpus.items() if f"gpu:{n}" in inside
    )
    pressure, steal = host.per_s("pressure_cpu_s"), host.mean("steal_percent")
    return WindowStats(
        observed_s=observed_s,
        samples=sum(part.n for source in inside.values() for part in source.parts),
        gpus=gpu_stats,
        power_sum_max_w=_peak_w(lines, timed, gpus),
        cpu_percent=host.mean("cpu_percent"),
        steal_percent=steal,
        context_switches_per_s=host.per_s("context_switches"),
        pressure_cpu_percent=None if pressure is None else 100 * pressure,
        memory_used_mib=host.most("memory_used_mib"),
        complaints=(
            *(
                [hypervisor_interference(steal, " while it was timed")]
                if steal is not None and steal > MAX_STEAL_PERCENT
                else []
            ),
            *(item for gpu in gpu_stats for item in _gpu_interference(gpu)),
            *(
                item
                for n in gpus
                if f"gpu:{n}" in earlier
                for item in _prior_gpu_use(n, earlier[f"gpu:{n}"], totals.get(n))
            ),
        ),
    )


def _windows_by_source(lines: Sequence[RecordingLine], windows: Sequence[Window]) -> dict[str, SourceWindows]:
    """Return the statistics of each source; the host's sample after a window covers it, if there is none within."""
    header = [line for line in lines if isinstance(line, RecordingHeader)][:1]
    samples = [line for line in lines if isinstance(line, GpuSample | GpuMeterSample | HostSample)]
    by_source: dict[str, list[SourceStatistics]] = {}
    for start_ns, end_ns in windows:
        inside = [line for line in samples if start_ns <= line.t_ns <= end_ns]
        if not any(isinstance(line, HostSample) for line in inside):
            inside += [line for line in samples if isinstance(line, HostSample) and line.t_ns > end_ns][:1]
        for source in summarise([*header, *inside]).sources:
            by_source.setdefault(source.source, []).append(source)
    return {name: SourceWindows(tuple(parts)) for name, parts in by_source.items()}


def _peak_w(lines: Sequence[RecordingLine], windows: Sequence[Window], gpus: dict[int, str]) -> float | None:
    """Return the highest total power of the GPUs at one tick; ticks without a reading of each GPU do not count."""
    ticks: dict[int, dict[int, float]] = {}
    for line in lines:
        if isinstance(line, GpuSample) and line.gpu in gpus and any(a <= line.t_ns <= b for a, b in windows):
            power = next((value for name in POWER_QUANTITIES if (value := getattr(line, name)) is not None), None)
            if power is not None:
                ticks.setdefault(line.tick, {})[line.gpu] = power
    return max((sum(powers.values()) for powers in ticks.values() if len(powers) == len(gpus)), default=None)


def _gpu_window_stats(number: int, uuid: str, windows: SourceWindows, observed_s: float) -> GpuWindowStats:
    power = next((name for name in POWER_QUANTITIES if windows.levels(name)), "")
    shares = windows.throttle_share()
    throttled = max((share for reason, share in shares.items() if reason in THROTTLE_REASONS), default=0.0)
    traffic = windows.per_s("pcie_tx_bytes", "pcie_rx_bytes")
    return GpuWindowStats(
        gpu=number,
        uuid=uuid,
        samples=sum(part.n for part in windows.parts),
        power_samples=sum(level.n for level in windows.levels(power)),
        power_w=windows.over_time(power),
        power_max_w=windows.most(power),
        sm_mhz_low=windows.least("sm_mhz"),
        sm_mhz_high=windows.most("sm_mhz"),
        temperature_c=windows.most("temperature_c"),
        utilisation_percent=windows.over_time("utilisation_percent"),
        utilisation_max_percent=windows.most("utilisation_percent"),
        memory_used_mib=windows.most("memory_used_mib"),
        throttled_s=throttled * observed_s if any(part.n for part in windows.parts) else None,
        throttle_share=shares,
        pcie_mb_per_s=None if traffic is None else traffic / 1e6,
        temperature_mean_c=windows.over_time("temperature_c"),
        sm_mhz_mean=windows.over_time("sm_mhz"),
    )


def missing_power_notes(stats: WindowStats | None) -> list[Note]:
    """Report the GPUs of which only some samples had power: their mean and maximum cover only these."""
    return [
        Note.warning(
            "power_partly_missing",
            f"GPU {gpu.gpu}: {gpu.power_samples} of {gpu.samples} samples include power",
            gpu=gpu.gpu,
            samples=gpu.samples,
            power_samples=gpu.power_samples,
        )
        for gpu in (() if stats is None else stats.gpus)
        if gpu.samples and gpu.power_samples is not None and gpu.power_samples < gpu.samples
    ]


def _gpu_interference(stats: GpuWindowStats) -> list[Interference]:
    forced = {
        r: share
        for r, share in stats.throttle_share.items()
        if r in FORCED_THROTTLE_REASONS and share > MAX_FORCED_SHARE
    }
    return [
        Interference(
            kind="gpu_throttled",
            source=f"GPU {stats.gpu} throttled, {reason}",
            amount=100 * share,
            unit="%",
            message=f"GPU {stats.gpu} was throttled for {share:.0%} of the time: {reason}",
        )
        for reason, share in forced.items()
    ]


def _prior_gpu_use(gpu: int, windows: SourceWindows, memory_mib: float | None) -> list[Interference]:
    """Return a GPU's activity before any worker of the trial could have used it."""
    interference = []
    name, before = f"GPU {gpu}", "before a worker of the trial came"
    busy, used = windows.mean("utilisation_percent"), windows.least("memory_used_mib")
    traffic = windows.per_s("pcie_tx_bytes", "pcie_rx_bytes")
    if busy is not None and busy > MAX_BUSY_PERCENT:
        message = f"{name} was busy for {busy:.0f} % of the time {before}"
        interference.append(
            Interference(kind="gpu_busy", source=f"other work on {name}", amount=busy, unit="%", message=message)
        )
    if used is not None and memory_mib is not None and used > MAX_MEMORY_SHARE * memory_mib:
        message = f"{used:.0f} MiB of {name} were taken {before}"
        interference.append(
            Interference(kind="gpu_memory", source=f"memory taken on {name}", amount=used, unit="MiB", message=message)
        )
    if traffic is not None and traffic / 1e6 > MAX_PCIE_MB_PER_S:
        message = f"{traffic / 1e6:.0f} MB/s went over the PCIe of {name} {before}"
        source = f"PCIe traffic of {name}"
        interference.append(
            Interference(kind="pcie", source=source, amount=traffic / 1e6, unit="MB/s", message=message)
        )
    return interference
