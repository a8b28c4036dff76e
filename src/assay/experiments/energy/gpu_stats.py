"""What each metered GPU did while whole requests ran, over all processes: means over time, and the most beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.energy.answers import other_length
from assay.experiments.energy.figures import over_processes
from assay.experiments.energy.rows import GpuStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import GpuSeen
    from assay.experiments.energy.seen import CellSeen
    from assay.experiments.energy.stages import Seen
    from assay.machine.model import Gpu

    Looks = Sequence[tuple[Seen, GpuSeen]]


def gpu_stats(cell: CellSeen, gpus: Sequence[Gpu]) -> tuple[GpuStats, ...]:
    """Return what each GPU did while whole requests ran; nothing where nobody watched."""
    watched = [window for window in cell.whole if window.stage.meanwhile is not None]
    stats = tuple(_one(gpu, watched) for gpu in gpus) if watched else ()
    if other_length(cell) is None:
        return stats
    return tuple(gpu_stats_row.model_copy(update={"energy_j_per_request": None}) for gpu_stats_row in stats)


def peak_power_w(windows: Sequence[Seen]) -> float | None:
    """Return the most that all GPUs drew at one moment; null where not all of them say."""
    peaks = [window.stage.meanwhile.power_sum_max_w for window in windows if window.stage.meanwhile is not None]
    return max((power for power in peaks if power is not None), default=None)


def _one(gpu: Gpu, windows: Sequence[Seen]) -> GpuStats:
    pairs = [
        (window, gpu_window)
        for window in windows
        if window.stage.meanwhile is not None
        for gpu_window in window.stage.meanwhile.gpus
        if gpu_window.uuid == gpu.uuid
    ]
    used = _most(pairs, "memory_used_mib")
    draws = [
        window.draw(gpu_window.energy.value / requests, gpu_window.energy.relative_half_width, "requests")
        for window, gpu_window in pairs
        if gpu_window.energy is not None and (requests := window.count("requests")) > 0
    ]
    energy = over_processes(draws or "not told", "J")
    return GpuStats(
        gpu=gpu.index,
        uuid=gpu.uuid,
        utilization_percent=_mean(pairs, "utilisation_percent"),
        utilization_percent_max=_most(pairs, "utilisation_max_percent"),
        memory_used_mb=used,
        memory_total_mb=gpu.memory_mib,
        memory_percent=100 * used / gpu.memory_mib if used is not None and gpu.memory_mib else None,
        temperature_c=_mean(pairs, "temperature_mean_c"),
        temperature_c_max=_most(pairs, "temperature_c"),
        power_draw_w=_mean(pairs, "power_w"),
        power_draw_w_max=_most(pairs, "power_max_w"),
        energy_j_per_request=None if isinstance(energy, str) else energy,
        note=_note(gpu, pairs, len(windows)),
    )


def _mean(looks: Looks, name: str) -> float | None:
    """Return the mean over time of what the windows say that say anything."""
    weighted = [
        (window.window_s, value) for window, gpu_window in looks if (value := getattr(gpu_window, name)) is not None
    ]
    lasted_s = sum(window_s for window_s, _ in weighted)
    return sum(window_s * value for window_s, value in weighted) / lasted_s if lasted_s > 0 else None


def _most(looks: Looks, name: str) -> float | None:
    return max((value for _, gpu_window in looks if (value := getattr(gpu_window, name)) is not None), default=None)


def _note(gpu: Gpu, looks: Looks, windows: int) -> str | None:
    """Say where it was not seen, or why its energy is not told."""
    parts = [f"not seen in {windows - len(looks)} of {windows} windows"] if len(looks) < windows else []
    untold = [gpu_window.energy_note for _, gpu_window in looks if gpu_window.energy is None]
    if untold:
        reason = (untold[0] or "no counter to read").removeprefix("not told: ")
        parts.append(f"energy not told in {len(untold)} of {len(looks)} windows: {reason}")
    samples = sum(gpu_window.samples or 0 for _, gpu_window in looks)
    with_power = sum(gpu_window.power_samples or 0 for _, gpu_window in looks if gpu_window.samples)
    parts += [f"{with_power} of {samples} samples had power"] if 0 < with_power < samples else []
    silent = bool(looks) and all(gpu_window.power_w is None for _, gpu_window in looks)
    parts += [f"GPU {gpu.index} does not say its power"] if silent else []
    return "; ".join(parts) or None
