"""What a series looks like in time, and what can sensibly be estimated from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.longrun import OUTLIER, centred_time, long_run, quantile, robust_scale, winsorised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Name = Literal["steady", "drift", "two levels", "bursts", "too few"]
Estimand = Literal["median", "median of the window", "levels and shares", "none"]

FEWEST = 64  # samples; with fewer, chance draws shapes of its own
SMOOTHING = 5  # samples in the moving median that levels are looked for in: a level outlasts noise
APART, APART_BY_CHANCE = 3.5, 8.0  # spreads between levels: halves of a Gaussian lie 2.7 apart, of an even spread 3.5
RAREST = 0.1  # share of the time on the rarer level, below which it is a burst
FEWEST_SWITCHES = 4  # between two levels, for their shares to mean anything: two round trips
DRIFT_CONFIDENCE = 0.99
DRIFT_MATTERS = 0.005  # of the median, over the window
BURSTS_MATTER = 0.001  # share of outliers: Gaussian noise has one in a million


@dataclass(frozen=True)
class Slope:
    """How much the series moves over its window, as a share of its median, with a 99 % interval."""

    per_window: float
    low: float
    high: float


@dataclass(frozen=True)
class Levels:
    """Two levels between which the series switches, in its unit, and the share of time on the higher."""

    low: float
    high: float
    share_high: float
    switches: int


@dataclass(frozen=True)
class Shape:
    """The name of what a series looks like, what estimand makes sense, and the evidence for it."""

    name: Name
    estimand: Estimand
    slope: Slope | None = None
    levels: Levels | None = None
    outlier_share: float | None = None


def slope_of(samples: Samples) -> Slope | None:
    """Return the straight drift over the window, outliers tamed; null where the median is zero."""
    n, middle = len(samples), float(np.median(samples))
    if middle == 0:
        return None
    tame, time = winsorised(samples), centred_time(n)
    weight = float(time @ time)
    drift = float(time @ tame) / weight
    strays = long_run(tame)
    half = quantile(DRIFT_CONFIDENCE, strays.degrees) * math.sqrt(strays.variance / weight)
    size = abs(middle)
    return Slope(drift / size, (drift - half) / size, (drift + half) / size)


def two_levels(samples: Samples) -> Levels | None:
    """Return the two levels a series switches between; null where it does not, or is too short to tell.

    The moving median is split in two where that leaves the least spread within (Otsu's threshold); they
    are levels if they lie far apart for that spread.
    """
    if len(samples) < FEWEST:
        return None
    smooth = np.asarray(np.median(sliding_window_view(winsorised(samples), SMOOTHING), axis=1), dtype=np.float64)
    smooth = smooth - smooth.mean()  # sums of squares keep their digits
    ordered, n = np.sort(smooth), len(smooth)
    below = np.arange(math.ceil(RAREST * n), math.floor((1 - RAREST) * n) + 1)
    sums = np.cumsum(ordered)[below - 1]
    between = sums**2 * (1 / below + 1 / (n - below))
    best = int(np.argmax(between))
    count, split = int(below[best]), ordered[int(below[best])]
    within = (float(ordered @ ordered) - float(between[best])) / n
    apart = APART + APART_BY_CHANCE / math.sqrt(n)
    gap = -float(sums[best]) * (1 / count + 1 / (n - count))
    if gap <= apart * math.sqrt(max(within, 0.0)) or gap <= 1e-9 * float(np.abs(samples).max()):
        return None
    upper = smooth >= split
    raw = samples[SMOOTHING // 2 : SMOOTHING // 2 + n]
    return Levels(
        low=float(np.median(raw[~upper])),
        high=float(np.median(raw[upper])),
        share_high=float(upper.mean()),
        switches=int(np.count_nonzero(upper[1:] != upper[:-1])),
    )


def outlier_share(samples: Samples) -> float:
    """Return the share of samples more than five robust standard deviations above the median."""
    scale = robust_scale(samples)
    if scale == 0:
        return 0.0
    return float(np.mean(samples > np.median(samples) + OUTLIER * scale))


def shape_of(samples: Samples) -> Shape:
    """Return what the series looks like; levels are named before drift, and drift before bursts."""
    if len(samples) < FEWEST:
        return Shape("too few", "none")
    slope, levels, outliers = slope_of(samples), two_levels(samples), outlier_share(samples)
    if levels is not None:
        lasting = levels.switches >= FEWEST_SWITCHES
        return Shape("two levels", "levels and shares" if lasting else "none", slope, levels, outliers)
    if slope is not None and slope.low * slope.high > 0 and abs(slope.per_window) >= DRIFT_MATTERS:
        return Shape("drift", "median of the window", slope, None, outliers)
    return Shape("bursts" if outliers >= BURSTS_MATTER else "steady", "median", slope, None, outliers)
