"""Dilated attention over ranks, each with one shard of every sequence, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention.exchange import Traffic
from assay.workloads.dilated_attention.setup import Options, attend
from assay.workloads.dilated_attention.steps import Seat
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.torch_device import Tensor


def ring_dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segment_lengths: Sequence[int],
    dilation_rates: Sequence[int],
    *,
    group: Any = None,
    ring_size: int | None = None,
    causal: bool = False,
    offset: str = "modulo",
    key_padding_mask: Tensor | None = None,
    detached_weights: bool = False,
    dropout: float = 0.0,
    backend: str = "auto",
    traffic: Traffic | None = None,
) -> Tensor:
    """Return this rank's shard of the dilated attention of sequences over a ring; gradients are exact.

    All ranks of a ring call it together, and go backward together. Branches no longer than a shard move nothing.
    NCCL wants the first call of a group to be one of all its ranks: ``meet`` is such a call.

    Args:
        q: This rank's queries (batch, position, heads, dim): the rank-th of the equal shards of a sequence.
        k: This rank's keys.
        v: This rank's values.
        segment_lengths: Positions to a segment, one for each branch.
        dilation_rates: Of how many positions a head keeps one, one for each branch.
        group: The ranks; without one, all of them.
        ring_size: Ranks to a ring; fewer than there are make several rings, each with sequences of its own.
        causal: Whether a query sees only its own position and those before it.
        offset: Which one a head keeps: ``modulo`` (h mod r) or ``blocks`` (h // ceil(H / r)).
        key_padding_mask: True for keys that nobody sees, of the whole sequence: (batch, sequence), on every rank.
        detached_weights: Hold the weights of branches constant in the backward pass, as torchscale does: not exact.
        dropout: Refused unless it is 0.
        backend: ``auto``, ``math``, ``flash``, ``cudnn``, or ``triton`` for what a rank can do alone.
        traffic: Counts the bytes that are moved, forward and backward.
    """
    options = Options(
        segment_lengths, dilation_rates, causal, offset, key_padding_mask, detached_weights, dropout, backend
    )
    return attend((q, k, v), options, seat_in(group, ring_size), group=group, traffic=traffic or Traffic())


def seat_in(group: Any, ring_size: int | None) -> Seat:
    """Return where this rank sits in its ring."""
    dist = import_torch().distributed
    return Seat.of(dist.get_rank(group), dist.get_world_size(group), ring_size)


def meet(group: Any = None) -> None:
    """Wait until all ranks of a group are there: afterwards any two of them may exchange."""
    import_torch().distributed.barrier(group)
