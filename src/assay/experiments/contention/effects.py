"""The effect of a phase on any quantity of a slot, compared with the baseline within each block and with an A/A test.

The quantity is a logarithm: of a time, a coefficient of variation or a regret. The same functions judge all of them, so
that a verdict means the same everywhere. Devices are compared with each other in the same way.

The noise budget of a single timing says where its spread comes from:

    log time − its baseline level  =  within the process  +  from start to start  +  drift  +  neighbours  +  rest

Each part is a standard deviation of log time; neighbours are a shift, and count with its size. Parts add up in squares.
The sampling error is subtracted from each part. The rest is what these parts do not explain together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.layout import WorkerSlot, baseline_levels
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES
from assay.experiments.reporting import block_ratio_estimate
from assay.stats.blocks import aa_noise_floor, average_units, decide_difference, ratio_over_blocks
from assay.stats.correlation import adjust_holm, rank_correlation
from assay.stats.intervals import CONFIDENCE, effective_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Estimate, Record, Verdict
    from assay.experiments.contention.layout import ContentionLayout, LayoutCell, LevelTable
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.stats.blocks import BlockRatio
    from assay.stats.correlation import RankCorrelation


@dataclass(frozen=True)
class ContentionEffect:
    """A condition over the baseline: the ratio over blocks, what A/A shows over as many, and what follows."""

    ratio: BlockRatio | None
    floor: float | None
    verdict: Verdict

    @property
    def estimate(self) -> Estimate | None:
        """The ratio as an estimate; null where nothing was measured."""
        blocks = 0 if self.ratio is None else self.ratio.blocks
        method = f"geometric mean over {blocks} blocks, Student's t on the logarithms of their ratios"
        return block_ratio_estimate(self.ratio, method)


@dataclass(frozen=True)
class PhaseComparison:
    """One phase against the baseline: all slots together, and each by itself."""

    phase: Phase
    overall: ContentionEffect
    slots: dict[WorkerSlot, ContentionEffect]


PhaseComparisons = dict["Phase", PhaseComparison]


def baseline_differences(table: LevelTable, phase: Phase, slot: WorkerSlot) -> dict[int, float]:
    """Return a phase's logarithm less that of the baseline, by block; of "again" less that of "baseline": A/A."""
    alone = table.get(("baseline", slot), {}) if phase == "again" else baseline_levels(table, slot)
    here = table.get((phase, slot), {})
    return {block: value - alone[block] for block, value in here.items() if block in alone}


def compare_phase(table: LevelTable, phase: Phase, minimum_effect: float) -> PhaseComparison:
    """Return what a phase does to the number, at all slots together and at each.

    A slot is called different by an interval of its own level only where all together are; otherwise its interval must
    hold for all slots at once. So what is called different by chance stays as rare as if there were one slot.
    """
    slots = sorted({slot for table_phase, slot in table if table_phase == phase})
    by_slot = {slot: baseline_differences(table, phase, slot) for slot in slots}
    same = {slot: baseline_differences(table, "again", slot) for slot in sorted({p.single_worker for p in slots})}
    overall = judge_effect(_pool_slots(by_slot), _pool_slots(same), minimum_effect)
    effects: dict[WorkerSlot, ContentionEffect] = {}
    for slot, by_block in by_slot.items():
        alike = [v for other, values in same.items() if other.subject == slot.subject for v in values.values()]
        confidence = CONFIDENCE if overall.verdict == "yes" else 1 - (1 - CONFIDENCE) / len(slots)
        effects[slot] = judge_effect(list(by_block.values()), alike, minimum_effect, confidence)
    return PhaseComparison(phase, overall, effects)


def compare_phases(table: LevelTable, phases: Sequence[Phase], minimum_effect: float) -> PhaseComparisons:
    """Return what each concurrent phase does, and A/A; phases of which nothing is known are left out."""
    compared = [phase for phase in (*CONCURRENT_PHASES, "again") if phase in phases]
    measured = {phase for phase, _ in table}
    return {phase: compare_phase(table, phase, minimum_effect) for phase in compared if phase in measured}


def _pool_slots(by_slot: Mapping[WorkerSlot, Mapping[int, float]]) -> list[float]:
    blocks = sorted({block for values in by_slot.values() for block in values})
    return average_units([[values.get(block) for block in blocks] for values in by_slot.values()])


def judge_effect(
    logs: Sequence[float], same: Sequence[float], minimum_effect: float, confidence: float = CONFIDENCE
) -> ContentionEffect:
    """Return what logarithms of ratios, one a block, say beside those of A/A.

    The interval is at the usual level; "yes" needs it to hold at ``confidence``.
    """
    ratio = ratio_over_blocks(logs)
    floor = aa_noise_floor(same, len(logs))
    verdict = decide_difference(ratio, floor, minimum_effect)
    if verdict == "yes" and confidence != CONFIDENCE:
        sure = decide_difference(ratio_over_blocks(logs, confidence), floor, minimum_effect)
        verdict = "yes" if sure == "yes" else "unsure"
    return ContentionEffect(ratio, floor, verdict)


