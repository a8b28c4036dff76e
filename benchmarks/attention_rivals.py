"""What dilated attention is measured beside: the same function put together from parts, and full attention for scale.

Tensors are (batch, sequence, heads, dim), heads kept by h mod r. The branches of rivals are merged eagerly, in the
dtype of the tensors, with weights that autograd does not see, as torchscale does it: their gradients are not exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS, RATES = (2048, 4096, 8192), (1, 2, 4)
HEADS, DIM = 12, 64
Tensor = Any


def flop(batch: int, sequence: int) -> float:
    """Return the floating-point operations of a forward pass of dilated attention."""
    return 4.0 * batch * HEADS * DIM * sequence * sum(w / r**2 for w, r in zip(SEGMENTS, RATES, strict=True))


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return dilated attention as Assay computes it, by the way it found to be the fastest."""
    from assay.workloads.dilated_attention import dilated_attention

    return dilated_attention(q, k, v, SEGMENTS, RATES)


@dataclass(frozen=True)
class Eager:
    """A kernel of PyTorch's for each part, and a merge in PyTorch's own words.

    Attributes:
        kernel: ``cudnn`` or ``flash``.
        copies_parts: Parts are first copied together, instead of being read where they lie.
    """

    kernel: str
    copies_parts: bool = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return dilated attention."""
        import torch

        outs, sums = zip(*(self._branch(q, k, v, w, r) for w, r in zip(SEGMENTS, RATES, strict=True)), strict=True)
        weights = torch.stack(sums).softmax(0).to(q.dtype)[..., None]
        merged = weights[0] * outs[0]
        for weight, out in zip(weights[1:], outs[1:], strict=True):
            merged = merged + weight * out
        return merged

    def _branch(self, q: Tensor, k: Tensor, v: Tensor, segment: int, rate: int) -> tuple[Tensor, Tensor]:
        """Return a branch's output and log-sum-exp for all rows: 0 and minus infinity where it keeps none."""
        import torch

        batch, sequence, heads, dim = q.shape
        whole = torch.zeros_like(q) if rate > 1 else None
        sums = torch.full(q.shape[:3], -math.inf, device=q.device)
        for offset in range(rate):
            parts = [self._part(x, segment, rate, offset) for x in (q, k, v)]
            out, some = self._attend(*(x.flatten(0, 1) for x in parts))
            out = out.unflatten(0, (batch, -1)).transpose(2, 3)
            view(sums[..., None], segment, rate, offset)[..., 0] = some.reshape(*out.shape[:2], -1, out.shape[2]).mT
            if whole is None:
                return out.reshape(batch, sequence, heads, dim), sums
            view(whole, segment, rate, offset)[:] = out
        return whole, sums

    def _part(self, x: Tensor, segment: int, rate: int, offset: int) -> Tensor:
        part = view(x, segment, rate, offset).transpose(2, 3)
        return part.contiguous() if self.copies_parts else part

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        if self.kernel == "cudnn":
            out, some = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]  # noqa: SLF001
        else:
            out, some = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]  # noqa: SLF001
        return out, some.detach()


def view(x: Tensor, segment: int, rate: int, offset: int) -> Tensor:
    """Return (batch, segment, kept position, kept head, dim) of an offset, without a copy."""
    return x.unflatten(1, (-1, segment // rate, rate))[:, :, :, offset, offset::rate]


def full(kernel: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return full attention, every position to every other: another function, for scale."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = SDPBackend.CUDNN_ATTENTION if kernel == "cudnn" else SDPBackend.FLASH_ATTENTION
        with sdpa_kernel(backend):
            views = [x.transpose(1, 2) for x in (q, k, v)]
            return torch.nn.functional.scaled_dot_product_attention(*views).transpose(1, 2)

    return attention


def joined(head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return how many branches join a row and a column of a head."""
    count = 0
    for segment, rate in zip(SEGMENTS, RATES, strict=True):
        together = row // segment == column // segment
        count = count + (together & (row % rate == head % rate) & (column % rate == head % rate)).int()
    return count


def flex(sequence: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return PyTorch's FlexAttention, compiled, with the logarithm of the number of branches as its bias."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(_: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return joined(head, row, column) > 0

    def biased(score: Tensor, _: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + joined(head, row, column).float().log()

    mask = create_block_mask(visible, None, HEADS, sequence, sequence, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        views = [x.transpose(1, 2) for x in (q, k, v)]
        return compiled(*views, score_mod=biased, block_mask=mask).transpose(1, 2)

    return attention
