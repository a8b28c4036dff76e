"""Seeded numpy inputs of a stated distribution, and float64 references with their tolerances.

Values are drawn in float64 and rounded to the requested dtype, so that one seed means the same data in every precision
and every implementation. References are pure numpy; other libraries pass their inputs and outputs as numpy arrays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput, suggest_nearest
from assay.core.results import Check
from assay.workloads.base import shared_data
from assay.workloads.parameters import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Scalar


Floats: TypeAlias = NDArray[np.floating[Any]]
"""An array of float32 or float64."""

ArrayShape: TypeAlias = tuple[int, ...]

NUMPY_DTYPES = ("float32", "float64")


def draw_normal(shape: ArrayShape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return values of mean 0 and standard deviation 1; each stream of a seed is independent of the others."""
    return _generator(seed, stream).standard_normal(shape).astype(dtype)


def draw_uniform(shape: ArrayShape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return values uniformly distributed from -1 to 1."""
    return _generator(seed, stream).uniform(-1.0, 1.0, shape).astype(dtype)


def draw_zeros(shape: ArrayShape, dtype: str, seed: int, *, stream: int = 0) -> Floats:  # noqa: ARG001 (one signature for all)
    """Return zeros, whatever the seed: the data with the lowest power draw."""
    return np.zeros(shape, dtype)


_DRAW_FUNCTIONS: Mapping[str, Callable[..., Floats]] = {
    "normal": draw_normal,
    "uniform": draw_uniform,
    "zeros": draw_zeros,
}
DISTRIBUTIONS = tuple(_DRAW_FUNCTIONS)

NUMPY_CHOICES = {"dtype": NUMPY_DTYPES, "distribution": DISTRIBUTIONS}
"""Allowed values of text parameters of the numpy workloads."""


def draw_array(distribution: Scalar, shape: ArrayShape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return data of the named distribution; each input of a call uses its own stream."""
    make = partial(
        _DRAW_FUNCTIONS[check_choice("distribution", distribution, DISTRIBUTIONS)], shape, dtype, seed, stream=stream
    )
    return shared_data(("numpy", distribution, shape, dtype, seed, stream), make)


def _generator(seed: int, stream: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    return np.random.default_rng([seed, stream])


Doubles: TypeAlias = NDArray[np.float64]

RELATIVE_ERROR = "relative error ‖out − reference‖ / ‖reference‖"

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "tf32": 2e-3,
    "float16": 2e-3,
    "bfloat16": 1e-2,
}
"""The largest relative error that passes, by the dtype of the output: some ten times its rounding.

That of float32 is below the accuracy of TF32, so a product rounded to TF32 on the way does not pass as float32; where
TF32 was requested, the tolerance is that of ``tf32``.
"""

_QUERIES_AT_A_TIME = 512


def reference_matmul(a: Floats, b: Floats) -> Doubles:
    """Return the matrix product in float64."""
    return _as_float64(np.matmul(_as_float64(a), _as_float64(b)))


def reference_softmax(x: Floats) -> Doubles:
    """Return the softmax along the last axis in float64."""
    x = _as_float64(x)
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return _as_float64(powers / powers.sum(axis=-1, keepdims=True))


def reference_attention(q: Floats, k: Floats, v: Floats, *, causal: bool = False) -> Doubles:
    """Return softmax(q·kᵀ/√dim)·v in float64 for arrays of (batch, heads, sequence, dim).

    With ``causal`` a query sees its own position and those before it.
    """
    q, k, v = _as_float64(q), _as_float64(k), _as_float64(v)
    out = np.empty_like(q)
    for head in np.ndindex(q.shape[:2]):
        for start in range(0, q.shape[2], _QUERIES_AT_A_TIME):
            queries = slice(start, start + _QUERIES_AT_A_TIME)
            out[head][queries] = _attend_rows(q[head][queries], k[head], v[head], first=start if causal else None)
    return out


def _attend_rows(q: Doubles, k: Doubles, v: Doubles, *, first: int | None) -> Doubles:
    """Attend with some queries of one head; ``first`` is the position of the first where the mask is causal."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    if first is not None:
        positions = np.arange(first, first + len(q))
        scores[np.arange(len(k)) > positions[:, None]] = -np.inf
    return reference_matmul(reference_softmax(scores), v)


def relative_error(out: NDArray[Any], ref: NDArray[Any]) -> float:
    """Return ‖out − ref‖ / ‖ref‖ in float64.

    A wrong shape, a NaN or an infinity on either side gives infinity, which no tolerance admits; so does anything
    but zeros where the reference is zero throughout.
    """
    if out.shape != ref.shape:
        return float("inf")
    out, ref = _as_float64(out), _as_float64(ref)
    if not (np.isfinite(out).all() and np.isfinite(ref).all()):
        return float("inf")
    scale = np.abs(ref).max(initial=0.0)
    if scale == 0:
        return float("inf") if out.any() else 0.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ref = ref / scale
        error = np.linalg.norm(out / scale - ref) / np.linalg.norm(ref)
    return float(error) if np.isfinite(error) else float("inf")


def tolerance_of(dtype: str) -> float:
    """Return the largest relative error that passes for an output of this dtype."""
    if dtype not in TOLERANCES:
        raise BadInput(f"There is no tolerance for dtype {dtype!r}.{suggest_nearest(dtype, TOLERANCES)}")
    return TOLERANCES[dtype]


def check_output(out: NDArray[Any], ref: NDArray[Any], dtype: str) -> Check:
    """Return the relative error of an output computed in ``dtype``, and its tolerance."""
    return Check(error=relative_error(out, ref), tolerance=tolerance_of(dtype), measure=RELATIVE_ERROR)


def _as_float64(values: NDArray[Any]) -> Doubles:
    return np.asarray(values, dtype=np.float64)
