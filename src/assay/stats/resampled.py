"""How else numbers could have come out: the iterations of a process drawn anew, and whatever follows from them.

A number that is made of several medians (a speedup, a share of the time) gets its interval by carrying the draws
through the same arithmetic: every quantity is an array whose first element is what was measured, and whose others are
what other iterations of the same process would have given. Quantities of one process are drawn together, iteration by
iteration, so that what disturbs all of them at once cancels where it should.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE, effective_size, torn_between
from assay.stats.longrun import FEWEST, quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Indices = NDArray[np.intp]

DRAWS = 1999


def indices(samples: Samples, seed: int) -> Indices:
    """Return which iterations each draw is made of: first all as they came, then draws in runs of neighbours.

    Runs are as long as neighbours resemble each other, so that a draw strays as far as the real thing does.
    """
    n = len(samples)
    run = max(1, math.ceil(n / effective_size(samples)))
    chance = np.random.default_rng(seed)
    starts = chance.integers(0, n, (DRAWS, math.ceil(n / run)))
    resampled = (starts[:, :, None] + np.arange(run)).reshape(DRAWS, -1)[:, :n] % n
    return np.vstack([np.arange(n), resampled])


def medians(samples: Samples, chosen: Indices) -> Samples:
    """Return the median of each draw."""
    return np.asarray(np.median(samples[chosen], axis=1), dtype=np.float64)


def why_no_interval(samples: Samples, confidence: float = CONFIDENCE) -> str | None:
    """Return why these samples of one process allow no interval; null where they do."""
    levels = torn_between(samples)
    if levels is not None:
        share = f"{levels.share_high:.0%} of the time"
        return f"the samples switch between two levels, {levels.low:.4g} and {levels.high:.4g} ({share})"
    if len(samples) < FEWEST:
        return (
            f"{len(samples)} sample{'' if len(samples) == 1 else 's'} of one process are too few; {FEWEST} are needed"
        )
    if effective_size(samples) < 1 - math.log2(1 - confidence):
        return f"{len(samples)} samples that resemble their neighbours are too few"
    return None


def among_draws(values: Samples, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval in which most draws lie; null where some draw has no such number."""
    if not np.isfinite(values).all():
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return float(low), float(high)


def over_repeats(values: Samples, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return centre, low and high of a number that each of two or more repeats gave.

    Student's t, on logarithms where all are positive.
    """
    relative = bool(values.min() > 0)
    scaled = np.log(values) if relative else values
    centre = float(scaled.mean())
    half = quantile(confidence, len(scaled) - 1) * float(scaled.std(ddof=1)) / math.sqrt(len(scaled))
    ends = (centre, centre - half, centre + half)
    return (math.exp(ends[0]), math.exp(ends[1]), math.exp(ends[2])) if relative else ends
