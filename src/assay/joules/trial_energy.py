"""The energy of a trial, from the monitor's recorded samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate, Missing
from assay.joules.per_call import GAIN_SHARE
from assay.joules.readings import MeterReading
from assay.joules.sensor_model import CounterModel, PowerModel, SensorModel, load_sensor_model
from assay.joules.window_energy import MIN_TICKS_INSIDE, WindowEnergy, estimate_window_energy, joules_estimate
from assay.monitor.samples import GpuMeterSample, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import EnergyRefusal
    from assay.monitor.samples import RecordingLine

    Array = NDArray[np.float64]

PRECISION = 0.25
"""If the interval is wider than this share, the energy of a trial is not reported."""
ASSUMED_SENSOR_MODEL = SensorModel(
    device="assumed",
    driver="any",
    counter=CounterModel(period_s=0.1, jitter_s=0.05, quantum_j=0.001, lag_s=0.05, lag_error_s=0.05, read_s=0.01),
    average=PowerModel(period_s=0.1, window_s=1.0, lag_s=0.1, lag_error_s=0.1, with_counter=False, explained=0.0),
)
"""For a GPU whose sensors were not probed: they tick ten times a second, with a lag that is not known well."""
TimeWindows = list[tuple[int, int]]
"""Start and end, in ns of the host's monotonic clock."""


@dataclass(frozen=True)
class TrialEnergy:
    """The energy of a trial's devices, and how it was measured; or why there is none."""

    energy: Estimate | None
    note: str | None = None
    missing: Missing | None = None


def without_energy(code: str, detail: str) -> TrialEnergy:
    """Return that there is no energy, and why."""
    return TrialEnergy(None, missing=Missing(code=code, detail=detail))


NO_COUNTERS = Missing(code="no_sensor", detail="the processor's energy counters are not there, or may not be read")


@dataclass(frozen=True)
class GpuWindowEnergies:
    """The energy of one GPU in some windows; ``assumed``: its sensors were not probed."""

    parts: tuple[WindowEnergy, ...]
    assumed: bool


def estimate_gpu_windows(
    lines: Sequence[RecordingLine], gpus: dict[int, str], windows: TimeWindows, driver: str
) -> dict[int, GpuWindowEnergies]:
    """Return the energy of several GPUs, given as UUIDs by index, in some windows."""
    by_gpu: dict[int, GpuWindowEnergies] = {}
    for gpu, uuid in gpus.items():
        model = load_sensor_model(uuid, driver)
        readings = gpu_readings(lines, gpu)
        sensors = model or ASSUMED_SENSOR_MODEL
        parts = [estimate_window_energy(readings, *window, sensors, precision=PRECISION) for window in windows]
        by_gpu[gpu] = GpuWindowEnergies(tuple(parts), model is None)
    return by_gpu


def sum_gpu_energy(spent: Iterable[GpuWindowEnergies]) -> TrialEnergy:
    """Return the total energy of several GPUs."""
    all_gpus = list(spent)
    note = "of the GPU, and of nothing else in the machine"
    if any(gpu.assumed for gpu in all_gpus):
        note += "; its sensor was not probed (assay.energy does so), so that the interval is wide"
    return sum_window_energies([part for gpu in all_gpus for part in gpu.parts], note)


def estimate_package_energy(lines: Sequence[RecordingLine], windows: TimeWindows) -> TrialEnergy:
    """Return the energy of the processors in some windows, by their own counters."""
    t_s, domains = _host_counters(lines)
    if not domains:
        return TrialEnergy(None, missing=NO_COUNTERS)
    packages = [spent_j for name, spent_j in domains.items() if name.startswith("package")]
    if not packages:
        return without_energy("no_sensor", "no energy counter of a processor package answers")
    spent_j = np.array([math.fsum(values) for values in zip(*packages, strict=True)])
    return _sum_counter(t_s, spent_j, windows, "of the processor's packages, whoever ran on them")


def estimate_host_domains(lines: Sequence[RecordingLine], windows: TimeWindows) -> dict[str, Estimate] | Missing:
    """Return the energy of each domain of the processors' counters in some windows, or why there is none."""
    t_s, domains = _host_counters(lines)
    estimates: dict[str, Estimate] = {}
    for domain, spent_j in domains.items():
        total = _sum_counter(t_s, spent_j, windows, domain)
        if total.missing is not None:
            return total.missing
        if total.energy is not None:
            estimates[domain] = total.energy
    return estimates if domains else NO_COUNTERS


