"""``dilated_attention@torch`` in one process: its parameters, its data, what it checks, and what it says of itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, TrialFailed
from assay.worker import subjects
from assay.workloads import registry, torch_device
from assay.workloads.dilated_attention import functional, verify
from assay.workloads.dilated_attention.exchange import Traffic
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem, ShardSource
from assay.workloads.dilated_attention.schedule import RingPosition
from assay.workloads.dilated_attention.verify import ShardCheck
from assay.workloads.dilated_attention.workload import call_variant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.results import SubjectFacts
    from assay.core.values import Params, Scalar, Subject

SMALL: dict[str, Scalar] = {
    "batch": 2, "sequence": 96, "heads": 4, "key_heads": 2, "dim": 8, "segments": "8,24,96", "rates": "1,2,4",
}  # fmt: skip


def meant(changed: Mapping[str, Scalar], ranks: int = 1) -> Subject:
    """Return the small problem, some of it changed, as the command line would plan it."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in changed.items()}
    return registry.resolve_subject(
        "dilated_attention", device_kind="cpu", explicit={**{k: str(v) for k, v in SMALL.items()}, **given}, ranks=ranks
    )


def facts(**changed: Scalar) -> SubjectFacts:
    """Return what a worker finds out about the small problem."""
    subject = meant(changed)
    ready = subjects.prepare_subject(subject, device="cpu:0", seed=3)
    try:
        return subjects.check_subject(0, subject, ready)
    finally:
        ready.close()


def params(**changed: Scalar) -> Params:
    return {**registry.find_workload("dilated_attention", "torch").defaults(), **SMALL, **changed}


def test_a_gpu_takes_the_usual_sizes_and_a_cpu_small_ones() -> None:
    subject = registry.resolve_subject("dilated_attention", device_kind="cuda")
    told = [subject.params[name] for name in ("batch", "sequence", "heads", "dim", "segments", "rates", "dtype")]
    assert told == [2, 16384, 12, 64, "2048,4096,8192", "1,2,4", "float16"]
    assert registry.resolve_subject("dilated_attention", device_kind="cpu").params["sequence"] == 2048


@pytest.mark.parametrize(
    ("ranks", "changed", "says"),
    [
        (1, {"segments": "8,24"}, r"^There are 2 segment lengths but 3 dilation rates; a branch has one of both\.$"),
        (1, {"segments": "", "rates": ""}, r"^A ladder has at least one branch"),
        (1, {"segments": "8,x,96"}, r"^segments is a list of whole numbers such as 2048,4096, not '8,x,96'\.$"),
        (1, {"segments": "8,0,96"}, r"^A segment length is a whole number of at least 1, not 0\.$"),
        (1, {"rates": "1,-2,4"}, r"^A dilation rate is a whole number of at least 1, not -2\.$"),
        (1, {"rates": "1,5,4"}, r"^The segment length 24 is not divisible by its dilation rate 5\.$"),
        (1, {"segments": "8,24,80"}, r"^A sequence of 96 is not divisible by the segment length 80\.$"),
        (5, {}, r"^A sequence of 96 is not divisible among 5 ranks\.$"),
        (2, {"segments": "8,32,96"}, r"^Of a shard of 48 and a segment of 32, neither is a multiple of the other\.$"),
        (2, {"rates": "1,2,32"}, r"^A shard of 48 is not divisible by the dilation rate 32\.$"),
        (
            4,
            {"ring": 3, "segments": "32", "rates": "1"},
            r"^A world of 4 ranks is not divisible into rings of 3\.$",
        ),
        (1, {"ring": 2}, r"^A world of 1 ranks is not divisible into rings of 2\.$"),
        (1, {"ring": 2, "only": "communication"}, r"^A world of 1 ranks is not divisible into rings of 2\.$"),
        (1, {"only": "communication"}, r"^A ring of 1 moves nothing, so there is no communication to be measured"),
        (1, {"key_heads": 3}, r"^4 query heads cannot share 3 key heads evenly\.$"),
        (1, {"sequence": 0}, r"^dilated_attention: sequence is a size of at least 1, and 0 cannot be meant\.$"),
        (
            1,
            {"dtype": "int8"},
            r"^dilated_attention has no dtype 'int8'; there are bfloat16, float16, float32, float64\.",
        ),
        (1, {"passes": "backward"}, r"^dilated_attention has no passes 'backward'; there are forward, total\."),
        (1, {"offset": "modulus"}, r"^dilated_attention has no offset 'modulus'.* Did you mean modulo\?$"),
        (1, {"backend": "cudnn"}, r"^The backend cudnn runs on a GPU, not on a CPU\.$"),
        (1, {"backend": "triton"}, r"^The backend triton runs on a GPU, not on cpu\.$"),
    ],
)
def test_every_rule_is_looked_at_before_anything_is_started(ranks: int, changed: dict[str, Scalar], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        meant(changed, ranks)


def test_ranks_are_one_ring_unless_told() -> None:
    assert meant({}, 4).params["ring"] == 4
    assert meant({"ring": 2}, 4).params["ring"] == 2
    assert meant({}).params["ring"] == 1
    assert meant({"ring": 4, "only": "compute"}).params["ring"] == 4


@pytest.mark.full
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"passes": "total"},
        {"passes": "total", "causal": True, "offset": "blocks", "dtype": "float64"},
        {"passes": "total", "dtype": "bfloat16", "causal": True},
        {"dtype": "float16"},
        {"segments": "4,6,12", "passes": "total", "rates": "1,2,3"},
    ],
)
def test_it_is_checked_and_says_what_it_costs(changed: dict[str, Scalar]) -> None:
    found = facts(**changed)
    assert found.check is not None
    assert found.check.passed
    assert found.check.error > 0
    half = str(changed.get("dtype", "float32")) in {"bfloat16", "float16"}
    assert found.check.tolerance == (2.0 if half else {"float64": 1e-12}.get(str(changed.get("dtype")), 1e-5))
    costs = DilatedAttentionProblem.of(params(**changed)).costs
    backward = changed.get("passes") == "total"
    assert found.flop == costs.flop * (3.5 if backward else 1)
    assert found.bytes_moved == costs.least_bytes + (costs.least_backward_bytes if backward else 0)
    assert found.measured is not None
    moved = [found.measured[name] for name in ("received_bytes", "expected_received_bytes", "sent_bytes", "messages")]
    assert moved == [0.0] * 4
    assert "peak_allocated_mib" not in found.measured


