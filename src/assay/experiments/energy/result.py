"""From records to rows: all that is known of each cell, and which cells gave nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.energy.answers import none_whole, other_length
from assay.experiments.energy.figures import figures_of
from assay.experiments.energy.gpu_stats import gpu_stats, peak_power_w
from assay.experiments.energy.phases import cells_of
from assay.experiments.energy.rows import EnergyResult, EnergyRow
from assay.experiments.energy.step import seen_of, walk
from assay.experiments.energy.words import ONLY_METERED, notes_of
from assay.launch.staging import NOBODY_WATCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar, Value
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.phases import Place
    from assay.experiments.energy.seen import CellSeen
    from assay.experiments.energy.stages import Gathered, Seen
    from assay.experiments.energy.step import Walk
    from assay.machine.model import Gpu, Machine
    from assay.store.records import Records

COUNTED = ("input_tokens", "output_tokens", "requests")
NOT_ASKED = "energy was not asked for (metrics.enabled is false)"
NOT_FLAT = frozenset({"type", "model", "device_ids", "enabled", "gpus"})
"""What is told under another name, or beside the configuration."""


@dataclass(frozen=True)
class Study:
    """All that the records say, gathered once for findings, page and files."""

    walk: Walk
    cells: tuple[CellSeen, ...]
    result: EnergyResult


def study_of(machine: Machine, options: EnergyOptions, records: Records) -> Study:
    """Return what the records say; cells are in the order they were measured."""
    progress = walk(options, records)
    first = {planned.round: planned for planned, _ in progress.taken if planned.number == 1}
    expected = Counter(cell_phase for planned in first.values() for cell_phase in planned.places)
    cells = [seen_of(options, progress.gathered, cell) for cell in cells_of(options.config)]
    measured = tuple(cell_observations for cell_observations in cells if cell_observations.is_measured)
    gpus = gpus_of(machine, options)
    rows = tuple(_row(options, cell_observations, progress.gathered, expected, gpus) for cell_observations in measured)
    config = options.config
    result = EnergyResult(
        name=config.name or "energy",
        model=config.backend.model,
        backend=config.backend.type,
        config={**flattened(options), "dtype": _dtype(measured)},
        run=records.run or None,
        gpu=named(gpus),
        started_at=records[0].window.started_at if len(records) else "",
        rows=rows,
        left_out={
            cell_observations.cell.name: _why_nothing(cell_observations)
            for cell_observations in cells
            if not cell_observations.is_measured
        },
        notes=options.notes,
    )
    return Study(progress, measured, result)


def _dtype(cells: Sequence[CellSeen]) -> str | None:
    """Return the type of the weights as they were loaded; null where no process told."""
    windows = (window for cell in cells for several in cell.windows.values() for window in several)
    return next((window.facts.dtype for window in windows if window.facts is not None and window.facts.dtype), None)


def gpus_of(machine: Machine, options: EnergyOptions) -> tuple[Gpu, ...]:
    """Return the GPUs whose watts count, in the order they were named."""
    by_device = {f"cuda:{gpu.index}": gpu for gpu in machine.gpus}
    return tuple(by_device[device] for device in options.gpus if device in by_device)


def named(gpus: Sequence[Gpu]) -> str | None:
    """Write GPUs for people: ``2 × NVIDIA H200``; null where there is none."""
    counts = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} × {name}" for name, count in counts.items()) or None


def _row(
    options: EnergyOptions, seen: CellSeen, gathered: Gathered, expected: Counter[Place], gpus: Sequence[Gpu]
) -> EnergyRow:
    estimates = figures_of(seen)
    if not options.monitored:
        estimates = {name: NOT_ASKED if value == NOBODY_WATCHED else value for name, value in estimates.items()}
    records = {value.record.trial: value.record for several in seen.windows.values() for value in several}
    placement = next(
        (e.facts.placement for s in seen.windows.values() for e in s if e.facts and e.facts.placement), None
    )
    only_metered = bool(gpus) and not options.on_gpu and not options.is_server
    return EnergyRow(
        cell=seen.cell,
        figures={name: value if isinstance(value, Estimate) else None for name, value in estimates.items()},
        why_not={name: value for name, value in estimates.items() if isinstance(value, str)},
        gpus=gpu_stats(seen, gpus),
        peak_power_w=peak_power_w(seen.whole),
        tokens=_counted(seen.whole),
        energy_j=_total(seen.whole),
        measured_s=sum(value.window_s for value in seen.whole) if seen.whole else None,
        placement=placement,
        notes=(*notes_of(seen, estimates, gathered), *([ONLY_METERED] if only_metered else [])),
        partial=_is_partial(options, seen, expected),
        records=tuple(records),
        origin=next((record.origin for record in records.values() if record.origin != "real"), "real"),
    )


def _counted(windows: Sequence[Seen]) -> dict[str, int]:
    """Return what was counted in windows; what nobody counted is not there."""
    names = [name for name in COUNTED if any(len(window.samples(name)) for window in windows)]
    return {name: round(sum(window.count(name) for window in windows)) for name in names}


def _total(windows: Sequence[Seen]) -> Estimate | None:
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


def _is_partial(options: EnergyOptions, seen: CellSeen, expected: Counter[Place]) -> bool:
    """Return whether a process, phase or GPU is missing or cut short, or requests not as asked or not whole."""
    if other_length(seen) is not None or none_whole(seen) is not None:
        return True
    expected_windows = {
        cell_phase.phase: times for cell_phase, times in expected.items() if cell_phase.cell == seen.cell
    }
    if any(len(seen.windows.get(phase, ())) < times * options.restarts for phase, times in expected_windows.items()):
        return True
    windows = [window for several in seen.windows.values() for window in several]
    if any(window.record.lost_gpus for window in windows):
        return True
    return any(
        window.record.status != "ok" or (window.facts is not None and window.facts.left_out) for window in windows
    )


def _why_nothing(seen: CellSeen) -> str:
    return next((seen.why_not[phase] for phase in seen.windows if phase in seen.why_not), "it was not measured")


def flattened(options: EnergyOptions) -> dict[str, Scalar]:
    """Return the configuration as plain values by name: lists parted by commas, maps as JSON."""
    config = options.config
    values: dict[str, Scalar] = {
        "backend_type": config.backend.type,
        "device_ids": ",".join(gpu.removeprefix("cuda:") for gpu in options.gpus) or None,
        "metrics_enabled": config.metrics.enabled,
    }
    for part in (config.backend, config.scenario, config.metrics):
        values |= {name: value for name, value in _plain(part).items() if name not in NOT_FLAT}
    return {**values, "isolation": options.isolation, "stage_s": options.stage_s, "ranks": options.ranks}


def _plain(part: Value) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, value in part.as_json().items():
        if isinstance(value, list):
            values[name] = ",".join(map(str, value))
        elif isinstance(value, dict):
            values[name] = json.dumps(value, sort_keys=True) if value else None
        else:
            values[name] = value
    return values
