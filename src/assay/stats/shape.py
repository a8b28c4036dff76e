"""What a series looks like in time, and what can sensibly be estimated from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.longrun import OUTLIER, centred_time, long_run, quantile, robust_scale, winsorised
from assay.stats.order import median
from assay.stats.wander import normal_scores, range_of_means, wanders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Unsteady = Literal["drift", "switching"]
Name = Literal["steady", "drift", "two levels", "bursts", "too few"]
Estimand = Literal["median", "median of the window", "levels and shares", "none"]

FEWEST = 64  # samples; with fewer, chance draws shapes of its own
SMOOTHING = 5  # samples in the moving median that levels are looked for in: a level outlasts noise
APART, APART_BY_CHANCE = 3.5, 8.0  # spreads between levels: halves of a Gaussian lie 2.7 apart, of an even spread 3.5
RAREST = 0.1  # share of the time on the rarer level, below which it is a burst
STAYS = 0.2  # of the distance between two levels, by which the means of eighths may stray from them
FEWEST_SWITCHES = 4  # between two levels, for their shares to mean anything: two round trips
DRIFT_CONFIDENCE = 0.99
DRIFT_MATTERS = 0.005  # of the median, over the window
EIGHTHS = 8
FEWEST_RELATED, RELATED = 6, 1.28  # samples; neighbours that do not resemble each other seem to in a tenth of windows
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
    n, middle = len(samples), median(samples)
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
    are levels if they lie far apart for that spread; two ticks of a timer only if the series dwells on them. A random
    walk or a decay lies in two heaps as well, and goes on wandering within each: that is no level.
    """
    if len(samples) < FEWEST:
        return None
    smooth = np.asarray(np.median(sliding_window_view(winsorised(samples), SMOOTHING), axis=1), dtype=np.float64)
    smooth = smooth - smooth.mean()  # sums of squares keep their digits
    ordered, n = np.sort(smooth), len(smooth)
    below = np.arange(math.ceil(RAREST * n), math.floor((1 - RAREST) * n) + 1)
    below = below[ordered[below - 1] < ordered[below]]  # samples that are equal lie on one side
    if not len(below):
        return None
    sums = np.cumsum(ordered)[below - 1]
    between = sums**2 * (1 / below + 1 / (n - below))
    best = int(np.argmax(between))
    count, split = int(below[best]), ordered[int(below[best])]
    within = max((float(ordered @ ordered) - float(between[best])) / n, 0.0)
    apart = APART + APART_BY_CHANCE / math.sqrt(n)
    gap = -float(sums[best]) * (1 / count + 1 / (n - count))
    if gap <= apart * math.sqrt(within) or gap <= 1e-9 * float(np.abs(samples).max()):
        return None
    if gap <= apart * math.sqrt(within + _tick(samples) ** 2 / 12) and not wanders(samples):
        return None
    upper = smooth >= split
    raw = samples[SMOOTHING // 2 : SMOOTHING // 2 + n]
    low, high = median(raw[~upper]), median(raw[upper])
    rest = raw - np.where(upper, high, low)
    if range_of_means(winsorised(rest)) > STAYS * (high - low) and wanders(rest):
        return None
    return Levels(
        low=low,
        high=high,
        share_high=float(upper.mean()),
        switches=int(np.count_nonzero(upper[1:] != upper[:-1])),
    )


def _tick(samples: Samples) -> float:
    """Return the smallest step between different samples: a timer's tick where they repeat, elsewhere tiny."""
    steps = np.diff(np.unique(samples))
    return float(steps.min()) if len(steps) else 0.0


def outlier_share(samples: Samples) -> float:
    """Return the share of samples more than five robust standard deviations above the median."""
    scale = robust_scale(samples)
    if scale == 0:
        return 0.0
    return float(np.mean(samples > median(samples) + OUTLIER * scale))


def moved_by(samples: Samples) -> float:
    """Return how far apart the medians of the window's eighths lie, as a share of its median; infinite for 0."""
    middle = abs(median(samples))
    medians = [median(part) for part in np.array_split(samples, EIGHTHS) if len(part)]
    return (max(medians) - min(medians)) / middle if middle else math.inf


def unsteady(samples: Samples) -> Unsteady | None:
    """Return what moved in the window, by enough to matter: the level drifts, or switches; null where nothing did.

    Null too of fewer than 64 samples, of which nobody can tell.
    """
    if len(samples) < FEWEST:
        return None
    levels = two_levels(samples)
    if levels is not None:
        return "switching" if levels.high - levels.low >= DRIFT_MATTERS * abs(median(samples)) else None
    return "drift" if _drifts(samples, slope_of(samples)) else None


def _drifts(samples: Samples, slope: Slope | None) -> bool:
    """Return whether the level drifts: in a straight line, or however else it wanders, by enough to matter."""
    straight = slope is not None and slope.low * slope.high > 0 and abs(slope.per_window) >= DRIFT_MATTERS
    return straight or (wanders(samples) and moved_by(samples) >= DRIFT_MATTERS)


def may_still_move(samples: Samples) -> bool:
    """Return whether it is too soon to stop: the level moves, or of few samples neighbours resemble each other."""
    n = len(samples)
    if n >= FEWEST:
        return unsteady(samples) is not None
    if n < FEWEST_RELATED or samples.min() == samples.max():
        return False
    scores = normal_scores(samples)
    return float(scores[1:] @ scores[:-1]) / float(scores @ scores) > RELATED / math.sqrt(n)


def shape_of(samples: Samples) -> Shape:
    """Return what the series looks like; levels are named before drift, and drift before bursts."""
    if len(samples) < FEWEST:
        return Shape("too few", "none")
    slope, levels, outliers = slope_of(samples), two_levels(samples), outlier_share(samples)
    if levels is not None:
        lasting = levels.switches >= FEWEST_SWITCHES
        return Shape("two levels", "levels and shares" if lasting else "none", slope, levels, outliers)
    if _drifts(samples, slope):
        return Shape("drift", "median of the window", slope, None, outliers)
    return Shape("bursts" if outliers >= BURSTS_MATTER else "steady", "median", slope, None, outliers)
