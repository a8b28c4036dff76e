"""What dilated attention computes: branches, head offsets, parts, and the steps of a ring of ranks.

In a branch of segment length w and dilation rate r, head h keeps the positions p with (p mod w) mod r = offset(h),
queries and keys alike, and attends inside its own segment. Every head runs every branch:

    w = 8, r = 1   | 0 1 2 3 4 5 6 7 | 8 …
    w = 8, r = 2   | 0 · 2 · 4 · 6 · | 8 …     a head of offset 0
                   | · 1 · 3 · 5 · 7 | · …     a head of offset 1

A branch whose segment spans m shards is computed by the m ranks that hold them, in m - 1 steps after each has done its
own. Keys and values go round: in step s the rank at index i of the group gets those of index i - s, which index i - 1
had in the step before. In the backward pass what index i adds to the gradients of index i - s is sent straight there.

    step 1    0 → 1 → 2 → 3 → 0        causal    0 → 1 → 2 → 3
    step 2    0 → 1 → 2 → 3 → 0                      1 → 2 → 3
    step 3    0 → 1 → 2 → 3 → 0                          2 → 3

Under a causal mask no rank needs keys of later ones, so they are not sent. Pure: nothing here needs PyTorch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self

from assay.core.errors import BadInput
from assay.workloads.parameters import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

OFFSETS = ("modulo", "blocks")
"""``modulo``: h mod r, neighbouring heads differ. ``blocks``: h // ceil(H / r), neighbouring heads are alike."""


class UncoveredRowsWarning(UserWarning):
    """Some rows are kept by no branch; their output is 0."""


@dataclass(frozen=True)
class DilatedBranch:
    """Attention inside segments of ``segment`` positions, of which a head keeps one in ``rate``."""

    segment: int
    rate: int

    @property
    def kept_positions(self) -> int:
        """Positions of a segment that a head keeps."""
        return self.segment // self.rate


@dataclass(frozen=True)
class DilationSchedule:
    """The branches whose outputs are merged."""

    branches: tuple[DilatedBranch, ...]

    @classmethod
    def of(cls, segment_lengths: Sequence[int], dilation_rates: Sequence[int]) -> Self:
        """Return the schedule of segment lengths and dilation rates, one of each per branch."""
        if len(segment_lengths) != len(dilation_rates):
            raise BadInput(
                f"There are {len(segment_lengths)} segment lengths but {len(dilation_rates)} dilation rates; "
                "a branch has one of both."
            )
        if not segment_lengths:
            raise BadInput("A ladder has at least one branch: a segment length and a dilation rate.")
        for segment, rate in zip(segment_lengths, dilation_rates, strict=True):
            check_positive("A segment length", segment)
            check_positive("A dilation rate", rate)
            if segment % rate:
                raise BadInput(f"The segment length {segment} is not divisible by its dilation rate {rate}.")
        return cls(tuple(map(DilatedBranch, segment_lengths, dilation_rates)))

    def warn_of_uncovered_rows(self) -> None:
        """Warn where no branch keeps every position."""
        if all(branch.rate > 1 for branch in self.branches):
            text = "No branch has dilation rate 1, so some rows are kept by no branch; their output is 0."
            warnings.warn(text, UncoveredRowsWarning, stacklevel=5)

    def within(self, shard: int) -> DilationSchedule:
        """Return the schedule within a shard, with segments clipped to its length."""
        return DilationSchedule(
            tuple(DilatedBranch(min(branch.segment, shard), branch.rate) for branch in self.branches)
        )


