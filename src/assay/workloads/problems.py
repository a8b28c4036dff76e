"""The problems that several implementations solve: their sizes, and the work and traffic that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from assay.workloads.parameters import flag, one_of, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params

ITEM_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes of one element."""


@dataclass(frozen=True)
class Gemm:
    """C (m × n) = A (m × k) · B (k × n), all of one dtype."""

    m: int
    n: int
    k: int
    dtype: str

    @classmethod
    def of(cls, params: Params, dtypes: Sequence[str]) -> Self:
        """Read the problem from the parameters; the implementation knows these dtypes."""
        m, n, k = (size(params, name) for name in ("m", "n", "k"))
        return cls(m, n, k, one_of("dtype", params["dtype"], dtypes))

    @property
    def flop(self) -> float:
        """Floating-point operations: one multiplication and one addition for each of m·n·k products."""
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> float:
        """Bytes of A and B read once and of C written once."""
        return float(ITEM_BYTES[self.dtype] * (self.m * self.k + self.k * self.n + self.m * self.n))


@dataclass(frozen=True)
class Rows:
    """Something done to every row of a rows × cols matrix."""

    rows: int
    cols: int
    dtype: str

    @classmethod
    def of(cls, params: Params, dtypes: Sequence[str]) -> Self:
        """Read the problem from the parameters; the implementation knows these dtypes."""
        rows, cols = (size(params, name) for name in ("rows", "cols"))
        return cls(rows, cols, one_of("dtype", params["dtype"], dtypes))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of input and output."""
        return self.rows, self.cols

    @property
    def bytes_moved(self) -> float:
        """Bytes of the input read once and of the output written once."""
        return 2.0 * self.rows * self.cols * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Softmax(Rows):
    """The softmax of every row."""

    @property
    def flop(self) -> float:
        """Floating-point operations: five an element.

        They are a comparison for the maximum, a subtraction, an exponential (counted as one), an addition to the
        sum and a scaling by it. What an online form adds for each block of columns is not counted.
        """
        return 5.0 * self.rows * self.cols


@dataclass(frozen=True)
class RmsNorm(Rows):
    """Every row divided by the root of its mean square, then multiplied by weights, one a column."""

    @property
    def flop(self) -> float:
        """Floating-point operations: four an element.

        They are a square, an addition to the sum, a scaling by the root and one by the weight.
        """
        return 4.0 * self.rows * self.cols

    @property
    def bytes_moved(self) -> float:
        """Bytes of the input and the weights read once and of the output written once."""
        return super().bytes_moved + self.cols * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class LayerNorm(Rows):
    """Every row brought to mean 0 and variance 1, then scaled by weights and shifted by biases, one a column."""

    @property
    def flop(self) -> float:
        """Floating-point operations: seven an element.

        They are an addition to the mean, its subtraction, a square, an addition to the variance, a scaling by its
        root, one by the weight, and the addition of the bias.
        """
        return 7.0 * self.rows * self.cols

    @property
    def bytes_moved(self) -> float:
        """Bytes of the input, the weights and the biases read once and of the output written once."""
        return super().bytes_moved + 2.0 * self.cols * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Attention:
    """Self-attention of batch × heads sequences, each of sequence × dim queries, keys and values."""

    batch: int
    heads: int
    sequence: int
    dim: int
    causal: bool
    dtype: str

    @classmethod
    def of(cls, params: Params, dtypes: Sequence[str]) -> Self:
        """Read the problem from the parameters; the implementation knows these dtypes."""
        batch, heads, sequence, dim = (size(params, name) for name in ("batch", "heads", "sequence", "dim"))
        return cls(batch, heads, sequence, dim, flag(params, "causal"), one_of("dtype", params["dtype"], dtypes))

    @property
    def shape(self) -> tuple[int, int, int, int]:
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

    @property
    def bytes_moved(self) -> float:
        """Bytes of queries, keys and values read once and of the output written once."""
        return 4.0 * math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Vector:
    """Something done to every one of n elements."""

    n: int
    dtype: str

    @classmethod
    def of(cls, params: Params, dtypes: Sequence[str]) -> Self:
        """Read the problem from the parameters; the implementation knows these dtypes."""
        return cls(size(params, "n"), one_of("dtype", params["dtype"], dtypes))

    def bytes_of(self, vectors: int) -> float:
        """Return the bytes of so many vectors, each read or written once."""
        return float(vectors * self.n * ITEM_BYTES[self.dtype])
