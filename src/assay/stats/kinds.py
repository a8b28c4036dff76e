"""What series of one kind have in common, learnt from all of them together.

One short series says badly how much its runs resemble each other, and how noisy it is. Many of one kind say how such
series usually are: how likely each ρ is among them, and what variance to expect, worth so many runs of one's own.
The less alike they are, the less that is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

RHO_BEFORE = np.array([0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06])
"""How likely each ρ of the grid is before any history is looked at."""
SHARED = 3.0
"""Series' worth of weight that the grid has by itself."""
ROUNDS = 30
UNLIKE, UNLIKE_SEEN = 0.5, 4.0
"""Variance of log variances from series to series, before any is seen, and how many series that is worth."""
MOST_COMMON = 200.0
"""Runs that what is usual for a kind may be worth at most."""


@dataclass(frozen=True)
class Usual:
    """What noise is usual: worth so many runs (freedom), which add so much to the sum of squares."""

    freedom: Samples
    squares: Samples

    def of(self, index: object) -> Usual:
        """Return what is usual at some places."""
        return Usual(self.freedom[index], self.squares[index])


def shared_rho(fits: Samples) -> Samples:
    """Return how likely each ρ of the grid is for series of one kind.

    Args:
        fits: How well each ρ fits each series (logs): [..., series, ρ].
    """
    likely = np.exp(fits - fits.max(axis=-1, keepdims=True))
    weights = np.broadcast_to(RHO_BEFORE, (*fits.shape[:-2], len(RHO_BEFORE)))
    for _ in range(ROUNDS):
        each = likely * weights[..., None, :]
        each /= each.sum(axis=-1, keepdims=True)
        weights = (each.sum(axis=-2) + SHARED * RHO_BEFORE) / (fits.shape[-2] + SHARED)
    return np.asarray(weights, dtype=np.float64)


def usual_noise(freedom: Samples, squares: Samples) -> Usual:
    """Return what variance is usual among series of one kind, after Smyth (2004), for each ρ.

    Args:
        freedom: Runs that each series' variance rests on: [series, ρ].
        squares: Their sums of squares.
    """
    half = freedom / 2
    logs = np.log(squares / freedom) + 1 / (2 * half) + 1 / (12 * half**2)
    middle = logs.mean(axis=0)
    by_chance = (1 / half + 1 / (2 * half**2)).mean(axis=0)
    seen = ((logs - middle) ** 2).sum(axis=0) + UNLIKE_SEEN * (UNLIKE + by_chance)
    unlike = np.maximum(seen / (len(logs) - 1 + UNLIKE_SEEN) - by_chance, 1e-9)
    worth = (1 + np.sqrt(1 + 2 * unlike)) / (2 * unlike)
    common = np.minimum(2 * worth, MOST_COMMON)
    level = np.exp(middle - 1 / common - 1 / (3 * common**2))
    return Usual(common, common * level)
