"""Where the noise comes from: the noise budget of a single timing, and what times correlate with.

    log time − its baseline level  =  within the process  +  from start to start  +  drift  +  neighbours  +  rest

Each part is a standard deviation of log time; neighbours are a shift, and count with its size. Parts add up in squares.
The sampling error is subtracted from each part. The rest is what these parts do not explain together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.effects import baseline_differences
from assay.experiments.contention.layout import baseline_levels
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES
from assay.stats.correlation import adjust_holm, rank_correlation
from assay.stats.intervals import effective_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import GpuWindowStats, Record
    from assay.experiments.contention.effects import LevelTable
    from assay.experiments.contention.layout import ContentionLayout, LayoutCell, PhaseTrial, WorkerSlot
    from assay.experiments.contention.options import Phase
    from assay.stats.correlation import RankCorrelation


if TYPE_CHECKING:
    Samples = NDArray[np.float64]

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
    """Variances of log time by part, in one condition; ``total`` is the mean square distance from quiet."""

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


def noise_budgets(layout: ContentionLayout, quantity: str) -> list[NoiseBudget]:
    """Return the budget of a timing alone, and of one in each phase with company, as far as they were measured."""
    cells = [cell for cell in layout.cells if cell.quantity == quantity]
    table: LevelTable = {}
    for cell in cells:
        table.setdefault((cell.phase, cell.slot), {})[cell.block] = float(cell.logs.mean())
    drift = _fit_drift([cell for cell in cells if cell.phase in BASELINE_PHASES])
    conditions: dict[str, tuple[Phase, ...]] = {
        "alone": BASELINE_PHASES,
        **{phase: (phase,) for phase in CONCURRENT_PHASES},
    }
    candidates = [_noise_budget(cells, table, name, phases, drift) for name, phases in conditions.items()]
    return [budget for budget in candidates if budget is not None]


@dataclass(frozen=True)
class _Drift:
    """A straight line through the levels in quiet over the run: per second, and the variance it adds."""

    per_s: float = 0.0
    variance: float = 0.0
    middle_s: float = 0.0

    def at(self, second: float) -> float:
        return self.per_s * (second - self.middle_s)


def _fit_drift(cells: Sequence[LayoutCell]) -> _Drift:
    """Return the drift that quiet cells show beyond what their scatter would by chance."""
    slots = sorted({cell.slot for cell in cells})
    freedom = len(cells) - len(slots) - 1
    if freedom < 1:
        return _Drift()
    index = np.array([slots.index(cell.slot) for cell in cells])
    levels, times = np.array([cell.logs.mean() for cell in cells]), np.array([cell.at_s for cell in cells])
    y, t = (_centred(values, index, len(slots)) for values in (levels, times))
    weight = float(t @ t)
    if weight == 0:
        return _Drift()
    slope = float(t @ y) / weight
    error = float(np.sum((y - slope * t) ** 2)) / freedom / weight
    real = max(0.0, slope**2 - error)
    return _Drift(math.copysign(math.sqrt(real), slope), real * weight / len(t), float(times.mean()))


def _centred(values: Samples, index: NDArray[np.int_], groups: int) -> Samples:
    means = np.array([values[index == group].mean() for group in range(groups)])
    return np.asarray(values - means[index], dtype=np.float64)


def _noise_budget(
    cells: Sequence[LayoutCell], table: LevelTable, condition: str, phases: tuple[Phase, ...], drift: _Drift
) -> NoiseBudget | None:
    quiet = {slot: level for _, slot in table if (level := _baseline_level(table, slot)) is not None}
    mine = [cell for cell in cells if cell.phase in phases and cell.slot in quiet]
    if not mine:
        return None
    parts = {
        "within": float(np.mean([cell.logs.var() for cell in mine])),
        "starts": _start_variance(mine, drift),
        "drift": drift.variance,
        "neighbours": _neighbour_variance(table, phases[0]) if phases[0] in CONCURRENT_PHASES else 0.0,
    }
    total = float(np.mean([np.mean((cell.logs - quiet[cell.slot]) ** 2) for cell in mine]))
    return NoiseBudget(condition, {**parts, "rest": max(0.0, total - sum(parts.values()))}, total)


def _baseline_level(table: LevelTable, slot: WorkerSlot) -> float | None:
    """Return a place's level alone, over all blocks; null where it was never measured."""
    levels = [level for phase in BASELINE_PHASES for level in table.get((phase, slot.single_worker), {}).values()]
    return float(np.mean(levels)) if levels else None


