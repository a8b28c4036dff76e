"""What GPUs are held against each other by, and what each one's number is, over its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.grouped import joined, means, variances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.power.variability.fleet import Fleet

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

HOTTER_C = 3.0
"""A difference in temperature that is worth a word."""
STEP_C = 0.5
"""Half of what a temperature sensor tells apart."""
STEP = 1e-4
"""A relative difference that no sensor tells apart."""
PRIOR = 8
"""How many degrees of freedom the others' scatter counts beside a GPU's own, among many."""
MANY = 10

Unit = Literal["runs", "repeats"]


@dataclass(frozen=True)
class Measure:
    """A number of each row, and what a GPU is called whose number is high or low."""

    name: str
    column: str
    high: str
    low: str
    title: str
    relative: bool = True

    @property
    def step(self) -> float:
        """Below this nothing is seen: relative, or in °C."""
        return STEP if self.relative else STEP_C

    def margin(self, minimum_effect: float) -> float:
        """Return the difference that counts, on the scale of the numbers: logarithms, or °C."""
        return float(np.log1p(minimum_effect)) if self.relative else HOTTER_C


TIME = Measure("time", "median_us", "slow", "fast", "time")
MEASURES = (
    TIME,
    Measure("temperature", "temperature_c", "hot", "cool", "temperature", relative=False),
    Measure("power", "power_w", "hungry", "frugal", "power"),
    Measure("energy", "energy_per_call_j", "wasteful", "thrifty", "energy a call"),
    Measure("idle", "idle_w", "hungry at rest", "frugal at rest", "power at rest"),
)


@dataclass(frozen=True)
class Numbers:
    """One number of each GPU with its standard error; NaN where it was not measured, or was measured once.

    On the scale of logarithms where the measure is relative. ``unit`` is what scatters: null where nothing was measured
    twice.
    """

    measure: Measure
    value: Samples
    error: Samples
    freedom: Samples
    unit: Unit | None

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which GPUs have a number."""
        return np.isfinite(self.value)


def numbers_of(fleet: Fleet, measure: Measure) -> Numbers | None:
    """Return each GPU's number; null where fewer than one has any."""
    rows = fleet.column(measure.column, log=measure.relative)
    there = np.isfinite(rows)
    if not there.any():
        return None
    gpu, run = fleet.gpu[there], fleet.run[there]
    values = without_cases(rows[there], gpu, fleet.case[there])
    unit, units = _units(gpu, run)
    by_unit = means(values, units, int(units.max()) + 1)
    owner = np.zeros(len(by_unit), dtype=np.intp)
    owner[units] = gpu
    n = len(fleet.gpus)
    counts = np.bincount(owner, minlength=n)
    spent = len(np.unique(fleet.case[there])) - 1
    if int(np.maximum(counts - 1, 0).sum()) <= spent:
        unit = None
    scatter, freedom = _scatter(by_unit, owner, counts, spent) if unit else (np.full(n, np.nan), np.full(n, np.nan))
    error = np.sqrt(np.divide(scatter, counts, out=np.full(n, np.nan), where=counts > 0))
    return Numbers(measure, means(by_unit, owner, n), error, freedom, unit)


def without_cases(values: Samples, gpu: Codes, case: Codes) -> Samples:
    """Return the values as if all were of one case: what a case adds to all of its GPUs is taken out."""
    if not case.any():
        return values
    gpus, cases = int(gpu.max()) + 1, int(case.max()) + 1
    added = np.zeros(cases)
    for _ in range(200):
        own = np.nan_to_num(means(values - added[case], gpu, gpus))
        new = np.nan_to_num(means(values - own[gpu], case, cases))
        new -= float(new[case].mean())
        if float(np.abs(new - added).max()) < 1e-12:
            break
        added = new
    return np.asarray(values - added[case])


def _units(gpu: Codes, run: Codes) -> tuple[Unit | None, Codes]:
    """Return what scatters: runs where any GPU has several, else its rows, else nothing."""
    by_run = joined(gpu, run)
    first = np.zeros(int(by_run.max()) + 1, dtype=np.intp)
    first[by_run] = gpu
    if np.bincount(first).max() > 1:
        return "runs", by_run
    return ("repeats" if np.bincount(gpu).max() > 1 else None), np.arange(len(gpu))


def _scatter(values: Samples, owner: Codes, counts: Codes, spent: int) -> tuple[Samples, Samples]:
    """Return the variance of one unit of each GPU, and the degrees of freedom that it is known with.

    Those that were ``spent`` on what cases add are gone. Among many GPUs the middle of their variances counts beside
    each one's own: one that scatters by itself is seen.
    """
    n = len(counts)
    own = variances(values, owner, n)
    freedom = np.maximum(counts - 1, 0).astype(np.float64)
    several = freedom > 0
    if several.sum() < MANY:
        left = float(freedom.sum()) - spent
        pooled = float((own[several] * freedom[several]).sum() / left)
        return np.full(n, pooled), np.full(n, left)
    typical = 2 * special.gammaincinv(freedom[several] / 2, 0.5) / freedom[several]
    middle = float(np.median(own[several] / typical))
    prior = min(float(freedom.sum()), float(PRIOR))
    mixed = (prior * middle + freedom * np.nan_to_num(own)) / (prior + freedom)
    return mixed, prior + freedom
