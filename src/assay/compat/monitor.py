"""GPUMonitor: the interface of an older tool under its own names, read from NVML and recorded by a `Monitor`.

The names are explained here and in docs/monitoring.md. What a GPU does not provide is null; a sum over GPUs of which
one is null is null too. Megabytes are 2²⁰ bytes, as in nvidia-smi.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.machine import nvidia
from assay.monitor.monitor import Monitor
from assay.monitor.samples import POWER_QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.machine.model import GpuReading
    from assay.monitor.statistics import LevelStatistics, MonitorStatistics, SourceStatistics

ACTIVE_PERCENT = 5.0
"""A GPU counts as active if some sample shows it busy for more than this share of the time."""


@dataclass(frozen=True)
class GPUStats:
    """One sample of a GPU. Null: not provided."""

    gpu_id: int
    utilization_percent: float | None
    memory_used_mb: float | None
    memory_total_mb: float | None
    memory_percent: float | None
    temperature_c: float | None
    power_draw_w: float | None
    """The average of about a second, as nvidia-smi shows it; of cards without it, another power reading."""
    timestamp: float
    """Seconds since 1970."""


class GPUMonitor:
    """Samples several GPUs, once or while something runs. GPUs are numbered as by nvidia-smi."""

    @staticmethod
    def get_multi_gpu_stats(gpu_ids: Sequence[int]) -> dict[int, GPUStats | None]:
        """Return one sample of each GPU; null for one that does not exist or does not answer."""
        return {gpu_id: stats for gpu_id, (stats, _) in _read_gpus(gpu_ids).items()}

    @staticmethod
    def check_multi_gpu_available(gpu_ids: Sequence[int]) -> dict[str, Any]:
        """Return which GPUs answer.

        Keys: requested_gpus, available_gpus, unavailable_gpus, errors (the reasons, by GPU) and all_available.
        """
        readings = _read_gpus(gpu_ids)
        errors = {gpu_id: reason for gpu_id, (stats, reason) in readings.items() if stats is None}
        return {
            "requested_gpus": list(gpu_ids),
            "available_gpus": [gpu_id for gpu_id in readings if gpu_id not in errors],
            "unavailable_gpus": list(errors),
            "errors": errors,
            "all_available": not errors,
        }

    @staticmethod
    def print_multi_gpu_info(gpu_ids: Sequence[int]) -> None:
        """Print one sample of each GPU, or why there is none."""
        for gpu_id, (stats, reason) in _read_gpus(gpu_ids).items():
            sys.stdout.write(f"GPU {gpu_id}: {reason if stats is None else _describe_stats(stats)}\n")

    @staticmethod
    def monitor_multi_gpu_during_operation(
        operation_func: Callable[..., object], gpu_ids: Sequence[int], interval: float = 0.5, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Call a function with the given arguments while sampling GPUs every ``interval`` seconds.

        Returns:
            result, success, error (of the function), duration in s, gpu_ids, per_gpu_stats by GPU, aggregate_stats.

        Raises:
            MachineCannot: One of the GPUs does not exist.
        """
        outcome: dict[str, Any] = {"result": None, "success": True, "error": None}
        with Monitor(list(gpu_ids), interval_s=interval, host=False) as monitor:
            begin = time.perf_counter()
            try:
                outcome["result"] = operation_func(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the exception is part of the returned outcome
                outcome.update(success=False, error=f"{type(error).__name__}: {error}")
            outcome["duration"] = time.perf_counter() - begin
        statistics = monitor.statistics
        per_gpu = {gpu_id: _per_gpu(statistics.of(f"gpu:{gpu_id}")) for gpu_id in gpu_ids}
        aggregate = _aggregate(list(per_gpu.values()), statistics)
        return {**outcome, "gpu_ids": list(gpu_ids), "per_gpu_stats": per_gpu, "aggregate_stats": aggregate}


def _read_gpus(gpu_ids: Sequence[int]) -> dict[int, tuple[GPUStats | None, str]]:
    """Return one sample of each GPU, or null and the reason."""
    view = nvidia.list_gpus()
    lost = {gpu.index: gpu.reason for gpu in view.lost}
    uuids = {gpu.index: gpu.uuid for gpu in view.gpus}
    missing = view.note or f"there is no such GPU; there are {', '.join(map(str, uuids))}"
    return {
        gpu_id: _read_gpu(gpu_id, uuids[gpu_id]) if gpu_id in uuids else (None, lost.get(gpu_id, missing))
        for gpu_id in gpu_ids
    }


def _read_gpu(gpu_id: int, uuid: str) -> tuple[GPUStats | None, str]:
    try:
        with nvidia.open_sensors([uuid]) as (sensor,):
            reading = sensor.read()
            return (None, sensor.last_error) if reading is None else (_stats(gpu_id, reading), "")
    except MachineCannot as error:
        return None, str(error)


def _stats(gpu_id: int, reading: GpuReading) -> GPUStats:
    used, total = reading.memory_used_mib, reading.memory_total_mib
    powers = (reading.power_average_w, reading.power_usage_w, reading.power_instant_w)
    return GPUStats(
        gpu_id=gpu_id,
        utilization_percent=reading.utilisation_percent,
        memory_used_mb=used,
        memory_total_mb=total,
        memory_percent=None if used is None or not total else 100 * used / total,
        temperature_c=reading.temperature_c,
        power_draw_w=next((watts for watts in powers if watts is not None), None),
        timestamp=time.time(),
    )


def _describe_stats(stats: GPUStats) -> str:
    parts = (
        (stats.utilization_percent, "{:.0f} % busy"),
        (stats.memory_used_mb, "{:.0f} MB used"),
        (stats.memory_total_mb, "of {:.0f} MB"),
        (stats.temperature_c, "{:.0f} °C"),
        (stats.power_draw_w, "{:.1f} W"),
    )
    return ", ".join(template.format(value) for value, template in parts if value is not None) or "it says nothing"


def _per_gpu(source: SourceStatistics | None) -> dict[str, Any]:
    def level(quantity: str) -> LevelStatistics | None:
        return None if source is None else source.level(quantity)

    busy, memory = level("utilisation_percent"), level("memory_used_mib")
    power_of = next((name for name in POWER_QUANTITIES if level(name)), None)
    power = None if power_of is None else level(power_of)
    temperature = level("temperature_c")
    return {
        "samples": 0 if source is None else source.n,
        "power_samples": 0 if power is None else power.n,
        "avg_utilization_percent": busy and busy.mean,
        "max_utilization_percent": busy and busy.maximum,
        "avg_memory_mb": memory and memory.mean,
        "max_memory_mb": memory and memory.maximum,
        "avg_power_w": power and power.mean,
        "max_power_w": power and power.maximum,
        "power_reading": power_of,
        "max_temperature_c": temperature and temperature.maximum,
        "energy_j": None if source is None else source.difference("energy_j"),
        "gpu_active": None if busy is None else busy.maximum > ACTIVE_PERCENT,
        "ended": None if source is None else source.ended,
    }


def _aggregate(gpus: list[dict[str, Any]], statistics: MonitorStatistics) -> dict[str, Any]:
    busy, memory = _sum(gpus, "avg_utilization_percent"), _sum(gpus, "avg_memory_mb")
    active = [gpu["gpu_active"] for gpu in gpus]
    return {
        "total_samples": sum(gpu["samples"] for gpu in gpus),
        "total_avg_utilization": busy,
        "total_max_utilization": _highest(gpus, "max_utilization_percent"),
        "total_avg_memory_mb": memory,
        "total_max_memory_mb": _sum(gpus, "max_memory_mb"),
        "total_avg_power_w": _sum(gpus, "avg_power_w"),
        "total_max_power_w": _highest(gpus, "max_power_w"),
        "avg_utilization_per_gpu": None if busy is None else busy / len(gpus),
        "avg_memory_per_gpu_mb": None if memory is None else memory / len(gpus),
        "any_gpu_active": True if True in active else None if None in active else False,
        "peak_sum_power_w": statistics.together.peak_power_w,
        "total_energy_j": statistics.together.energy_j,
    }


def _sum(gpus: list[dict[str, Any]], name: str) -> float | None:
    """Return a sum over GPUs; null if one has no value, or was lost, so that its mean covers another time."""
    values = [gpu[name] for gpu in gpus if gpu[name] is not None and gpu["ended"] is None]
    return sum(values) if values and len(values) == len(gpus) else None


def _highest(gpus: list[dict[str, Any]], name: str) -> float | None:
    return max((gpu[name] for gpu in gpus if gpu[name] is not None), default=None)
