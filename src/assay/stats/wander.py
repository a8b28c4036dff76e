"""Whether a series wanders: moves more slowly than noise that soon forgets can.

Random walks, clocks that dwell on a level, warm-up curves and slow waves all put most of their power into the slowest
cosines of the window. Noise with a short memory spreads it evenly over the slow ones. The samples are replaced by their
normal scores first (ranks, ties sharing one), so that neither spikes nor the unit count.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.cosine import cosine_transform
from assay.stats.distributions import f_quantile, normal_quantile
from assay.stats.longrun import centred_time, winsorised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

FEWEST = 64  # samples; with fewer, chance wanders as well
SLOWEST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # cosines, at most half of all that are read
ALARM = 0.002  # chance at each of these; together noise that forgets is called wandering in about 1 %
WALK = 14.0  # n (1 - r₁), which a random walk of n samples stays below in 95 % (Dickey and Fuller)
PER_BLOCK, FEWEST_BLOCKS, MOST_BLOCKS = 16, 8, 64  # samples in a block; blocks in a window


def normal_scores(samples: Samples) -> Samples:
    """Return the standard normal values of the samples' ranks; samples that are equal share one."""
    _, inverse, counts = np.unique(samples, return_inverse=True, return_counts=True)
    if len(counts) == len(samples):
        return _scores_of_ranks(len(samples))[inverse.reshape(-1)]
    shares = (np.cumsum(counts) - counts / 2) / len(samples)
    return _quantiles(shares)[inverse.reshape(-1)]


@lru_cache(8)
def _scores_of_ranks(n: int) -> Samples:
    """Return the normal values of n different samples, from the least to the greatest."""
    return _quantiles((np.arange(n) + 0.5) / n)


def _quantiles(shares: Samples) -> Samples:
    return np.fromiter(map(normal_quantile, shares.tolist()), np.float64, len(shares))


def cosines(n: int) -> int:
    """Return how many cosines of n samples are read: twice as many as tell the long-run variance."""
    return max(6, min(n // 4, int(0.8 * n ** (2 / 3))))


def _alarming(slower: int, faster: int) -> float:
    """Return the ratio of mean powers that so many slower and faster cosines seldom exceed in noise that forgets."""
    return f_quantile(1 - ALARM, slower, faster)


def wanders(samples: Samples, *, straight: bool = True) -> bool:
    """Return whether the series moves more slowly than noise that forgets; never of fewer than 64 samples.

    Args:
        samples: In the order they were taken.
        straight: Whether a straight drift counts; without it, only what is left of the series after one.
    """
    n = len(samples)
    if n < FEWEST or samples.min() == samples.max():
        return False
    flat = samples
    if not straight:
        time = centred_time(n)
        flat = samples - time * float(time @ winsorised(samples)) / float(time @ time)
    scores = normal_scores(flat)
    scores = scores - scores.mean()
    first = 1 if straight else 2
    powers = cosine_transform(scores)[first : first + cosines(n)] ** 2
    total, count = float(powers.sum()), len(powers)
    slower = np.cumsum(powers)
    for k in SLOWEST:
        if k <= count // 2 and slower[k - 1] / k > _alarming(k, count - k) * (total - slower[k - 1]) / (count - k):
            return True
    return n * (1 - float(scores[1:] @ scores[:-1]) / float(scores @ scores)) < WALK


def range_of_medians(samples: Samples) -> tuple[float, float]:
    """Return the lowest and the highest median of the window's 8 to 64 parts: between them it moved.

    A part has about 16 samples where there are few, so that a level that lasts as long shows.
    """
    count = max(FEWEST_BLOCKS, min(MOST_BLOCKS, len(samples) // PER_BLOCK))
    size = max(1, len(samples) // count)
    whole = samples[: len(samples) // size * size].reshape(-1, size)
    medians = np.median(np.vstack([whole, samples[-size:]]), axis=1)
    return float(medians.min()), float(medians.max())


def range_of_means(values: Samples) -> float:
    """Return how far apart the means of the window's eighths lie."""
    means = [float(part.mean()) for part in np.array_split(values, FEWEST_BLOCKS) if len(part)]
    return max(means) - min(means)
