"""Student's t, F, normal and binomial probabilities and quantiles, without SciPy.

Every worker needs a few of them, and importing SciPy's would take two fifths of the time that it takes to start. All of
them but the normal one are one function, the regularised incomplete beta function, by its continued fraction
(Abramowitz and Stegun 26.5.8); quantiles are found by Newton's method, kept in a bracket. They agree with SciPy to
eight digits and more, which a test holds them to.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NORMAL = NormalDist()
_TINY = 1e-300
_CLOSE = 1e-15
_MOST_TERMS, _MOST_STEPS = 20_000, 200
_KEPT = 4096


def normal_quantile(p: float) -> float:
    """Return the standard normal value that is exceeded with probability 1 - p."""
    return _NORMAL.inv_cdf(p)


def student_cdf(t: float, freedom: float) -> float:
    """Return the probability that Student's t stays below a value; degrees of freedom may be infinite."""
    beyond = _student_tail(abs(t), freedom)
    return beyond if t < 0 else 1 - beyond


@lru_cache(_KEPT)
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

    return -_solved(step, z + (z**3 + z) / (4 * freedom), math.inf)


@lru_cache(_KEPT)
def f_quantile(p: float, above: int, below: int) -> float:
    """Return the value that a ratio of mean squares exceeds with probability 1 - p, by their degrees of freedom."""
    if p > 0.5:  # what is left of 1 would be lost beside it
        return 1 / f_quantile(1 - p, below, above) if p < 1 else math.inf
    a, b = above / 2, below / 2

    def step(x: float) -> tuple[bool, float]:
        error = incomplete_beta(a, b, x) - p
        slope = math.exp(_log_kernel(a, b, x)) / (x * (1 - x))
        return error < 0, x - error / slope if slope > 0 else math.inf

    x = _solved(step, a / (a + b), 1.0)
    return below * x / (above * (1 - x))


@lru_cache(_KEPT)
def binomial_beyond(k: int, n: int, p: float) -> float:
    """Return the probability of more than k successes in n tries."""
    if k < 0:
        return 1.0
    return incomplete_beta(k + 1, n - k, p) if k < n else 0.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function: the probability that a beta variable stays below x."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(b, a, 1 - x)
    return math.exp(_log_kernel(a, b, x)) * _fraction(a, b, x) / a


def _solved(step: Callable[[float], tuple[bool, float]], start: float, high: float) -> float:
    """Return the root between 0 and ``high``; a step tells of a place whether it is too low, and where Newton goes."""
    low, x = 0.0, start
    for _ in range(_MOST_STEPS):
        too_low, following = step(x)
        low, high = (x, high) if too_low else (low, x)
        if not low < following < high:
            following = 2 * x + 1 if math.isinf(high) else (low + high) / 2
        if abs(following - x) <= _CLOSE * x or high - low <= _CLOSE * low:
            return following
        x = following
    return x


def _student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t is above t ≥ 0."""
    if math.isinf(freedom):
        return math.erfc(t / math.sqrt(2)) / 2
    if t < 1:  # what is left of a half, or else t * t would be lost beside the degrees of freedom
        return (1 - incomplete_beta(0.5, freedom / 2, t * t / (freedom + t * t))) / 2
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _log_kernel(a: float, b: float, x: float) -> float:
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, from its front (the way of Lentz)."""
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
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
