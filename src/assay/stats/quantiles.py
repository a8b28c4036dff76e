"""Quantiles other than the median, with intervals that respect how the samples were taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import FEWEST, long_run, quantile
from assay.stats.order import quantiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


def fewest(share: float) -> int:
    """Return how many samples a quantile needs to be more than the largest or the smallest of them: 100 for p99."""
    return math.ceil(1 / min(share, 1 - share) - 1e-9)


def quantile_interval(samples: Samples, share: float, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval for a quantile of the window the samples were taken in; null where they are too few for one.

    Order statistics as far from it as autocorrelated signs may stray: no assumption about the distribution's shape.
    """
    n = len(samples)
    if n < max(FEWEST, fewest(share)):
        return None
    below = (samples <= quantiles(samples, (share,))[0]).astype(np.float64)
    strays = long_run(below)
    variance = max(strays.variance, share * (1 - share))
    reach = quantile(confidence, strays.degrees) * math.sqrt(variance / n)
    if share - reach <= 0 or share + reach >= 1:
        return None
    low, high = quantiles(samples, (share - reach, share + reach))
    return low, high
