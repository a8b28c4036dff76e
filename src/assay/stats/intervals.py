"""Medians, means and quantiles with intervals that respect how the samples were taken, and summaries of a subject.

Neighboring samples of one process are correlated, and one process is one draw: memory layout and clock state change
between restarts. So the interval within a process counts *effective* samples, and the interval of a run is taken over
its restarts.

A quantity computed from several medians (a speedup, a share of the time) gets its interval by resampling: iterations of
one process are redrawn together, in blocks of neighbors, and the draws go through the same arithmetic. The first
element of such an array is the measured value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.format import format_count
from assay.core.results import NO_INTERVAL, Estimate, Scope, Summary
from assay.stats.numerics import (
    MIN_VALUES,
    LongRunVariance,
    cosine_count,
    long_run_variance,
    median,
    quantiles,
    t_quantile,
)
from assay.stats.shape import find_two_levels, range_of_medians, wanders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.stats.shape import TwoLevels

    Samples = NDArray[np.float64]
    Indices = NDArray[np.intp]

IntervalRefusal = Literal["too few samples", "two levels", "drift"]
"""Why there is no interval for a median."""

CONFIDENCE = 0.95
MIN_LEVEL_SHARE = 0.25
"""A level with less than this share of the time does not affect where the median is."""


def autocorrelation(samples: Samples, lag: int = 1) -> float | None:
    """Return the correlation of samples ``lag`` apart; null for too few or constant samples."""
    if len(samples) <= lag + 1 or samples.min() == samples.max():
        return None
    centred = samples - samples.mean()
    variance = float(centred @ centred)
    return float(centred[:-lag] @ centred[lag:]) / variance if variance > 0 else None


def _sign_long_run(samples: Samples) -> LongRunVariance:
    """Return how many times the variance of the median exceeds that of independent samples.

    Computed from the signs around the median, which are what moves it: a spike counts like any other sample.
    """
    signs = np.sign(samples - median(samples))
    variance = float(signs.var())
    if variance == 0:
        return LongRunVariance(1.0, cosine_count(len(samples)))
    long_run = long_run_variance(signs)
    return LongRunVariance(long_run.variance / variance, long_run.degrees)


def effective_size(samples: Samples) -> float:
    """Return the number of independent samples that these are worth for their median, from 1 to their number."""
    n = len(samples)
    return float(n) if n < MIN_VALUES else _effective_count(n, _sign_long_run(samples))


def _effective_count(n: int, long_run: LongRunVariance) -> float:
    return n / min(max(long_run.variance, 1.0), float(n))


def median_interval(samples: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for the median of the window the samples were taken in; null where they allow none.

    The window's median is that of all samples the process could have given in just this window: of the noise around the
    path of its level. Order statistics, as far from the middle as autocorrelated signs allow: no assumption about the
    distribution's shape. Where the samples wander, other than in a straight drift, it is widened to all medians of
    parts of the window. ``interval_refusal`` returns why there is none.
    """
    within = order_interval(samples, confidence)
    if within is None or not wanders(samples, straight=False):
        return within
    lowest, highest = range_of_medians(samples)
    return min(within[0], lowest), max(within[1], highest)


