"""From records to rows: everything known of each cell and of each metered GPU, and which cells have no measurement."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.results import Estimate, Missing
from assay.experiments.energy.cell_notes import GPUS_ONLY_METERED, collect_cell_notes
from assay.experiments.energy.estimates import estimate_figures, estimate_over_processes
from assay.experiments.energy.observations import describe_incomplete_answers, describe_length_mismatch
from assay.experiments.energy.plan import list_cells, observe_cell, replay_run
from assay.experiments.energy.result import EnergyResult, EnergyRow, GpuStats
from assay.experiments.reporting import overall_origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import GpuWindowStats
    from assay.core.values import Scalar, Value
    from assay.experiments.energy.observations import CellObservations, EnergyObservations, PhaseWindow
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.plan import CellPhase, EnergyProgress
    from assay.machine.model import Gpu, Machine
    from assay.store.records import Records


if TYPE_CHECKING:
    GpuWindows = Sequence[tuple[PhaseWindow, GpuWindowStats]]


def collect_gpu_stats(cell: CellObservations, gpus: Sequence[Gpu]) -> tuple[GpuStats, ...]:
    """Return what each GPU did while whole requests ran; nothing where nobody watched."""
    watched = [window for window in cell.whole if window.stage.during is not None]
    stats = tuple(_collect_one_gpu(gpu, watched) for gpu in gpus) if watched else ()
    if describe_length_mismatch(cell) is None:
        return stats
    return tuple(gpu_stats_row.model_copy(update={"energy_j_per_request": None}) for gpu_stats_row in stats)


def measure_peak_power_w(windows: Sequence[PhaseWindow]) -> float | None:
    """Return the most that all GPUs drew at one moment; null where not all of them say."""
    peaks = [window.stage.during.power_sum_max_w for window in windows if window.stage.during is not None]
    return max((power for power in peaks if power is not None), default=None)


def _collect_one_gpu(gpu: Gpu, windows: Sequence[PhaseWindow]) -> GpuStats:
    pairs = [
        (window, gpu_window)
        for window in windows
        if window.stage.during is not None
        for gpu_window in window.stage.during.gpus
        if gpu_window.uuid == gpu.uuid
    ]
    used = _maximum(pairs, "memory_used_mib")
    draws = [
        window.draw(gpu_window.energy.value / requests, gpu_window.energy.relative_half_width, "requests")
        for window, gpu_window in pairs
        if gpu_window.energy is not None and (requests := window.count("requests")) > 0
    ]
    energy = estimate_over_processes(draws or "not told", "J")
    return GpuStats(
        gpu=gpu.index,
        uuid=gpu.uuid,
        utilization_percent=_time_mean(pairs, "utilisation_percent"),
        utilization_percent_max=_maximum(pairs, "utilisation_max_percent"),
        memory_used_mb=used,
        memory_total_mb=gpu.memory_mib,
        memory_percent=100 * used / gpu.memory_mib if used is not None and gpu.memory_mib else None,
        temperature_c=_time_mean(pairs, "temperature_mean_c"),
        temperature_c_max=_maximum(pairs, "temperature_c"),
        power_draw_w=_time_mean(pairs, "power_w"),
        power_draw_w_max=_maximum(pairs, "power_max_w"),
        energy_j_per_request=None if isinstance(energy, str) else energy,
        note=_gpu_note(gpu, pairs, len(windows)),
    )


def _time_mean(pairs: GpuWindows, name: str) -> float | None:
    """Return the mean over time of what the windows say that say anything."""
    weighted = [
        (window.window_s, value) for window, gpu_window in pairs if (value := getattr(gpu_window, name)) is not None
    ]
    lasted_s = sum(window_s for window_s, _ in weighted)
    return sum(window_s * value for window_s, value in weighted) / lasted_s if lasted_s > 0 else None


def _maximum(pairs: GpuWindows, name: str) -> float | None:
    return max((value for _, gpu_window in pairs if (value := getattr(gpu_window, name)) is not None), default=None)


def _gpu_note(gpu: Gpu, pairs: GpuWindows, windows: int) -> str | None:
    """Say where it was not seen, or why its energy is not told."""
    parts = [f"not seen in {windows - len(pairs)} of {windows} windows"] if len(pairs) < windows else []
    without = [gpu_window.energy_missing for _, gpu_window in pairs if gpu_window.energy is None]
    if without:
        reason = "no counter to read" if without[0] is None else without[0].detail
        parts.append(f"no energy in {len(without)} of {len(pairs)} windows: {reason}")
    samples = sum(gpu_window.samples or 0 for _, gpu_window in pairs)
    with_power = sum(gpu_window.power_samples or 0 for _, gpu_window in pairs if gpu_window.samples)
    parts += [f"{with_power} of {samples} samples had power"] if 0 < with_power < samples else []
    silent = bool(pairs) and all(gpu_window.power_w is None for _, gpu_window in pairs)
    parts += [f"GPU {gpu.index} does not say its power"] if silent else []
    return "; ".join(parts) or None


COUNT_NAMES = ("input_tokens", "output_tokens", "requests")
ENERGY_DISABLED = "energy was not asked for (metrics.enabled is false)"
RENAMED_FIELDS = frozenset({"type", "model", "device_ids", "enabled", "gpus"})
"""What is told under another name, or beside the configuration."""


@dataclass(frozen=True)
class EnergyStudy:
    """All that the records say, gathered once for findings, page and files."""

    progress: EnergyProgress
    cells: tuple[CellObservations, ...]
    result: EnergyResult


def build_study(machine: Machine, options: EnergyOptions, records: Records) -> EnergyStudy:
    """Return what the records say; cells are in the order they were measured."""
    progress = replay_run(options, records)
    first = {planned.round: planned for planned, _ in progress.measured if planned.number == 1}
    expected = Counter(cell_phase for planned in first.values() for cell_phase in planned.phases)
    cells = [observe_cell(options, progress.observations, cell) for cell in list_cells(options.config)]
    measured = tuple(cell_observations for cell_observations in cells if cell_observations.is_measured)
    gpus = list_metered_gpus(machine, options)
    rows = tuple(
        _build_row(options, cell_observations, progress.observations, expected, gpus) for cell_observations in measured
    )
    config = options.config
    result = EnergyResult(
        name=config.name or "energy",
        model=config.backend.model,
        backend=config.backend.type,
        config={**flatten_config(options), "dtype": _loaded_dtype(measured)},
        run=records.run or None,
        gpu=format_gpu_names(gpus),
        started_at=records[0].window.started_at if len(records) else "",
        rows=rows,
        skipped={
            cell_observations.cell.name: _explain_missing_cell(cell_observations)
            for cell_observations in cells
            if not cell_observations.is_measured
        },
        notes=options.notes,
    )
    return EnergyStudy(progress, measured, result)


def _loaded_dtype(cells: Sequence[CellObservations]) -> str | None:
    """Return the type of the weights as they were loaded; null where no process told."""
    windows = (window for cell in cells for several in cell.windows.values() for window in several)
    return next((window.facts.dtype for window in windows if window.facts is not None and window.facts.dtype), None)


def list_metered_gpus(machine: Machine, options: EnergyOptions) -> tuple[Gpu, ...]:
    """Return the GPUs whose watts count, in the order they were named."""
    by_device = {f"cuda:{gpu.index}": gpu for gpu in machine.gpus}
    return tuple(by_device[device] for device in options.gpus if device in by_device)


def format_gpu_names(gpus: Sequence[Gpu]) -> str | None:
    """Write GPUs for people: ``2 × NVIDIA H200``; null where there is none."""
    counts = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or None


def _with_energy_disabled(cell: CellObservations) -> CellObservations:
    """Return a cell whose windows have no energy because none was asked for."""
    missing = Missing(code="disabled", detail=ENERGY_DISABLED)

    def disabled(window: PhaseWindow) -> PhaseWindow:
        update = {"energy_missing": missing, "host_missing": missing}
        return replace(window, stage=window.stage.model_copy(update=update))

    windows = {phase: tuple(map(disabled, several)) for phase, several in cell.windows.items()}
    return replace(cell, windows=windows, idle={process: disabled(window) for process, window in cell.idle.items()})


def _build_row(
    options: EnergyOptions,
    cell: CellObservations,
    observations: EnergyObservations,
    expected: Counter[CellPhase],
    gpus: Sequence[Gpu],
) -> EnergyRow:
    estimates = estimate_figures(cell if options.monitored else _with_energy_disabled(cell))
    records = {value.record.trial: value.record for several in cell.windows.values() for value in several}
    placement = next(
        (e.facts.placement for s in cell.windows.values() for e in s if e.facts and e.facts.placement), None
    )
    only_metered = bool(gpus) and not options.on_gpu and not options.is_server
    return EnergyRow(
        cell=cell.cell,
        figures={name: value if isinstance(value, Estimate) else None for name, value in estimates.items()},
        missing_reasons={name: value for name, value in estimates.items() if isinstance(value, str)},
        gpus=collect_gpu_stats(cell, gpus),
        peak_power_w=measure_peak_power_w(cell.whole),
        tokens=_count_tokens(cell.whole),
        energy_j=_sum_energy(cell.whole),
        measured_s=sum(value.window_s for value in cell.whole) if cell.whole else None,
        placement=placement,
        notes=(*collect_cell_notes(cell, estimates, observations), *([GPUS_ONLY_METERED] if only_metered else [])),
        partial=_is_partial(options, cell, expected),
        records=tuple(records),
        origin=overall_origin(records.values()),
    )


def _count_tokens(windows: Sequence[PhaseWindow]) -> dict[str, int]:
    """Return what was counted in windows; what nobody counted is not there."""
    names = [name for name in COUNT_NAMES if any(len(window.samples(name)) for window in windows)]
    return {name: round(sum(window.count(name) for window in windows)) for name in names}


def _sum_energy(windows: Sequence[PhaseWindow]) -> Estimate | None:
    """Return the energy of windows together; null where one of them does not tell its own."""
    energies = [window.stage.energy for window in windows if window.stage.energy is not None]
    if not energies or len(energies) < len(windows):
        return None
    value = sum(energy.value for energy in energies)
    off = sum(energy.value * (energy.relative_half_width or 0.0) for energy in energies)
    return energies[0].model_copy(
        update={
            "value": value,
            "low": value - off,
            "high": value + off,
            "n": len(energies),
            "method": f"sum of {len(energies)} windows, as if the sensor were off in all of them alike",
        }
    )


def _is_partial(options: EnergyOptions, cell: CellObservations, expected: Counter[CellPhase]) -> bool:
    """Return whether a process, phase or GPU is missing or cut short, or requests not as asked or not whole."""
    if describe_length_mismatch(cell) is not None or describe_incomplete_answers(cell) is not None:
        return True
    expected_windows = {
        cell_phase.phase: times for cell_phase, times in expected.items() if cell_phase.cell == cell.cell
    }
    if any(len(cell.windows.get(phase, ())) < times * options.restarts for phase, times in expected_windows.items()):
        return True
    windows = [window for several in cell.windows.values() for window in several]
    if any(window.record.lost_gpus for window in windows):
        return True
    return any(
        window.record.status != "ok" or (window.facts is not None and window.facts.skipped is not None)
        for window in windows
    )


def _explain_missing_cell(cell: CellObservations) -> str:
    return next(
        (cell.missing_reasons[phase] for phase in cell.windows if phase in cell.missing_reasons), "it was not measured"
    )


def flatten_config(options: EnergyOptions) -> dict[str, Scalar]:
    """Return the configuration as plain values by name: lists parted by commas, maps as JSON."""
    config = options.config
    values: dict[str, Scalar] = {
        "backend_type": config.backend.type,
        "device_ids": ",".join(gpu.removeprefix("cuda:") for gpu in options.gpus) or None,
        "metrics_enabled": config.metrics.enabled,
    }
    for part in (config.backend, config.scenario, config.metrics):
        values |= {name: value for name, value in _flatten_section(part).items() if name not in RENAMED_FIELDS}
    return {**values, "isolation": options.isolation, "stage_s": options.stage_s, "ranks": options.ranks}


def _flatten_section(part: Value) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, value in part.as_json().items():
        if isinstance(value, list):
            values[name] = ",".join(map(str, value))
        elif isinstance(value, dict):
            values[name] = json.dumps(value, sort_keys=True) if value else None
        else:
            values[name] = value
    return values
