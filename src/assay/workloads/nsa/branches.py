"""The branches of native sparse attention: their sizes, which keys each query attends to, and their tensors.

    sliding       query t attends to the keys max(0, t − window + 1) … t
    compressed    token j stands for the keys j·stride … j·stride + block − 1; query t attends to those with
                  j·stride + block ≤ t + 1, so that none reaches beyond it; before the first block is over, to none

The length of a branch is that of the query with the most keys; from a threshold of it on, the flash path is used.

    sliding       the most keys of a query: max over t of min(window, t + 1)
    compressed    the compressed tokens of the last query: 0 if S < block, else ⌊(S − block) / stride⌋ + 1

Queries of heads in one group share the group's keys and values. A query without keys gives zeros. In memory queries
are (batch, group, head, position, dim), keys and values as (batch, group, position, dim); kernels take views of
them. Every path returns (batch, group, head, position, dim), in whichever order its kernel left it in memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import BadInput
from assay.workloads.parameters import ITEM_BYTES, check_choice, read_size
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import draw_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params, Scalar
    from assay.workloads.torch_device import Tensor

SLIDING, COMPRESSED = "sliding_attention", "compressed_attention"


def effective_length(params: Params) -> int:
    """Return the length of the branch of these parameters: the sliding one if there is a window."""
    if "window" in params:
        return sliding_length(read_size(params, "sequence"), read_size(params, "window"))
    if "block" in params and "stride" in params:
        return compressed_length(*(read_size(params, name) for name in ("sequence", "block", "stride")))
    raise BadInput(f"Neither a window nor a block and a stride are among {', '.join(params) or 'no parameters'}.")


def sliding_length(sequence: int, window: int) -> int:
    """Return the largest number of keys per query of a sequence with a window."""
    return min(window, sequence)


def compressed_length(sequence: int, block: int, stride: int) -> int:
    """Return the number of compressed tokens of the last query of a sequence: those with complete blocks."""
    return 0 if sequence < block else (sequence - block) // stride + 1


def _grid(sequences: Sequence[int], windows: Sequence[int], long: Sequence[int]) -> Mapping[str, tuple[Params, ...]]:
    heads: Params = {"batch": 1, "groups": 2, "heads": 2, "head_dim": 64}
    sliding = ({**heads, "sequence": s, "window": w} for s, w in product(sequences, windows) if w <= s)
    compressed = ({**heads, "sequence": s, "block": 32, "stride": 16} for s in long)
    return {SLIDING: tuple(sliding), COMPRESSED: tuple(compressed)}


GRIDS: Mapping[str, Mapping[str, tuple[Params, ...]]] = {
    "older": _grid((256, 512, 1024), (32, 64, 128, 256), (256, 512, 1024)),
    "long": _grid([4**n for n in range(4, 9)], [2**n for n in range(5, 13)], [2**n for n in range(8, 17)]),
}
"""Cells of each branch by the grid's name: that of the older tool, and one with sequences of up to 65,536."""

Positions: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class BranchShape(ABC):
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
        """Number of keys per group."""

    @abstractmethod
    def key_range(self) -> tuple[Positions, Positions]:
        """Return, for each query, the start and the end of its keys; neither ever decreases."""

    @abstractmethod
    def span(self, queries: int) -> int:
        """Return the largest number of keys that ``queries`` neighbouring queries attend to together."""

    @property
    def queries_without_keys(self) -> int:
        """Number of queries without keys, all at the beginning."""
        first, end = self.key_range()
        return int((end <= first).sum())

    @property
    def all_heads(self) -> int:
        """Total number of query sequences."""
        return self.batch * self.groups * self.heads

    @property
    def flop(self) -> float:
        """Floating-point operations of the two products: four for each element of each attended pair."""
        first, end = self.key_range()
        return 4.0 * self.all_heads * self.head_dim * float((end - first).sum())

    @property
    def bytes_moved(self) -> float:
        """Bytes of queries, keys and values read once and of the output written once."""
        rows = 2 * self.all_heads * self.sequence + 2 * self.batch * self.groups * self.keys
        return float(rows * self.head_dim * ITEM_BYTES[self.dtype])