def typical_level(table: LevelTable, phase: Phase, slot: WorkerSlot) -> BlockRatio | None:
    """Return the typical value of a slot in a phase over its blocks, with its interval; null where none is known."""
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


def device_agreements(layout: ContentionLayout, options: ContentionOptions) -> list[DeviceAgreement]:
    """Return how far devices are apart, for each subject alone and in each concurrent phase."""
    if len(options.devices) < 2:
        return []
    table = layout.table(layout.quantity)
    candidates = [
        _device_agreement(table, options, subject, phase)
        for phase in options.phases
        if phase != "again"
        for subject in range(len(options.subjects))
    ]
    return [agreement for agreement in candidates if agreement is not None]


def _device_levels(table: LevelTable, phase: Phase, slot: WorkerSlot, workers: int) -> dict[int, float]:
    """Return a device's time as a logarithm, by block: alone, or the mean over its concurrent workers."""
    if phase == "baseline":
        return baseline_levels(table, slot)
    by_worker = [table.get((phase, WorkerSlot(slot.subject, slot.device, w)), {}) for w in range(workers)]
    blocks = sorted({block for levels in by_worker for block in levels})
    return {b: float(np.mean([levels[b] for levels in by_worker if b in levels])) for b in blocks}


def _device_agreement(
    table: LevelTable, options: ContentionOptions, subject: int, phase: Phase
) -> DeviceAgreement | None:
    levels = {
        device: by_block
        for device in options.devices
        if (by_block := _device_levels(table, phase, WorkerSlot(subject, device), options.workers))
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
    same = [v for d in levels for v in baseline_differences(table, "again", WorkerSlot(subject, d)).values()]
    strict = 1 - (1 - CONFIDENCE) / len(gaps)  # the widest of so many gaps was chosen
    return DeviceAgreement(subject, phase, first, second, judge_effect(logs, same, options.minimum_effect, strict))


NOISE_PARTS = {
    "within": "within a process",
    "starts": "from start to start",
    "drift": "by drift over the run",
    "neighbours": "by neighbours",
    "rest": "rest",
}
"""The parts in words."""


@dataclass(frozen=True)
class NoiseBudget:
    """Variances of log time by part, in one condition; ``total`` is the mean square distance from the baseline."""

    condition: str
    parts: dict[str, float]
    total: float

    def spread(self, part: str) -> float:
        """Return a part as a standard deviation, as a share of the time."""
        return math.expm1(math.sqrt(self.parts[part]))

    @property
    def largest(self) -> str:
        """The part that adds most."""
        return max((part for part in self.parts if part != "rest"), key=lambda part: self.parts[part])


def noise_budgets(layout: ContentionLayout) -> list[NoiseBudget]:
    """Return the budget of a timing alone, and of one in each concurrent phase, as far as they were measured."""
    cells = [cell for cell in layout.cells if cell.quantity == layout.quantity]
    table = layout.table(layout.quantity, "mean_log")
    alone: dict[WorkerSlot, float] = {}
    for slot in {slot for _, slot in table}:
        levels = [level for phase in BASELINE_PHASES for level in table.get((phase, slot.single_worker), {}).values()]
        if levels:
            alone[slot] = float(np.mean(levels))
    drift = _fit_drift([cell for cell in cells if cell.phase in BASELINE_PHASES])
    conditions: dict[str, tuple[Phase, ...]] = {"alone": BASELINE_PHASES, **{p: (p,) for p in CONCURRENT_PHASES}}
    budgets = []
    for condition, phases in conditions.items():
        mine = [cell for cell in cells if cell.phase in phases and cell.slot in alone]
        if not mine:
            continue
        parts = {
            "within": float(np.mean([cell.logs.var() for cell in mine])),
            "starts": _start_variance(mine, drift),
            "drift": drift.variance,
            "neighbours": _neighbour_variance(table, phases[0]) if phases[0] in CONCURRENT_PHASES else 0.0,
        }
        total = float(np.mean([np.mean((cell.logs - alone[cell.slot]) ** 2) for cell in mine]))
        budgets.append(NoiseBudget(condition, {**parts, "rest": max(0.0, total - sum(parts.values()))}, total))
    return budgets


@dataclass(frozen=True)
class _Drift:
    """A straight line through the baseline levels over the run: per second, and the variance it adds."""

    per_s: float = 0.0
    variance: float = 0.0
    middle_s: float = 0.0


def _fit_drift(cells: Sequence[LayoutCell]) -> _Drift:
    """Return the drift that baseline cells show beyond what their scatter would by chance."""
    slots = sorted({cell.slot for cell in cells})
    freedom = len(cells) - len(slots) - 1
    if freedom < 1:
        return _Drift()
    index = np.array([slots.index(cell.slot) for cell in cells])
    levels, times = np.array([cell.mean_log for cell in cells]), np.array([cell.at_s for cell in cells])

    def centre(values: NDArray[np.float64]) -> NDArray[np.float64]:
        means = np.array([values[index == group].mean() for group in range(len(slots))])
        return np.asarray(values - means[index], dtype=np.float64)

    y, t = centre(levels), centre(times)
    weight = float(t @ t)
    if weight == 0:
        return _Drift()
    slope = float(t @ y) / weight
    error = float(np.sum((y - slope * t) ** 2)) / freedom / weight
    real = max(0.0, slope**2 - error)
    return _Drift(math.copysign(math.sqrt(real), slope), real * weight / len(t), float(times.mean()))


def _start_variance(cells: Sequence[LayoutCell], drift: _Drift) -> float:
    """Return the variance of processes about the mean of their slot and phase, less what sampling explains."""
    groups: dict[tuple[WorkerSlot, Phase], list[float]] = {}
    for cell in cells:
        drifted = drift.per_s * (cell.at_s - drift.middle_s)
        groups.setdefault((cell.slot, cell.phase), []).append(cell.mean_log - drifted)
    several = [np.array(levels) for levels in groups.values() if len(levels) > 1]
    if not several:
        return 0.0
    freedom = sum(len(levels) - 1 for levels in several)
    scatter = sum(float(np.sum((levels - levels.mean()) ** 2)) for levels in several) / freedom
    by_chance = float(np.mean([cell.logs.var() / effective_size(cell.samples) for cell in cells]))
    return max(0.0, scatter - by_chance)


def _neighbour_variance(table: LevelTable, phase: Phase) -> float:
    """Return the mean square shift against the baseline, less what the scatter of blocks would show without one."""
    shifts = []
    for slot in sorted({slot for table_phase, slot in table if table_phase == phase}):
        logs = np.array(list(baseline_differences(table, phase, slot).values()))
        if len(logs):
            chance = float(logs.var(ddof=1)) / len(logs) if len(logs) > 1 else 0.0
            shifts.append(max(0.0, float(logs.mean()) ** 2 - chance))
    return float(np.mean(shifts)) if shifts else 0.0


HOST_METRICS: dict[str, str] = {
    "cpu_percent": "CPUs busy",
    "steal_percent": "time taken by the hypervisor",
    "context_switches_per_s": "context switches",
    "pressure_cpu_percent": "time that threads waited for a CPU",
    "memory_used_mib": "memory used",
}
"""Host sensors, in words."""

GPU_METRICS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "power_w": ("GPU power", max),
    "sm_mhz_low": ("lowest GPU clock", min),
    "sm_mhz_high": ("highest GPU clock", max),
    "temperature_c": ("GPU temperature", max),
    "utilisation_percent": ("GPU utilisation", max),
    "throttled_s": ("time that the GPU was held back", max),
    "pcie_mb_per_s": ("PCIe traffic", max),
}
"""GPU sensors, in words, and which of several GPUs counts."""

