"""The public functions, on one device and over a ring of ranks, and how their arguments become a call.

Over a ring each rank has one shard of every sequence. Invalid tensors and options are refused with one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from assay.core.errors import BadInput
from assay.workloads.dilated_attention.attention import (
    MergedOutput,
    accumulation_dtype,
    attend_block,
    attend_block_backward,
    mask_part_view,
    packed_part_view,
    part_view,
    resolve_backend,
)
from assay.workloads.dilated_attention.backends import CallShape, can_race_backends, fastest_backend, requested_backend
from assay.workloads.dilated_attention.exchange import GradientReturns, KeyArrivals, RingExchange, Traffic
from assay.workloads.dilated_attention.schedule import (
    AttentionHeads,
    DilationSchedule,
    RingPosition,
    branch_parts,
    check_dropout,
    check_sequence,
    ring_steps,
)
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.workloads.dilated_attention.schedule import BranchPart
    from assay.workloads.torch_device import Tensor

    QKV = tuple[Tensor, Tensor, Tensor]


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse tensors that are not (batch, sequence, heads, dim) of one dtype and device."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise BadInput(f"{name} has {x.ndim} axes, not the four of (batch, sequence, heads, dim).")
        if 0 in x.shape:
            raise BadInput(f"{name} of shape {tuple(x.shape)} is empty.")
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise BadInput(f"q is {q.dtype} on {q.device}, but {name} is {x.dtype} on {x.device}.")
    if not q.is_floating_point():
        raise BadInput(f"Attention is of floating-point numbers, not of {q.dtype}.")
    if k.shape != v.shape:
        raise BadInput(f"k has shape {tuple(k.shape)} but v has {tuple(v.shape)}.")
    if (q.shape[0], q.shape[1], q.shape[3]) != (k.shape[0], k.shape[1], k.shape[3]):
        raise BadInput(f"q of shape {tuple(q.shape)} and k of {tuple(k.shape)} differ in more than their heads.")


@dataclass(frozen=True)
class AttentionOptions:
    """The options of a call beside its tensors; the public functions describe them."""

    segment_lengths: Sequence[int]
    dilation_rates: Sequence[int]
    causal: bool
    offset: str
    key_padding_mask: Tensor | None = None
    detached_weights: bool = False
    dropout: float = 0.0
    backend: str = "auto"


def run_attention(
    qkv: QKV, options: AttentionOptions, position: RingPosition, *, group: Any, traffic: Traffic
) -> Tensor:
    """Return the attention of shards (batch, position, heads, dim), given their position in a ring."""
    from assay.workloads.dilated_attention.modules import AttendFunction

    check_dropout(options.dropout)
    check_tensors(*qkv)
    q, k, v = qkv
    heads = AttentionHeads.of(q.shape[2], k.shape[2], options.offset)
    apart = q.unflatten(2, (heads.keys, heads.shared_by)), k.unsqueeze(3), v.unsqueeze(3)
    call = plan_call(apart, heads, options, position, group=group, traffic=traffic)
    out: Tensor = AttendFunction.apply(call, *apart).flatten(2, 3)
    return out


def plan_call(
    apart: QKV,
    heads: AttentionHeads,
    options: AttentionOptions,
    position: RingPosition,
    *,
    group: Any,
    traffic: Traffic,
) -> AttentionCall:
    """Check all rules and return the plan for tensors (batch, position, key head, query head of it, dim)."""
    q = apart[0]
    schedule, mask = DilationSchedule.of(options.segment_lengths, options.dilation_rates), options.key_padding_mask
    sequence = q.shape[1] * position.ring_size
    shard = check_sequence(schedule, sequence, position.ring_size)
    shape = q.shape[0], sequence
    if mask is not None and (tuple(mask.shape) != shape or str(mask.dtype) != "torch.bool"):
        raise BadInput(
            f"key_padding_mask is of shape {shape} and dtype bool, not {tuple(mask.shape)} and {mask.dtype}."
        )
    plain = mask is not None or options.detached_weights
    if options.backend == "triton" and plain:
        raise BadInput("The backend triton neither masks padded keys nor holds the weights of branches constant.")
    schedule.warn_of_uncovered_rows()
    chosen, ahead = branch_parts(schedule, heads, shard), ring_steps(schedule, shard, position, causal=options.causal)
    backend = resolve_backend(options.backend, q, padded=mask is not None)
    kind = CallShape(schedule.within(shard), heads, chosen, options.causal, bool(ahead))
    raced = options.backend == "auto" and can_race_backends(q)
    own = None if plain else fastest_backend(apart, kind) if raced else requested_backend(backend, q, kind)
    return AttentionCall(
        branches=len(schedule.branches),
        parts=chosen,
        causal=options.causal,
        detached_weights=options.detached_weights,
        backend=resolve_backend("auto", q, padded=False) if backend == "triton" else backend,
        mask=mask,
        ring_index=position.index,
        exchange=RingExchange(group, ahead, chosen, traffic),
        local=own,
    )


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
        segment_lengths: Positions per segment, one number per branch.
        dilation_rates: A head keeps one of this many positions; one number per branch.
        causal: Whether a query sees only its own position and those before it.
        offset: Which one a head keeps: ``modulo`` (h mod r) or ``blocks`` (h // ceil(H / r)).
        key_padding_mask: True for masked keys, (batch, sequence).
        detached_weights: Hold the weights of branches constant in the backward pass, as torchscale does: not exact.
        dropout: Refused unless it is 0.
        backend: ``math``, ``flash``, ``cudnn``, or ``triton``: our kernel for all branches. ``auto``: on a GPU,
            in half precision, the fastest correct one, raced at the first call of a shape, which takes some seconds.
    """
    options = AttentionOptions(
        segment_lengths, dilation_rates, causal, offset, key_padding_mask, detached_weights, dropout, backend
    )
    return run_attention((q, k, v), options, RingPosition(0, 1), group=None, traffic=Traffic())


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
    NCCL requires the first call of a group to be one of all its ranks: ``barrier`` is such a call.

    Args:
        q: This rank's queries (batch, position, heads, dim): the rank-th of the equal shards of a sequence.
        k: This rank's keys.
        v: This rank's values.
        segment_lengths: Positions per segment, one number per branch.
        dilation_rates: A head keeps one of this many positions; one number per branch.
        group: The ranks; without one, all of them.
        ring_size: Ranks per ring; fewer than the group has form several rings, each with its own sequences.
        causal: Whether a query sees only its own position and those before it.
        offset: Which one a head keeps: ``modulo`` (h mod r) or ``blocks`` (h // ceil(H / r)).
        key_padding_mask: True for masked keys, of the whole sequence: (batch, sequence), on every rank.
        detached_weights: Hold the weights of branches constant in the backward pass, as torchscale does: not exact.
        dropout: Refused unless it is 0.
        backend: ``auto``, ``math``, ``flash``, ``cudnn``, or ``triton`` for a rank's local work.
        traffic: Counts the transferred bytes, forward and backward.
    """
    options = AttentionOptions(
        segment_lengths, dilation_rates, causal, offset, key_padding_mask, detached_weights, dropout, backend
    )
    return run_attention(
        (q, k, v), options, ring_position_in(group, ring_size), group=group, traffic=traffic or Traffic()
    )


def ring_position_in(group: Any, ring_size: int | None) -> RingPosition:
    """Return this rank's position in its ring."""
    dist = import_torch().distributed
    return RingPosition.of(dist.get_rank(group), dist.get_world_size(group), ring_size)


def barrier(group: Any = None) -> None:
    """Wait until all ranks of a group have reached this point; afterwards any two may communicate."""
    import_torch().distributed.barrier(group)


class LocalBackend(Protocol):
    """Computes all of a rank's local work."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> MergedOutput:
        """Return the merge of all its parts."""
        ...

    def backward(self, gradient: Tensor, qkv: QKV, merged: MergedOutput) -> QKV:
        """Return its parts' contributions to the gradients of q, k and v, from the output's gradient and the merge."""
        ...


@dataclass(frozen=True)
class AttentionCall:
    """The plan of a call for tensors (batch, position, key head, query head of it, dim), whole or a shard."""

    branches: int  # number of branches
    parts: tuple[BranchPart, ...]  # the parts of the shard
    causal: bool  # whether a query sees only its own position and those before it
    detached_weights: bool  # whether gradients treat the weights of branches as constants, which is not exact
    backend: str  # backend of blocks
    mask: Tensor | None  # true for padded keys of the whole sequence, (batch, position)
    ring_index: int  # index of the shard in the sequence
    exchange: RingExchange  # how keys, values and their gradients reach other ranks; without steps on one device
    local: LocalBackend | None = None
    """Backend of all parts of the shard at once; null where each is computed and merged separately."""

    def block_options(self, part: BranchPart, index: int, q: Tensor) -> dict[str, Any]:
        """Return the options of a part's blocks over the keys of the shard at an index of the ring."""
        shard = None if self.mask is None else self.mask[:, index * q.shape[1] : (index + 1) * q.shape[1]]
        return {"hidden": mask_part_view(shard, part), "backend": self.backend}


def forward(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> tuple[MergedOutput, ...]:
    """Return the merge of all branches; with detached weights, followed by that of each branch."""
    branches = tuple(MergedOutput.empty(q) for _ in range(call.branches)) if call.detached_weights else ()
    arriving = KeyArrivals(call.exchange, k, v)
    merged = branches or (call.local.forward(q, k, v) if call.local else MergedOutput.empty(q),) * call.branches

    def add_block(part: BranchPart, index: int, keys: Tensor, values: Tensor, *, causal: bool) -> None:
        options = call.block_options(part, index, q)
        merged[part.branch].at(part).add(*attend_block(part_view(q, part), keys, values, causal=causal, **options))

    for part in () if call.local else call.parts:
        add_block(part, call.ring_index, part_view(k, part), part_view(v, part), causal=call.causal)
    for step, packed in arriving:
        if packed is None:
            continue
        for part in call.exchange.parts_of(step):
            keys, values = (packed_part_view(x, part) for x in packed)
            add_block(part, step.source, keys, values, causal=False)
    if not branches:
        return merged[:1]
    whole = MergedOutput.empty(q)
    for branch in branches:
        whole.add(*branch)
    return whole, *branches


def backward(call: AttentionCall, gradient: Tensor, qkv: QKV, merged: Sequence[MergedOutput]) -> QKV:
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


def _local_gradients(call: AttentionCall, qkv: QKV, branches: Sequence[Callable[..., QKV]]) -> QKV:
    """Return the gradients of the shard's parts, computed one after another."""
    q, k, v = qkv
    kind = accumulation_dtype(q.dtype)
    totals = q.new_zeros(q.shape, dtype=kind), k.new_zeros(k.shape, dtype=kind), v.new_zeros(v.shape, dtype=kind)
    for part in call.parts:
        options = call.block_options(part, call.ring_index, q)
        gradients = branches[part.branch](part, (part_view(k, part), part_view(v, part)), causal=call.causal, **options)
        for total, some in zip(totals, gradients, strict=True):
            part_view(total, part).add_(some)
    return totals


def _branch_gradients(
    call: AttentionCall, gradient: Tensor, q: Tensor, merged: Sequence[MergedOutput]
) -> list[Callable[..., QKV]]:
    """Return for each branch a function for the gradients of a part of it.

    It uses output and log-sum-exp of the whole merge; with detached weights, the branch's own and its share of the
    gradient.
    """

    def of_branch(gradient: Tensor, branch: MergedOutput) -> Callable[..., QKV]:
        def of_part(part: BranchPart, keys_values: tuple[Tensor, Tensor], **options: Any) -> QKV:
            grad_out, queries = part_view(gradient, part), part_view(q, part)
            return attend_block_backward(grad_out, queries, *keys_values, branch.at(part), **options)

        return of_part

    whole, *branches = merged
    if not call.detached_weights:
        return [of_branch(gradient, whole)] * call.branches
    return [of_branch(gradient * whole.share_of(branch)[..., None], branch) for branch in branches]
