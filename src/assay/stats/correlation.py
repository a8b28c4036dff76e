"""Spearman's rank correlation with a permutation test, and partial rank correlation with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE
from assay.stats.outliers import holm_p_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

MIN_PAIRS = 6  # with fewer pairs there are too few orderings to rule out chance
SHUFFLES, SEED = 4000, 7


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho over ``n`` pairs, and how often shuffled pairs give one at least as large."""

    rho: float
    n: int
    p: float


def rank_values(values: Samples) -> Samples:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def rank_correlation(first: Sequence[float | None], second: Sequence[float | None]) -> RankCorrelation | None:
    """Return the rank correlation of pairs without a null; null for few pairs, or where one side is constant."""
    pairs = np.array([(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None])
    if len(pairs) < MIN_PAIRS:
        return None
    first_ranks, second_ranks = (rank_values(column) for column in pairs.T)
    first_ranks, second_ranks = first_ranks - first_ranks.mean(), second_ranks - second_ranks.mean()
    size = float(np.sqrt((first_ranks @ first_ranks) * (second_ranks @ second_ranks)))
    if size == 0:
        return None
    rho = float(first_ranks @ second_ranks) / size
    rng = np.random.default_rng(SEED)
    shuffled = rng.permuted(np.tile(second_ranks, (SHUFFLES, 1)), axis=1) @ first_ranks / size
    as_large = int(np.count_nonzero(np.abs(shuffled) >= abs(rho) - 1e-12))
    return RankCorrelation(rho, len(pairs), (as_large + 1) / (SHUFFLES + 1))


def adjust_holm(correlations: Sequence[RankCorrelation]) -> list[RankCorrelation]:
    """Return the correlations with p adjusted for multiple comparisons (Holm)."""
    adjusted = holm_p_values(np.array([correlation.p for correlation in correlations], dtype=np.float64))
    return [replace(correlation, p=float(p)) for correlation, p in zip(correlations, adjusted, strict=True)]


@dataclass(frozen=True)
class PartialCorrelation:
    """Partial Spearman correlation over ``n`` members, with controls; no interval where n is too small for one."""

    rho: float
    low: float | None
    high: float | None
    n: int


def partial_correlation(
    first: Samples,
    second: Samples,
    equal: Sequence[Samples] = (),
    *,
    independent: bool = True,
    spent: int = 0,
    confidence: float = CONFIDENCE,
) -> PartialCorrelation | None:
    """Return the partial rank correlation of members with all values known; null where one side is constant.

    The interval is Fisher's, with the variance of ranks (Bonett and Wright) and one degree of freedom less for each
    control in ``equal`` and each already ``spent``, such as on means that were subtracted. There is none where the
    pairs are not ``independent``.
    """
    columns = np.stack([first, second, *equal])
    columns = columns[:, np.isfinite(columns).all(axis=0)]
    n = columns.shape[1]
    if n < 3 + len(equal):
        return None
    ranked = [rank_values(column) for column in columns]
    others = np.stack([np.ones(n), *ranked[2:]], axis=1)
    one, other = (column - others @ np.linalg.lstsq(others, column, rcond=None)[0] for column in ranked[:2])
    size = math.sqrt(float(one @ one) * float(other @ other))
    if size <= 1e-9 * n**3:
        return None
    rho = max(-1.0, min(1.0, float(one @ other) / size))
    free = n - spent - len(equal)
    if not independent or free < MIN_PAIRS or abs(rho) > 1 - 1e-12:
        return PartialCorrelation(rho, None, None, n)
    reach = float(special.ndtri(0.5 + confidence / 2)) * math.sqrt((1 + rho**2 / 2) / (free - 3))
    middle = math.atanh(rho)
    return PartialCorrelation(rho, math.tanh(middle - reach), math.tanh(middle + reach), n)
