"""Seeded numpy inputs of a stated distribution, and float64 references with their tolerances.

Values are drawn in float64 and rounded to the requested dtype, so that one seed means the same data in every precision
and every implementation. References are pure numpy; other libraries pass their inputs and outputs as numpy arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput, suggest_nearest
from assay.core.results import Check
from assay.workloads.base import PreparedWorkload, shared_data
from assay.workloads.parameters import TensorProblem, check_choice, complete_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.values import Params, Scalar

Floats: TypeAlias = NDArray[np.floating[Any]]  # an array of float32 or float64

ArrayShape: TypeAlias = tuple[int, ...]

NUMPY_DTYPES = ("float32", "float64")


def _draw_new(distribution: str, shape: ArrayShape, dtype: str, seed: int, stream: int) -> Floats:
    if distribution == "zeros":
        return np.zeros(shape, dtype)
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    generator = np.random.default_rng([seed, stream])
    values = generator.standard_normal(shape) if distribution == "normal" else generator.uniform(-1.0, 1.0, shape)
    return values.astype(dtype)


DISTRIBUTIONS = ("normal", "uniform", "zeros")
"""Normal: mean 0, standard deviation 1. Uniform: from -1 to 1. Zeros: the data with the lowest power draw."""

NUMPY_CHOICES = {"dtype": NUMPY_DTYPES, "distribution": DISTRIBUTIONS}
"""Allowed values of text parameters of the numpy workloads."""


def draw_array(distribution: Scalar, shape: ArrayShape, dtype: str, seed: int, *, stream: int = 0) -> Floats:
    """Return data of the named distribution; each input of a call uses its own stream, independent of the others."""
    name = check_choice("distribution", distribution, DISTRIBUTIONS)
    return shared_data(
        ("numpy", distribution, shape, dtype, seed, stream), lambda: _draw_new(name, shape, dtype, seed, stream)
    )


Doubles: TypeAlias = NDArray[np.float64]

RELATIVE_ERROR = "relative error ‖out − reference‖ / ‖reference‖"

TOLERANCES: Mapping[str, float] = {"float64": 1e-12, "float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1e-2}
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
    out, positions = np.empty_like(q), np.arange(q.shape[2])
    for head in np.ndindex(q.shape[:2]):
        for start in range(0, q.shape[2], _QUERIES_AT_A_TIME):
            queries = slice(start, start + _QUERIES_AT_A_TIME)
            scores = q[head][queries] @ k[head].T / np.sqrt(q.shape[3])
            if causal:
                scores[positions > positions[queries, None]] = -np.inf
            out[head][queries] = reference_matmul(reference_softmax(scores), v[head])
    return out


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


_Problem = TypeVar("_Problem", bound=TensorProblem)


class NumpyCall(NamedTuple):
    """A call that writes into ``out``, and what it must write in float64."""

    call: Callable[[], None]
    out: Floats
    reference: Callable[[], Doubles]

    def check(self, dtype: str) -> Check:
        """Make the call, with its output overwritten by NaN before, and compare."""
        self.out.fill(np.nan)
        self.call()
        return check_output(self.out, self.reference(), dtype)


class NumpyOperator(ABC, Generic[_Problem]):
    """An operator by numpy on a CPU, whose first configuration is the default."""

    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    choices = NUMPY_CHOICES
    problem_type: type[_Problem]
    params: ClassVar[Params]
    """Default parameters but for the distribution: sizes in elements and the dtype."""

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the inputs."""
        return {**self.params, "distribution": "normal"}

    def read_problem(self, params: Params) -> _Problem:
        """Return the problem, or refuse a parameter."""
        return self.problem_type.of(params, NUMPY_DTYPES)

    @abstractmethod
    def configs(self, params: Params) -> Sequence[Params]:
        """Return every combination of block sizes and layouts."""

    @abstractmethod
    def make_call(self, problem: _Problem, config: Params, draw: Callable[[ArrayShape, int], Floats]) -> NumpyCall:
        """Draw and lay out the inputs, each from a stream of its own, and allocate memory."""

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Return the call in a configuration; the process's cores are the device."""
        problem = self.read_problem(params)

        def draw(shape: ArrayShape, stream: int) -> Floats:
            return draw_array(params["distribution"], shape, problem.dtype, seed, stream=stream)

        made = self.make_call(problem, complete_config(config, self.configs(params)[0]), draw)
        return PreparedWorkload(
            call=made.call, check=partial(made.check, problem.dtype), flop=problem.flop, bytes_moved=problem.bytes_moved
        )


def _as_float64(values: NDArray[Any]) -> Doubles:
    return np.asarray(values, dtype=np.float64)
