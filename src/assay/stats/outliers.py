"""Find outliers in a population: a robust center and scale, and p-values that hold for all members together.

Center and scale come from the middle of the population, which a few outliers cannot move. The p-value of a distance
accounts for the scale being an estimate: Student's t with as many degrees of freedom as the median distance is worth,
and fewer where the population surely has heavier tails than Gaussian noise. In a small population each member is
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
"""From so many on the middle of them is a measure of the rest."""
MIN_POPULATION = 4
"""Fewer have no rest to speak of."""
_GOLDEN = 0.6180339887498949
_NORMAL_MIDDLE = 0.6744897501960817
_LIGHT = 1e6
_TAILS = np.geomspace(3.0, _LIGHT, 60)  # heavier ones are rather several that stray
_RATIOS = special.stdtrit(_TAILS, 0.95) / special.stdtrit(_TAILS, 0.75)
"""How far a tenth are beyond half of them, by how heavy the tails are."""
_RATIO_ERROR = 1.206
"""Standard error of the logarithm of such a ratio in Gaussian noise, of one value; it falls with the root of many."""
MEDIAN_EFFICIENCY = 0.37
"""How much a median distance knows about the scale of Gaussian noise, compared with a standard deviation."""


def outlier_p_values(
    distances: Samples, extra: Samples | float = 0.0, *, fitted: int = 1, least: float = 0.0
) -> Samples:
    """Return for each the chance that one of the rest lies as far from its centre; NaN where there are too few.

    ``distances`` are from the centres they are held against, ``fitted`` how many centres were estimated, ``extra`` the
    variance by which one is known less well than the typical one, ``least`` a scale below which nothing is seen.
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
    """Return the scale of the rest, as ``unlikely`` has it for many.

    Numbers that a sensor rounds share a few values, between which a median jumps: they are spread evenly over what
    rounding hides, which is ``least`` to each side.
    """
    n = len(distances)
    spread = least * (2 * np.mod(np.arange(1, n + 1) * _GOLDEN, 1.0) - 1)
    return max(robust_scale(distances + spread) * float(np.sqrt(n / max(n - fitted, 1))), least)


def estimate_tail_freedom(distances: Samples) -> float:
    """Return the degrees of freedom of Student's t whose tails the rest have; many where Gaussian noise may as well.

    Read off how far a tenth of them are beyond half of them, which a few that stray hardly move; only what is beyond
    two standard errors of that counts.
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
    far = np.divide(np.abs(distances), scale, out=np.zeros(len(distances)), where=scale > 0)
    far = np.where((scale <= 0) & (distances != 0), np.inf, far)
    return np.asarray(2 * special.stdtr(freedom, -far), dtype=np.float64)


def false_discovery_rates(chances: Samples) -> Samples:
    """Return for each the rate of false ones among all that are at most as likely (Benjamini and Hochberg).

    Chances that are not known stay so, and count for nothing.
    """
    finite = np.flatnonzero(np.isfinite(chances))
    rates = np.full(len(chances), np.nan)
    if not len(finite):
        return rates
    order = finite[np.argsort(chances[finite], kind="stable")]
    raised = chances[order] * len(finite) / np.arange(1, len(finite) + 1)
    rates[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return rates


def holm_p_values(chances: Samples) -> Samples:
    """Return chances raised so that they hold for all of them together (Holm); what is not known stays so."""
    finite = np.flatnonzero(np.isfinite(chances))
    raised = np.full(len(chances), np.nan)
    order = finite[np.argsort(chances[finite], kind="stable")]
    steps = chances[order] * np.arange(len(finite), 0, -1)
    raised[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return raised
