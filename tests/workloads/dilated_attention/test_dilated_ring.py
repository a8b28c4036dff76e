from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.workloads.dilated_attention import dilated_attention
from assay.workloads.dilated_attention.problem import AttentionCosts
from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule, RingPosition, ring_steps
from assay.workloads.dilated_attention.verify import dense_attention
from tests.running import made_once
from tests.workloads.dilated_attention.world import Case, drawn, in_world, options_of, read

pytestmark = pytest.mark.full

WORLD = 8

LADDERS = [
    Case((4, 12, 24), (1, 2, 4), sequence=24, batch=1),
    Case((6, 12, 24), (1, 3, 6), sequence=24, heads=6, kv_heads=3),
    Case((24,), (1,), sequence=24, batch=1, heads=2, kv_heads=2),
    Case((24, 12, 2), (2, 1, 2), sequence=48, heads=5, kv_heads=5, batch=1),
]

CASES = {
    1: [Case((4, 8, 24), (1, 2, 4), causal=True), Case((24,), (1,), heads=4, kv_heads=2)],
    2: [
        *(
            Case(**{**vars(case), "causal": causal, "offset": offset, "seed": 2})
            for case in LADDERS
            for causal in (False, True)
            for offset in ("modulo", "blocks")
        ),
        Case((4, 12, 24), (1, 2, 4), padded=True, heads=4, kv_heads=2),
        Case((4, 12, 24), (1, 2, 4), padded=True, causal=True),
        Case((4, 12, 24), (1, 2, 4), backend="flash"),
        Case((4, 12, 24), (1, 2, 4), backend="flash", causal=True, kv_heads=2),
        Case((4, 6, 12), (1, 2, 3)),
    ],
    4: [
        *(
            Case((4, 8, 16, 32), (1, 2, 4, 4), sequence=32, causal=causal, offset=offset, kv_heads=kv_heads, seed=4)
            for causal in (False, True)
            for offset, kv_heads in (("modulo", 4), ("blocks", 2))
        ),
        Case((32, 32, 16), (1, 4, 2), sequence=32, causal=True, padded=True),
        Case((32, 4), (2, 1), sequence=32, heads=3, kv_heads=3, batch=1),
        Case((4, 8, 16), (1, 2, 4), sequence=16, ring_size=2),
        Case((4, 8), (1, 2), sequence=8, ring_size=1),
        Case((4, 16), (1, 2), sequence=16, ring_size=2, causal=True),
    ],
    8: [
        Case((2, 4, 8, 16), (1, 1, 2, 2), sequence=16, batch=1, heads=2, kv_heads=2, causal=True, seed=8),
        Case((4, 24, 96), (1, 3, 6), sequence=96, batch=1, heads=3, kv_heads=3, dim=2, offset="blocks", seed=8),
        Case((4, 64), (1, 4), sequence=64, batch=1, heads=4, kv_heads=2, offset="blocks", ring_size=4, causal=True),
    ],
}
STAGED = [
    Case((4, 8, 16, 32), (1, 2, 4, 4), sequence=32, kv_heads=2, staged=True),
    Case((4, 8, 16, 32), (1, 2, 4, 4), sequence=32, causal=True, offset="blocks", staged=True),
]
CASES[4] += STAGED
DETACHED = Case((4, 12, 24), (1, 2, 4), detached_weights=True, causal=True)

REFUSED = [
    (Case((4, 8), (1, 2), sequence=8, ring_size=3), "A world of 2 ranks is not divisible into rings of 3."),
    (Case((4, 8), (1, 2), sequence=8, ring_size=4), "A world of 2 ranks is not divisible into rings of 4."),
    (Case((4, 12), (1, 2), sequence=12), "Of a shard of 6 and a segment of 4, neither is a multiple of the other."),
    (Case((12,), (4,), sequence=12), "A shard of 6 is not divisible by the dilation rate 4."),
]

