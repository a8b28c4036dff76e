from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads.dilated_attention.problem import AttentionCosts
from assay.workloads.dilated_attention.schedule import (
    OFFSETS,
    AttentionHeads,
    DilationSchedule,
    RingPosition,
    UncoveredRowsWarning,
    branch_parts,
    check_dropout,
    check_sequence,
    ring_steps,
)


@pytest.mark.parametrize(
    ("segments", "rates", "says"),
    [
        ((4, 8), (1,), r"^There are 2 segment lengths but 1 dilation rates; a branch has one of both\.$"),
        ((), (), r"^A ladder has at least one branch: a segment length and a dilation rate\.$"),
        ((4, 0), (1, 1), r"^A segment length is a whole number of at least 1, not 0\.$"),
        ((-4,), (1,), r"^A segment length is a whole number of at least 1, not -4\.$"),
        ((4,), (0,), r"^A dilation rate is a whole number of at least 1, not 0\.$"),
        ((4,), (-2,), r"^A dilation rate is a whole number of at least 1, not -2\.$"),
        ((4, 6), (1, 4), r"^The segment length 6 is not divisible by its dilation rate 4\.$"),
    ],
)
def test_a_ladder_that_breaks_a_rule_is_refused_in_one_sentence(
    segments: tuple[int, ...], rates: tuple[int, ...], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        DilationSchedule.of(segments, rates)


@pytest.mark.parametrize(
    ("segments", "rates", "sequence", "ranks", "says"),
    [
        ((4,), (1,), 0, 1, r"^The length of the sequence is a whole number of at least 1, not 0\.$"),
        ((4,), (1,), -8, 1, r"^The length of the sequence is a whole number of at least 1, not -8\.$"),
        ((4,), (1,), 8, 0, r"^The number of ranks is a whole number of at least 1, not 0\.$"),
        ((4, 8), (1, 1), 12, 1, r"^A sequence of 12 is not divisible by the segment length 8\.$"),
        ((4,), (1,), 12, 5, r"^A sequence of 12 is not divisible among 5 ranks\.$"),
        ((4,), (1,), 12, 2, r"^Of a shard of 6 and a segment of 4, neither is a multiple of the other\.$"),
        ((12,), (4,), 12, 2, r"^A shard of 6 is not divisible by the dilation rate 4\.$"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused_in_one_sentence(
    segments: tuple[int, ...], rates: tuple[int, ...], sequence: int, ranks: int, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        check_sequence(DilationSchedule.of(segments, rates), sequence, ranks)


def test_a_sequence_that_fits_is_divided_into_shards() -> None:
    assert check_sequence(DilationSchedule.of((4, 8, 32), (1, 2, 4)), 32, 4) == 8


@pytest.mark.parametrize(
    ("queries", "keys", "rule", "says"),
    [
        (12, 5, "modulo", r"^12 query heads cannot share 5 key heads evenly\.$"),
        (0, 1, "modulo", r"^The number of query heads is a whole number of at least 1, not 0\.$"),
        (4, 0, "modulo", r"^The number of key heads is a whole number of at least 1, not 0\.$"),
        (4, 4, "modulus", r"^offset is one of modulo, blocks, not 'modulus'\. Did you mean modulo\?$"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_sentence(queries: int, keys: int, rule: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        AttentionHeads.of(queries, keys, rule)


@pytest.mark.parametrize(
    ("world", "size", "says"),
    [
        (4, 3, r"^A world of 4 ranks is not divisible into rings of 3\.$"),
        (4, 8, r"^A world of 4 ranks is not divisible into rings of 8\.$"),
        (4, 0, r"^The ring size is a whole number of at least 1, not 0\.$"),
    ],
)
def test_rings_that_do_not_fit_the_world_are_refused(world: int, size: int, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        RingPosition.of(0, world, size)


def test_several_rings_share_a_world() -> None:
    assert [RingPosition.of(rank, 4, 2) for rank in range(4)] == [
        RingPosition(0, 2, 0),
        RingPosition(1, 2, 0),
        RingPosition(0, 2, 2),
        RingPosition(1, 2, 2),
    ]
    assert RingPosition.of(3, 4, None) == RingPosition(3, 4, 0)


def test_dropout_is_refused_with_a_reason() -> None:
    check_dropout(0.0)
    with pytest.raises(BadInput, match=r"^Dropout of 0\.1 is refused: two positions may be joined by several branches"):
        check_dropout(0.1)


def test_rows_that_no_branch_keeps_are_warned_of() -> None:
    with pytest.warns(UncoveredRowsWarning, match="their output is 0"):
        DilationSchedule.of((4, 8), (2, 4)).warn_of_uncovered_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DilationSchedule.of((4, 8), (1, 4)).warn_of_uncovered_rows()


def test_offsets_follow_their_rules_and_grouped_heads_their_key_head() -> None:
    assert [AttentionHeads(6, 6, "modulo").offset(head, 4) for head in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [AttentionHeads(6, 6, "blocks").offset(head, 4) for head in range(6)] == [0, 0, 1, 1, 2, 2]
    assert AttentionHeads(12, 3, "modulo").shared_by == 4
    assert [AttentionHeads(12, 3, "blocks").offset(head, 2) for head in range(3)] == [0, 0, 1]


@given(st.sampled_from(OFFSETS), st.integers(1, 13), st.integers(1, 9), st.integers(1, 4))
def test_every_head_is_in_one_part_of_every_branch_at_its_own_offset(rule: str, keys: int, rate: int, by: int) -> None:
    heads = AttentionHeads.of(keys * by, keys, rule)
    found = [
        (head, part.offset)
        for part in branch_parts(DilationSchedule.of((rate * 2,), (rate,)), heads, rate * 4)
        for head in range(keys)[part.heads]
    ]
    assert sorted(found) == [(head, heads.offset(head, rate)) for head in range(keys)]


LADDER = DilationSchedule.of((4, 16, 32), (1, 2, 4))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_whoever_sends_is_waited_for_by_whom_it_sends_to(ranks: int, *, causal: bool) -> None:
    plans = [ring_steps(LADDER, 32 // ranks, RingPosition(place, ranks), causal=causal) for place in range(ranks)]
    assert len({len(plan) for plan in plans}) == 1
    for together in zip(*plans, strict=True):
        keys = {(rank, step.send_to) for rank, step in enumerate(together) if step.send_to is not None}
        assert keys == {
            (step.receive_from, rank) for rank, step in enumerate(together) if step.receive_from is not None
        }
        home = {(rank, step.owner) for rank, step in enumerate(together) if step.owner is not None}
        assert home == {(step.helper, rank) for rank, step in enumerate(together) if step.helper is not None}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_rank_sees_every_shard_of_its_segment_that_it_may_see(ranks: int, *, causal: bool) -> None:
    for place in range(ranks):
        plan = ring_steps(LADDER, 32 // ranks, RingPosition(place, ranks), causal=causal)
        for number, branch in enumerate(LADDER.branches):
            span = max(branch.segment * ranks // 32, 1)
            first = place - place % span
            seen = {step.source for step in plan if step.branch == number and step.receive_from is not None}
            assert seen == set(range(first, place if causal else first + span)) - {place}
        mine = [step for step in plan if step.send_to is not None]
        assert all(a.branch != b.branch or b.number == a.number + 1 for a, b in pairwise(mine))


def costs(*, causal: bool = False) -> AttentionCosts:
    return AttentionCosts(LADDER, AttentionHeads.of(6, 3, "modulo"), 2, 64, 8, 2, causal)


def test_operations_and_bytes_follow_their_formulas() -> None:
    assert costs().flop == 4 * 2 * 6 * 8 * 64 * (4 / 1 + 16 / 4 + 32 / 16)
    assert costs(causal=True).flop == 4 * 2 * 6 * 8 * (16 * 10 + 4 * 36 + 2 * 36)
    assert costs().backward_flop == 2.5 * costs().flop
    assert costs().least_bytes == 2 * 64 * 8 * 2 * (2 * 6 + 2 * 3)
    assert costs().least_backward_bytes == 2 * 64 * 8 * 2 * (4 * 6 + 4 * 3) + 4 * 2 * 64 * 6


def test_the_defaults_cost_what_the_literature_says() -> None:
    ladder, heads = DilationSchedule.of((2048, 4096, 8192), (1, 2, 4)), AttentionHeads.of(12, 12, "modulo")
    assert AttentionCosts(ladder, heads, 2, 65536, 64, 2).flop == pytest.approx(1.44e12, rel=0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_the_operations_of_all_ranks_are_those_of_one(ranks: int, *, causal: bool) -> None:
    priced = costs(causal=causal)
    assert sum(priced.flop_at(place, ranks) for place in range(ranks)) == priced.flop


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_bytes_received_follow_their_formula(ranks: int) -> None:
    shard = 64 // ranks
    each = sum(2 * 2 * 3 * 8 * 2 * max(b.segment - shard, 0) // b.rate for b in LADDER.branches)
    assert {costs().received_bytes(place, ranks) for place in range(ranks)} == {each}
    assert {costs().backward_received_bytes(place, ranks) for place in range(ranks)} == {2 * each}
    behind_a_mask = [costs(causal=True).received_bytes(place, ranks) for place in range(ranks)]
    assert 2 * sum(behind_a_mask) == ranks * each
