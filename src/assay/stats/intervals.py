"""Medians with intervals that respect how the samples were taken.

Neighbouring samples of one process resemble each other, and one process is one draw: memory layout and
clock state change between restarts. So the interval within a process counts *effective* samples, and
the interval of a run is taken over its restarts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

CONFIDENCE = 0.95
LONGEST_LAG = 1000


def autocorrelation(samples: Samples, lag: int = 1) -> float | None:
    """Return the correlation of samples ``lag`` apart; null for too few or constant samples."""
    if len(samples) <= lag + 1 or samples.min() == samples.max():
        return None
    centred = samples - samples.mean()
    variance = float(centred @ centred)
    return float(centred[:-lag] @ centred[lag:]) / variance if variance > 0 else None


def effective_size(samples: Samples) -> float:
    """Return how many independent samples these are worth, between 1 and their number.

    The autocorrelations are summed until they first fall below what noise alone would show
    (Geyer's initial positive sequence, over ranks so that a spike does not hide the rest).
    """
    n = len(samples)
    if n < 4:
        return float(n)
    ranks = np.asarray(stats.rankdata(samples), dtype=np.float64)
    total = 0.0
    for lag in range(1, min(n // 2, LONGEST_LAG), 2):
        first, second = autocorrelation(ranks, lag), autocorrelation(ranks, lag + 1)
        if first is None or second is None or first + second <= 2 / math.sqrt(n):
            break
        total += first + second
    return float(np.clip(n / (1 + 2 * total), 1, n))


def median_interval(samples: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for the median of one process's samples; null when they are too few.

    Order statistics at the binomial quantiles of the effective sample size, interpolated between
    neighbours: no assumption about the distribution's shape.
    """
    effective = effective_size(samples)
    if effective < 6:
        return None
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    reach = z / 2 / math.sqrt(effective)
    low, high = np.quantile(samples, [max(0.0, 0.5 - reach), min(1.0, 0.5 + reach)])
    return float(low), float(high)


def restarts_interval(medians: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float, str]:
    """Return centre, low and high of the typical process from the medians of two or more, and how.

    Student's t, on logarithms where all are positive: times are, and their spread is relative.
    """
    values = np.asarray(medians, dtype=np.float64)
    relative = bool(values.min() > 0)
    scaled = np.log(values) if relative else values
    quantile = float(stats.t.ppf(0.5 + confidence / 2, len(scaled) - 1))
    half = quantile * float(scaled.std(ddof=1)) / math.sqrt(len(scaled))
    centre = float(scaled.mean())
    low, high = centre - half, centre + half
    if relative:
        how = f"geometric mean of the medians of {len(values)} processes, Student's t on their logarithms"
        return math.exp(centre), math.exp(low), math.exp(high), how
    return centre, low, high, f"mean of the medians of {len(values)} processes, Student's t"
