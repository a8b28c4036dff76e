"""The effect of a phase on any quantity of a slot, compared with the baseline within each block and with an A/A test.

The quantity is a logarithm: of a time, a coefficient of variation or a regret. The same functions judge all of them, so
that a verdict means the same everywhere. Devices are compared with each other in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.contention.layout import WorkerSlot, baseline_levels
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES
from assay.stats.blocks import aa_noise_floor, average_units, decide_difference, ratio_over_blocks
from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Verdict
    from assay.experiments.contention.layout import ContentionLayout
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.stats.blocks import BlockRatio


LevelTable = dict[tuple["Phase", "WorkerSlot"], dict[int, float]]
"""A logarithm for each phase and place, by block."""


@dataclass(frozen=True)
class ContentionEffect:
    """A condition over quiet: the ratio over blocks, what A/A shows over as many, and what follows."""

    ratio: BlockRatio | None
    floor: float | None
    verdict: Verdict

    @property
    def estimate(self) -> Estimate | None:
        """The ratio as an estimate; null where nothing was measured."""
        if self.ratio is None:
            return None
        return Estimate(
            value=self.ratio.value,
            low=self.ratio.low,
            high=self.ratio.high,
            unit="×",
            scope="run",
            method=f"geometric mean over {self.ratio.blocks} blocks, Student's t on the logarithms of their ratios",
            n=self.ratio.blocks,
        )


@dataclass(frozen=True)
class PhaseComparison:
    """One phase against quiet: all places together, and each by itself."""

    phase: Phase
    overall: ContentionEffect
    slots: dict[WorkerSlot, ContentionEffect]


def baseline_differences(table: LevelTable, phase: Phase, slot: WorkerSlot) -> dict[int, float]:
    """Return a phase's logarithm less that of quiet, by block; of "again" less that of baseline: A/A."""
    here = table.get((phase, slot), {})
    if phase == "again":
        before = table.get(("baseline", slot), {})
        return {block: value - before[block] for block, value in here.items() if block in before}
    quiet = [table.get((quiet_phase, slot.single_worker), {}) for quiet_phase in BASELINE_PHASES]
    return {
        block: value - float(np.mean(levels))
        for block, value in here.items()
        if (levels := [by_block[block] for by_block in quiet if block in by_block])
    }


def compare_phase(table: LevelTable, phase: Phase, minimum_effect: float) -> PhaseComparison:
    """Return what a phase does to the number, at all places together and at each.

    A place is called different by an interval of its own level only where all together are; otherwise its interval must
    hold for all places at once. So what is called different by chance stays as rare as if there were one place.
    """
    slots = sorted({slot for table_phase, slot in table if table_phase == phase})
    by_place = {slot: baseline_differences(table, phase, slot) for slot in slots}
    same = {slot: baseline_differences(table, "again", slot) for slot in sorted({p.single_worker for p in slots})}
    overall = judge_effect(_pool_slots(by_place), _pool_slots(same), minimum_effect)
    effects: dict[WorkerSlot, ContentionEffect] = {}
    for slot, by_block in by_place.items():
        alike = [v for other, values in same.items() if other.subject == slot.subject for v in values.values()]
        confidence = CONFIDENCE if overall.verdict == "yes" else 1 - (1 - CONFIDENCE) / len(slots)
        effects[slot] = judge_effect(list(by_block.values()), alike, minimum_effect, confidence)
    return PhaseComparison(phase, overall, effects)


def compare_phases(table: LevelTable, phases: Sequence[Phase], minimum_effect: float) -> dict[Phase, PhaseComparison]:
    """Return what each phase with company does, and A/A; phases of which nothing is known are left out."""
    compared = [phase for phase in (*CONCURRENT_PHASES, "again") if phase in phases]
    measured = {phase for phase, _ in table}
    return {phase: compare_phase(table, phase, minimum_effect) for phase in compared if phase in measured}


def _pool_slots(by_place: Mapping[WorkerSlot, Mapping[int, float]]) -> list[float]:
    blocks = sorted({block for values in by_place.values() for block in values})
    return average_units([[values.get(block) for block in blocks] for values in by_place.values()])


def judge_effect(
    logs: Sequence[float], same: Sequence[float], minimum_effect: float, confidence: float = CONFIDENCE
) -> ContentionEffect:
    """Return what logarithms of ratios, one a block, say beside those of A/A.

    The interval is at the usual level; "yes" needs it to hold at ``confidence``.
    """
    ratio, strict = ratio_over_blocks(logs), ratio_over_blocks(logs, confidence)
    floor = aa_noise_floor(same, len(logs))
    plain, sure = decide_difference(ratio, floor, minimum_effect), decide_difference(strict, floor, minimum_effect)
    return ContentionEffect(ratio, floor, "unsure" if plain == "yes" and sure != "yes" else plain)


