"""One call of dilated attention: its plan, and forward and backward over local parts and arriving keys.

``forward`` and ``backward`` know nothing of autograd. On one device there are no steps, and nothing is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from assay.workloads.dilated_attention.attention import (
    MergedOutput,
    accumulation_dtype,
    attend_block,
    attend_block_backward,
    mask_part_view,
    merge_outputs,
    packed_part_view,
    part_view,
)
from assay.workloads.dilated_attention.exchange import GradientReturns, KeyArrivals, RingExchange
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.workloads.dilated_attention.schedule import BranchPart
    from assay.workloads.torch_device import Tensor

    Gradients = tuple[Tensor, Tensor, Tensor]


class LocalBackend(Protocol):
    """Computes all of a rank's local work."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> MergedOutput:
        """Return the merge of all its parts."""
        ...

    def backward(self, gradient: Tensor, qkv: tuple[Tensor, Tensor, Tensor], merged: MergedOutput) -> Gradients:
        """Return its parts' contributions to the gradients of q, k and v, from the output's gradient and the merge."""
        ...


@dataclass(frozen=True)
class AttentionCall:
    """The plan of a call for tensors (batch, position, key head, query head of it, dim), whole or a shard.

    Attributes:
        branches: Number of branches.
        parts: The parts of the shard.
        causal: Whether a query sees only its own position and those before it.
        detached_weights: Whether gradients treat the weights of branches as constants, which is not exact.
        backend: Backend of blocks.
        mask: True for padded keys of the whole sequence, (batch, position).
        ring_index: Index of the shard in the sequence.
        exchange: How keys, values and their gradients reach other ranks; without steps on one device.
        local: Backend of all parts of the shard at once; null where each is computed and merged separately.
    """

    branches: int
    parts: tuple[BranchPart, ...]
    causal: bool
    detached_weights: bool
    backend: str
    mask: Tensor | None
    ring_index: int
    exchange: RingExchange
    local: LocalBackend | None = None

    def block_options(self, part: BranchPart, index: int, q: Tensor) -> dict[str, Any]:
        """Return the options of a part's blocks over the keys of the shard at an index of the ring."""
        shard = None if self.mask is None else self.mask[:, index * q.shape[1] : (index + 1) * q.shape[1]]
        return {"hidden": mask_part_view(shard, part), "backend": self.backend}


def forward(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> tuple[MergedOutput, ...]:
    """Return the merge of all branches; with detached weights, followed by that of each branch."""
    branches = tuple(MergedOutput.empty(q) for _ in range(call.branches)) if call.detached_weights else ()
    arriving = KeyArrivals(call.exchange, k, v)
    merged = branches or (call.local.forward(q, k, v) if call.local else MergedOutput.empty(q),) * call.branches
    for part in () if call.local else call.parts:
        options = call.block_options(part, call.ring_index, q)
        out, lse = attend_block(
            part_view(q, part), part_view(k, part), part_view(v, part), causal=call.causal, **options
        )
        merged[part.branch].at(part).add(out, lse)
    for step, packed in arriving:
        if packed is None:
            continue
        for part in call.exchange.parts_of(step):
            keys, values = (packed_part_view(x, part) for x in packed)
            out, lse = attend_block(
                part_view(q, part), keys, values, causal=False, **call.block_options(part, step.source, q)
            )
            merged[part.branch].at(part).add(out, lse)
    return (merge_outputs(branches, q), *branches) if branches else merged[:1]


def backward(
    call: AttentionCall, gradient: Tensor, qkv: tuple[Tensor, Tensor, Tensor], merged: Sequence[MergedOutput]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the q, k and v given, from that of the output and what ``forward`` returned."""
    q, k, v = qkv
    torch = import_torch()
    arriving = KeyArrivals(call.exchange, k, v)
    branches = _branch_gradients(call, gradient, q, merged)
    dq, dk, dv = call.local.backward(gradient, qkv, merged[0]) if call.local else _local_gradients(call, qkv, branches)
    returning = GradientReturns(call.exchange, dk, dv, k.dtype)
    for step, packed in arriving:
        if packed is None:
            returning.swap(step, None)
            continue
        theirs = torch.empty_like(packed)
        for part in call.exchange.parts_of(step):
            arrived = packed_part_view(packed[0], part), packed_part_view(packed[1], part)
            gradients = branches[part.branch](part, arrived, causal=False, **call.block_options(part, step.source, q))
            part_view(dq, part).add_(gradients[0])
            packed_part_view(theirs[0], part).copy_(gradients[1])
            packed_part_view(theirs[1], part).copy_(gradients[2])
        returning.swap(step, theirs)
    returning.finish()
    return dq, dk, dv


def _local_gradients(
    call: AttentionCall, qkv: tuple[Tensor, Tensor, Tensor], branches: Sequence[Callable[..., Gradients]]
) -> Gradients:
    """Return the gradients of the shard's parts, computed one after another."""
    q, k, v = qkv
    torch, kind = import_torch(), accumulation_dtype(q.dtype)
    lse = tuple(torch.zeros(x.shape, dtype=kind, device=x.device) for x in qkv)
    for part in call.parts:
        options = call.block_options(part, call.ring_index, q)
        gradients = branches[part.branch](part, (part_view(k, part), part_view(v, part)), causal=call.causal, **options)
        for total, some in zip(lse, gradients, strict=True):
            part_view(total, part).add_(some)
    return lse[0], lse[1], lse[2]


def _branch_gradients(
    call: AttentionCall, gradient: Tensor, q: Tensor, merged: Sequence[MergedOutput]
) -> list[Callable[..., tuple[Tensor, Tensor, Tensor]]]:
    """Return for each branch a function for the gradients of a part of it.

    It uses output and log-sum-exp of the whole merge; with detached weights, the branch's own and its share of the
    gradient.
    """
    if not call.detached_weights:
        return [partial(_part_gradient, gradient, q, merged[0])] * call.branches
    whole, *branch_outputs = merged
    return [
        partial(_part_gradient, gradient * whole.share_of(branch)[..., None], q, branch) for branch in branch_outputs
    ]


def _part_gradient(
    gradient: Tensor,
    q: Tensor,
    merged: MergedOutput,
    part: BranchPart,
    keys_values: tuple[Tensor, Tensor],
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return attend_block_backward(
        part_view(gradient, part), part_view(q, part), *keys_values, merged.at(part), **options
    )
