"""The older tool's column names, and what they hold here: statistics of each GPU, sums over GPUs, counts of a run.

Sums and maxima over GPUs are null where one of the GPUs did not tell: a sum of the others would pass for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.energy.rows import GpuStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Estimate
    from assay.core.values import Scalar
    from assay.experiments.energy.rows import EnergyResult, EnergyRow

ACTIVE_PERCENT = 5.0
"""A GPU that was ever busier than this was active, as the older tool had it."""

OLDER_CONFIG = ("name", "backend", "model", "dataset", "num_samples", "device_ids")
"""What the older tool told of a configuration."""

MEASURED = tuple(name for name in GpuStats.model_fields if name not in {"gpu", "uuid", "energy_j_per_request", "note"})
"""Of one GPU: the older names, the most beside each mean."""


def with_ends(name: str, estimate: Estimate | None) -> dict[str, Scalar]:
    """Return an estimate as three columns: the value, and the ends of its interval."""
    return {
        name: estimate.value if estimate else None,
        f"{name}_low": estimate.low if estimate else None,
        f"{name}_high": estimate.high if estimate else None,
    }


def config_columns(result: EnergyResult) -> dict[str, Scalar]:
    """Return what was asked for, as ``config_…``; the GPUs' numbers are parted by commas."""
    identity: dict[str, Scalar] = {"name": result.name, "backend": result.backend, "model": result.model}
    config = {**identity, "device_ids": None, **result.config}
    return {f"config_{key}": _numbers(value) if key == "device_ids" else value for key, value in config.items()}


def _numbers(value: Scalar) -> Scalar:
    """Return a list of GPUs as ``0,1,2,3``, however it was written."""
    if not isinstance(value, str):
        return value if value is None else str(value)
    return ",".join(part.strip() for part in value.strip().strip("[]()").split(",") if part.strip()) or None


def gpu_columns(gpus: Sequence[GpuStats]) -> dict[str, Scalar]:
    """Return the statistics of each GPU, as ``gpu_stats_gpu_0_utilization_percent`` and so on."""
    columns: dict[str, Scalar] = {}
    for gpu in gpus:
        stem = f"gpu_stats_gpu_{gpu.gpu}"
        columns |= {f"{stem}_{name}": getattr(gpu, name) for name in MEASURED}
        columns |= with_ends(f"{stem}_energy_j_per_request", gpu.energy_j_per_request)
        columns |= {f"{stem}_uuid": gpu.uuid, f"{stem}_note": gpu.note}
    return columns


def total_columns(row: EnergyRow) -> dict[str, Scalar]:
    """Return the older tool's aggregates under its names, and the two it lacked."""
    gpus = row.gpus
    busy = [gpu.utilization_percent for gpu in gpus]
    busiest = [gpu.utilization_percent_max for gpu in gpus]
    memory = [gpu.memory_used_mb for gpu in gpus]
    return {
        "total_avg_utilization": _sum(busy),
        "total_max_utilization": _most(busiest),
        "total_avg_memory_mb": _sum(memory),
        "total_avg_power_w": _sum([gpu.power_draw_w for gpu in gpus]),
        "total_max_power_w": _most([gpu.power_draw_w_max for gpu in gpus]),
        "avg_utilization_per_gpu": _mean(busy),
        "avg_memory_per_gpu_mb": _mean(memory),
        "any_gpu_active": _any_active(busiest),
        "peak_of_sum_power_w": row.peak_power_w,
        **with_ends("total_energy_j", row.energy_j),
    }


def older_row(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    """Return a row as the older tool wrote one, under its names alone."""
    counted = row.tokens
    read, made = counted.get("input_tokens"), counted.get("output_tokens")
    both = None if read is None or made is None else read + made
    carbon, joules = row.figures.get("carbon_g_per_1000_requests"), row.energy_j
    requests = counted.get("requests")
    config = {**config_columns(result), "config_dataset": result.config.get("prompts")}
    return {
        **{f"config_{name}": config.get(f"config_{name}") for name in OLDER_CONFIG},
        "summary_total_prompts": requests,
        "summary_total_duration_seconds": row.measured_s,
        "summary_total_tokens": both,
        "summary_total_prompt_tokens": read,
        "summary_total_completion_tokens": made,
        "summary_throughput_tokens_per_second": both / row.measured_s if both and row.measured_s else None,
        "energy_energy_wh": joules.value / 3600 if joules else None,
        "energy_emissions_g_co2eq": carbon.value * requests / 1000 if carbon and requests is not None else None,
        **total_columns(row),
        **gpu_columns(row.gpus),
        "timestamp": result.started_at,
    }


def _known(values: Sequence[float | None]) -> list[float] | None:
    present = [value for value in values if value is not None]
    return present if present and len(present) == len(values) else None


def _sum(values: Sequence[float | None]) -> float | None:
    present = _known(values)
    return None if present is None else sum(present)


def _most(values: Sequence[float | None]) -> float | None:
    present = _known(values)
    return None if present is None else max(present)


def _mean(values: Sequence[float | None]) -> float | None:
    present = _known(values)
    return None if present is None else sum(present) / len(present)


def _any_active(busiest: Sequence[float | None]) -> bool | None:
    if any(value is not None and value > ACTIVE_PERCENT for value in busiest):
        return True
    return None if _known(busiest) is None else False
