"""One call's plan and options, and its computation: what a rank does alone, and what it does when keys arrive.

``forward`` and ``backward`` know nothing of autograd. On one device there are no steps, and nothing is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from assay.workloads.dilated_attention.blocks import attend, attend_backward, sums_dtype
from assay.workloads.dilated_attention.exchange import Arrivals, Exchange, Returns
from assay.workloads.dilated_attention.merge import Merged, hidden_view, merge, packed_view, view
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.workloads.dilated_attention.plan import Part
    from assay.workloads.torch_device import Tensor

    Gradients = tuple[Tensor, Tensor, Tensor]


class Own(Protocol):
    """Computes all that a rank can do alone."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Merged:
        """Return the merge of all its parts."""
        ...

    def backward(self, gradient: Tensor, given: tuple[Tensor, Tensor, Tensor], merged: Merged) -> Gradients:
        """Return what its parts give to the gradients of q, k and v, from that of the output and the whole merge."""
        ...


@dataclass(frozen=True)
class Job:
    """What is to be computed of tensors (batch, position, key head, query head of it, dim), whole or a shard.

    Attributes:
        branches: How many there are.
        parts: The parts of the shard.
        causal: Whether a query sees only its own position and those before it.
        detached_weights: Whether gradients treat the weights of branches as constants, which is not exact.
        backend: What computes blocks.
        mask: True for padded keys of the whole sequence, (batch, position).
        place: Which shard of the sequence this is.
        exchange: How keys, values and their gradients reach other ranks; without steps on one device.
        own: What computes all parts of the shard at once; null where each is computed and merged for itself.
    """

    branches: int
    parts: tuple[Part, ...]
    causal: bool
    detached_weights: bool
    backend: str
    mask: Tensor | None
    place: int
    exchange: Exchange
    own: Own | None = None

    def how(self, part: Part, place: int, q: Tensor) -> dict[str, Any]:
        """Return how a part's blocks are computed over the keys of the shard at some place of the ring."""
        shard = None if self.mask is None else self.mask[:, place * q.shape[1] : (place + 1) * q.shape[1]]
        return {"hidden": hidden_view(shard, part), "backend": self.backend}


def forward(job: Job, q: Tensor, k: Tensor, v: Tensor) -> tuple[Merged, ...]:
    """Return the merge of all branches; with detached weights, behind it that of each branch."""
    branches = tuple(Merged.nothing(q) for _ in range(job.branches)) if job.detached_weights else ()
    arriving = Arrivals(job.exchange, k, v)
    merged = branches or (job.own.forward(q, k, v) if job.own else Merged.nothing(q),) * job.branches
    for part in () if job.own else job.parts:
        options = job.how(part, job.place, q)
        out, lse = attend(view(q, part), view(k, part), view(v, part), causal=job.causal, **options)
        merged[part.branch].at(part).add(out, lse)
    for step, packed in arriving:
        if packed is None:
            continue
        for part in job.exchange.parts_of(step):
            keys, values = (packed_view(x, part) for x in packed)
            out, lse = attend(view(q, part), keys, values, causal=False, **job.how(part, step.source, q))
            merged[part.branch].at(part).add(out, lse)
    return (merge(branches, q), *branches) if branches else merged[:1]


def backward(
    job: Job, gradient: Tensor, given: tuple[Tensor, Tensor, Tensor], merged: Sequence[Merged]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the q, k and v given, from that of the output and what ``forward`` returned."""
    q, k, v = given
    torch = import_torch()
    arriving = Arrivals(job.exchange, k, v)
    branches = _branches(job, gradient, q, merged)
    dq, dk, dv = job.own.backward(gradient, given, merged[0]) if job.own else _alone(job, given, branches)
    returning = Returns(job.exchange, dk, dv, k.dtype)
    for step, packed in arriving:
        if packed is None:
            returning.swap(step, None)
            continue
        theirs = torch.empty_like(packed)
        for part in job.exchange.parts_of(step):
            arrived = packed_view(packed[0], part), packed_view(packed[1], part)
            gradients = branches[part.branch](part, arrived, causal=False, **job.how(part, step.source, q))
            view(dq, part).add_(gradients[0])
            packed_view(theirs[0], part).copy_(gradients[1])
            packed_view(theirs[1], part).copy_(gradients[2])
        returning.swap(step, theirs)
    returning.finish()
    return dq, dk, dv


def _alone(job: Job, given: tuple[Tensor, Tensor, Tensor], branches: Sequence[Callable[..., Gradients]]) -> Gradients:
    """Return what the parts of the shard give, one after another."""
    q, k, v = given
    torch, kind = import_torch(), sums_dtype(q.dtype)
    lse = tuple(torch.zeros(x.shape, dtype=kind, device=x.device) for x in given)
    for part in job.parts:
        options = job.how(part, job.place, q)
        gradients = branches[part.branch](part, (view(k, part), view(v, part)), causal=job.causal, **options)
        for total, some in zip(lse, gradients, strict=True):
            view(total, part).add_(some)
    return lse[0], lse[1], lse[2]


def _branches(
    job: Job, gradient: Tensor, q: Tensor, merged: Sequence[Merged]
) -> list[Callable[..., tuple[Tensor, Tensor, Tensor]]]:
    """Return for each branch what gives the gradients of a part of it.

    It is given output and log-sum-exp of the whole merge. With detached weights it is given its own, and its share of
    the gradient.
    """
    if not job.detached_weights:
        return [partial(_of_part, gradient, q, merged[0])] * job.branches
    whole, *branch_outputs = merged
    return [partial(_of_part, gradient * whole.share_of(branch)[..., None], q, branch) for branch in branch_outputs]


def _of_part(
    gradient: Tensor, q: Tensor, merged: Merged, part: Part, keys_values: tuple[Tensor, Tensor], **how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return attend_backward(view(gradient, part), view(q, part), *keys_values, merged.at(part), **how)
