"""How far apart GPUs are: the slowest against the fastest, and the middle of them, each with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.experiments.power.variability.measures import Numbers

    Samples = NDArray[np.float64]

MIDDLE = 0.9
FEWEST_OF_MIDDLE = 20
DRAWS, SEED = 4000, 5


@dataclass(frozen=True)
class Spread:
    """Ratios of times, 1 is none: slowest to fastest, and over the middle nine tenths; nulls where not known."""

    ratio: float
    low: float | None
    high: float | None
    slowest: int
    fastest: int
    middle: float | None
    middle_low: float | None
    middle_high: float | None


def spread_of(numbers: Numbers) -> Spread | None:
    """Return how far GPUs are apart in a relative measure; null for fewer than two.

    The interval of the largest difference is the one that holds for all differences at once (Tukey). That of the middle
    is over GPUs drawn anew; it includes what measuring adds.
    """
    measured = np.flatnonzero(numbers.known)
    if len(measured) < 2:
        return None
    values, errors = numbers.value[measured], numbers.error[measured]
    slowest, fastest = int(values.argmax()), int(values.argmin())
    apart = float(values[slowest] - values[fastest])
    low = high = None
    if numbers.unit is not None:
        freedom = round(float(np.min(numbers.freedom[measured])))
        pair = float(np.sqrt((errors[slowest] ** 2 + errors[fastest] ** 2) / 2))
        reach = _widest(len(measured), freedom) * pair
        low, high = float(np.exp(max(apart - reach, 0.0))), float(np.exp(apart + reach))
    return Spread(float(np.exp(apart)), low, high, int(measured[slowest]), int(measured[fastest]), *_middle(values))


@cache
def _widest(n: int, freedom: int) -> float:
    """Return how far apart the ends of n equal numbers seldom are, in their standard errors: the studentised range."""
    chance = np.random.default_rng(SEED)
    draws = 20_000 if n <= 50 else 2000 if n <= 500 else 300
    noise = chance.standard_normal((draws, n))
    ranges = (noise.max(axis=1) - noise.min(axis=1)) / np.sqrt(chance.chisquare(freedom, draws) / freedom)
    return float(np.quantile(ranges, CONFIDENCE))


def _middle(values: Samples) -> tuple[float | None, float | None, float | None]:
    n = len(values)
    if n < FEWEST_OF_MIDDLE:
        return None, None, None
    tails = [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2]
    first, last = max(1, round(tails[0] * n)), round(tails[1] * n)
    chance = np.random.default_rng(SEED)
    # Where the two quantiles of a new draw of all GPUs lie among these: order statistics of uniform numbers.
    below = chance.beta(first, n - first + 1, DRAWS)
    above = below + (1 - below) * chance.beta(last - first, n - last + 1, DRAWS)
    ordered = np.sort(values)
    draws = ordered[(above * (n - 1)).round().astype(np.intp)] - ordered[(below * (n - 1)).round().astype(np.intp)]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    own = float(np.diff(np.quantile(values, tails))[0])
    return float(np.exp(own)), float(np.exp(low)), float(np.exp(high))
