"""What dilated attention costs: operations, bytes that must be moved, and bytes between ranks. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.workloads.dilated_attention.steps import Seat, shards_of, steps

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.plan import Branch, Heads, Ladder
    from assay.workloads.dilated_attention.steps import Step

BACKWARD_FLOP = 2.5
"""Operations of the backward pass to one of the forward pass: five products of matrices to two."""


@dataclass(frozen=True)
class Costs:
    """Costs of one call over a whole sequence.

    Attributes:
        ladder: The branches.
        heads: The heads.
        batch: Sequences.
        sequence: Positions of each.
        dim: Elements of a head.
        item_bytes: Bytes of an element.
        causal: Whether a query sees only its own position and those before it.
    """

    ladder: Ladder
    heads: Heads
    batch: int
    sequence: int
    dim: int
    item_bytes: int
    causal: bool = False

    @property
    def flop(self) -> float:
        """Floating-point operations of the forward pass: 4·B·H·d·N·Σ w/r² without a mask, counted exactly with one."""
        return self._flop_of(sum(self._pairs(branch) for branch in self.ladder.branches))

    @property
    def backward_flop(self) -> float:
        """Floating-point operations of the backward pass."""
        return BACKWARD_FLOP * self.flop

    @property
    def least_bytes(self) -> float:
        """Bytes of queries, keys and values read once and of the output written once."""
        return float(2 * (self.heads.queries + self.heads.keys) * self._positions_bytes)

    @property
    def least_backward_bytes(self) -> float:
        """Bytes that the backward pass must move at least.

        Queries, output and its gradient, keys and values are read once, with four bytes of log-sum-exp to a query, and
        the gradients of queries, keys and values are written once.
        """
        lse = 4 * self.batch * self.sequence * self.heads.queries
        return float(4 * (self.heads.queries + self.heads.keys) * self._positions_bytes + lse)

    def flop_at(self, place: int, ranks: int) -> float:
        """Return the forward operations of the rank at one place of a ring; under a mask later places have more."""
        shard = self.sequence // ranks
        return self._flop_of(sum(self._pairs_at(branch, place, shard) for branch in self.ladder.branches))

    def received_bytes(self, place: int, ranks: int) -> int:
        """Return the bytes of keys and values that reach the rank at one place in the forward pass.

        They are 2·B·H·d·bytes·(w - l)/r for each branch with w > l; under a causal mask only those before it.
        """
        return sum(
            self._message_bytes(self.ladder.branches[step.branch], self.sequence // ranks)
            for step in self._steps(place, ranks)
            if step.receive_from is not None
        )

    def backward_received_bytes(self, place: int, ranks: int) -> int:
        """Return the bytes that reach it in the backward pass: keys and values again, and gradients of its own."""
        gradients = sum(
            self._message_bytes(self.ladder.branches[step.branch], self.sequence // ranks)
            for step in self._steps(place, ranks)
            if step.helper is not None
        )
        return self.received_bytes(place, ranks) + gradients

    @property
    def _positions_bytes(self) -> int:
        return self.batch * self.sequence * self.dim * self.item_bytes

    def _steps(self, place: int, ranks: int) -> tuple[Step, ...]:
        return steps(self.ladder, self.sequence // ranks, Seat(place, ranks), causal=self.causal)

    def _message_bytes(self, branch: Branch, shard: int) -> int:
        return 2 * self.batch * self.heads.keys * (shard // branch.rate) * self.dim * self.item_bytes

    def _flop_of(self, pairs: int) -> float:
        return 4.0 * self.batch * self.heads.queries * self.dim * pairs

    def _pairs(self, branch: Branch) -> int:
        return self.sequence // branch.segment * self._square(branch.kept)

    def _pairs_at(self, branch: Branch, place: int, shard: int) -> int:
        span, positions = shards_of(branch, shard), min(branch.segment, shard) // branch.rate
        if span == 1:
            return shard // branch.segment * self._square(positions)
        others = place % span if self.causal else span - 1
        return self._square(positions) + others * positions * positions

    def _square(self, side: int) -> int:
        return side * (side + 1) // 2 if self.causal else side * side