CONTEXT_SWITCHES = "times a core was taken from a worker, per s"


@dataclass(frozen=True)
class SensorCorrelation:
    """How the time of trials correlates with a sensor."""

    metric: str
    correlation: RankCorrelation


def sensor_correlations(layout: ContentionLayout) -> list[SensorCorrelation]:
    """Return how time goes with each thing that was seen in enough trials; p holds for all of them together."""
    table = layout.table(layout.quantity)
    gaps: dict[str, list[float]] = {}
    alone = {slot: list(baseline_levels(table, slot).values()) for _, slot in table}
    for cell in layout.cells:
        if cell.quantity == layout.quantity and alone[cell.slot]:
            gaps.setdefault(cell.trial, []).append(cell.level - float(np.mean(alone[cell.slot])))
    records = [phase_trial.record for phase_trial in layout.phase_trials if phase_trial.record.trial in gaps]
    slowness = [float(np.mean(gaps[record.trial])) for record in records]
    metrics_by_trial = [_trial_metrics(record) for record in records]
    names = dict.fromkeys(name for metrics in metrics_by_trial for name in metrics)
    by_metric = {
        name: rank_correlation(slowness, [metrics.get(name) for metrics in metrics_by_trial]) for name in names
    }
    measured = {name: entry for name, entry in by_metric.items() if entry is not None}
    corrected = zip(measured, adjust_holm(list(measured.values())), strict=True)
    return sorted(
        (SensorCorrelation(name, entry) for name, entry in corrected), key=lambda entry: -abs(entry.correlation.rho)
    )


def _trial_metrics(record: Record) -> dict[str, float]:
    """Return what was seen while a trial was timed, by name; what was not seen is left out."""
    metrics: dict[str, float | None] = {}
    if record.during is not None:
        metrics = {words: getattr(record.during, name) for name, words in HOST_METRICS.items()}
        for name, (words, counts) in GPU_METRICS.items():
            values = [value for gpu in record.during.gpus if (value := getattr(gpu, name)) is not None]
            metrics[words] = counts(values) if values else None
    seconds = (record.window.end_ns - record.window.start_ns) / 1e9
    switches = [e.involuntary_switches for e in record.evidence if e.involuntary_switches is not None]
    if switches and seconds > 0:
        metrics[CONTEXT_SWITCHES] = sum(switches) / seconds
    return {name: value for name, value in metrics.items() if value is not None}