def order_interval(samples: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval between order statistics alone, as if the level were constant or a straight line."""
    if len(samples) < MIN_VALUES or find_competing_levels(samples) is not None:
        return None
    long_run = _sign_long_run(samples)
    if _effective_count(len(samples), long_run) < _fewest_effective(confidence):
        return None
    reach = min(0.5, t_quantile(confidence, long_run.degrees) / 2 * math.sqrt(long_run.variance / len(samples)))
    low, high = quantiles(samples, (0.5 - reach, 0.5 + reach))
    return low, high


def interval_refusal(samples: Samples, confidence: float = CONFIDENCE) -> IntervalRefusal | None:
    """Return why the samples allow no interval for their median; null where they do.

    They are too few, or drift so much that they are worth too few, or switch between two levels that both take a good
    share of the time: there the median may lie on either, and no interval for it is valid.
    """
    if len(samples) < MIN_VALUES:
        return "too few samples"
    if find_competing_levels(samples) is not None:
        return "two levels"
    if effective_size(samples) < _fewest_effective(confidence):
        return "drift" if wanders(samples) else "too few samples"
    return None


def _fewest_effective(confidence: float) -> float:
    """Return how many independent samples an interval takes: the range of m misses their median once in 2^(m - 1)."""
    return 1 - math.log2(1 - confidence)


def find_competing_levels(samples: Samples) -> TwoLevels | None:
    """Return the two levels of a series whose median may lie on either; null where one of them prevails."""
    levels = find_two_levels(samples)
    if levels is None or min(levels.share_high, 1 - levels.share_high) < MIN_LEVEL_SHARE:
        return None
    return levels


def mean_interval(values: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for the mean of a series whose neighbours may be correlated; null below 6 values."""
    n = len(values)
    if n < MIN_VALUES:
        return None
    long_run = long_run_variance(values)
    middle, half = float(values.mean()), t_quantile(confidence, long_run.degrees) * math.sqrt(long_run.variance / n)
    return middle - half, middle + half


def restarts_interval(
    medians: Sequence[float] | Samples, confidence: float = CONFIDENCE
) -> tuple[float, float, float, str]:
    """Return centre, low and high of the typical process from the medians of two or more, and the method.

    Student's t, on logarithms where all are positive: times are, and their spread is relative.
    """
    values = np.asarray(medians, dtype=np.float64)
    relative = bool(values.min() > 0)
    scaled = np.log(values) if relative else values
    half = t_quantile(confidence, len(scaled) - 1) * float(scaled.std(ddof=1)) / math.sqrt(len(scaled))
    centre = float(scaled.mean())
    low, high = centre - half, centre + half
    if relative:
        how = f"geometric mean of the medians of {len(values)} processes, Student's t on their logarithms"
        return math.exp(centre), math.exp(low), math.exp(high), how
    return centre, low, high, f"mean of the medians of {len(values)} processes, Student's t"


ONE_PROCESS_METHOD = "median, order statistics at the effective sample size, widened where the samples wander"


def estimate_median(by_process: Sequence[Samples], unit: str, *, scope_of_one: Scope = "process") -> Estimate:
    """Return the median with its interval, from the samples of one process or of several restarts.

    Where every sample is a process of its own, as for a command, ``scope_of_one`` is "run".
    """
    n = sum(len(samples) for samples in by_process)
    medians = [median(samples) for samples in by_process]
    if len(medians) > 1:
        centre, low, high, method = restarts_interval(medians)
        return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=method, n=n)
    pooled = by_process[0]
    within = median_interval(pooled)
    ends = within or (None, None)
    method = ONE_PROCESS_METHOD if within else f"{ONE_PROCESS_METHOD}{NO_INTERVAL}{explain_no_interval(pooled)}"
    return Estimate(value=median(pooled), low=ends[0], high=ends[1], unit=unit, scope=scope_of_one, method=method, n=n)


def slowest_rank(ranks: Sequence[Samples]) -> Samples:
    """Return the time of the slowest rank in each iteration that all ranks made."""
    common = min(map(len, ranks))
    return np.asarray(np.max([samples[:common] for samples in ranks], axis=0), dtype=np.float64)


def expected_method(processes: int) -> str:
    """Return the method of a time that is measured in this many processes."""
    return ONE_PROCESS_METHOD if processes == 1 else restarts_interval([1.0] * processes)[3]


def explain_no_interval(samples: Samples) -> str:
    """Return why the median of samples has no interval, as a clause."""
    levels = find_competing_levels(samples)
    if levels is not None:
        return f"two levels, {levels.low:.4g} and {levels.high:.4g} ({levels.share_high:.0%} of the time)"
    return "the samples drift" if interval_refusal(samples) == "drift" else "too few effective samples"


