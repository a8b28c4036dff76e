"""The shape of a series over time: steady, drifting, switching between two levels, or wandering.

A series wanders where it moves more slowly than short-memory noise can. Random walks, clocks that dwell on a level,
warm-up curves and slow waves have most of their power in the slowest cosines of the window; short-memory noise spreads
it evenly over the slow ones. The samples are first replaced by their normal scores (ranks, ties sharing one), so
neither spikes nor the unit matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.numerics import (
    OUTLIER_SCALES,
    centred_time,
    cosine_transform,
    f_quantile,
    long_run_variance,
    median,
    normal_quantile,
    robust_scale,
    t_quantile,
    winsorize,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

MIN_WANDER_SAMPLES = 64  # samples; with fewer, chance looks like wandering as well
SLOWEST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # cosines, at most half of all that are used
WANDER_ALARM_RATE = 0.002  # at each of these; together short-memory noise is called wandering in about 1 %
RANDOM_WALK_LIMIT = 14.0  # n (1 - r₁), which a random walk of n samples stays below in 95 % (Dickey and Fuller)
PER_BLOCK, MIN_BLOCKS, MAX_BLOCKS = 16, 8, 64  # samples in a block; blocks in a window


def normal_scores(samples: Samples) -> Samples:
    """Return the normal scores of the samples' ranks; equal samples share one."""
    _, inverse, counts = np.unique(samples, return_inverse=True, return_counts=True)
    if len(counts) == len(samples):
        return _scores_of_ranks(len(samples))[inverse.reshape(-1)]
    shares = (np.cumsum(counts) - counts / 2) / len(samples)
    return _normal_quantiles(shares)[inverse.reshape(-1)]


@lru_cache(8)
def _scores_of_ranks(n: int) -> Samples:
    """Return the normal scores of n different samples, in ascending order."""
    return _normal_quantiles((np.arange(n) + 0.5) / n)


def _normal_quantiles(shares: Samples) -> Samples:
    return np.fromiter(map(normal_quantile, shares.tolist()), np.float64, len(shares))


