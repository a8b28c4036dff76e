"""One number per GPU and measure over its runs, the spread between GPUs, and the variance that each level adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE
from assay.stats.variance import combine_codes, estimate_components, group_means, group_variances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.power.variability.fleet import GpuFleet
    from assay.stats.variance import VarianceComponent


if TYPE_CHECKING:
    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

MIN_TEMPERATURE_DIFFERENCE_C = 3.0
"""A difference in temperature that is worth a word."""
STEP_C = 0.5
"""Half of what a temperature sensor tells apart."""
STEP = 1e-4
"""A relative difference that no sensor tells apart."""
PRIOR_FREEDOM = 8
"""How many degrees of freedom the others' scatter counts beside a GPU's own, among many."""
MANY_UNITS = 10

ScatterUnit = Literal["runs", "repeats"]


@dataclass(frozen=True)
class GpuMeasure:
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
        return float(np.log1p(minimum_effect)) if self.relative else MIN_TEMPERATURE_DIFFERENCE_C


TIME_MEASURE = GpuMeasure("time", "median_us", "slow", "fast", "time")
MEASURES = (
    TIME_MEASURE,
    GpuMeasure("temperature", "temperature_c", "hot", "cool", "temperature", relative=False),
    GpuMeasure("power", "power_w", "hungry", "frugal", "power"),
    GpuMeasure("energy", "energy_per_call_j", "wasteful", "thrifty", "energy a call"),
    GpuMeasure("idle", "idle_w", "hungry at rest", "frugal at rest", "power at rest"),
)


@dataclass(frozen=True)
class GpuNumbers:
    """One number of each GPU with its standard error; NaN where it was not measured, or was measured once.

    On the scale of logarithms where the measure is relative. ``unit`` is what scatters: null where nothing was measured
    twice.
    """

    measure: GpuMeasure
    value: Samples
    error: Samples
    freedom: Samples
    unit: ScatterUnit | None

    @property
    def has_value(self) -> NDArray[np.bool_]:
        """Which GPUs have a number."""
        return np.isfinite(self.value)


def gpu_numbers(fleet: GpuFleet, measure: GpuMeasure) -> GpuNumbers | None:
    """Return each GPU's number; null where fewer than one has any."""
    rows = fleet.column(measure.column, log=measure.relative)
    there = np.isfinite(rows)
    if not there.any():
        return None
    gpu, run = fleet.gpu[there], fleet.run[there]
    values = remove_case_effects(rows[there], gpu, fleet.case[there])
    unit, units = _scatter_units(gpu, run)
    by_unit = group_means(values, units, int(units.max()) + 1)
    owner = np.zeros(len(by_unit), dtype=np.intp)
    owner[units] = gpu
    n = len(fleet.gpus)
    counts = np.bincount(owner, minlength=n)
    spent = len(np.unique(fleet.case[there])) - 1
    if int(np.maximum(counts - 1, 0).sum()) <= spent:
        unit = None
    scatter, freedom = (
        _unit_variance(by_unit, owner, counts, spent) if unit else (np.full(n, np.nan), np.full(n, np.nan))
    )
    error = np.sqrt(np.divide(scatter, counts, out=np.full(n, np.nan), where=counts > 0))
    return GpuNumbers(measure, group_means(by_unit, owner, n), error, freedom, unit)


def remove_case_effects(values: Samples, gpu: Codes, case: Codes) -> Samples:
    """Return the values as if all were of one case: what a case adds to all of its GPUs is taken out."""
    if not case.any():
        return values
    gpus, cases = int(gpu.max()) + 1, int(case.max()) + 1
    added = np.zeros(cases)
    for _ in range(200):
        own = np.nan_to_num(group_means(values - added[case], gpu, gpus))
        new = np.nan_to_num(group_means(values - own[gpu], case, cases))
        new -= float(new[case].mean())
        if float(np.abs(new - added).max()) < 1e-12:
            break
        added = new
    return np.asarray(values - added[case])


def _scatter_units(gpu: Codes, run: Codes) -> tuple[ScatterUnit | None, Codes]:
    """Return what scatters: runs where any GPU has several, else its rows, else nothing."""
    by_run = combine_codes(gpu, run)
    first = np.zeros(int(by_run.max()) + 1, dtype=np.intp)
    first[by_run] = gpu
    if np.bincount(first).max() > 1:
        return "runs", by_run
    return ("repeats" if np.bincount(gpu).max() > 1 else None), np.arange(len(gpu))


def _unit_variance(values: Samples, owner: Codes, counts: Codes, spent: int) -> tuple[Samples, Samples]:
    """Return the variance of one unit of each GPU, and the degrees of freedom that it is known with.

    Those that were ``spent`` on what cases add are gone. Among many GPUs the middle of their variances counts beside
    each one's own: one that scatters by itself is seen.
    """
    n = len(counts)
    own = group_variances(values, owner, n)
    freedom = np.maximum(counts - 1, 0).astype(np.float64)
    several = freedom > 0
    if several.sum() < MANY_UNITS:
        left = float(freedom.sum()) - spent
        pooled = float((own[several] * freedom[several]).sum() / left)
        return np.full(n, pooled), np.full(n, left)
    typical = 2 * special.gammaincinv(freedom[several] / 2, 0.5) / freedom[several]
    middle = float(np.median(own[several] / typical))
    prior = min(float(freedom.sum()), float(PRIOR_FREEDOM))
    mixed = (prior * middle + freedom * np.nan_to_num(own)) / (prior + freedom)
    return mixed, prior + freedom


MIDDLE_SHARE = 0.9
MIN_GPUS_FOR_MIDDLE = 20
SPREAD_DRAWS, SPREAD_SEED = 4000, 5