def test_what_is_held_is_what_a_call_is_given() -> None:
    forward, total = (facts(passes=passes).measured for passes in ("forward", "total"))
    position_mib = 2 * 96 * 8 * 4 / 2**20
    assert forward is not None
    assert total is not None
    assert forward["held_mib"] == pytest.approx((4 + 2 * 2) * position_mib)
    assert total["held_mib"] == pytest.approx((4 + 2 * 2 + 4) * position_mib)


@pytest.mark.parametrize("passes", ["forward", "total"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_result_publishes_no_time(monkeypatch: pytest.MonkeyPatch, passes: str, dtype: str) -> None:
    name = "attend_block" if passes == "forward" else "attend_block_backward"
    right = getattr(functional, name)

    def slightly_wrong(*tensors: Any, **how: Any) -> Any:
        first, *others = right(*tensors, **how)
        return (first * 1.05, *others)

    monkeypatch.setattr(functional, name, slightly_wrong)
    with pytest.raises(TrialFailed, match=r"^dilated_attention@torch is wrong: its worst .* against the float64 refer"):
        facts(passes=passes, dtype=dtype)


def test_a_number_that_is_none_is_wrong_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = DilatedAttentionProblem.of(params())
    source, seat = ShardSource(problem, 0, 0, "cpu"), RingPosition(0, 1)
    (out,) = call_variant(problem, seat, source.shard(0), None)(Traffic())
    monkeypatch.setattr(verify, "MOST_FLOP", {"cpu": 1.0})
    monkeypatch.setattr(verify, "MAX_CHECK_RATIO", math.inf)
    judge = ShardCheck(problem, seat, source, 0)
    assert judge.check((out,)).passed
    for unit in set(judge.units) - set(judge.choose_units(1.0) or ()):
        spoilt = out.clone()
        spoilt[unit.sequence, 0, 2 * unit.head] = math.nan
        assert not judge.check((spoilt,)).passed


def test_where_all_would_take_long_every_head_is_judged_at_random() -> None:
    problem = DilatedAttentionProblem.of(params(segments="8,24,24", batch=8))
    judge = ShardCheck(problem, RingPosition(0, 1), ShardSource(problem, 5, 0, "cpu"), 5)
    assert len(judge.units) == 4 * 8 * 2
    each = judge._unit_flop
    assert judge.choose_units(each * len(judge.units)) == judge.units
    some = judge.choose_units(each * 7)
    assert some is not None
    assert len(some) == len(set(some)) == 6
    assert [unit.head for unit in some] == [0, 1] * 3
    few = judge.choose_units(each * 0.5)
    assert few is not None
    assert len(few) == 2
    assert judge.choose_units(each / 100) is None
    assert replace(judge, seed=6).choose_units(each * 7) != some


@pytest.mark.parametrize("passes", ["forward", "total"])
def test_branches_merged_in_float64_are_the_judge_where_dense_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, passes: str
) -> None:
    monkeypatch.setattr(verify, "MOST_FLOP", {"cpu": 1.0})
    found = facts(passes=passes, causal=True).check
    assert found is not None
    assert found.passed
    assert found.measure.endswith("branches merged in float64")


def test_errors_are_those_of_the_whole_and_nothing_to_hold_against_is_infinite() -> None:
    import torch

    errors = verify.RelativeErrors()
    errors.add([torch.tensor([3.0])], [torch.tensor([4.0], dtype=torch.float64)])
    errors.add([torch.tensor([3.0])], [torch.tensor([3.0], dtype=torch.float64)])
    assert errors.relative() == [pytest.approx(1 / 5)]
    nothing = verify.RelativeErrors()
    nothing.add([torch.zeros(2), torch.ones(2)], [torch.zeros(2).double()] * 2)
    assert nothing.relative() == [0.0, math.inf]
    broken = verify.RelativeErrors()
    broken.add([torch.tensor([math.nan])], [torch.ones(1).double()])
    assert broken.relative() == [math.inf]


def test_any_rank_makes_any_shard_and_no_two_are_alike() -> None:
    problem = DilatedAttentionProblem.of(params(ring=4))
    first = ShardSource(problem, 7, 0, "cpu")
    assert first.shard(2).q.equal(ShardSource(problem, 7, 0, "cpu").shard(2).q)
    others = [first.shard(2).k, first.shard(3).k, ShardSource(problem, 7, 1, "cpu").shard(2).k, first.shard(2).v]
    others.append(ShardSource(problem, 8, 0, "cpu").shard(2).k)
    assert not any(a.equal(b) for n, a in enumerate(others) for b in others[:n])


def test_subjects_of_one_process_share_their_data_while_they_use_it() -> None:
    problem = DilatedAttentionProblem.of(params())
    held = ShardSource(problem, 1, 0, "cpu").shard(0)
    assert ShardSource(replace(problem, passes="total"), 1, 0, "cpu").shard(0) is held
    assert ShardSource(problem, 2, 0, "cpu").shard(0) is not held


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
def test_one_process_alone_computes_what_the_last_place_of_a_ring_computes(*, causal: bool) -> None:
    found = facts(only="compute", ring=4, passes="total", causal=causal)
    costs = DilatedAttentionProblem.of(params(causal=causal)).costs
    assert found.check is None
    assert found.flop == 3.5 * costs.flop_at(3, 4)
    assert found.flop == 3.5 * max(costs.flop_at(place, 4) for place in range(4))
    assert found.measured is not None
    assert found.measured["received_bytes"] == found.measured["expected_received_bytes"] == 0
    assert found.kernels is not None
    assert any("bmm" in kernel for kernel in found.kernels)


def test_what_arrives_where_nothing_is_sent_is_there_already() -> None:
    problem = DilatedAttentionProblem.of(params(only="compute", ring=4))
    seat = problem.ring_position(0, 1)
    traffic = Traffic()
    call = call_variant(problem, seat, ShardSource(problem, 0, 0, "cpu").shard(seat.index), None)
    (out,) = call(traffic)
    (again,) = call(traffic)
    assert out.equal(again)
    assert out.isfinite().all()
    assert traffic == Traffic()


def test_the_ranks_are_left_by_whoever_met_them_also_when_nothing_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    first, second = (subjects.prepare_subject(meant({}), device="cpu:0", seed=0) for _ in range(2))
    assert first.align is None
    assert torch_device.join_ranks("cpu") == torch_device.Ranks(0, 1, None)
    assert torch_device._GROUP.users == 3
    with pytest.raises(BadInput, match="not divisible into rings of 2"):
        registry.find_workload("dilated_attention", "torch").prepare(params(ring=2), None, device="cpu:0", seed=0)
    for leave in (first.close, second.close, torch_device.leave_ranks):
        leave()
    assert (torch_device._GROUP.users, torch_device._GROUP.ranks) == (0, None)
