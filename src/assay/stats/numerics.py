"""Statistics of one series with NumPy alone: quantiles, Student's t and F, and the long-run variance.

Workers need these at start-up, and importing SciPy would take two fifths of that time. All distributions but the
normal one use the regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8);
quantiles are found by Newton's method within a bracket. They agree with SciPy to at least eight digits. Medians and
quantiles equal NumPy's to the last bit, without the hundred microseconds that its general functions take.

The long-run variance is n times the variance of the mean of n values. It is estimated from the slowest cosines of the
series (the equal-weighted cosine estimator of Müller and of Lazarus, Lewis, Stock and Watson): the squared
coefficient of each cosine is an almost independent estimate of it, so intervals use Student's t with as many degrees
of freedom as there are cosines. A straight drift is removed first, and with it the first cosine, which is almost a
straight line: drift is a property of the window, not noise in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


_NORMAL = NormalDist()
_TINY = 1e-300
_CLOSE = 1e-15
_MAX_TERMS, _MAX_STEPS = 20_000, 200
_CACHE_SIZE = 4096


def normal_quantile(p: float) -> float:
    """Return the standard normal value that is exceeded with probability 1 - p."""
    return _NORMAL.inv_cdf(p)


def student_cdf(t: float, freedom: float) -> float:
    """Return the probability that Student's t is below a value; degrees of freedom may be infinite."""
    beyond = _student_tail(abs(t), freedom)
    return beyond if t < 0 else 1 - beyond