@dataclass(frozen=True)
class SlidingBranch(BranchShape):
    """A query attends to itself and those before it, ``window`` in total."""

    window: int

    @property
    def keys(self) -> int:
        """Number of keys: that of the queries."""
        return self.sequence

    def key_range(self) -> tuple[Positions, Positions]:
        """Return, for each query, the start and the end of its keys."""
        t = np.arange(self.sequence, dtype=np.int64)
        return np.maximum(0, t - self.window + 1), t + 1

    def span(self, queries: int) -> int:
        """Return the largest number of keys that ``queries`` neighbouring queries attend to together."""
        return min(self.keys, queries + self.window - 1)


@dataclass(frozen=True)
class CompressedBranch(BranchShape):
    """A query attends to the tokens with complete blocks of keys."""

    block: int
    stride: int

    @property
    def keys(self) -> int:
        """The compressed tokens."""
        return compressed_length(self.sequence, self.block, self.stride)

    def key_range(self) -> tuple[Positions, Positions]:
        """Return, for each query, the start of its tokens, which is 0, and their end."""
        t = np.arange(self.sequence, dtype=np.int64)
        return np.zeros_like(t), np.where(t + 1 < self.block, 0, (t + 1 - self.block) // self.stride + 1)

    def span(self, queries: int) -> int:
        """Return the number of tokens that neighbouring queries attend to together: all."""
        return self.keys


Branch: TypeAlias = SlidingBranch | CompressedBranch


def read_branch(params: Params) -> Branch:
    """Read a branch from the parameters, a sliding one if there is a window; refuse one without a complete block."""
    sizes = {name: read_size(params, name) for name in ("batch", "groups", "heads", "head_dim", "sequence")}
    dtype = check_choice("dtype", params["dtype"], ITEM_BYTES)
    if "window" in params:
        return SlidingBranch(**sizes, dtype=dtype, window=read_size(params, "window"))
    block, stride = read_size(params, "block"), read_size(params, "stride")
    branch = CompressedBranch(**sizes, dtype=dtype, block=block, stride=stride)
    if not branch.keys:
        raise BadInput(f"A sequence of {branch.sequence} has no whole block of {block}: no query would see anything.")
    return branch


@dataclass(frozen=True)
class BranchInputs:
    """Queries, keys and values of a branch."""

    q: Tensor
    k: Tensor
    v: Tensor

    def by_groups(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (batch · group, head, position, dim) for each; heads of a group share the same keys in memory."""
        heads = self.q.shape[2]
        shared = (x.flatten(0, 1)[:, None].expand(-1, heads, -1, -1) for x in (self.k, self.v))
        return self.q.flatten(0, 1), *shared

    def by_positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (batch, position, head, dim) for each, with fewer heads of keys, as flash kernels take them."""
        return self.q.flatten(1, 2).transpose(1, 2), self.k.transpose(1, 2), self.v.transpose(1, 2)


def make_inputs(branch: Branch, distribution: Scalar, *, where: str, seed: int) -> BranchInputs:
    """Return the inputs of a branch: the same for every path, and drawn and compressed before anything is timed."""
    groups, row = (branch.batch, branch.groups), (branch.sequence, branch.head_dim)
    pooled = isinstance(branch, CompressedBranch)

    def draw(shape: tuple[int, ...], dtype: str, stream: int) -> Tensor:
        return draw_tensor(distribution, shape, dtype, seed, where=where, stream=stream)

    q = draw((*groups, branch.heads, *row), branch.dtype, 0)
    k, v = (draw((*groups, *row), "float64" if pooled else branch.dtype, stream) for stream in (1, 2))
    if isinstance(branch, CompressedBranch):
        k, v = (pool_blocks(x, branch.block, branch.stride).to(q.dtype) for x in (k, v))
    return BranchInputs(q, k, v)


def pool_blocks(x: Tensor, block: int, stride: int) -> Tensor:
    """Return the sums of blocks of positions over √block, one block every ``stride`` positions.

    It stands for a learned compression: block means, but as large as what they stand for, so that scores are as spread
    as those of any attention.
    """
    return x.unfold(2, block, stride).sum(-1) / math.sqrt(block)


def queries_first(out: Tensor) -> Tensor:
    """Return an output as (position, batch, group, head, dim)."""
    return out.permute(3, 0, 1, 2, 4)


def visible_mask(branch: Branch, queries: slice, keys: slice, *, where: str) -> Tensor:
    """Return which keys the queries attend to, as booleans of (query, key)."""
    torch = import_torch()
    first, end = (torch.from_numpy(bounds[queries]).to(where)[:, None] for bounds in branch.key_range())
    positions = torch.arange(branch.keys, device=where)[keys]
    return (positions >= first) & (positions < end)
