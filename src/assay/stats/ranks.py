"""Whether two things rise and fall together: Spearman's rank correlation, judged by shuffling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

FEWEST = 6  # pairs; fewer have too few orders for chance to be ruled out
SHUFFLES, SEED = 4000, 7


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho over so many pairs, and how often shuffled pairs show one as large."""

    rho: float
    n: int
    p: float


def ranks(values: Samples) -> Samples:
    """Return the rank of each value from 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def correlation(first: Sequence[float | None], second: Sequence[float | None]) -> Correlation | None:
    """Return how two things go together, pairs with a null left out; null for few pairs, or where one never changes."""
    pairs = np.array([(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None])
    if len(pairs) < FEWEST:
        return None
    one, other = (ranks(column) for column in pairs.T)
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    if size == 0:
        return None
    rho = float(one @ other) / size
    chance = np.random.default_rng(SEED)
    shuffled = chance.permuted(np.tile(other, (SHUFFLES, 1)), axis=1) @ one / size
    as_large = int(np.count_nonzero(np.abs(shuffled) >= abs(rho) - 1e-12))
    return Correlation(rho, len(pairs), (as_large + 1) / (SHUFFLES + 1))


def holm(found: Sequence[Correlation]) -> list[Correlation]:
    """Return the correlations with p raised so that it holds for all of them together (Holm)."""
    order = sorted(range(len(found)), key=lambda i: found[i].p)
    raised, least = list(found), 0.0
    for step, index in enumerate(order):
        least = max(least, min(1.0, (len(found) - step) * found[index].p))
        raised[index] = replace(found[index], p=least)
    return raised
