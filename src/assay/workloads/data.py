"""Seeded input data of a stated distribution, and the reading of the parameters that state it.

Values are drawn in float64 and rounded to the dtype asked for, so that one seed means the same data in every
precision and every implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.core.values import Params, Scalar

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


def draw(distribution: Scalar, shape: Shape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return data of the named distribution; the inputs of one call each take a stream of their own."""
    return _DRAWS[one_of("distribution", distribution, DISTRIBUTIONS)](shape, dtype, seed, stream=stream)


def _generator(seed: int, stream: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    return np.random.default_rng([seed, stream])


def one_of(name: str, value: Scalar, known: Iterable[str]) -> str:
    """Return a value that is among the known ones."""
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    raise BadInput(f"{name} is one of {', '.join(known)}, not {value!r}.{nearest(str(value), known)}")


def size(values: Params, name: str) -> int:
    """Return a size: a whole number of at least 1."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is a whole number of at least 1, not {value!r}.")
    return value


def flag(values: Params, name: str) -> bool:
    """Return a yes or no."""
    value = values[name]
    if not isinstance(value, bool):
        raise BadInput(f"{name} is true or false, not {value!r}.")
    return value


def block_sizes(candidates: Iterable[int], limit: int) -> tuple[int, ...]:
    """Return the candidates in their order, none larger than the problem and none twice."""
    return tuple(dict.fromkeys(min(candidate, limit) for candidate in candidates))


def complete(config: Params | None, default: Params) -> Params:
    """Return the configuration with what it leaves out taken from the default."""
    for key in config or {}:
        if key not in default:
            raise BadInput(f"{key!r} is not a setting here; there are {', '.join(default)}.{nearest(key, default)}")
    return {**default, **(config or {})}