@lru_cache(_CACHE_SIZE)
def student_quantile(p: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with probability 1 - p; degrees of freedom may be infinite."""
    if p > 0.5:
        return -student_quantile(1 - p, freedom) if p < 1 else math.inf
    if p <= 0:
        return -math.inf
    if p == 0.5:
        return 0.0
    if math.isinf(freedom):
        return _NORMAL.inv_cdf(p)
    z = -_NORMAL.inv_cdf(p)
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2

    def step(t: float) -> tuple[bool, float]:
        tail = _student_tail(t, freedom)
        density = math.exp(constant - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        usable = tail > 0 and density > 0
        return tail > p, t + math.log(tail / p) * tail / density if usable else math.inf

    return -_newton_root(step, z + (z**3 + z) / (4 * freedom), math.inf)


@lru_cache(_CACHE_SIZE)
def f_quantile(p: float, above: int, below: int) -> float:
    """Return the value that a ratio of mean squares exceeds with probability 1 - p, by their degrees of freedom."""
    if p > 0.5:  # 1 - p would lose its digits
        return 1 / f_quantile(1 - p, below, above) if p < 1 else math.inf
    a, b = above / 2, below / 2

    def step(x: float) -> tuple[bool, float]:
        error = incomplete_beta(a, b, x) - p
        slope = math.exp(_log_kernel(a, b, x)) / (x * (1 - x))
        return error < 0, x - error / slope if slope > 0 else math.inf

    x = _newton_root(step, a / (a + b), 1.0)
    return below * x / (above * (1 - x))


@lru_cache(_CACHE_SIZE)
def binomial_beyond(k: int, n: int, p: float) -> float:
    """Return the probability of more than k successes in n trials."""
    if k < 0:
        return 1.0
    return incomplete_beta(k + 1, n - k, p) if k < n else 0.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function: the probability that a beta variable is below x."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only on the other side
        return 1 - incomplete_beta(b, a, 1 - x)
    return math.exp(_log_kernel(a, b, x)) * _continued_fraction(a, b, x) / a


def _newton_root(step: Callable[[float], tuple[bool, float]], start: float, high: float) -> float:
    """Return the root between 0 and ``high``; ``step`` returns whether x is too low, and Newton's next x."""
    low, x = 0.0, start
    for _ in range(_MAX_STEPS):
        too_low, next_x = step(x)
        low, high = (x, high) if too_low else (low, x)
        if not low < next_x < high:
            next_x = 2 * x + 1 if math.isinf(high) else (low + high) / 2
        if abs(next_x - x) <= _CLOSE * x or high - low <= _CLOSE * low:
            return next_x
        x = next_x
    return x


def _student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t is above t ≥ 0."""
    if math.isinf(freedom):
        return math.erfc(t / math.sqrt(2)) / 2
    if t < 1:  # otherwise t * t would lose its digits next to the degrees of freedom
        return (1 - incomplete_beta(0.5, freedom / 2, t * t / (freedom + t * t))) / 2
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _log_kernel(a: float, b: float, x: float) -> float:
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, evaluated forwards (Lentz's method)."""
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def median(samples: Samples) -> float:
    """Return the middle sample, or the mean of the two in the middle; NaN where one is NaN."""
    n, half = len(samples), len(samples) // 2
    if n % 2:
        placed = np.partition(samples, (half, n - 1))
        middle = placed[half]
    else:
        placed = np.partition(samples, (half - 1, half, n - 1))
        middle = (placed[half - 1] + placed[half]) / 2
    return math.nan if math.isnan(placed[-1]) else float(middle)


def quantiles(samples: Samples, shares: Sequence[float]) -> tuple[float, ...]:
    """Return the quantiles at these shares, with linear interpolation."""
    ordered = np.sort(samples)
    if math.isnan(ordered[-1]):
        return (math.nan,) * len(shares)
    last = len(ordered) - 1
    values = []
    for share in shares:
        below = min(int(share * last), max(last - 1, 0))
        low, high = float(ordered[below]), float(ordered[min(below + 1, last)])
        part = share * last - below
        values.append(high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part)
    return tuple(values)


def cosine_transform(values: Samples) -> Samples:
    """Return the coefficients of the orthonormal cosines (DCT-II), the slowest first."""
    n = len(values)
    folded = np.concatenate([values[::2], values[1::2][::-1]])
    turned = np.fft.fft(folded) * np.exp(-0.5j * np.pi * np.arange(n) / n)
    scaled = np.asarray(turned.real * np.sqrt(2 / n), dtype=np.float64)
    scaled[0] /= np.sqrt(2)
    return scaled


MIN_VALUES = 6  # values; with fewer there are not four cosines besides the mean and the drift
MEMORY_ALARM_RATE = 0.05  # false-alarm rate of detecting memory, which costs degrees of freedom
OUTLIER_SCALES = 5.0  # robust standard deviations from the median


@dataclass(frozen=True)
class LongRunVariance:
    """The long-run variance, in squared units of the values, and its degrees of freedom."""

    variance: float
    degrees: int


def cosine_count(n: int) -> int:
    """Return how many cosines to use for n values: enough degrees of freedom, slow enough to see usual memory."""
    return max(4, int(0.4 * n ** (2 / 3)))


def centred_time(n: int) -> Samples:
    """Return the positions of n samples in their window, from about -1/2 to 1/2."""
    return (np.arange(n) - (n - 1) / 2) / n


def _alarming(slower: int, faster: int) -> float:
    """Return the ratio of mean powers of slower to faster cosines that is rarely exceeded without memory."""
    return f_quantile(1 - MEMORY_ALARM_RATE, slower, faster)


def long_run_variance(values: Samples) -> LongRunVariance:
    """Return n times the variance of the mean of these n ≥ 6 values, excluding drift.

    Where the slower half of the cosines is significantly stronger than the faster half, memory is longer than these
    cosines: only the slower half is used, and so on. It is closer to the variance of the mean, and less precise.
    """
    time = centred_time(len(values))
    flat = values - values.mean()
    flat = flat - time * float(time @ flat) / float(time @ time)
    powers = cosine_transform(flat)[2 : 2 + cosine_count(len(values))] ** 2
    while len(powers) >= 8:
        slower, faster = np.split(powers, [len(powers) // 2])
        if slower.mean() <= faster.mean() * _alarming(len(slower), len(faster)):
            break
        powers = slower
    return LongRunVariance(float(powers.mean()), len(powers))


def t_quantile(confidence: float, freedom: int) -> float:
    """Return the half-width of a two-sided interval in standard errors: Student's t."""
    return student_quantile(0.5 + confidence / 2, freedom)


def robust_scale(samples: Samples) -> float:
    """Return the standard deviation estimated from the median distance from the median, for Gaussian noise."""
    return 1.4826 * median(np.abs(samples - median(samples)))


def winsorize(samples: Samples) -> Samples:
    """Return the samples with outliers clipped to five robust standard deviations from the median."""
    scale = robust_scale(samples)
    if scale == 0:
        return samples
    middle = median(samples)
    return np.clip(samples, middle - OUTLIER_SCALES * scale, middle + OUTLIER_SCALES * scale)
