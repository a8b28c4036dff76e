"""How far the average of a series strays, when neighbouring values resemble each other.

The long-run variance is n times the variance of the mean of n values. It is read off the slowest cosines of the
series (the equal-weighted cosine estimator of Müller and of Lazarus, Lewis, Stock and Watson): each cosine's squared
coefficient is an almost independent look at it, so that intervals take Student's t with as many degrees of freedom
as there are cosines. A straight drift is taken out first, and with it the first cosine, which is almost a straight
line: drift is a property of the window, not noise in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.cosine import cosine_transform
from assay.stats.distributions import f_quantile, student_quantile
from assay.stats.order import median

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

FEWEST = 6  # values; with fewer there are no four cosines beside the mean and the drift
MEMORY_ALARM = 0.05  # how often memory that is not there may cost degrees of freedom
OUTLIER = 5.0  # robust standard deviations from the median


@dataclass(frozen=True)
class LongRun:
    """The long-run variance, in the unit of the values squared, and the degrees of freedom it is known with."""

    variance: float
    degrees: int


def degrees(n: int) -> int:
    """Return how many cosines n values are read with: enough to know, slow enough to see usual memory."""
    return max(4, int(0.4 * n ** (2 / 3)))


def centred_time(n: int) -> Samples:
    """Return the places of n samples in their window, from about -1/2 to 1/2."""
    return (np.arange(n) - (n - 1) / 2) / n


def _alarming(slower: int, faster: int) -> float:
    """Return the ratio of mean powers that so many slower and faster cosines seldom exceed without memory."""
    return f_quantile(1 - MEMORY_ALARM, slower, faster)


def long_run(values: Samples) -> LongRun:
    """Return n times the variance of the mean of these n ≥ 6 values, drift left out.

    Where the slower half of the cosines is significantly stronger than the faster half, memory is longer than
    these cosines: the slower half alone is asked, and so on. It says more about the mean and is less sure.
    """
    time = centred_time(len(values))
    flat = values - values.mean()
    flat = flat - time * float(time @ flat) / float(time @ time)
    powers = cosine_transform(flat)[2 : 2 + degrees(len(values))] ** 2
    while len(powers) >= 8:
        slower, faster = np.split(powers, [len(powers) // 2])
        if slower.mean() <= faster.mean() * _alarming(len(slower), len(faster)):
            break
        powers = slower
    return LongRun(float(powers.mean()), len(powers))


def quantile(confidence: float, freedom: int) -> float:
    """Return how many standard errors a two-sided interval reaches to each side: Student's t."""
    return student_quantile(0.5 + confidence / 2, freedom)


def robust_scale(samples: Samples) -> float:
    """Return the standard deviation that the median distance from the median would have in Gaussian noise."""
    return 1.4826 * median(np.abs(samples - median(samples)))


def winsorised(samples: Samples) -> Samples:
    """Return the samples with outliers moved in to five robust standard deviations from the median."""
    scale = robust_scale(samples)
    if scale == 0:
        return samples
    middle = median(samples)
    return np.clip(samples, middle - OUTLIER * scale, middle + OUTLIER * scale)
