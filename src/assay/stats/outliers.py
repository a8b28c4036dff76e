"""Find outliers in a population: a robust center and scale, and p-values that hold for all members together.

Center and scale come from the middle of the population, which a few outliers cannot move. The p-value of a distance
accounts for the scale being an estimate: Student's t with as many degrees of freedom as the median distance is worth,
and fewer where the population clearly has heavier tails than Gaussian noise. In a small population each member is
compared with all others instead, using their spread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.stats.numerics import robust_scale

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

MIN_ROBUST_POPULATION = 10
"""From this size on, the middle of a population represents the rest."""
MIN_POPULATION = 4
"""Smaller populations have too few other members to compare with."""
_GOLDEN = 0.6180339887498949
_NORMAL_MIDDLE = 0.6744897501960817
_LIGHT = 1e6
_TAILS = np.geomspace(3.0, _LIGHT, 60)  # heavier tails are rather several outliers
_RATIOS = special.stdtrit(_TAILS, 0.95) / special.stdtrit(_TAILS, 0.75)
"""Ratio of the 90 % quantile of distances to their median, by the heaviness of the tails."""
_RATIO_ERROR = 1.206
"""Standard error of the logarithm of this ratio in Gaussian noise, for one value; it falls with the root of n."""
MEDIAN_EFFICIENCY = 0.37
"""Efficiency of a median distance as an estimate of the scale of Gaussian noise, relative to a standard deviation."""


def outlier_p_values(
    distances: Samples, extra: Samples | float = 0.0, *, fitted: int = 1, least: float = 0.0
) -> Samples:
    """Return for each member the probability that one of the rest is as far from its centre; NaN for too few.

    ``distances`` are from the members' centres, ``fitted`` is the number of centres estimated, ``extra`` the variance
    of those known less precisely than the typical one, ``least`` a scale below which nothing can be resolved.
    """
    n = len(distances)
    if n < MIN_POPULATION:
        return np.full(n, np.nan)
    if n < MIN_ROBUST_POPULATION:
        return _leave_one_out_p_values(distances, extra, least)
    scale, tails = estimate_scale(distances, fitted=fitted, least=least), estimate_tail_freedom(distances)
    scale *= _NORMAL_MIDDLE / float(special.stdtrit(tails, 0.75))
    freedom = 1 / (1 / tails + 1 / max(1.0, MEDIAN_EFFICIENCY * (n - fitted - 1)))
    return _two_sided_p_values(distances, np.sqrt(scale**2 + extra), freedom)


def estimate_scale(distances: Samples, *, fitted: int = 1, least: float = 0.0) -> float:
    """Return the scale of the rest, as ``outlier_p_values`` uses it for large populations.

    Values rounded by a sensor coincide, and a median jumps between them: they are spread evenly over the rounding
    interval, which is ``least`` to each side.
    """
    n = len(distances)
    spread = least * (2 * np.mod(np.arange(1, n + 1) * _GOLDEN, 1.0) - 1)
    return max(robust_scale(distances + spread) * float(np.sqrt(n / max(n - fitted, 1))), least)


def estimate_tail_freedom(distances: Samples) -> float:
    """Return the degrees of freedom of the Student's t whose tails fit the rest; many if Gaussian noise may fit.

    Estimated from the ratio of the 90 % quantile of distances to their median, which a few outliers hardly move; only
    what exceeds two standard errors of that counts.
    """
    half, most = np.quantile(np.abs(distances), [0.5, 0.9])
    if half <= 0:
        return _LIGHT
    ratio = float(most / half) * float(np.exp(-2 * _RATIO_ERROR / np.sqrt(len(distances))))
    return float(np.exp(np.interp(-ratio, -_RATIOS, np.log(_TAILS))))


def _leave_one_out_p_values(values: Samples, extra: Samples | float, least: float) -> Samples:
    n, total, squares = len(values), float(values.sum()), float((values**2).sum())
    means = (total - values) / (n - 1)
    spread = np.maximum((squares - values**2) - (n - 1) * means**2, 0.0) / (n - 2)
    scale = np.sqrt(np.maximum(spread, least**2) * (1 + 1 / (n - 1)) + extra)
    return _two_sided_p_values(values - means, scale, float(n - 2))


def _two_sided_p_values(distances: Samples, scale: Samples, freedom: float) -> Samples:
    t = np.divide(np.abs(distances), scale, out=np.zeros(len(distances)), where=scale > 0)
    t = np.where((scale <= 0) & (distances != 0), np.inf, t)
    return np.asarray(2 * special.stdtr(freedom, -t), dtype=np.float64)


def false_discovery_rates(p_values: Samples) -> Samples:
    """Return for each p-value the false-discovery rate among all that are at most as large (Benjamini and Hochberg).

    NaNs stay NaN and are not counted.
    """
    finite = np.flatnonzero(np.isfinite(p_values))
    rates = np.full(len(p_values), np.nan)
    if not len(finite):
        return rates
    order = finite[np.argsort(p_values[finite], kind="stable")]
    adjusted = p_values[order] * len(finite) / np.arange(1, len(finite) + 1)
    rates[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 1.0)
    return rates


def holm_p_values(p_values: Samples) -> Samples:
    """Return p-values adjusted for multiple comparisons (Holm); NaNs stay NaN."""
    finite = np.flatnonzero(np.isfinite(p_values))
    adjusted = np.full(len(p_values), np.nan)
    order = finite[np.argsort(p_values[finite], kind="stable")]
    steps = p_values[order] * np.arange(len(finite), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
