"""A dilated-attention problem: its parameters, its costs (FLOP, bytes moved, bytes between ranks), and its data.

The data of each shard of each ring is derived from the seed and the shard's index, so that any rank can recreate any
of it. Costs are pure arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

from assay.core.errors import BadInput
from assay.workloads import kernel_support
from assay.workloads.dilated_attention.attention import BACKENDS
from assay.workloads.dilated_attention.schedule import (
    OFFSETS,
    AttentionHeads,
    DilationSchedule,
    RingPosition,
    check_sequence,
    ring_steps,
    shards_spanned,
)
from assay.workloads.parameters import ITEM_BYTES, check_choice, read_flag, read_size
from assay.workloads.torch_support import draw_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Params, Scalar
    from assay.workloads.dilated_attention.schedule import RingStep
    from assay.workloads.torch_device import Tensor

BACKWARD_FLOP = 2.5  # ratio of backward to forward FLOP: five matrix products to two


@dataclass(frozen=True)
class AttentionCosts:
    """Costs of one call over a whole sequence."""

    schedule: DilationSchedule  # the branches
    heads: AttentionHeads  # the heads
    batch: int  # sequences
    sequence: int  # positions of each
    dim: int  # elements of a head
    item_bytes: int  # bytes of an element
    causal: bool = False  # whether a query sees only its own position and those before it

    @property
    def flop(self) -> float:
        """Floating-point operations of the forward pass: 4·B·H·d·N·Σ w/r² without a mask, counted exactly with one."""
        pairs = (self.sequence // b.segment * self._square(b.kept_positions) for b in self.schedule.branches)
        return 4.0 * self.batch * self.heads.queries * self.dim * sum(pairs)

    @property
    def backward_flop(self) -> float:
        """Floating-point operations of the backward pass."""
        return BACKWARD_FLOP * self.flop

    @property
    def least_bytes(self) -> float:
        """Bytes of queries, keys and values read once and of the output written once."""
        heads = self.heads.queries + self.heads.keys
        return float(2 * heads * self.batch * self.sequence * self.dim * self.item_bytes)

    @property
    def least_backward_bytes(self) -> float:
        """Bytes that the backward pass must move at least.

        Queries, output and its gradient, keys and values are read once, with four bytes of log-sum-exp to a query, and
        the gradients of queries, keys and values are written once.
        """
        return 2 * self.least_bytes + 4 * self.batch * self.sequence * self.heads.queries

    def flop_at(self, index: int, ranks: int) -> float:
        """Return the forward operations of the rank at one place of a ring; under a mask later places have more."""
        shard, pairs = self.sequence // ranks, 0
        for branch in self.schedule.branches:
            span, positions = shards_spanned(branch, shard), min(branch.segment, shard) // branch.rate
            if span == 1:
                pairs += shard // branch.segment * self._square(positions)
            else:
                others = index % span if self.causal else span - 1
                pairs += self._square(positions) + others * positions * positions
        return 4.0 * self.batch * self.heads.queries * self.dim * pairs

    def received_bytes(self, index: int, ranks: int) -> int:
        """Return the bytes of keys and values that reach the rank at one place in the forward pass.

        They are 2·B·H·d·bytes·(w - l)/r for each branch with w > l; under a causal mask only those before it.
        """
        return self._messages_bytes(index, ranks, lambda step: step.receive_from is not None)

    def backward_received_bytes(self, index: int, ranks: int) -> int:
        """Return the bytes that reach it in the backward pass: keys and values again, and gradients of its own."""
        gradients = self._messages_bytes(index, ranks, lambda step: step.helper is not None)
        return self.received_bytes(index, ranks) + gradients

    def _messages_bytes(self, index: int, ranks: int, arrives: Callable[[RingStep], bool]) -> int:
        shard = self.sequence // ranks
        steps = ring_steps(self.schedule, shard, RingPosition(index, ranks), causal=self.causal)
        positions = sum(shard // self.schedule.branches[step.branch].rate for step in steps if arrives(step))
        return 2 * self.batch * self.heads.keys * positions * self.dim * self.item_bytes

    def _square(self, side: int) -> int:
        return side * (side + 1) // 2 if self.causal else side * side


DTYPES = tuple(ITEM_BYTES)
PASSES = ("forward", "total")  # ``total``: forward and backward

CALL_VARIANTS = ("all", "compute", "communication")
"""``compute``: the same plan with nothing sent. ``communication``: the same transfers with nothing computed."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": DTYPES, "offset": OFFSETS, "backend": BACKENDS, "passes": PASSES, "only": CALL_VARIANTS,
}  # fmt: skip
"""Allowed values of text parameters."""


