"""Sensor statistics of the windows in which a trial was timed, and the interference seen in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import GpuWindowStats, Interference, Note, WindowStats
from assay.machine.interference import hypervisor_interference
from assay.monitor.samples import POWER_QUANTITIES, GpuMeterSample, GpuSample, HostSample, RecordingHeader
from assay.monitor.statistics import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.monitor.samples import RecordingLine
    from assay.monitor.statistics import LevelStatistics, SourceStatistics

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
    pressure = host.per_s("pressure_cpu_s")
    return WindowStats(
        observed_s=observed_s,
        samples=sum(part.n for source in inside.values() for part in source.parts),
        gpus=gpu_stats,
        power_sum_max_w=_peak_w(lines, timed, gpus),
        cpu_percent=host.mean("cpu_percent"),
        steal_percent=host.mean("steal_percent"),
        context_switches_per_s=host.per_s("context_switches"),
        pressure_cpu_percent=None if pressure is None else 100 * pressure,
        memory_used_mib=host.most("memory_used_mib"),
        complaints=(
            *_host_interference(host.mean("steal_percent")),
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
    header = [line for line in lines if isinstance(line, RecordingHeader)][:1]
    by_source: dict[str, list[SourceStatistics]] = {}
    for start_ns, end_ns in windows:
        inside = [line for line in lines if _is_sample(line) and start_ns <= line.t_ns <= end_ns]
        if not any(isinstance(line, HostSample) for line in inside):
            inside += _next_host_sample(lines, end_ns)
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


def _next_host_sample(lines: Sequence[RecordingLine], end_ns: int) -> list[RecordingLine]:
    """Return the first host sample after a moment: it covers the time since the previous sample."""
    later = (line for line in lines if isinstance(line, HostSample) and line.t_ns > end_ns)
    sample = next(later, None)
    return [] if sample is None else [sample]


def _is_sample(line: RecordingLine) -> bool:
    return isinstance(line, GpuSample | GpuMeterSample | HostSample)


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


def _host_interference(steal_percent: float | None) -> list[Interference]:
    if steal_percent is None or steal_percent <= MAX_STEAL_PERCENT:
        return []
    return [hypervisor_interference(steal_percent, " while it was timed")]


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
            message=f"GPU {stats.gpu} was held back for {share:.0%} of the time: {reason}",
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
