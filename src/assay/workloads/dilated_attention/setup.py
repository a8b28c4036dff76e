"""From tensors and options to a job, or to one sentence that says why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads.dilated_attention.blocks import backend_for
from assay.workloads.dilated_attention.exchange import Exchange
from assay.workloads.dilated_attention.inputs import check_mask, check_tensors
from assay.workloads.dilated_attention.job import Job
from assay.workloads.dilated_attention.plan import Heads, Ladder, check_dropout, check_sequence, parts
from assay.workloads.dilated_attention.steps import steps
from assay.workloads.dilated_attention.ways import Shape, asked_for, can_race, fastest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.exchange import Traffic
    from assay.workloads.dilated_attention.steps import Seat
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class Options:
    """What a caller asks for beside tensors; the public functions describe it."""

    segment_lengths: Sequence[int]
    dilation_rates: Sequence[int]
    causal: bool
    offset: str
    key_padding_mask: Tensor | None
    detached_weights: bool
    dropout: float
    backend: str


def attend(
    given: tuple[Tensor, Tensor, Tensor], options: Options, seat: Seat, *, group: Any, traffic: Traffic
) -> Tensor:
    """Return the attention of shards (batch, position, heads, dim), given where in a ring they lie."""
    from assay.workloads.dilated_attention.autograd import Attend

    check_dropout(options.dropout)
    check_tensors(*given)
    q, k, v = given
    heads = Heads.of(q.shape[2], k.shape[2], options.offset)
    apart = q.unflatten(2, (heads.keys, heads.shared_by)), k.unsqueeze(3), v.unsqueeze(3)
    call = job_for(apart, heads, options, seat, group=group, traffic=traffic)
    out: Tensor = Attend.apply(call, *apart).flatten(2, 3)
    return out


def job_for(
    apart: tuple[Tensor, Tensor, Tensor], heads: Heads, options: Options, seat: Seat, *, group: Any, traffic: Traffic
) -> Job:
    """Return the job of tensors (batch, position, key head, query head of it, dim), all rules looked at."""
    q = apart[0]
    schedule, mask = Ladder.of(options.segment_lengths, options.dilation_rates), options.key_padding_mask
    sequence = q.shape[1] * seat.ring_size
    shard = check_sequence(schedule, sequence, seat.ring_size)
    check_mask(mask, (q.shape[0], sequence))
    plain = mask is not None or options.detached_weights
    if options.backend == "triton" and plain:
        raise BadInput("The backend triton neither masks padded keys nor holds the weights of branches constant.")
    schedule.warn_of_uncovered_rows()
    chosen, ahead = parts(schedule, heads, shard), steps(schedule, shard, seat, causal=options.causal)
    backend = backend_for(options.backend, q, padded=mask is not None)
    shape = Shape(schedule.within(shard), heads, chosen, options.causal, bool(ahead))
    raced = options.backend == "auto" and can_race(q)
    own = None if plain else fastest(apart, shape) if raced else asked_for(backend, q, shape)
    return Job(
        branches=len(schedule.branches),
        parts=chosen,
        causal=options.causal,
        detached_weights=options.detached_weights,
        backend=backend_for("auto", q, padded=False) if backend == "triton" else backend,
        mask=mask,
        place=seat.place,
        exchange=Exchange(group, ahead, chosen, traffic),
        own=own,
    )