@dataclass(frozen=True)
class DilatedAttentionProblem:
    """One call: what it costs, over how many ranks, and how much of it is done."""

    costs: AttentionCosts  # shapes of the whole, and what follows from them
    ring: int  # ranks to a ring
    dtype: str  # of all tensors
    backend: str  # backend of blocks
    passes: str  # ``forward`` or ``total``
    only: str  # ``all``, ``compute`` or ``communication``

    @classmethod
    def of(cls, params: Params) -> Self:
        """Read the problem; refuse one that breaks a rule."""
        chosen = {name: check_choice(name, params[name], CHOICES[name]) for name in CHOICES if name != "offset"}
        segments, rates = (parse_numbers(name, params[name]) for name in ("segments", "rates"))
        schedule = DilationSchedule.of(segments, rates)
        heads = AttentionHeads.of(read_size(params, "heads"), read_size(params, "key_heads"), str(params["offset"]))
        batch, sequence, dim, ring = (read_size(params, name) for name in ("batch", "sequence", "dim", "ring"))
        check_sequence(schedule, sequence, ring)
        item_bytes, causal = ITEM_BYTES[chosen["dtype"]], read_flag(params, "causal")
        costs = AttentionCosts(schedule, heads, batch, sequence, dim, item_bytes, causal)
        if chosen["only"] == "communication" and ring == 1:
            raise BadInput("A ring of 1 moves nothing, so there is no communication to be measured only.")
        return cls(costs, ring, **chosen)

    @property
    def backward(self) -> bool:
        """Whether gradients are computed too."""
        return self.passes == "total"

    @property
    def shard(self) -> int:
        """Positions that a rank has."""
        return self.costs.sequence // self.ring

    def ring_position(self, rank: int, world: int) -> RingPosition:
        """Return a rank's position.

        One process alone may compute what the last place of a ring computes, the busiest under a causal mask.
        """
        if self.only == "compute" and world == 1:
            return RingPosition(self.ring - 1, self.ring)
        return RingPosition.of(rank, world, self.ring)

    def check_device(self, kind: str) -> None:
        """Refuse a backend that a kind of device does not have."""
        if kind == "cpu" and self.backend == "cudnn":
            raise BadInput("The backend cudnn runs on a GPU, not on a CPU.")
        if self.backend == "triton" and kind not in kernel_support.triton_device_kinds():
            raise BadInput("The backend triton runs on a GPU, not on cpu.")


def parse_numbers(name: str, text: Scalar) -> tuple[int, ...]:
    """Return a list of whole numbers that is written as text, such as ``2048,4096``."""
    words = [word for word in re.split(r"[,\s]+", str(text).strip()) if word]
    if not all(re.fullmatch(r"[+-]?\d+", word) for word in words):
        raise BadInput(f"{name} is a list of whole numbers such as 2048,4096, not {text!r}.")
    return tuple(int(word) for word in words)


SHARD_TENSORS = ("q", "k", "v", "gradient")
MAX_SHARDS = 2**20  # of a ring, at most: rings are numbered behind their shards


@dataclass(eq=False)
class AttentionShard:
    """Queries, keys and values of one place of a ring, and the gradient of the output; each drawn when first used."""

    source: ShardSource
    index: int

    @cached_property
    def q(self) -> Tensor:
        """Queries."""
        return self.source.tensor("q", self.index)

    @cached_property
    def k(self) -> Tensor:
        """Keys."""
        return self.source.tensor("k", self.index)

    @cached_property
    def v(self) -> Tensor:
        """Values."""
        return self.source.tensor("v", self.index)

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of the output."""
        return self.source.tensor("gradient", self.index)


_LIVE_SHARDS: WeakValueDictionary[object, AttentionShard] = WeakValueDictionary()


@dataclass(frozen=True)
class ShardSource:
    """Where the data of one ring comes from."""

    problem: DilatedAttentionProblem  # gives the shapes
    seed: int  # the same on every rank
    ring: int  # the number of the ring
    where: str  # pyTorch's name of the device

    def shard(self, index: int) -> AttentionShard:
        """Return a shard; subjects of one process share it while one of them holds it."""
        key = (*map(self._shape, SHARD_TENSORS), self.problem.dtype, self.seed, self.ring, index, self.where)
        shard = _LIVE_SHARDS.get(key)
        if shard is None:
            shard = _LIVE_SHARDS[key] = AttentionShard(self, index)
        return shard

    def tensor(self, name: str, index: int) -> Tensor:
        """Return one tensor of a shard, (batch, position, heads, dim), drawn anew."""
        stream = (self.ring * MAX_SHARDS + index) * len(SHARD_TENSORS) + SHARD_TENSORS.index(name)
        shape, dtype = self._shape(name), self.problem.dtype
        return draw_tensor("normal", shape, dtype, self.seed, where=self.where, stream=stream)

    def _shape(self, name: str) -> tuple[int, ...]:
        costs = self.problem.costs
        heads = costs.heads.queries if name in {"q", "gradient"} else costs.heads.keys
        return costs.batch, self.problem.shard, heads, costs.dim
