"""Dilated attention on one device: strided views, a block of attention to each part, one merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads.dilated_attention.blocks import backend_for
from assay.workloads.dilated_attention.exchange import Exchange
from assay.workloads.dilated_attention.inputs import check_mask, check_tensors
from assay.workloads.dilated_attention.job import Job
from assay.workloads.dilated_attention.plan import Heads, Ladder, check_dropout, check_sequence, parts

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
        backend: ``auto``, ``math``, ``flash`` or ``cudnn``.
    """
    check_dropout(dropout)
    check_tensors(q, k, v)
    ladder = Ladder.of(segment_lengths, dilation_rates)
    heads = Heads.of(q.shape[2], k.shape[2], offset)
    length = check_sequence(ladder, q.shape[1])
    check_mask(key_padding_mask, (q.shape[0], length))
    ladder.warn_of_uncovered_rows()
    chosen = parts(ladder, heads, length)
    job = Job(
        branches=len(ladder.branches),
        parts=chosen,
        causal=causal,
        detached_weights=detached_weights,
        backend=backend_for(backend, q, padded=key_padding_mask is not None),
        mask=key_padding_mask,
        place=0,
        exchange=Exchange(None, (), chosen),
    )
    return attend(job, heads, q, k, v)


def attend(job: Job, heads: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Do a job on tensors (batch, position, heads, dim)."""
    from assay.workloads.dilated_attention.autograd import Attend

    apart = q.unflatten(2, (heads.keys, heads.shared_by))
    out: Tensor = Attend.apply(job, apart, k.unsqueeze(3), v.unsqueeze(3)).flatten(2, 3)
    return out
