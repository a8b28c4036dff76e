"""Strided views of the parts, and the merge of what they give: a softmax over log-sum-exps, one part at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Self

from assay.workloads.dilated_attention.blocks import flat, sums_dtype
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.plan import Part
    from assay.workloads.torch_device import Tensor


class Merged(NamedTuple):
    """An output (batch, position, key head, query head of it, dim) and the log-sum-exp of the scores behind it."""

    out: Tensor
    sums: Tensor

    @classmethod
    def nothing(cls, q: Tensor) -> Self:
        """Return what the merge of no parts is: 0, and minus infinity."""
        torch, kind = import_torch(), sums_dtype(q.dtype)
        out = torch.zeros(q.shape, dtype=kind, device=q.device)
        return cls(out, torch.full(q.shape[:-1], -math.inf, dtype=kind, device=q.device))

    def at(self, part: Part) -> Merged:
        """Return views of a part's rows, in the shape of blocks."""
        return Merged(view(self.out, part), view(self.sums[..., None], part)[..., 0])

    def add(self, out: Tensor, sums: Tensor) -> None:
        """Merge an output of the same rows in, in place: O ← O + α·(Oᵢ - O), α = exp(sumᵢ) / (exp(sum) + exp(sumᵢ))."""
        share = (sums - self.sums).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).sigmoid()
        self.out.lerp_(out.to(self.out.dtype), share[..., None].to(self.out.dtype))
        self.sums.copy_(self.sums.logaddexp(sums.to(self.sums.dtype)))

    def share_of(self, other: Merged) -> Tensor:
        """Return the weight that another merge has in this one, 0 where nothing was merged."""
        return (other.sums - self.sums.masked_fill(self.sums == -math.inf, math.inf)).exp()


def merge(several: Sequence[Merged], q: Tensor) -> Merged:
    """Return the merge of merges."""
    whole = Merged.nothing(q)
    for merged in several:
        whole.add(merged.out, merged.sums)
    return whole


def view(x: Tensor, part: Part) -> Tensor:
    """Return a part of (batch, position, key head, query head, dim) in the shape of blocks, without a copy."""
    segments = x.shape[1] // part.segment
    split = x.unflatten(1, (segments, part.segment // part.rate, part.rate))
    return split[:, :, :, part.offset, part.heads].permute(0, 1, 3, 4, 2, 5)


def flat_view(x: Tensor, part: Part, query_heads: int) -> Tensor:
    """Return a part as (batch · segment, head, position, dim): what ``view`` gives, where it can in one step."""
    batch, length, heads, shared, dim = x.shape
    if query_heads > 1 or shared > 1 or not x.is_contiguous():
        return flat(view(x, part), query_heads)
    chosen = range(heads)[part.heads]
    row = heads * dim
    size = (batch * length // part.segment, len(chosen), part.segment // part.rate, dim)
    stride = (part.segment * row, chosen.step * dim, part.rate * row, 1)
    return x.as_strided(size, stride, x.storage_offset() + part.offset * row + chosen.start * dim)


def packed_view(x: Tensor, part: Part) -> Tensor:
    """Return a part of packed keys or values (batch, kept position, key head, dim) in the shape of blocks."""
    return x[:, None, :, part.heads].permute(0, 1, 3, 2, 4)[:, :, :, None]


def hidden_view(mask: Tensor | None, part: Part) -> Tensor | None:
    """Return a part of a mask of keys (batch, position) in the shape of blocks' ``hidden``."""
    if mask is None:
        return None
    segments = mask.shape[1] // part.segment
    split = mask.unflatten(1, (segments, part.segment // part.rate, part.rate))
    return split[..., part.offset][:, :, None, None, None]
