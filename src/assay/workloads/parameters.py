"""Read parameters and configurations, and the problems they describe.

A problem that several implementations solve has sizes, and the work (FLOP) and traffic (bytes) that follow from them.
Invalid values are refused with one sentence.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from assay.core.errors import BadInput, suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assay.core.values import Params, Scalar


def check_choice(name: str, value: Scalar, choices: Iterable[str]) -> str:
    """Return a value that is one of the choices, or refuse it."""
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return value
    raise BadInput(f"{name} is one of {', '.join(choices)}, not {value!r}.{suggest_nearest(str(value), choices)}")


def read_size(values: Params, name: str) -> int:
    """Return a size: a whole number of at least 1."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is a whole number of at least 1, not {value!r}.")
    return value


def read_flag(values: Params, name: str) -> bool:
    """Return a boolean."""
    value = values[name]
    if not isinstance(value, bool):
        raise BadInput(f"{name} is true or false, not {value!r}.")
    return value


def block_sizes(candidates: Iterable[int], limit: int) -> tuple[int, ...]:
    """Return the candidates in order, clipped to the size of the problem and without duplicates."""
    return tuple(dict.fromkeys(min(candidate, limit) for candidate in candidates))


def complete_config(config: Params | None, default: Params) -> Params:
    """Return the configuration, completed from the default."""
    for key in config or {}:
        if key not in default:
            raise BadInput(
                f"{key!r} is not a setting here; there are {', '.join(default)}.{suggest_nearest(key, default)}"
            )
    return {**default, **(config or {})}


ITEM_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}  # bytes of one element


class TensorProblem(ABC):
    """What one call of an operator computes, whichever implementation does it; subclasses are dataclasses."""

    dtype: str

    @classmethod
    def of(cls, params: Params, dtypes: Sequence[str]) -> Self:
        """Read the problem from the parameters: sizes, flags, and the dtype, one of those of the implementation."""
        construct: Any = cls
        readers: dict[str, Callable[[Params, str], int | bool]] = {"int": read_size, "bool": read_flag}
        fields = inspect.signature(cls).parameters.values()
        values = {
            field.name: readers[field.annotation](params, field.name) for field in fields if field.name != "dtype"
        }
        problem: Self = construct(**values, dtype=check_choice("dtype", params["dtype"], dtypes))
        return problem

    @property
    @abstractmethod
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each input, in the order in which they are drawn."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output."""

    @property
    @abstractmethod
    def flop(self) -> float | None:
        """Floating-point operations of one call; null where it computes nothing."""

    @property
    def bytes_moved(self) -> float:
        """Least number of bytes that one call must move: of the inputs read once and of the output written once."""
        elements = sum(math.prod(shape) for shape in (*self.input_shapes, self.output_shape))
        return float(ITEM_BYTES[self.dtype] * elements)


@dataclass(frozen=True)
class GemmProblem(TensorProblem):
    """C (m × n) = A (m × k) · B (k × n), all of one dtype."""

    m: int
    n: int
    k: int
    dtype: str

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of A and B."""
        return (self.m, self.k), (self.k, self.n)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of C."""
        return self.m, self.n

    @property
    def flop(self) -> float:
        """Floating-point operations: one multiplication and one addition for each of m·n·k products."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True)
class RowsProblem(TensorProblem):
    """An operation on every row of a rows × cols matrix, with some vectors of one number per column."""

    rows: int
    cols: int
    dtype: str

    flop_per_element: ClassVar[float]
    vectors: ClassVar[int] = 0

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the matrix and the vectors."""
        return self.output_shape, *((self.cols,),) * self.vectors

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the matrix, before and after."""
        return self.rows, self.cols

    @property
    def flop(self) -> float:
        """Floating-point operations of all elements."""
        return self.flop_per_element * self.rows * self.cols


class SoftmaxProblem(RowsProblem):
    """The softmax of every row."""

    flop_per_element = 5.0
    """A comparison for the maximum, a subtraction, an exponential (counted as one), an addition to the sum and a
    scaling by it. What an online form adds for each block of columns is not counted."""


class RmsNormProblem(RowsProblem):
    """Every row divided by the root of its mean square, then multiplied by weights, one per column."""

    vectors = 1
    flop_per_element = 4.0
    """A square, an addition to the sum, a scaling by the root and one by the weight."""


class LayerNormProblem(RowsProblem):
    """Every row brought to mean 0 and variance 1, then scaled by weights and shifted by biases, one per column."""

    vectors = 2
    flop_per_element = 7.0
    """An addition to the mean, its subtraction, a square, an addition to the variance, a scaling by its root, one by
    the weight, and the addition of the bias."""


@dataclass(frozen=True)
class AttentionProblem(TensorProblem):
    """Self-attention of batch × heads sequences, each of sequence × dim queries, keys and values."""

    batch: int
    heads: int
    sequence: int
    dim: int
    causal: bool
    dtype: str

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of queries, keys and values."""
        return (self.output_shape,) * 3

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of queries, keys, values and output, whichever way they lie in memory."""
        return self.batch, self.heads, self.sequence, self.dim

    @property
    def flop(self) -> float:
        """Floating-point operations of the two products: four for each element of each pair that is used.

        A pair is a query and a key; a causal mask uses s·(s+1)/2 of a sequence's s² pairs. The softmax between
        the products is not counted, as is usual.
        """
        s = self.sequence
        pairs = s * (s + 1) // 2 if self.causal else s * s
        return 4.0 * self.batch * self.heads * pairs * self.dim


@dataclass(frozen=True)
class VectorProblem(TensorProblem):
    """An elementwise operation on some inputs of n elements each; by default a copy, which computes nothing."""

    n: int
    dtype: str

    inputs: ClassVar[int] = 1
    flop_per_element: ClassVar[float | None] = None

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return (self.output_shape,) * self.inputs

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        return (self.n,)

    @property
    def flop(self) -> float | None:
        """Floating-point operations of all elements; null for a copy."""
        return None if self.flop_per_element is None else self.flop_per_element * self.n


class TriadProblem(VectorProblem):
    """a = b + s·c: a multiplication and an addition per element."""

    inputs = 2
    flop_per_element = 2.0
