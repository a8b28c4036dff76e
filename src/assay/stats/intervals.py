"""Medians with intervals that respect how the samples were taken.

Neighbouring samples of one process resemble each other, and one process is one draw: memory layout and
clock state change between restarts. So the interval within a process counts *effective* samples, and
the interval of a run is taken over its restarts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.longrun import FEWEST, LongRun, degrees, long_run, quantile
from assay.stats.order import median, quantiles
from assay.stats.shape import two_levels
from assay.stats.wander import range_of_medians, wanders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.stats.shape import Levels

    Samples = NDArray[np.float64]

Refusal = Literal["too few samples", "two levels", "drift"]
"""Why there is no interval for a median."""

CONFIDENCE = 0.95
PREVAILING = 0.25
"""A level that takes less than this share of the time leaves the median to the other."""


def autocorrelation(samples: Samples, lag: int = 1) -> float | None:
    """Return the correlation of samples ``lag`` apart; null for too few or constant samples."""
    if len(samples) <= lag + 1 or samples.min() == samples.max():
        return None
    centred = samples - samples.mean()
    variance = float(centred @ centred)
    return float(centred[:-lag] @ centred[lag:]) / variance if variance > 0 else None


def _resemblance(samples: Samples) -> LongRun:
    """Return how many times the variance of the median exceeds that of independent samples.

    Taken over the signs around the median, which are what moves it: a spike counts like any other sample.
    """
    signs = np.sign(samples - median(samples))
    variance = float(signs.var())
    if variance == 0:
        return LongRun(1.0, degrees(len(samples)))
    strays = long_run(signs)
    return LongRun(strays.variance / variance, strays.degrees)


def effective_size(samples: Samples) -> float:
    """Return how many independent samples these are worth for their median, between 1 and their number."""
    n = len(samples)
    return float(n) if n < FEWEST else _worth(n, _resemblance(samples))


def _worth(n: int, strays: LongRun) -> float:
    return n / min(max(strays.variance, 1.0), float(n))


def median_interval(samples: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for the median of the window the samples were taken in; null where they allow none.

    The window's median is that of all that the process would have given in just this window: of the noise around the
    path that its level took. Order statistics as far from the middle as autocorrelated signs may stray: no assumption
    about the distribution's shape. Where the samples wander, other than in a straight drift, it is widened to all
    medians that parts of the window had. ``refusal_of`` says why there is none.
    """
    within = order_interval(samples, confidence)
    if within is None or not wanders(samples, straight=False):
        return within
    lowest, highest = range_of_medians(samples)
    return min(within[0], lowest), max(within[1], highest)


def order_interval(samples: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval between order statistics alone, as if the level stood still or went straight."""
    if len(samples) < FEWEST or torn_between(samples) is not None:
        return None
    strays = _resemblance(samples)
    if _worth(len(samples), strays) < _fewest_effective(confidence):
        return None
    reach = min(0.5, quantile(confidence, strays.degrees) / 2 * math.sqrt(strays.variance / len(samples)))
    low, high = quantiles(samples, (0.5 - reach, 0.5 + reach))
    return low, high


def refusal_of(samples: Samples, confidence: float = CONFIDENCE) -> Refusal | None:
    """Return why the samples allow no interval for their median; null where they do.

    They are too few, or drift so that all of them are worth too few, or switch between two levels that both take a good
    share of the time: there the median may lie on either, and no interval for it holds.
    """
    if len(samples) < FEWEST:
        return "too few samples"
    if torn_between(samples) is not None:
        return "two levels"
    if effective_size(samples) < _fewest_effective(confidence):
        return "drift" if wanders(samples) else "too few samples"
    return None


def _fewest_effective(confidence: float) -> float:
    """Return how many independent samples an interval takes: the range of m misses their median once in 2^(m - 1)."""
    return 1 - math.log2(1 - confidence)


def torn_between(samples: Samples) -> Levels | None:
    """Return the two levels of a series whose median may lie on either; null where one of them prevails."""
    levels = two_levels(samples)
    if levels is None or min(levels.share_high, 1 - levels.share_high) < PREVAILING:
        return None
    return levels


def mean_interval(values: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for the mean of a series whose neighbours may resemble each other; null below 6 values."""
    n = len(values)
    if n < FEWEST:
        return None
    strays = long_run(values)
    middle, half = float(values.mean()), quantile(confidence, strays.degrees) * math.sqrt(strays.variance / n)
    return middle - half, middle + half


def restarts_interval(medians: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float, str]:
    """Return centre, low and high of the typical process from the medians of two or more, and how.

    Student's t, on logarithms where all are positive: times are, and their spread is relative.
    """
    values = np.asarray(medians, dtype=np.float64)
    relative = bool(values.min() > 0)
    scaled = np.log(values) if relative else values
    half = quantile(confidence, len(scaled) - 1) * float(scaled.std(ddof=1)) / math.sqrt(len(scaled))
    centre = float(scaled.mean())
    low, high = centre - half, centre + half
    if relative:
        how = f"geometric mean of the medians of {len(values)} processes, Student's t on their logarithms"
        return math.exp(centre), math.exp(low), math.exp(high), how
    return centre, low, high, f"mean of the medians of {len(values)} processes, Student's t"
