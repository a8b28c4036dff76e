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
    watched = [seen for seen in cell.whole if seen.stage.meanwhile is not None]
    found = tuple(_one(gpu, watched) for gpu in gpus) if watched else ()
    if other_length(cell) is None:
        return found
    return tuple(each.model_copy(update={"energy_j_per_request": None}) for each in found)


def peak_power_w(windows: Sequence[Seen]) -> float | None:
    """Return the most that all GPUs drew at one moment; null where not all of them say."""
    told = [seen.stage.meanwhile.power_sum_max_w for seen in windows if seen.stage.meanwhile is not None]
    return max((power for power in told if power is not None), default=None)


def _one(gpu: Gpu, windows: Sequence[Seen]) -> GpuStats:
    looks = [
        (seen, found)
        for seen in windows
        if seen.stage.meanwhile is not None
        for found in seen.stage.meanwhile.gpus
        if found.uuid == gpu.uuid
    ]
    used = _most(looks, "memory_used_mib")
    draws = [
        seen.draw(found.energy.value / requests, found.energy.relative_half_width, "requests")
        for seen, found in looks
        if found.energy is not None and (requests := seen.count("requests")) > 0
    ]
    energy = over_processes(draws or "not told", "J")
    return GpuStats(
        gpu=gpu.index,
        uuid=gpu.uuid,
        utilization_percent=_mean(looks, "utilisation_percent"),
        utilization_percent_max=_most(looks, "utilisation_max_percent"),
        memory_used_mb=used,
        memory_total_mb=gpu.memory_mib,
        memory_percent=100 * used / gpu.memory_mib if used is not None and gpu.memory_mib else None,
        temperature_c=_mean(looks, "temperature_mean_c"),
        temperature_c_max=_most(looks, "temperature_c"),
        power_draw_w=_mean(looks, "power_w"),
        power_draw_w_max=_most(looks, "power_max_w"),
        energy_j_per_request=None if isinstance(energy, str) else energy,
        note=_note(gpu, looks, len(windows)),
    )


def _mean(looks: Looks, name: str) -> float | None:
    """Return the mean over time of what the windows say that say anything."""
    told = [(seen.window_s, value) for seen, found in looks if (value := getattr(found, name)) is not None]
    lasted_s = sum(window_s for window_s, _ in told)
    return sum(window_s * value for window_s, value in told) / lasted_s if lasted_s > 0 else None


def _most(looks: Looks, name: str) -> float | None:
    return max((value for _, found in looks if (value := getattr(found, name)) is not None), default=None)


def _note(gpu: Gpu, looks: Looks, windows: int) -> str | None:
    """Say where it was not seen, or why its energy is not told."""
    said = [f"not seen in {windows - len(looks)} of {windows} windows"] if len(looks) < windows else []
    untold = [found.energy_note for _, found in looks if found.energy is None]
    if untold:
        reason = (untold[0] or "no counter to read").removeprefix("not told: ")
        said.append(f"energy not told in {len(untold)} of {len(looks)} windows: {reason}")
    samples = sum(found.samples or 0 for _, found in looks)
    with_power = sum(found.power_samples or 0 for _, found in looks if found.samples)
    said += [f"{with_power} of {samples} samples had power"] if 0 < with_power < samples else []
    silent = bool(looks) and all(found.power_w is None for _, found in looks)
    said += [f"GPU {gpu.index} does not say its power"] if silent else []
    return "; ".join(said) or None