def summarize_samples(
    role: str, subject: int, quantity: str, unit: str, by_process: Sequence[Samples], *, scope_of_one: Scope = "process"
) -> Summary:
    """Return the estimate of a quantity and the shape of its samples, over all restarts."""
    pooled = np.concatenate(list(by_process))
    mean = float(pooled.mean())
    first, middle, third = quantiles(pooled, (0.25, 0.5, 0.75))
    neighbours = [r for samples in by_process if (r := autocorrelation(samples)) is not None]
    return Summary(
        role=role,
        subject=subject,
        quantity=quantity,
        estimate=estimate_median(by_process, unit, scope_of_one=scope_of_one),
        n=len(pooled),
        mean=mean,
        quartiles=(float(first), float(middle), float(third)),
        minimum=float(pooled.min()),
        maximum=float(pooled.max()),
        cv=float(pooled.std(ddof=1)) / mean if len(pooled) > 1 and mean != 0 else None,
        autocorrelation=float(np.mean(neighbours)) if neighbours else None,
    )


def min_samples_for_quantile(share: float) -> int:
    """Return how many samples a quantile needs not to be just the largest or smallest of them: 100 for p99."""
    return math.ceil(1 / min(share, 1 - share) - 1e-9)


def quantile_interval(samples: Samples, share: float, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for a quantile of the window the samples were taken in; null where there are too few.

    Order statistics, as far from it as autocorrelated signs allow: no assumption about the distribution's shape.
    """
    n = len(samples)
    if n < max(MIN_VALUES, min_samples_for_quantile(share)):
        return None
    below = (samples <= quantiles(samples, (share,))[0]).astype(np.float64)
    long_run = long_run_variance(below)
    variance = max(long_run.variance, share * (1 - share))
    reach = t_quantile(confidence, long_run.degrees) * math.sqrt(variance / n)
    if share - reach <= 0 or share + reach >= 1:
        return None
    low, high = quantiles(samples, (share - reach, share + reach))
    return low, high


RESAMPLES = 1999


def draw_indices(samples: Samples, seed: int) -> Indices:
    """Return the iterations in each draw: first all in order, then draws in blocks of neighbours.

    Blocks are as long as neighbours are correlated, so that draws vary as much as the real thing.
    """
    n = len(samples)
    run = max(1, math.ceil(n / effective_size(samples)))
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, n, (RESAMPLES, math.ceil(n / run)))
    resampled = (starts[:, :, None] + np.arange(run)).reshape(RESAMPLES, -1)[:, :n] % n
    return np.vstack([np.arange(n), resampled])


def medians_of_draws(samples: Samples, chosen: Indices) -> Samples:
    """Return the median of each draw."""
    return np.asarray(np.median(samples[chosen], axis=1), dtype=np.float64)


def explain_no_process_interval(samples: Samples, confidence: float = CONFIDENCE) -> str | None:
    """Return why the samples of one process allow no interval; null where they do."""
    levels = find_competing_levels(samples)
    if levels is not None:
        share = f"{levels.share_high:.0%} of the time"
        return f"the samples switch between two levels, {levels.low:.4g} and {levels.high:.4g} ({share})"
    if len(samples) < MIN_VALUES:
        return f"{format_count(len(samples), 'sample')} of one process are too few; {MIN_VALUES} are needed"
    if effective_size(samples) < _fewest_effective(confidence):
        return f"{len(samples)} samples that resemble their neighbours are too few"
    return None


def draws_interval(values: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval that holds most draws; null where some draw is not finite."""
    if not np.isfinite(values).all():
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return float(low), float(high)


def repeats_interval(values: Samples) -> tuple[float, float, float]:
    """Return centre, low and high of a number measured in each of two or more repeats.

    Student's t, on logarithms where all are positive.
    """
    centre, low, high, _ = restarts_interval(values)
    return centre, low, high
