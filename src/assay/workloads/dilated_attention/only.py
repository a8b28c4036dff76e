"""One call of the workload: all of it, only what is computed, or only what is moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.workloads.dilated_attention.exchange import Arrivals, Exchange, Returns, Traffic
from assay.workloads.dilated_attention.plan import parts
from assay.workloads.dilated_attention.setup import Options, attend
from assay.workloads.dilated_attention.steps import steps
from assay.workloads.dilated_attention.transport import Still
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.problem import Problem
    from assay.workloads.dilated_attention.shards import Shard
    from assay.workloads.dilated_attention.steps import Seat, Step
    from assay.workloads.torch_device import Tensor


class Attention:
    """Forward, or forward and backward, of one shard.

    A call returns the output, and behind it the gradients of q, k and v where it goes backward.
    """

    def __init__(self, problem: Problem, seat: Seat, shard: Shard, group: Any) -> None:
        """Set it up; the group is a ``Still`` where nothing is to be sent."""
        schedule = problem.costs.ladder
        self._options = Options(
            segment_lengths=[branch.segment for branch in schedule.branches],
            dilation_rates=[branch.rate for branch in schedule.branches],
            causal=problem.costs.causal,
            offset=problem.costs.heads.rule,
            key_padding_mask=None,
            detached_weights=False,
            dropout=0.0,
            backend=problem.backend,
        )
        self._seat, self._group, self._shard = seat, group, shard
        qkv = (shard.q, shard.k, shard.v)
        self._gradient = shard.gradient if problem.backward else None
        self._given = tuple(x.detach().requires_grad_() for x in qkv) if problem.backward else qkv

    @property
    def held(self) -> tuple[Tensor, ...]:
        """What it is given, and keeps."""
        return self._given if self._gradient is None else (*self._given, self._gradient)

    def __call__(self, traffic: Traffic) -> tuple[Tensor, ...]:
        """Make the call; what it moves is counted."""
        torch = import_torch()
        if self._gradient is None:
            with torch.no_grad():
                return (self._attend(traffic),)
        out = self._attend(traffic)
        return (out, *torch.autograd.grad(out, self._given, self._gradient))

    def _attend(self, traffic: Traffic) -> Tensor:
        q, k, v = self._given
        return attend((q, k, v), self._options, self._seat, group=self._group, traffic=traffic)


@dataclass(frozen=True)
class Transfers:
    """The same transfers in the same order, with nothing computed."""

    problem: Problem
    seat: Seat
    shard: Shard
    group: Any

    @property
    def held(self) -> tuple[Tensor, ...]:
        """What it is given, and keeps."""
        return self.shard.k, self.shard.v

    def __call__(self, traffic: Traffic) -> tuple[Tensor, ...]:
        """Make the call; what it moves is counted."""
        costs, shard = self.problem.costs, self.problem.shard
        ahead = steps(costs.ladder, shard, self.seat, causal=costs.causal)
        exchange = Exchange(self.group, ahead, parts(costs.ladder, costs.heads, shard), traffic)
        k, v = self.shard.k.unsqueeze(3), self.shard.v.unsqueeze(3)
        for _ in Arrivals(exchange, k, v):
            pass
        if self.problem.backward:
            arriving, returning = Arrivals(exchange, k, v), LeftAside(exchange, k, v, k.dtype)
            for step, packed in arriving:
                returning.swap(step, packed)
            returning.finish()
        return ()


class LeftAside(Returns):
    """Gradients that come and are not added up."""

    def take_in(self, step: Step, received: Tensor) -> None:
        """Leave what came aside."""


def call_of(problem: Problem, seat: Seat, shard: Shard, group: Any) -> Attention | Transfers:
    """Return the call that a problem asks for."""
    if problem.only == "communication":
        return Transfers(problem, seat, shard, group)
    return Attention(problem, seat, shard, Still() if problem.only == "compute" else group)