def _host_counters(lines: Sequence[RecordingLine]) -> tuple[Array, dict[str, Array]]:
    """Return when the processors' counters were read, in s, and the J of each domain by then; NaN: no answer."""
    hosts = [line for line in lines if isinstance(line, HostSample) and line.package_energy_j]
    names = hosts[0].package_energy_j if hosts else ()
    t_s = np.array([host.t_ns for host in hosts], dtype=np.float64) / 1e9
    return t_s, {name: np.array([host.package_energy_j.get(name, math.nan) for host in hosts]) for name in names}


def _sum_counter(t_s: Array, spent_j: Array, windows: TimeWindows, note: str) -> TrialEnergy:
    parts = [_interpolate_counter(t_s, spent_j, start_ns / 1e9, end_ns / 1e9) for start_ns, end_ns in windows]
    return sum_window_energies(parts, note)


def _interpolate_counter(t_s: Array, spent_j: Array, start_s: float, end_s: float) -> WindowEnergy:
    """Return the energy of a window from a counter that is exact at every reading.

    At an edge the energy is known to lie between those of the two surrounding readings.
    """
    window_s = end_s - start_s
    read = ~np.isnan(spent_j)
    t_s, spent_j = t_s[read], spent_j[read]

    def refused(code: EnergyRefusal, reason: str) -> WindowEnergy:
        return WindowEnergy(joules=None, reason=reason, code=code, window_s=window_s)

    if len(t_s) < 2 or start_s < t_s[0] or end_s > t_s[-1]:
        return refused("not_covered", "the window was not watched to its ends")
    if np.any(np.diff(spent_j) < 0):
        return refused("counter_reset", "the processor's energy counter went back meanwhile")
    inside = int(((t_s >= start_s) & (t_s <= end_s)).sum())
    every_s = float(np.median(np.diff(t_s)))
    too_short = f"a window of {window_s:.3g} s is too short for a counter that was read every {every_s:.2g} s"
    if inside < MIN_TICKS_INSIDE:
        return refused("too_few_ticks", f"{too_short}: {MIN_TICKS_INSIDE} readings at least must fall into it")
    indices = np.searchsorted(t_s, (start_s, end_s)).clip(1, len(t_s) - 1)
    edge_j = float((spent_j[indices] - spent_j[indices - 1]).sum())
    first_j, last_j = np.interp((start_s, end_s), t_s, spent_j)
    value = float(last_j - first_j)
    if not edge_j / 2 <= PRECISION * value:
        return refused("too_wide", too_short)
    return WindowEnergy(
        joules=joules_estimate(value, edge_j / 2, "RAPL, edges interpolated", inside),
        window_s=window_s,
        systematic_j=GAIN_SHARE * value,
        power_w=value / window_s,
        method="RAPL",
    )


def gpu_readings(lines: Sequence[RecordingLine], gpu: int) -> list[MeterReading]:
    """Return the power and energy readings of a GPU, in order."""
    readings: list[MeterReading] = []
    for line in lines:
        if isinstance(line, GpuMeterSample) and line.gpu == gpu and line.energy_j is not None:
            end_ns = line.t_ns + round(1e3 * (line.took_us or 0.0))
            readings.append(MeterReading(line.t_ns, line.t_ns, end_ns, energy_j=line.energy_j))
        elif isinstance(line, GpuSample) and line.gpu == gpu:
            watts = line.power_instant_w, line.power_average_w, line.power_usage_w
            readings.append(MeterReading(line.t_ns, line.t_ns, line.t_ns, None, *watts))
    return sorted(readings, key=lambda reading: reading.t_ns)


def sum_window_energies(parts: list[WindowEnergy], note: str) -> TrialEnergy:
    """Return the sum over windows and devices; if one was refused, all are."""
    if not parts:
        return without_energy("not_covered", "nothing was timed")
    refused = next((part for part in parts if part.joules is None), None)
    if refused is not None:
        return without_energy(refused.code or "no_readings", refused.reason or "the sensor gave no energy")
    estimates = [part.joules for part in parts if part.joules is not None]
    value = math.fsum(estimate.value for estimate in estimates)
    error = math.fsum(estimate.value - estimate.low for estimate in estimates if estimate.low is not None)
    methods = list(dict.fromkeys(estimate.method for estimate in estimates))
    systematic = math.fsum(part.systematic_j or 0.0 for part in parts)
    energy = joules_estimate(value, error, "; ".join(methods), sum(estimate.n for estimate in estimates))
    return TrialEnergy(energy, f"{note}; beside the interval the sensor may be off by ±{systematic:.3g} J")


def merge_windows(windows: TimeWindows) -> TimeWindows:
    """Return windows in order, with overlapping ones merged."""
    result: TimeWindows = []
    for start_ns, end_ns in sorted(windows):
        if result and result[-1][1] >= start_ns:
            result[-1] = (result[-1][0], max(result[-1][1], end_ns))
        else:
            result.append((start_ns, end_ns))
    return result
