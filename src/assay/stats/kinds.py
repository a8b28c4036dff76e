"""What series of one kind have in common, learnt from all of them together.

One short series says badly how much its runs resemble each other, how noisy it is, and how often it has a spike. Many
of one kind say how such series usually are: how likely each ρ is among them, and what noise to expect, worth so many
runs of one's own. The less alike they are, the less that is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

RHO = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.85])
"""How much a run may resemble the one before."""
RHO_BEFORE = np.array([0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06])
"""How likely each is before any history is looked at."""
SHARED = 3.0
"""Series' worth of weight that this has."""
ROUNDS = 30
SPIKES, SPIKES_SEEN = 1.5, 40.0
"""Spikes expected in so many runs, before any is seen."""
UNLIKE, UNLIKE_SEEN = 0.1, 2.0
"""Variance of log variances from series to series, before any is seen, and how many series that is worth."""
MOST_COMMON = 200.0
"""Runs that what is usual for a kind may be worth at most."""


@dataclass(frozen=True)
class Usual:
    """What noise is usual: worth so many runs (freedom), which add so much to the sum of squares and to the spikes."""

    freedom: Samples
    squares: Samples
    spikes: Samples

    @classmethod
    def nothing(cls, *shape: int) -> Usual:
        """Return that nothing is usual."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))

    def of(self, index: Any) -> Usual:
        """Return what is usual at some places."""
        return Usual(self.freedom[index], self.squares[index], self.spikes[index])

    def put(self, index: int, other: Usual) -> None:
        """Keep what is usual at one place."""
        self.freedom[index], self.squares[index], self.spikes[index] = other.freedom, other.squares, other.spikes


class Kinds:
    """Which series are of one kind."""

    def __init__(self, kinds: Places) -> None:
        _, self._kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._kind, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._counts = counts[:, None].astype(np.float64)

    @property
    def sizes(self) -> Samples:
        """Of each series, how many are of its kind."""
        return np.asarray(self._counts[self._kind, 0], dtype=np.float64)

    def _sum(self, values: Samples) -> Samples:
        """Return the sum over each kind's series: [kind, ρ] from [series, ρ]."""
        return np.asarray(np.add.reduceat(values[self._order], self._starts, axis=0), dtype=np.float64)

    def rho(self, fits: Samples) -> Samples:
        """Return how likely each ρ of the grid is for the kind of each series.

        Args:
            fits: How well each ρ fits each series (logs): [series, ρ].
        """
        likely = np.exp(fits - fits.max(axis=1, keepdims=True))
        weights = np.broadcast_to(RHO_BEFORE, (len(self._starts), len(RHO_BEFORE)))
        for _ in range(ROUNDS):
            posterior = likely * weights[self._kind]
            posterior /= posterior.sum(axis=1, keepdims=True)
            weights = (self._sum(posterior) + SHARED * RHO_BEFORE) / (self._counts + SHARED)
        return np.asarray(weights[self._kind], dtype=np.float64)

    def noise(self, freedom: Samples, squares: Samples, spikes: Samples, plain: Samples) -> Usual:
        """Return what noise is usual for the kind of each series: its variance after Smyth (2004), and its spikes.

        Args:
            freedom: Runs that each series' variance rests on, for each ρ: [series, ρ].
            squares: Their sums of squares.
            spikes: Spikes that each is thought to have had, with those expected before any was seen.
            plain: Runs that were none, likewise.
        """
        half = freedom / 2
        logs = np.log(squares / freedom) + 1 / freedom + 1 / (12 * half**2)
        middle = self._sum(logs) / self._counts
        by_chance = self._sum(1 / half + 1 / (2 * half**2)) / self._counts
        scatter = self._sum((logs - middle[self._kind]) ** 2) + UNLIKE_SEEN * (UNLIKE + by_chance)
        unlike = np.maximum(scatter / (self._counts - 1 + UNLIKE_SEEN) - by_chance, 1e-9)
        worth = np.minimum((1 + np.sqrt(1 + 2 * unlike)) / unlike, MOST_COMMON)
        level = np.exp(middle - 1 / worth - 1 / (3 * worth**2))
        others = self._counts - 1
        of_others = worth * others / self._counts
        share = (self._sum(spikes) - others * SPIKES) / (self._sum(spikes + plain) - others * SPIKES_SEEN)
        prior = Usual(of_others, of_others * level, SPIKES_SEEN * share - SPIKES)
        return prior.of(self._kind)
