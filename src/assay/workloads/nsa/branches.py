"""What each branch computes: its sizes, and which keys each query sees, without a tensor.

    sliding       query t sees the keys max(0, t − window + 1) … t
    compressed    token j stands for the keys j·stride … j·stride + block − 1; query t sees those with
                  j·stride + block ≤ t + 1, so that none reaches beyond it; before the first block is over, none

Queries of heads in one group share the group's keys and values. A query that sees nothing gives zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput
from assay.workloads.nsa.sizes import compressed_length
from assay.workloads.parameters import one_of, size
from assay.workloads.problems import ITEM_BYTES

if TYPE_CHECKING:
    from assay.core.values import Params

Places: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Shape(ABC):
    """A branch of batch × groups × heads sequences of queries; ``heads`` are those of one group."""

    batch: int
    groups: int
    heads: int
    head_dim: int
    sequence: int
    dtype: str

    @property
    @abstractmethod
    def keys(self) -> int:
        """How many keys a group has."""

    @abstractmethod
    def seen(self) -> tuple[Places, Places]:
        """Return, for each query, the first key it sees and the first it sees no more; neither ever falls."""

    @abstractmethod
    def span(self, queries: int) -> int:
        """Return how many keys so many neighbouring queries see together, at most."""

    @property
    def blind(self) -> int:
        """How many queries, all at the beginning, see nothing."""
        first, end = self.seen()
        return int((end <= first).sum())

    @property
    def all_heads(self) -> int:
        """Sequences of queries in all."""
        return self.batch * self.groups * self.heads

    @property
    def flop(self) -> float:
        """Floating-point operations of the two products: four for each element of each pair that is seen."""
        first, end = self.seen()
        return 4.0 * self.all_heads * self.head_dim * float((end - first).sum())

    @property
    def bytes_moved(self) -> float:
        """Bytes of queries, keys and values read once and of the output written once."""
        rows = 2 * self.all_heads * self.sequence + 2 * self.batch * self.groups * self.keys
        return float(rows * self.head_dim * ITEM_BYTES[self.dtype])


@dataclass(frozen=True)
class Sliding(Shape):
    """A query sees itself and those before it, ``window`` in all."""

    window: int

    @classmethod
    def of(cls, params: Params) -> Self:
        """Read the branch from the parameters."""
        return cls(**_sizes(params), dtype=_dtype(params), window=size(params, "window"))

    @property
    def keys(self) -> int:
        """As many as there are queries."""
        return self.sequence

    def seen(self) -> tuple[Places, Places]:
        """Return, for each query, the first key it sees and the first it sees no more."""
        t = np.arange(self.sequence, dtype=np.int64)
        return np.maximum(0, t - self.window + 1), t + 1

    def span(self, queries: int) -> int:
        """Return how many keys so many neighbouring queries see together, at most."""
        return min(self.keys, queries + self.window - 1)


@dataclass(frozen=True)
class Compressed(Shape):
    """A query sees the tokens whose blocks of keys are over."""

    block: int
    stride: int

    @classmethod
    def of(cls, params: Params) -> Self:
        """Read the branch from the parameters, or say that no block ever is over."""
        branch = cls(**_sizes(params), dtype=_dtype(params), block=size(params, "block"), stride=size(params, "stride"))
        if not branch.keys:
            raise BadInput(
                f"A sequence of {branch.sequence} has no whole block of {branch.block}: no query would see anything."
            )
        return branch

    @property
    def keys(self) -> int:
        """The compressed tokens."""
        return compressed_length(self.sequence, self.block, self.stride)

    def seen(self) -> tuple[Places, Places]:
        """Return, for each query, the first token it sees, which is the first of all, and the first it sees not yet."""
        t = np.arange(self.sequence, dtype=np.int64)
        return np.zeros_like(t), np.where(t + 1 < self.block, 0, (t + 1 - self.block) // self.stride + 1)

    def span(self, queries: int) -> int:
        """Return how many tokens so many neighbouring queries see together, at most: all."""
        return self.keys


Branch: TypeAlias = Sliding | Compressed


def _sizes(params: Params) -> dict[str, int]:
    return {name: size(params, name) for name in ("batch", "groups", "heads", "head_dim", "sequence")}


def _dtype(params: Params) -> str:
    return one_of("dtype", params["dtype"], ITEM_BYTES)
