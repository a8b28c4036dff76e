"""Who sends what to whom: rings of ranks, each with one shard of a sequence, and the steps of a branch longer than it.

A branch whose segment spans m shards is computed by the m ranks that have them, in m - 1 steps after each has done its
own. Keys and values go round: in step s the rank at place i of the group gets those of place i - s, which place
i - 1 had in the step before. In the backward pass what place i adds to the gradients of place i - s goes straight
there.

    step 1    0 → 1 → 2 → 3 → 0        causal    0 → 1 → 2 → 3
    step 2    0 → 1 → 2 → 3 → 0                      1 → 2 → 3
    step 3    0 → 1 → 2 → 3 → 0                          2 → 3

Under a causal mask nobody needs keys of places after its own, so they are not sent. Pure: nothing here needs PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from assay.core.errors import BadInput
from assay.workloads.dilated_attention.plan import at_least_one

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.plan import Branch, Ladder


@dataclass(frozen=True)
class Seat:
    """A rank's place in its ring, and the first rank of that ring."""

    place: int
    ring_size: int
    first_rank: int = 0

    @classmethod
    def of(cls, rank: int, world: int, ring_size: int | None) -> Self:
        """Return where a rank of the world sits; without a ring size the world is one ring."""
        size = world if ring_size is None else ring_size
        at_least_one("The ring size", size)
        if world % size:
            raise BadInput(f"A world of {world} ranks is not divisible into rings of {size}.")
        return cls(rank % size, size, rank - rank % size)


@dataclass(frozen=True)
class Step:
    """One step of a branch, as one rank sees it; ranks are those of the world, null where nothing is to be done.

    Attributes:
        branch: The number of the branch in the ladder.
        number: Counts from 1.
        source: The place in the ring whose keys and values are attended to.
        receive_from: Who hands them over.
        send_to: Who gets those of the step before.
        owner: Whose they are, and so who gets what is added to their gradients.
        helper: Who adds to the gradients of this rank.
    """

    branch: int
    number: int
    source: int
    receive_from: int | None
    send_to: int | None
    owner: int | None
    helper: int | None


def steps(ladder: Ladder, shard: int, seat: Seat, *, causal: bool) -> tuple[Step, ...]:
    """Return the steps of all branches longer than a shard, in the order in which all ranks take them."""
    return tuple(
        _step(number, step, branch.segment // shard, seat, causal=causal)
        for number, branch in enumerate(ladder.branches)
        for step in range(1, shards_of(branch, shard))
    )


def shards_of(branch: Branch, shard: int) -> int:
    """Return how many shards a segment reaches over; 1 where it is no longer than one."""
    return max(branch.segment // shard, 1)


def _step(branch: int, number: int, span: int, seat: Seat, *, causal: bool) -> Step:
    here = seat.place % span
    first = seat.place - here

    def rank_at(place: int) -> int:
        return seat.first_rank + first + place % span

    def needs(place: int) -> bool:
        return not causal or place % span >= number

    return Step(
        branch=branch,
        number=number,
        source=first + (here - number) % span,
        receive_from=rank_at(here - 1) if needs(here) else None,
        send_to=rank_at(here + 1) if needs(here + 1) else None,
        owner=rank_at(here - number) if needs(here) else None,
        helper=rank_at(here + number) if needs(here + number) else None,
    )
