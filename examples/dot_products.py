"""Two ways to take a dot product; which is faster depends on the length.

    assay threshold run examples/thresholds.yaml --device cpu

Both return their result, so that it can be compared: a faster way to a wrong number is no way at all.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@cache
def numbers(length: int) -> list[float]:
    """Return the same numbers every time they are asked for."""
    return [float(x) for x in np.random.default_rng(0).standard_normal(length)]


@cache
def array(length: int) -> Vector:
    """Return the same numbers as an array."""
    return np.array(numbers(length))


def in_python(length: int) -> float:
    """Return the dot product of the numbers with themselves, one by one."""
    return sum(x * x for x in numbers(length))


def by_numpy(length: int) -> float:
    """Return the same from arrays."""
    x = array(length)
    return float(np.dot(x, x))
