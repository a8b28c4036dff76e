"""Dilated attention as PyTorch modules and as an autograd function.

This module imports PyTorch when loaded, so that only functions import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from assay.core.errors import BadInput
from assay.workloads.dilated_attention import functional as work
from assay.workloads.dilated_attention.attention import MergedOutput
from assay.workloads.dilated_attention.exchange import Traffic
from assay.workloads.dilated_attention.functional import (
    barrier,
    dilated_attention,
    ring_dilated_attention,
    ring_position_in,
)
from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule, check_dropout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.functional import AttentionCall
    from assay.workloads.torch_device import Tensor


class DilatedAttention(nn.Module):  # type: ignore[misc]  # the type checker does not see PyTorch
    """Dilated attention on one device, its options checked once; it has no weights of its own.

    Args:
        embed_dim: Elements of a position over all query heads.
        num_heads: Query heads.
        segment_lengths: Positions per segment, one number per branch.
        dilation_rates: A head keeps one of this many positions; one number per branch.
        num_kv_heads: Heads of keys and values; by default as many as query heads.
        causal: Whether a query sees only its own position and those before it.
        offset: ``modulo`` or ``blocks``.
        dropout: Refused unless it is 0.
        use_flash_attention: Whether a fused kernel may compute blocks; otherwise matrix products do.
        detached_weights: Hold the weights of branches constant in the backward pass: not exact.
    """

    def __init__(
        self,
        embed_dim: int = 768,
        num_heads: int = 12,
        segment_lengths: Sequence[int] = (2048, 4096, 8192),
        dilation_rates: Sequence[int] = (1, 2, 4),
        *,
        num_kv_heads: int | None = None,
        causal: bool = False,
        offset: str = "modulo",
        dropout: float = 0.0,
        use_flash_attention: bool = True,
        detached_weights: bool = False,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        self.heads = AttentionHeads.of(num_heads, num_heads if num_kv_heads is None else num_kv_heads, offset)
        if embed_dim < 1 or embed_dim % num_heads:
            raise BadInput(f"An embedding of {embed_dim} is not divisible among {num_heads} heads.")
        self.head_dim = embed_dim // num_heads
        self.schedule = DilationSchedule.of(segment_lengths, dilation_rates)
        self.options: dict[str, Any] = {
            "segment_lengths": tuple(segment_lengths),
            "dilation_rates": tuple(dilation_rates),
            "causal": causal,
            "offset": offset,
            "detached_weights": detached_weights,
            "backend": "auto" if use_flash_attention else "math",
        }

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return the attention of tensors (batch, sequence, heads, dim)."""
        self.check_heads(q, k)
        return dilated_attention(q, k, v, key_padding_mask=key_padding_mask, **self.options)

    def check_heads(self, q: Tensor, k: Tensor) -> None:
        """Refuse tensors whose heads differ from the module's."""
        for name, x, heads in (("q", q, self.heads.queries), ("k", k, self.heads.keys)):
            if tuple(x.shape[2:]) != (heads, self.head_dim):
                raise BadInput(f"{name} has shape {tuple(x.shape)}, but its heads are {heads} of {self.head_dim}.")

    def extra_repr(self) -> str:
        """Return the options, for printing."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


class RingDilatedAttention(DilatedAttention):
    """Dilated attention over the ranks of a group; ``traffic`` counts the bytes that this rank transferred.

    Args:
        ring_size: Ranks per ring; by default the whole group.
        group: The ranks; by default all.
        **options: Those of ``DilatedAttention``.
    """

    def __init__(self, *positional: Any, ring_size: int | None = None, group: Any = None, **options: Any) -> None:
        super().__init__(*positional, **options)
        ring_position_in(group, ring_size)
        self.ring_size, self.group, self.traffic = ring_size, group, Traffic()
        self._synchronized = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return this rank's shard of the attention, given its shards; the mask is of the whole sequence."""
        self.check_heads(q, k)
        if not self._synchronized:
            barrier(self.group)
            self._synchronized = True
        return ring_dilated_attention(
            q,
            k,
            v,
            group=self.group,
            ring_size=self.ring_size,
            key_padding_mask=key_padding_mask,
            traffic=self.traffic,
            **self.options,
        )


class AttendFunction(Function):  # type: ignore[misc]  # the type checker does not see PyTorch
    """A call's output and gradients: exact, or with the weights of branches held constant."""

    @staticmethod
    def forward(ctx: Any, call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute the output; tensors are (batch, position, key head, query head of it, dim)."""
        first, *branches = work.forward(call, q, k, v)
        out = first.out.to(q.dtype)
        ctx.job = call
        ctx.save_for_backward(q, k, v, out, first.lse, *(tensor for merged in branches for tensor in merged))
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        q, k, v, *saved = ctx.saved_tensors
        merged = [MergedOutput(*saved[at : at + 2]) for at in range(0, len(saved), 2)]
        gradients = work.backward(ctx.job, gradient.contiguous(), (q, k, v), merged)
        return None, *(of_x.to(x.dtype) for of_x, x in zip(gradients, (q, k, v), strict=True))