@dataclass(frozen=True)
class TimeSpread:
    """Ratios of times, 1 is none: slowest to fastest, and over the middle nine tenths; nulls where not known."""

    ratio: float
    low: float | None
    high: float | None
    slowest: int
    fastest: int
    middle: float | None
    middle_low: float | None
    middle_high: float | None


def time_spread(numbers: GpuNumbers) -> TimeSpread | None:
    """Return how far GPUs are apart in a relative measure; null for fewer than two.

    The interval of the largest difference is the one that holds for all differences at once (Tukey). That of the middle
    is over GPUs drawn anew; it includes what measuring adds.
    """
    measured = np.flatnonzero(numbers.has_value)
    if len(measured) < 2:
        return None
    values, errors = numbers.value[measured], numbers.error[measured]
    slowest, fastest = int(values.argmax()), int(values.argmin())
    apart = float(values[slowest] - values[fastest])
    low = high = None
    if numbers.unit is not None:
        freedom = round(float(np.min(numbers.freedom[measured])))
        pair = float(np.sqrt((errors[slowest] ** 2 + errors[fastest] ** 2) / 2))
        reach = _studentised_range(len(measured), freedom) * pair
        low, high = float(np.exp(max(apart - reach, 0.0))), float(np.exp(apart + reach))
    return TimeSpread(
        float(np.exp(apart)), low, high, int(measured[slowest]), int(measured[fastest]), *_middle_spread(values)
    )


@cache
def _studentised_range(n: int, freedom: int) -> float:
    """Return how far apart the ends of n equal numbers seldom are, in their standard errors: the studentised range."""
    chance = np.random.default_rng(SPREAD_SEED)
    draws = 20_000 if n <= 50 else 2000 if n <= 500 else 300
    noise = chance.standard_normal((draws, n))
    ranges = (noise.max(axis=1) - noise.min(axis=1)) / np.sqrt(chance.chisquare(freedom, draws) / freedom)
    return float(np.quantile(ranges, CONFIDENCE))


def _middle_spread(values: Samples) -> tuple[float | None, float | None, float | None]:
    n = len(values)
    if n < MIN_GPUS_FOR_MIDDLE:
        return None, None, None
    tails = [(1 - MIDDLE_SHARE) / 2, (1 + MIDDLE_SHARE) / 2]
    first, last = max(1, round(tails[0] * n)), round(tails[1] * n)
    chance = np.random.default_rng(SPREAD_SEED)
    # Where the two quantiles of a new draw of all GPUs lie among these: order statistics of uniform numbers.
    below = chance.beta(first, n - first + 1, SPREAD_DRAWS)
    above = below + (1 - below) * chance.beta(last - first, n - last + 1, SPREAD_DRAWS)
    ordered = np.sort(values)
    draws = ordered[(above * (n - 1)).round().astype(np.intp)] - ordered[(below * (n - 1)).round().astype(np.intp)]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    own = float(np.diff(np.quantile(values, tails))[0])
    return float(np.exp(own)), float(np.exp(low)), float(np.exp(high))


LEVEL_NAMES = ("racks", "hosts", "GPUs", "runs", "repeats", "restarts", "calls")


def variance_components(fleet: GpuFleet, without: frozenset[int] = frozenset()) -> tuple[VarianceComponent, ...]:
    """Return the variance of the logarithm of a call's time that each level adds; some GPUs may be left out.

    What a case adds to all of its GPUs is taken out first. Racks that are not known are a level of one member.
    """
    gone = np.zeros(len(fleet.gpus), dtype=np.bool_)
    gone[list(without)] = True
    rows = np.flatnonzero(~gone[fleet.gpu])
    if not len(rows):
        return ()
    times = fleet.column("median_us", log=True)[rows]
    adjusted = remove_case_effects(times, fleet.gpu[rows], fleet.case[rows])
    leaves, of_row = _restart_log_times(fleet, rows)
    values = leaves - (times - adjusted)[of_row]
    gpu = fleet.gpu[rows][of_row]
    rack = fleet.rack if (fleet.rack >= 0).all() else np.zeros(len(fleet.gpus), dtype=np.intp)
    design = [
        ("racks", rack[gpu]),
        ("hosts", fleet.host[gpu]),
        ("GPUs", gpu),
        ("runs", fleet.run[rows][of_row]),
        ("repeats", of_row),
        ("restarts", np.arange(len(values))),
    ]
    spread = fleet.column("cv")[rows]
    finite = np.isfinite(spread)
    calls = ("calls", np.log1p(spread[finite] ** 2), _dense_codes(fleet.gpu[rows][finite])) if finite.any() else None
    return estimate_components(values, design, calls, spent={"repeats": len(np.unique(fleet.case[rows])) - 1})


def _restart_log_times(fleet: GpuFleet, rows: Codes) -> tuple[NDArray[np.float64], Codes]:
    """Return the logarithm of each restart's median, or of the row's where none are told; and the row of each."""
    medians = [_valid_medians(fleet.rows[row].restart_medians_us) or (fleet.rows[row].median_us,) for row in rows]
    of_row = np.repeat(np.arange(len(rows)), [len(restart_medians) for restart_medians in medians])
    return np.log(np.concatenate([np.array(restart_medians) for restart_medians in medians])), of_row


def _valid_medians(medians: tuple[float, ...]) -> tuple[float, ...]:
    return medians if all(0 < median < float("inf") for median in medians) else ()


def _dense_codes(codes: Codes) -> Codes:
    return np.asarray(np.unique(codes, return_inverse=True)[1], dtype=np.intp).reshape(-1)