PhaseComparisons = dict["Phase", "PhaseComparison"]


def slowdowns(
    layout: ContentionLayout, phases: tuple[Phase, ...], quantity: str, minimum_effect: float
) -> PhaseComparisons:
    """Return the time of each phase over that alone."""
    return compare_phases(level_table(layout, quantity), phases, minimum_effect)


def spread_ratios(
    layout: ContentionLayout, phases: tuple[Phase, ...], quantity: str, minimum_effect: float
) -> PhaseComparisons:
    """Return the coefficient of variation of repeats in each phase over that alone."""
    return compare_phases(cv_table(layout, quantity), phases, minimum_effect)


def level_table(layout: ContentionLayout, quantity: str) -> LevelTable:
    """Return the logarithm of the mean time of every cell."""
    table: LevelTable = {}
    for cell in layout.cells:
        if cell.quantity == quantity:
            table.setdefault((cell.phase, cell.slot), {})[cell.block] = cell.level
    return table


def median_table(layout: ContentionLayout, quantity: str) -> LevelTable:
    """Return the logarithm of the median time of every cell."""
    table: LevelTable = {}
    for cell in layout.cells:
        if cell.quantity == quantity:
            table.setdefault((cell.phase, cell.slot), {})[cell.block] = float(np.median(cell.logs))
    return table


def cv_table(layout: ContentionLayout, quantity: str) -> LevelTable:
    """Return the logarithm of the coefficient of variation of every cell whose repeats vary at all."""
    table: LevelTable = {}
    for cell in layout.cells:
        if cell.quantity == quantity and (cv := cell.cv):
            table.setdefault((cell.phase, cell.slot), {})[cell.block] = math.log(cv)
    return table


def typical_level(table: LevelTable, phase: Phase, slot: WorkerSlot) -> BlockRatio | None:
    """Return the typical value of a place in a phase over its blocks, with its interval; null where none is known."""
    return ratio_over_blocks(list(table.get((phase, slot), {}).values()))


@dataclass(frozen=True)
class DeviceAgreement:
    """Of one subject in one phase: the two devices that lie furthest apart, and by how much."""

    subject: int
    phase: Phase
    slowest: str
    fastest: str
    effect: ContentionEffect


def gpu_models(machine: Machine, options: ContentionOptions) -> tuple[str, ...]:
    """Return the different models among the GPUs in use, in order; groups of cores are all alike."""
    used = {device.partition("/")[0] for device in options.devices}
    return tuple(dict.fromkeys(gpu.name for gpu in machine.gpus if f"cuda:{gpu.index}" in used))


def incomparable_reason(machine: Machine, options: ContentionOptions) -> str | None:
    """Return why devices are not compared with each other; null where they are."""
    models = gpu_models(machine, options)
    if len(models) > 1:
        return f"the GPUs are of different models ({', '.join(models)}), and their times need not agree"
    return None


def device_agreements(layout: ContentionLayout, options: ContentionOptions, quantity: str) -> list[DeviceAgreement]:
    """Return how far devices are apart, for each subject alone and in each phase with company."""
    if len(options.devices) < 2:
        return []
    phases = [phase for phase in options.phases if phase != "again"]
    candidates = [
        _device_agreement(layout, options, quantity, s, p) for p in phases for s in range(len(options.subjects))
    ]
    return [agreement for agreement in candidates if agreement is not None]


def _device_levels(
    layout: ContentionLayout, quantity: str, phase: Phase, slot: WorkerSlot, workers: int
) -> dict[int, float]:
    """Return a device's time as a logarithm, by block: alone, or the mean over its workers side by side."""
    if phase == "baseline":
        return baseline_levels(layout, quantity, slot)
    cells_by_worker = [
        layout.cells_by_block(phase, quantity, WorkerSlot(slot.subject, slot.device, w)) for w in range(workers)
    ]
    blocks = sorted({block for cells in cells_by_worker for block in cells})
    return {b: float(np.mean([cells[b].level for cells in cells_by_worker if b in cells])) for b in blocks}


def _device_agreement(
    layout: ContentionLayout, options: ContentionOptions, quantity: str, subject: int, phase: Phase
) -> DeviceAgreement | None:
    levels = {
        device: by_block
        for device in options.devices
        if (by_block := _device_levels(layout, quantity, phase, WorkerSlot(subject, device), options.workers))
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
    same = [v for d in levels for v in baseline_differences(table, "again", WorkerSlot(subject, d)).values()]
    strict = 1 - (1 - CONFIDENCE) / len(gaps)  # the widest of so many gaps was chosen
    return DeviceAgreement(subject, phase, first, second, judge_effect(logs, same, options.minimum_effect, strict))
