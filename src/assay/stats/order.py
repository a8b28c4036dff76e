"""Medians and quantiles of one series, as NumPy defines them and to the last bit, without what NumPy's cost on the way.

Deciding whether to go on measuring takes several of them at each look; NumPy's general functions spend a hundred
microseconds and more on each, most of it before they come to the numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def median(samples: NDArray[np.float64]) -> float:
    """Return the middle sample, or the mean of the two in the middle; not a number where one of them is none."""
    n, half = len(samples), len(samples) // 2
    if n % 2:
        placed = np.partition(samples, (half, n - 1))
        middle = placed[half]
    else:
        placed = np.partition(samples, (half - 1, half, n - 1))
        middle = (placed[half - 1] + placed[half]) / 2
    return math.nan if math.isnan(placed[-1]) else float(middle)


def quantiles(samples: NDArray[np.float64], shares: Sequence[float]) -> tuple[float, ...]:
    """Return the values that these shares of the samples lie below, linear in between."""
    placed = np.sort(samples)
    if math.isnan(placed[-1]):
        return (math.nan,) * len(shares)
    last = len(placed) - 1
    values = []
    for share in shares:
        below = min(int(share * last), max(last - 1, 0))
        low, high = float(placed[below]), float(placed[min(below + 1, last)])
        part = share * last - below
        values.append(high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part)
    return tuple(values)
