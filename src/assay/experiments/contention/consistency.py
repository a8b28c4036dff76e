"""Whether devices agree with each other: the time of the slowest over that of the fastest, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.cells import quiet_levels
from assay.experiments.contention.effects import differences, effect_of
from assay.experiments.contention.places import Place
from assay.experiments.contention.slowdown import level_table
from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from assay.experiments.contention.cells import Layout
    from assay.experiments.contention.effects import Effect
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine


@dataclass(frozen=True)
class Agreement:
    """Of one subject in one phase: the two devices that lie furthest apart, and by how much."""

    subject: int
    phase: Phase
    slowest: str
    fastest: str
    effect: Effect


def models_of(machine: Machine, options: ContentionOptions) -> tuple[str, ...]:
    """Return the different models among the GPUs in use, in order; groups of cores are all alike."""
    used = {device.partition("/")[0] for device in options.devices}
    return tuple(dict.fromkeys(gpu.name for gpu in machine.gpus if f"cuda:{gpu.index}" in used))


def refusal(machine: Machine, options: ContentionOptions) -> str | None:
    """Return why devices are not compared with each other; null where they are."""
    models = models_of(machine, options)
    if len(models) > 1:
        return f"the GPUs are of different models ({', '.join(models)}), and their times need not agree"
    return None


def agreements(layout: Layout, options: ContentionOptions, quantity: str) -> list[Agreement]:
    """Return how far devices are apart, for each subject alone and in each phase with company."""
    if len(options.devices) < 2:
        return []
    phases = [phase for phase in options.phases if phase != "again"]
    candidates = [_agreement(layout, options, quantity, s, p) for p in phases for s in range(len(options.subjects))]
    return [agreement for agreement in candidates if agreement is not None]


def _levels(layout: Layout, quantity: str, phase: Phase, place: Place, workers: int) -> dict[int, float]:
    """Return a device's time as a logarithm, by block: alone, or the mean over its workers side by side."""
    if phase == "baseline":
        return quiet_levels(layout, quantity, place)
    cells_by_worker = [layout.of(phase, quantity, Place(place.subject, place.device, w)) for w in range(workers)]
    blocks = sorted({block for cells in cells_by_worker for block in cells})
    return {b: float(np.mean([cells[b].level for cells in cells_by_worker if b in cells])) for b in blocks}


def _agreement(
    layout: Layout, options: ContentionOptions, quantity: str, subject: int, phase: Phase
) -> Agreement | None:
    levels = {
        device: by_block
        for device in options.devices
        if (by_block := _levels(layout, quantity, phase, Place(subject, device), options.workers))
    }
    gaps = {
        (a, b): [levels[a][block] - levels[b][block] for block in sorted(levels[a].keys() & levels[b].keys())]
        for a, b in combinations(levels, 2)
    }
    gaps = {pair: logs for pair, logs in gaps.items() if logs}
    if not gaps:
        return None
    (first, second), logs = max(gaps.items(), key=lambda item: abs(float(np.mean(item[1]))))
    if np.mean(logs) < 0:
        first, second, logs = second, first, [-log for log in logs]
    table = level_table(layout, quantity)
    same = [v for d in levels for v in differences(table, "again", Place(subject, d)).values()]
    strict = 1 - (1 - CONFIDENCE) / len(gaps)  # the widest of so many gaps was chosen
    return Agreement(subject, phase, first, second, effect_of(logs, same, options.minimum_effect, strict))