def wander_cosine_count(n: int) -> int:
    """Return how many cosines of n samples are used: twice as many as for the long-run variance."""
    return max(6, min(n // 4, int(0.8 * n ** (2 / 3))))


def _alarming(slower: int, faster: int) -> float:
    """Return the ratio of mean powers of slower to faster cosines that short-memory noise rarely exceeds."""
    return f_quantile(1 - WANDER_ALARM_RATE, slower, faster)


def wanders(samples: Samples, *, straight: bool = True) -> bool:
    """Return whether the series moves more slowly than short-memory noise; never for fewer than 64 samples.

    Args:
        samples: In the order they were taken.
        straight: Whether a straight drift counts; without it, only what remains after removing one.
    """
    n = len(samples)
    if n < MIN_WANDER_SAMPLES or samples.min() == samples.max():
        return False
    flat = samples
    if not straight:
        time = centred_time(n)
        flat = samples - time * float(time @ winsorize(samples)) / float(time @ time)
    scores = normal_scores(flat)
    scores = scores - scores.mean()
    first = 1 if straight else 2
    powers = cosine_transform(scores)[first : first + wander_cosine_count(n)] ** 2
    total, count = float(powers.sum()), len(powers)
    slower = np.cumsum(powers)
    for k in SLOWEST:
        if k <= count // 2 and slower[k - 1] / k > _alarming(k, count - k) * (total - slower[k - 1]) / (count - k):
            return True
    return n * (1 - float(scores[1:] @ scores[:-1]) / float(scores @ scores)) < RANDOM_WALK_LIMIT


def range_of_medians(samples: Samples) -> tuple[float, float]:
    """Return the lowest and the highest median of the window's 8 to 64 parts: the range over which it moved.

    A part has about 16 samples where there are few, so that a level that lasts as long is visible.
    """
    count = max(MIN_BLOCKS, min(MAX_BLOCKS, len(samples) // PER_BLOCK))
    size = max(1, len(samples) // count)
    whole = samples[: len(samples) // size * size].reshape(-1, size)
    medians = np.median(np.vstack([whole, samples[-size:]]), axis=1)
    return float(medians.min()), float(medians.max())


def range_of_means(values: Samples) -> float:
    """Return the range of the means of the window's eighths."""
    means = [float(part.mean()) for part in np.array_split(values, MIN_BLOCKS) if len(part)]
    return max(means) - min(means)


Unsteadiness = Literal["drift", "switching"]
ShapeName = Literal["steady", "drift", "two levels", "bursts", "too few"]
ShapeEstimand = Literal["median", "median of the window", "levels and shares", "none"]

MIN_SHAPE_SAMPLES = 64  # samples; with fewer, chance produces shapes of its own
SMOOTHING = 5  # samples in the moving median used to find levels: a level outlasts noise
# Spreads between levels: halves of a Gaussian are 2.7 apart, of a uniform distribution 3.5.
MIN_GAP, MIN_GAP_BY_CHANCE = 3.5, 8.0
MIN_RARE_SHARE = 0.1  # share of the time on the rarer level, below which it is a burst
MAX_LEVEL_DRIFT = 0.2  # of the distance between two levels, by which the means of eighths may deviate from them
MIN_SWITCHES = 4  # between two levels, for their shares to be meaningful: two round trips
DRIFT_CONFIDENCE = 0.99
DRIFT_MATTERS = 0.005  # of the median, over the window
EIGHTHS = 8
MIN_RELATED_SAMPLES, RELATED_ALARM = 6, 1.28  # uncorrelated neighbours look correlated in a tenth of windows
BURSTS_MATTER = 0.001  # share of outliers: Gaussian noise has one in a million


@dataclass(frozen=True)
class DriftSlope:
    """How much the series moves over its window, as a share of its median, with a 99 % interval."""

    per_window: float
    low: float
    high: float


@dataclass(frozen=True)
class TwoLevels:
    """Two levels between which the series switches, in its unit, and the share of time on the higher."""

    low: float
    high: float
    share_high: float
    switches: int


@dataclass(frozen=True)
class SeriesShape:
    """The shape of a series, the estimand that makes sense, and the evidence for it."""

    name: ShapeName
    estimand: ShapeEstimand
    slope: DriftSlope | None = None
    levels: TwoLevels | None = None
    outlier_share: float | None = None


def estimate_slope(samples: Samples) -> DriftSlope | None:
    """Return the straight drift over the window, with outliers clipped; null where the median is zero."""
    n, middle = len(samples), median(samples)
    if middle == 0:
        return None
    clipped, time = winsorize(samples), centred_time(n)
    weight = float(time @ time)
    drift = float(time @ clipped) / weight
    long_run = long_run_variance(clipped)
    half = t_quantile(DRIFT_CONFIDENCE, long_run.degrees) * math.sqrt(long_run.variance / weight)
    size = abs(middle)
    return DriftSlope(drift / size, (drift - half) / size, (drift + half) / size)


def find_two_levels(samples: Samples) -> TwoLevels | None:
    """Return the two levels a series switches between; null where it does not, or is too short to tell.

    The moving median is split in two where that leaves the least spread within (Otsu's threshold); the halves are
    levels if they are far apart relative to that spread; two ticks of a timer only if the series dwells on them. A
    random walk or a decay also forms two clusters, but keeps wandering within each: those are no levels.
    """
    if len(samples) < MIN_SHAPE_SAMPLES:
        return None
    smooth = np.asarray(np.median(sliding_window_view(winsorize(samples), SMOOTHING), axis=1), dtype=np.float64)
    smooth = smooth - smooth.mean()  # sums of squares keep their digits
    ordered, n = np.sort(smooth), len(smooth)
    below = np.arange(math.ceil(MIN_RARE_SHARE * n), math.floor((1 - MIN_RARE_SHARE) * n) + 1)
    below = below[ordered[below - 1] < ordered[below]]  # equal samples stay on one side
    if not len(below):
        return None
    sums = np.cumsum(ordered)[below - 1]
    between = sums**2 * (1 / below + 1 / (n - below))
    best = int(np.argmax(between))
    count, split = int(below[best]), ordered[int(below[best])]
    within = max((float(ordered @ ordered) - float(between[best])) / n, 0.0)
    apart = MIN_GAP + MIN_GAP_BY_CHANCE / math.sqrt(n)
    gap = -float(sums[best]) * (1 / count + 1 / (n - count))
    if gap <= apart * math.sqrt(within) or gap <= 1e-9 * float(np.abs(samples).max()):
        return None
    if gap <= apart * math.sqrt(within + _tick(samples) ** 2 / 12) and not wanders(samples):
        return None
    upper = smooth >= split
    raw = samples[SMOOTHING // 2 : SMOOTHING // 2 + n]
    low, high = median(raw[~upper]), median(raw[upper])
    rest = raw - np.where(upper, high, low)
    if range_of_means(winsorize(rest)) > MAX_LEVEL_DRIFT * (high - low) and wanders(rest):
        return None
    return TwoLevels(low, high, float(upper.mean()), int(np.count_nonzero(upper[1:] != upper[:-1])))


def _tick(samples: Samples) -> float:
    """Return the smallest step between different samples: a timer's tick where they repeat, otherwise tiny."""
    steps = np.diff(np.unique(samples))
    return float(steps.min()) if len(steps) else 0.0


def outlier_share(samples: Samples) -> float:
    """Return the share of samples more than five robust standard deviations above the median."""
    scale = robust_scale(samples)
    if scale == 0:
        return 0.0
    return float(np.mean(samples > median(samples) + OUTLIER_SCALES * scale))


def relative_median_range(samples: Samples) -> float:
    """Return the range of the medians of the window's eighths, as a share of its median; infinite for 0."""
    middle = abs(median(samples))
    medians = [median(part) for part in np.array_split(samples, EIGHTHS) if len(part)]
    return (max(medians) - min(medians)) / middle if middle else math.inf


def find_unsteadiness(samples: Samples) -> Unsteadiness | None:
    """Return what moved in the window by a relevant amount: the level drifts, or switches; null where nothing did.

    Also null for fewer than 64 samples, which are too few to tell.
    """
    if len(samples) < MIN_SHAPE_SAMPLES:
        return None
    levels = find_two_levels(samples)
    if levels is not None:
        return "switching" if levels.high - levels.low >= DRIFT_MATTERS * abs(median(samples)) else None
    return "drift" if _drifts(samples, estimate_slope(samples)) else None


def _drifts(samples: Samples, slope: DriftSlope | None) -> bool:
    """Return whether the level drifts, in a straight line or otherwise, by a relevant amount."""
    straight = slope is not None and slope.low * slope.high > 0 and abs(slope.per_window) >= DRIFT_MATTERS
    return straight or (wanders(samples) and relative_median_range(samples) >= DRIFT_MATTERS)


def is_unsettled(samples: Samples) -> bool:
    """Return whether it is too soon to stop: the level moves, or, with few samples, neighbours are correlated."""
    n = len(samples)
    if n >= MIN_SHAPE_SAMPLES:
        return find_unsteadiness(samples) is not None
    if n < MIN_RELATED_SAMPLES or samples.min() == samples.max():
        return False
    scores = normal_scores(samples)
    return float(scores[1:] @ scores[:-1]) / float(scores @ scores) > RELATED_ALARM / math.sqrt(n)


def classify_shape(samples: Samples) -> SeriesShape:
    """Return the shape of a series; levels take precedence over drift, and drift over bursts."""
    if len(samples) < MIN_SHAPE_SAMPLES:
        return SeriesShape("too few", "none")
    slope, levels, outliers = estimate_slope(samples), find_two_levels(samples), outlier_share(samples)
    if levels is not None:
        lasting = levels.switches >= MIN_SWITCHES
        return SeriesShape("two levels", "levels and shares" if lasting else "none", slope, levels, outliers)
    if _drifts(samples, slope):
        return SeriesShape("drift", "median of the window", slope, None, outliers)
    return SeriesShape("bursts" if outliers >= BURSTS_MATTER else "steady", "median", slope, None, outliers)
