"""Seeded input data of a stated distribution.

Values are drawn in float64 and rounded to the dtype asked for, so that one seed means the same data in every
precision and every implementation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput
from assay.workloads.parameters import one_of
from assay.workloads.sharing import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Scalar

Floats: TypeAlias = NDArray[np.floating[Any]]
"""An array of float32 or float64."""

Shape: TypeAlias = tuple[int, ...]

DTYPES = ("float32", "float64")


def normal(shape: Shape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return values of mean 0 and standard deviation 1; each stream of a seed is independent of the others."""
    return _generator(seed, stream).standard_normal(shape).astype(dtype)


def uniform(shape: Shape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return values spread evenly over -1 to 1."""
    return _generator(seed, stream).uniform(-1.0, 1.0, shape).astype(dtype)


def zeros(shape: Shape, dtype: str, seed: int, *, stream: int = 0) -> Floats:  # noqa: ARG001 (one signature for all)
    """Return zeros: data that costs a chip the least power, whatever the seed."""
    return np.zeros(shape, dtype)


_DRAWS: Mapping[str, Callable[..., Floats]] = {"normal": normal, "uniform": uniform, "zeros": zeros}
DISTRIBUTIONS = tuple(_DRAWS)

CHOICES = {"dtype": DTYPES, "distribution": DISTRIBUTIONS}
"""The words that parameters of the numpy workloads may take."""


def draw(distribution: Scalar, shape: Shape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return data of the named distribution; the inputs of one call each take a stream of their own."""
    make = partial(_DRAWS[one_of("distribution", distribution, DISTRIBUTIONS)], shape, dtype, seed, stream=stream)
    return shared(("numpy", distribution, shape, dtype, seed, stream), make)


def _generator(seed: int, stream: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    return np.random.default_rng([seed, stream])
