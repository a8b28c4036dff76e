"""What is right: references computed in float64, and how far an output may be from them.

Numpy only and pure; implementations in other libraries hand in their inputs and outputs as numpy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput, nearest
from assay.core.results import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.workloads.data import Floats

Doubles: TypeAlias = NDArray[np.float64]

MEASURE = "relative error ‖out − reference‖ / ‖reference‖"

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "tf32": 2e-3,
    "float16": 2e-3,
    "bfloat16": 1e-2,
}
"""The largest relative error that passes, by the dtype of the output: some ten times its rounding.

That of float32 is below what TF32 reaches, so a product rounded to TF32 on the way does not pass as float32; where
it was asked for, the result is judged as ``tf32``.
"""

_QUERIES_AT_A_TIME = 512


def matmul(a: Floats, b: Floats) -> Doubles:
    """Return the matrix product in float64."""
    return _doubles(np.matmul(_doubles(a), _doubles(b)))


def softmax(x: Floats) -> Doubles:
    """Return the softmax along the last axis in float64."""
    x = _doubles(x)
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return _doubles(powers / powers.sum(axis=-1, keepdims=True))


def attention(q: Floats, k: Floats, v: Floats, *, causal: bool = False) -> Doubles:
    """Return softmax(q·kᵀ/√dim)·v in float64 for arrays of (batch, heads, sequence, dim).

    With ``causal`` a query sees its own position and those before it.
    """
    q, k, v = _doubles(q), _doubles(k), _doubles(v)
    out = np.empty_like(q)
    for head in np.ndindex(q.shape[:2]):
        for start in range(0, q.shape[2], _QUERIES_AT_A_TIME):
            queries = slice(start, start + _QUERIES_AT_A_TIME)
            out[head][queries] = _attend(q[head][queries], k[head], v[head], first=start if causal else None)
    return out


def _attend(q: Doubles, k: Doubles, v: Doubles, *, first: int | None) -> Doubles:
    """Attend with some queries of one head; ``first`` is the position of the first where the mask is causal."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    if first is not None:
        positions = np.arange(first, first + len(q))
        scores[np.arange(len(k)) > positions[:, None]] = -np.inf
    return matmul(softmax(scores), v)


def relative_error(out: NDArray[Any], ref: NDArray[Any]) -> float:
    """Return ‖out − ref‖ / ‖ref‖ in float64.

    A wrong shape, a NaN or an infinity on either side gives infinity, which no tolerance admits; so does anything
    but zeros where the reference is zero throughout.
    """
    if out.shape != ref.shape:
        return float("inf")
    out, ref = _doubles(out), _doubles(ref)
    if not (np.isfinite(out).all() and np.isfinite(ref).all()):
        return float("inf")
    scale = np.abs(ref).max(initial=0.0)
    if scale == 0:
        return float("inf") if out.any() else 0.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ref = ref / scale
        error = np.linalg.norm(out / scale - ref) / np.linalg.norm(ref)
    return float(error) if np.isfinite(error) else float("inf")


def tolerance(dtype: str) -> float:
    """Return the largest relative error that passes for an output of this dtype."""
    if dtype not in TOLERANCES:
        raise BadInput(f"There is no tolerance for dtype {dtype!r}.{nearest(dtype, TOLERANCES)}")
    return TOLERANCES[dtype]


def check(out: NDArray[Any], ref: NDArray[Any], dtype: str) -> Check:
    """Return how far an output computed in ``dtype`` is from its reference, and how far it may be."""
    return Check(error=relative_error(out, ref), tolerance=tolerance(dtype), measure=MEASURE)


def _doubles(values: NDArray[Any]) -> Doubles:
    return np.asarray(values, dtype=np.float64)
