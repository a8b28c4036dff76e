"""Dilated attention on one device: strided views, a block of attention to each part, one merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads.dilated_attention.exchange import Traffic
from assay.workloads.dilated_attention.setup import Options, attend
from assay.workloads.dilated_attention.steps import Seat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.torch_device import Tensor


def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segment_lengths: Sequence[int],
    dilation_rates: Sequence[int],
    *,
    causal: bool = False,
    offset: str = "modulo",
    key_padding_mask: Tensor | None = None,
    detached_weights: bool = False,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Return the dilated attention of tensors (batch, sequence, heads, dim); gradients are exact.

    Args:
        q: Queries.
        k: Keys; query heads may share them evenly, and then take the offset of the head they share.
        v: Values.
        segment_lengths: Positions to a segment, one for each branch.
        dilation_rates: Of how many positions a head keeps one, one for each branch.
        causal: Whether a query sees only its own position and those before it.
        offset: Which one it keeps: ``modulo`` (h mod r) or ``blocks`` (h // ceil(H / r)).
        key_padding_mask: True for keys that nobody sees, (batch, sequence).
        detached_weights: Hold the weights of branches constant in the backward pass, as torchscale does: not exact.
        dropout: Refused unless it is 0.
        backend: ``math``, ``flash``, ``cudnn``, or ``triton``: one kernel of ours for all branches. ``auto``: on a GPU,
            in half precision, the fastest that is right, raced when a shape is first seen, which takes some seconds.
    """
    options = Options(
        segment_lengths, dilation_rates, causal, offset, key_padding_mask, detached_weights, dropout, backend
    )
    return attend((q, k, v), options, Seat(0, 1), group=None, traffic=Traffic())
