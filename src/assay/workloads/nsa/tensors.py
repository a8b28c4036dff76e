"""The tensors of a branch, and the forms in which kernels take them; all forms are views, so that none costs a copy.

In memory queries lie as (batch, group, head, position, dim), keys and values as (batch, group, position, dim).
Every path returns (batch, group, head, position, dim), in whichever order its kernel left it in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.workloads.nsa.branches import Compressed
from assay.workloads.torch_data import draw
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values of a branch."""

    q: Tensor
    k: Tensor
    v: Tensor

    def by_groups(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (batch · group, head, position, dim) for each; heads of a group see the same keys in memory."""
        heads = self.q.shape[2]
        shared = (x.flatten(0, 1)[:, None].expand(-1, heads, -1, -1) for x in (self.k, self.v))
        return self.q.flatten(0, 1), *shared

    def by_positions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (batch, position, head, dim) for each, with fewer heads of keys, as flash kernels take them."""
        return self.q.flatten(1, 2).transpose(1, 2), self.k.transpose(1, 2), self.v.transpose(1, 2)


def inputs(branch: Branch, distribution: Scalar, *, where: str, seed: int) -> Inputs:
    """Return the inputs of a branch: the same for every path, and drawn and compressed before anything is timed."""
    groups = (branch.batch, branch.groups)
    q = draw(distribution, (*groups, branch.heads, branch.sequence, branch.head_dim), branch.dtype, seed, where=where)
    shape, dtype = (*groups, branch.sequence, branch.head_dim), branch.dtype
    if isinstance(branch, Compressed):
        dtype = "float64"
    k, v = (draw(distribution, shape, dtype, seed, where=where, stream=stream) for stream in (1, 2))
    if isinstance(branch, Compressed):
        k, v = (pooled(x, branch.block, branch.stride).to(q.dtype) for x in (k, v))
    return Inputs(q, k, v)


def pooled(x: Tensor, block: int, stride: int) -> Tensor:
    """Return the sums of blocks of positions over √block, one block every so many positions.

    It stands for a learned compression: block means, but as large as what they stand for, so that scores are as spread
    as those of any attention.
    """
    return x.unfold(2, block, stride).sum(-1) / math.sqrt(block)


def queries_first(out: Tensor) -> Tensor:
    """Return an output as (position, batch, group, head, dim)."""
    return out.permute(3, 0, 1, 2, 4)


def visible(branch: Branch, queries: slice, keys: slice, *, where: str) -> Tensor:
    """Return which of some keys some queries see, as booleans of (query, key)."""
    torch = import_torch()
    first, end = (torch.from_numpy(bounds[queries]).to(where)[:, None] for bounds in branch.seen())
    positions = torch.arange(branch.keys, device=where)[keys]
    return (positions >= first) & (positions < end)