def _start_variance(cells: Sequence[LayoutCell], drift: _Drift) -> float:
    """Return the variance of processes about the mean of their place and phase, less what sampling explains."""
    groups: dict[tuple[WorkerSlot, Phase], list[float]] = {}
    for cell in cells:
        groups.setdefault((cell.slot, cell.phase), []).append(float(cell.logs.mean()) - drift.at(cell.at_s))
    several = [np.array(levels) for levels in groups.values() if len(levels) > 1]
    if not several:
        return 0.0
    freedom = sum(len(levels) - 1 for levels in several)
    scatter = sum(float(np.sum((levels - levels.mean()) ** 2)) for levels in several) / freedom
    by_chance = float(np.mean([cell.logs.var() / effective_size(cell.samples) for cell in cells]))
    return max(0.0, scatter - by_chance)


def _neighbour_variance(table: LevelTable, phase: Phase) -> float:
    """Return the mean square shift against quiet, less what the scatter of blocks would show without one."""
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
"""What is seen of the host, in words."""

GPU_METRICS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "power_w": ("GPU power", max),
    "sm_mhz_low": ("lowest GPU clock", min),
    "sm_mhz_high": ("highest GPU clock", max),
    "temperature_c": ("GPU temperature", max),
    "utilisation_percent": ("GPU utilisation", max),
    "throttled_s": ("time that the GPU was held back", max),
    "pcie_mb_per_s": ("PCIe traffic", max),
}
"""What is seen of the GPUs, in words, and which of several counts."""

CONTEXT_SWITCHES = "times a core was taken from a worker"


@dataclass(frozen=True)
class SensorCorrelation:
    """How the time of trials goes with something that was seen."""

    metric: str
    correlation: RankCorrelation


def sensor_correlations(layout: ContentionLayout, quantity: str) -> list[SensorCorrelation]:
    """Return how time goes with each thing that was seen in enough trials; p holds for all of them together."""
    trials = [
        (phase_trial, slow)
        for phase_trial in layout.phase_trials
        if (slow := _trial_slowness(layout, quantity, phase_trial)) is not None
    ]
    slowness = [value for _, value in trials]
    metrics_by_trial = [trial_metrics(phase_trial.record) for phase_trial, _ in trials]
    names = dict.fromkeys(name for metrics in metrics_by_trial for name in metrics)
    by_metric = {
        name: rank_correlation(slowness, [metrics.get(name) for metrics in metrics_by_trial]) for name in names
    }
    measured = {name: entry for name, entry in by_metric.items() if entry is not None}
    corrected = zip(measured, adjust_holm(list(measured.values())), strict=True)
    return sorted(
        (SensorCorrelation(name, entry) for name, entry in corrected), key=lambda entry: -abs(entry.correlation.rho)
    )


def trial_metrics(record: Record) -> dict[str, float]:
    """Return what was seen while a trial was timed, by name; what was not seen is left out."""
    metrics: dict[str, float | None] = {}
    if record.during is not None:
        metrics = {words: getattr(record.during, name) for name, words in HOST_METRICS.items()}
        for name, (words, counts) in GPU_METRICS.items():
            values = _gpu_values(record.during.gpus, name)
            metrics[words] = counts(values) if values else None
    seconds = (record.window.end_ns - record.window.start_ns) / 1e9
    switches = [e.involuntary_switches for e in record.evidence if e.involuntary_switches is not None]
    if switches and seconds > 0:
        metrics[f"{CONTEXT_SWITCHES}, per s"] = sum(switches) / seconds
    return {name: value for name, value in metrics.items() if value is not None}


def _gpu_values(gpus: tuple[GpuWindowStats, ...], name: str) -> list[float]:
    return [value for gpu in gpus if (value := getattr(gpu, name)) is not None]


def _trial_slowness(layout: ContentionLayout, quantity: str, phase_trial: PhaseTrial) -> float | None:
    """Return by how much a trial's workers were slower than quiet usually is, as a logarithm."""
    gaps = []
    for cell in layout.cells:
        if cell.trial == phase_trial.record.trial and cell.quantity == quantity:
            quiet = list(baseline_levels(layout, quantity, cell.slot).values())
            gaps += [cell.level - float(np.mean(quiet))] if quiet else []
    return float(np.mean(gaps)) if gaps else None