ABSENT = Case((8,), (1,), sequence=8, absent=1, size=2)

NUMBERED = [(size, replace(case, size=size)) for size in CASES for case in CASES[size]]
ALL = [
    *(case for _, case in NUMBERED),
    *(replace(case, size=2) for case in (DETACHED, *(case for case, _ in REFUSED))),
    ABSENT,
]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the ranks of one world found for all cases; it is made once, also where several processes run tests."""
    folder = made_once(tmp_path_factory, "world-of-rings", lambda place: in_world(WORLD, ALL, place, timeout_s=1))
    return read(WORLD, ALL, folder)


def found(world: list[Any], case: Case) -> Any:
    return world[ALL.index(case)]


def costs_of(case: Case) -> AttentionCosts:
    ladder = DilationSchedule.of(case.segments, case.rates)
    heads = AttentionHeads.of(case.heads, case.kv_heads, case.offset)
    return AttentionCosts(ladder, heads, case.batch, case.sequence, case.dim, 8, case.causal)


@pytest.mark.parametrize(("size", "case"), NUMBERED)
def test_ranks_find_what_the_dense_reference_says_and_move_what_the_formula_says(
    world: list[Any], size: int, case: Case
) -> None:
    import torch

    ranks = found(world, case)
    costs, ring_size = costs_of(case), case.ring_size or size
    for first in range(0, size, ring_size):
        ring = ranks[first : first + ring_size]
        assert not [rank["error"] for rank in ring if "error" in rank]
        (q, k, v, gradient), mask = drawn(case, first // ring_size)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out = dense_attention(q, k, v, costs.schedule, costs.heads, causal=case.causal, key_padding_mask=mask)
        right = [out, *torch.autograd.grad(out, inputs, gradient)]
        errors = [
            (torch.cat([rank["found"][index] for rank in ring], 1) - right[index]).abs().max().item()
            for index in range(4)
        ]
        assert errors[0] <= 1e-12
        assert max(errors[1:]) <= 1e-11
        for place, rank in enumerate(ring):
            forward, backward, _ = rank["bytes"]
            assert forward == costs.received_bytes(place, ring_size)
            assert backward == costs.backward_received_bytes(place, ring_size)
            ahead = ring_steps(
                costs.schedule, case.sequence // ring_size, RingPosition(place, ring_size), causal=case.causal
            )
            keys = sum(step.receive_from is not None for step in ahead)
            assert rank["messages"] == 2 * keys + sum(step.helper is not None for step in ahead)
        assert sum(rank["bytes"][2] for rank in ring) == sum(sum(rank["bytes"][:2]) for rank in ring)


def test_a_ladder_that_fits_the_shards_moves_nothing(world: list[Any]) -> None:
    ranks = found(world, Case((4, 6, 12), (1, 2, 3), size=2))
    assert [(rank["bytes"], rank["messages"]) for rank in ranks] == [((0, 0, 0), 0)] * 2


def test_detached_weights_over_ranks_are_those_of_one_device(world: list[Any]) -> None:
    import torch

    ranks = found(world, replace(DETACHED, size=2))
    (q, k, v, gradient), _ = drawn(DETACHED)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = dilated_attention(*inputs, **options_of(DETACHED))
    for index, right in enumerate([out, *torch.autograd.grad(out, inputs, gradient)]):
        torch.testing.assert_close(torch.cat([rank["found"][index] for rank in ranks], 1), right, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("case", "says"), REFUSED)
def test_what_cannot_be_is_refused_on_every_rank_before_anything_moves(world: list[Any], case: Case, says: str) -> None:
    assert [rank["error"] for rank in found(world, replace(case, size=2))] == [f"BadInput: {says}"] * 2


def test_a_rank_that_never_comes_is_an_error_and_not_waited_for_for_ever(world: list[Any]) -> None:
    (alone,) = found(world, ABSENT)
    assert "imed out" in alone["error"]