@dataclass(frozen=True)
class AttentionHeads:
    """Query heads, the key and value heads that they share, and the rule of their offsets."""

    queries: int
    keys: int
    rule: str = "modulo"

    @classmethod
    def of(cls, queries: int, keys: int, rule: str) -> Self:
        """Return the heads, each key head shared by as many query heads."""
        check_positive("The number of query heads", queries)
        check_positive("The number of key heads", keys)
        if queries % keys:
            raise BadInput(f"{queries} query heads cannot share {keys} key heads evenly.")
        return cls(queries, keys, check_choice("offset", rule, OFFSETS))

    @property
    def shared_by(self) -> int:
        """Query heads to a key head."""
        return self.queries // self.keys

    def offset(self, key_head: int, rate: int) -> int:
        """Return the offset of a key head, and so of the query heads that share it."""
        return key_head % rate if self.rule == "modulo" else key_head // -(-self.keys // rate)

    def of_offset(self, offset: int, rate: int) -> slice:
        """Return the key heads of an offset: they lie evenly, whatever the rule."""
        if self.rule == "modulo":
            return slice(offset, self.keys, rate)
        width = -(-self.keys // rate)
        return slice(offset * width, min((offset + 1) * width, self.keys), 1)


@dataclass(frozen=True)
class BranchPart:
    """The heads of one offset in one branch, over all its segments: in memory, a strided view."""

    branch: int  # index of the branch in the schedule
    segment: int  # positions to a segment; of a shard where the branch's segment is longer
    rate: int  # the dilation rate
    offset: int  # the first position that is kept
    heads: slice  # the key heads


@cache
def branch_parts(schedule: DilationSchedule, heads: AttentionHeads, length: int) -> tuple[BranchPart, ...]:
    """Return the parts of ``length`` positions, a shard or a whole sequence: every head is in one of every branch.

    A segment longer than the shard is, within it, a segment as long as the shard.
    """
    return tuple(
        BranchPart(number, min(branch.segment, length), branch.rate, offset, chosen)
        for number, branch in enumerate(schedule.branches)
        for offset in range(branch.rate)
        if len(range(heads.keys)[chosen := heads.of_offset(offset, branch.rate)])
    )


def check_sequence(schedule: DilationSchedule, sequence: int, ranks: int = 1) -> int:
    """Return the length of a rank's shard of the sequence, or refuse an inconsistent combination."""
    check_positive("The length of the sequence", sequence)
    check_positive("The number of ranks", ranks)
    for branch in schedule.branches:
        if sequence % branch.segment:
            raise BadInput(f"A sequence of {sequence} is not divisible by the segment length {branch.segment}.")
    if sequence % ranks:
        raise BadInput(f"A sequence of {sequence} is not divisible among {ranks} ranks.")
    shard = sequence // ranks
    for branch in schedule.branches:
        if shard % branch.segment and branch.segment % shard:
            raise BadInput(
                f"Of a shard of {shard} and a segment of {branch.segment}, neither is a multiple of the other."
            )
        if shard % branch.rate:
            raise BadInput(f"A shard of {shard} is not divisible by the dilation rate {branch.rate}.")
    return shard


def check_dropout(dropout: float) -> None:
    """Refuse dropout."""
    if dropout:
        raise BadInput(
            f"Dropout of {dropout:g} is refused: two positions may be joined by several branches, and branches that "
            "drop them each for itself are no dropout of the merged attention."
        )


def check_positive(what: str, value: int) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{what} is a whole number of at least 1, not {value!r}.")


@dataclass(frozen=True)
class RingPosition:
    """A rank's place in its ring, and the first rank of that ring."""

    index: int
    ring_size: int
    first_rank: int = 0

    @classmethod
    def of(cls, rank: int, world: int, ring_size: int | None) -> Self:
        """Return the position of a rank of the world; without a ring size the world is one ring."""
        size = world if ring_size is None else ring_size
        check_positive("The ring size", size)
        if world % size:
            raise BadInput(f"A world of {world} ranks is not divisible into rings of {size}.")
        return cls(rank % size, size, rank - rank % size)


@dataclass(frozen=True)
class RingStep:
    """One step of a branch, as one rank sees it; ranks are those of the world, null where nothing is to be done."""

    branch: int  # index of the branch in the schedule
    number: int  # counts from 1
    source: int  # the place in the ring whose keys and values are attended to
    receive_from: int | None  # who hands them over
    send_to: int | None  # who gets those of the step before
    owner: int | None  # whose they are, and so who gets what is added to their gradients
    helper: int | None  # who adds to the gradients of this rank


def ring_steps(schedule: DilationSchedule, shard: int, position: RingPosition, *, causal: bool) -> tuple[RingStep, ...]:
    """Return the steps of all branches longer than a shard, in the order in which all ranks take them."""
    return tuple(
        _ring_step(number, step, branch.segment // shard, position, causal=causal)
        for number, branch in enumerate(schedule.branches)
        for step in range(1, shards_spanned(branch, shard))
    )


def shards_spanned(branch: DilatedBranch, shard: int) -> int:
    """Return how many shards a segment reaches over; 1 where it is no longer than one."""
    return max(branch.segment // shard, 1)


def _ring_step(branch: int, number: int, span: int, position: RingPosition, *, causal: bool) -> RingStep:
    here = position.index % span
    first = position.index - here

    def rank_at(index: int) -> int:
        return position.first_rank + first + index % span

    def needs(index: int) -> bool:
        return not causal or index % span >= number

    return RingStep(
        branch=branch,
        number=number,
        source=first + (here - number) % span,
        receive_from=rank_at(here - 1) if needs(here) else None,
        send_to=rank_at(here + 1) if needs(here + 1) else None,
        owner=rank_at(here - number) if needs(here) else None,
        helper=rank_at(here + number) if needs(here + number) else None,
    )
