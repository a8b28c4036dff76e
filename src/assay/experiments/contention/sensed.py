"""What times go with: how slow each trial was, beside what was seen on the machine meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.cells import quiet_levels
from assay.stats.ranks import correlation, holm

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import GpuSeen, Record
    from assay.experiments.contention.cells import Layout, Seen
    from assay.stats.ranks import Correlation

HOST: dict[str, str] = {
    "cpu_percent": "CPUs busy",
    "steal_percent": "time taken by the hypervisor",
    "context_switches_per_s": "context switches",
    "pressure_cpu_percent": "time that threads waited for a CPU",
    "memory_used_mib": "memory used",
}
"""What is seen of the host, in words."""

GPUS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "power_w": ("GPU power", max),
    "sm_mhz_low": ("lowest GPU clock", min),
    "sm_mhz_high": ("highest GPU clock", max),
    "temperature_c": ("GPU temperature", max),
    "utilisation_percent": ("GPU utilisation", max),
    "throttled_s": ("time that the GPU was held back", max),
    "pcie_mb_per_s": ("PCIe traffic", max),
}
"""What is seen of the GPUs, in words, and which of several counts."""

SWITCHES = "times a core was taken from a worker"


@dataclass(frozen=True)
class Together:
    """How the time of trials goes with something that was seen."""

    what: str
    found: Correlation


def correlations(layout: Layout, quantity: str) -> list[Together]:
    """Return how time goes with each thing that was seen in enough trials; p holds for all of them together."""
    trials = [
        (phase_trial, slow) for phase_trial in layout.seen if (slow := _slow(layout, quantity, phase_trial)) is not None
    ]
    slowness = [value for _, value in trials]
    metrics_by_trial = [sights_of(phase_trial.record) for phase_trial, _ in trials]
    names = dict.fromkeys(name for metrics in metrics_by_trial for name in metrics)
    by_metric = {name: correlation(slowness, [metrics.get(name) for metrics in metrics_by_trial]) for name in names}
    measured = {name: entry for name, entry in by_metric.items() if entry is not None}
    corrected = zip(measured, holm(list(measured.values())), strict=True)
    return sorted((Together(name, entry) for name, entry in corrected), key=lambda entry: -abs(entry.found.rho))


def sights_of(record: Record) -> dict[str, float]:
    """Return what was seen while a trial was timed, by name; what was not seen is left out."""
    metrics: dict[str, float | None] = {}
    if record.meanwhile is not None:
        metrics = {words: getattr(record.meanwhile, name) for name, words in HOST.items()}
        for name, (words, counts) in GPUS.items():
            values = _of_gpus(record.meanwhile.gpus, name)
            metrics[words] = counts(values) if values else None
    seconds = (record.window.end_ns - record.window.start_ns) / 1e9
    switches = [e.involuntary_switches for e in record.evidence if e.involuntary_switches is not None]
    if switches and seconds > 0:
        metrics[f"{SWITCHES}, per s"] = sum(switches) / seconds
    return {name: value for name, value in metrics.items() if value is not None}


def _of_gpus(gpus: tuple[GpuSeen, ...], name: str) -> list[float]:
    return [value for gpu in gpus if (value := getattr(gpu, name)) is not None]


def _slow(layout: Layout, quantity: str, seen: Seen) -> float | None:
    """Return by how much a trial's workers were slower than quiet usually is, as a logarithm."""
    gaps = []
    for cell in layout.cells:
        if cell.trial == seen.record.trial and cell.quantity == quantity:
            quiet = list(quiet_levels(layout, quantity, cell.place).values())
            gaps += [cell.level - float(np.mean(quiet))] if quiet else []
    return float(np.mean(gaps)) if gaps else None
