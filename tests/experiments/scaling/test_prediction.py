"""Predictions grow with what is sent and with slow links, and are the computation where nothing is sent."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.results import Estimate
from assay.experiments.scaling.prediction import (
    NOTHING_SENT,
    LinkModel,
    RankTraffic,
    parse_link,
    predict_efficiency,
    predict_speedup,
    predict_time,
    ring_traffic,
)
from assay.experiments.scaling_prediction import MIB, model_rank_memory, predict_memory_mib
from assay.workloads.dilated_attention.problem import AttentionCosts
from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule, RingPosition, ring_steps

ROOT = Path(__file__).resolve().parents[3]
SECONDS = st.floats(1e-5, 10.0)
TRAFFIC = st.builds(RankTraffic, st.integers(0, 1000), st.integers(0, 10**11))
LINK = st.builds(
    LinkModel,
    name=st.just("some"),
    alpha_s=st.floats(0, 1e-3),
    beta_bytes_per_s=st.floats(1e8, 1e12),
    uncertainty=st.floats(0, 0.5),
)


def measured(value: float, spread: float | None = 0.02) -> Estimate:
    low, high = (None, None) if spread is None else (value * (1 - spread), value * (1 + spread))
    return Estimate(value=value, low=low, high=high, unit="s", scope="process", method="median", n=20)


def costs(*, sequence: int = 65536, causal: bool = False, batch: int = 2, item_bytes: int = 2) -> AttentionCosts:
    ladder = DilationSchedule.of((2048, 4096, 8192), (1, 2, 4))
    return AttentionCosts(ladder, AttentionHeads.of(12, 12, "modulo"), batch, sequence, 64, item_bytes, causal)


def ends(estimate: Estimate) -> tuple[float, float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.value, estimate.high


@given(SECONDS, TRAFFIC, LINK)
def test_the_interval_reaches_from_all_hidden_to_nothing_hidden(
    compute_s: float, traffic: RankTraffic, link: LinkModel
) -> None:
    found = predict_time(measured(compute_s), traffic, link)
    low, value, high = ends(found.time_s)
    assert low <= value <= high
    assert low >= compute_s * 0.98
    assert high >= compute_s + found.communication_s
    assert max(compute_s, found.communication_s) * (1 - 1e-12) <= value
    assert value <= (compute_s + found.communication_s) * (1 + 1e-12)


@given(SECONDS, TRAFFIC, LINK, st.integers(0, 10**10), st.integers(0, 100))
def test_more_bytes_or_messages_never_take_less(
    compute_s: float, traffic: RankTraffic, link: LinkModel, more_bytes: int, more_messages: int
) -> None:
    more = RankTraffic(traffic.messages + more_messages, traffic.received_bytes + more_bytes)
    before, after = (ends(predict_time(measured(compute_s), each, link).time_s) for each in (traffic, more))
    assert all(first <= second for first, second in zip(before, after, strict=True))


@given(SECONDS, TRAFFIC, LINK, st.floats(1, 10), st.floats(1, 10))
def test_a_slower_link_never_takes_less(
    compute_s: float, traffic: RankTraffic, link: LinkModel, later: float, slower: float
) -> None:
    worse = link.model_copy(
        update={"alpha_s": link.alpha_s * later, "beta_bytes_per_s": link.beta_bytes_per_s / slower}
    )
    before, after = (ends(predict_time(measured(compute_s), traffic, each).time_s) for each in (link, worse))
    assert all(first <= second for first, second in zip(before, after, strict=True))


@given(SECONDS, LINK)
def test_where_nothing_is_sent_it_is_the_computation(compute_s: float, link: LinkModel) -> None:
    found = predict_time(measured(compute_s), RankTraffic(0, 0), link)
    assert found.time_s == measured(compute_s)
    assert found.communication_s == 0
    assert NOTHING_SENT in found.assumptions


def test_a_computation_without_an_interval_predicts_none() -> None:
    found = predict_time(measured(1.0, None), RankTraffic(3, 10**9), parse_link("nvlink4"))
    assert (found.time_s.low, found.time_s.high) == (None, None)
    assert "no interval" in found.time_s.method


def test_a_prediction_says_what_it_assumes_of_the_link_and_of_overlap() -> None:
    said = " ".join(predict_time(measured(1.0), RankTraffic(3, 10**9), parse_link("pcie5")).assumptions)
    for word in ("pcie5", "±20 %", "halfway", "sends and receives at the same time", "measured alone"):
        assert word in said


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [2, 8, 16, 64, 512])
def test_traffic_is_what_the_steps_of_the_busiest_rank_bring_it(ranks: int, *, causal: bool) -> None:
    problem = costs(causal=causal)
    shard = problem.sequence // ranks
    most = ring_traffic(problem, ranks, backward=True)
    for place in range(0, ranks, max(1, ranks // 16)):
        seat = ring_steps(problem.schedule, shard, RingPosition(place, ranks), causal=causal)
        received = problem.received_bytes(place, ranks) + problem.backward_received_bytes(place, ranks)
        assert received <= most.received_bytes
        messages = 2 * sum(s.receive_from is not None for s in seat) + sum(s.helper is not None for s in seat)
        assert messages <= most.messages
    forward = ring_traffic(problem, ranks, backward=False)
    assert forward.received_bytes == problem.received_bytes(ranks - 1, ranks)
    assert most.received_bytes == (2 if causal else 3) * forward.received_bytes


def test_shards_that_hold_every_segment_receive_nothing() -> None:
    assert ring_traffic(costs(), 8, backward=True) == RankTraffic(0, 0)
    assert ring_traffic(costs(), 16, backward=True).messages == 3
    assert ring_traffic(costs(sequence=2**22), 512, backward=True) == RankTraffic(0, 0)


def test_efficiency_is_the_speedup_shared_out_and_its_interval_the_worst_of_both() -> None:
    alone, together = measured(8.0), measured(2.0)
    low, value, high = ends(predict_efficiency(alone, together, 8))
    assert value == pytest.approx(0.5)
    assert (low, high) == pytest.approx((0.5 * 0.98 / 1.02, 0.5 * 1.02 / 0.98))
    assert predict_speedup(alone, together).value == pytest.approx(4.0)
    assert predict_efficiency(alone, measured(2.0, None), 8).low is None


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.booleans(), st.booleans())
def test_memory_of_a_shard_is_linear_in_its_length(ranks: int, backward: bool, causal: bool) -> None:
    problem = costs(causal=causal)
    low, value, high = ends(predict_memory_mib(problem, ranks, backward=backward))
    assert low < value < high
    whole = model_rank_memory(problem, 1, backward=backward)
    shard = model_rank_memory(problem, ranks, backward=backward)
    assert whole.messages == 0
    assert (shard.peak - shard.messages) * ranks == whole.peak
    double = costs(sequence=2 * problem.sequence, causal=causal)
    assert model_rank_memory(double, 2 * ranks, backward=backward).least == shard.least


def test_the_model_of_memory_is_near_what_an_h200_held() -> None:
    """Of one sequence in bfloat16, forward and backward: benchmarks/results/h200/attention.json."""
    short, long = (costs(batch=1, sequence=sequence) for sequence in (65536, 1048576))
    of_model = predict_memory_mib(long, 1, backward=True).value - predict_memory_mib(short, 1, backward=True).value
    table = json.loads((ROOT / "benchmarks/results/h200/attention.json").read_text(encoding="utf-8"))["tables"][
        "memory"
    ]
    peaks = {int(row.split("|")[1]): float(row.split("|")[3]) for row in table.splitlines()[2:]}
    assert of_model == pytest.approx(peaks[1048576] - peaks[65536], rel=0.1)


@pytest.mark.full
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_model_of_memory_is_near_what_tensors_really_take(kind: str, *, backward: bool) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, kind)
    problem = AttentionCosts(
        DilationSchedule.of((256, 512, 1024), (1, 2, 4)), AttentionHeads.of(4, 4, "modulo"), 1, 4096, 32, dtype.itemsize
    )
    low, value, high = ends(predict_memory_mib(problem, 1, backward=backward))
    peak_mib = peak_of_tensors(torch, problem, dtype, backward=backward) / MIB
    assert low < peak_mib < high
    assert peak_mib == pytest.approx(value, rel=0.25)


def peak_of_tensors(torch: Any, problem: AttentionCosts, dtype: Any, *, backward: bool) -> int:
    """Return the most bytes of tensors that are alive at once in one call on the CPU."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    from assay.workloads.dilated_attention import dilated_attention

    class Tally(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: dict[int, int] = {}
            self.peak = 0

        def add(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.seen.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.seen.values()))

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for leaf in tree_flatten(out)[0]:
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
            return out

    tally = Tally()
    shape = (problem.batch, problem.sequence, problem.heads.queries, problem.dim)
    inputs = [torch.randn(shape, dtype=dtype) for _ in range(4 if backward else 3)]
    for tensor in inputs:
        tally.add(tensor)
    q, k, v = (tensor.requires_grad_(backward) for tensor in inputs[:3])
    segments = [branch.segment for branch in problem.schedule.branches]
    rates = [branch.rate for branch in problem.schedule.branches]
    with tally:
        out = dilated_attention(q, k, v, segments, rates, backend="flash")
        if backward:
            out.backward(inputs[3])
    return tally.peak
