"""The gate uses the interval; the older file has every key of the older tool; what is written is short."""

from __future__ import annotations

import json

import pytest

from assay.compat.scaling import RESULTS_FILE
from assay.core.errors import BadInput
from assay.core.format import percent_cell, ratio_cell, time_cell
from assay.core.results import Estimate
from assay.experiments.scaling import EXPERIMENT
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling.findings import evaluate_gate, refuse_blind_gate
from assay.experiments.scaling.plan import ScalingShape
from assay.experiments.scaling.report import factor_cell, rate_cell
from assay.experiments.scaling.timings import judge_at_least
from tests.experiments.scaling.worlds import FOUR_CORES, World, about, found_in, options

OLDER_KEYS = {
    "seq_length", "ring_size", "world_size", "rank", "forward_time_ms", "backward_time_ms", "total_time_ms",
    "memory_allocated_gb", "memory_reserved_gb", "throughput_tokens_per_sec", "effective_batch_size",
    "distributed_overhead_ms", "communication_time_ms",
}  # fmt: skip


def known(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="", scope="run", method="m", n=1)


@pytest.mark.parametrize(
    ("efficiency", "verdict"),
    [
        (known(0.6, 0.5, 0.69), "no"),
        (known(0.6, 0.5, 0.7), "unsure"),
        (known(0.6, 0.5, 0.8), "unsure"),
        (known(0.8, 0.7, 0.9), "yes"),
        (known(0.1), "unsure"),
        (None, "unsure"),
    ],
)
def test_only_a_whole_interval_decides(efficiency: Estimate | None, verdict: str) -> None:
    assert judge_at_least(efficiency, 0.7) == verdict


def test_one_shape_that_is_surely_below_closes_the_gate_and_is_named() -> None:
    asked = options(sequences=(64,), min_efficiency=0.7, repeat=3)
    findings, page = found_in(World(contention=0.9, balance=0.6, within=0.005), asked)
    answer = about(findings, "gate")
    assert (answer.verdict, answer.gate) == ("no", "failed")
    assert "2 ranks in one ring" in (answer.reason or "")
    assert "each by itself" not in (answer.reason or "")
    assert any(
        e.kind == "text" and e.tone == "bad" and e.text == answer.reason for s in page.sections for e in s.elements
    )


@pytest.mark.parametrize(
    ("world", "changes", "verdict", "said"),
    [
        (World(contention=1.0, balance=1.0, shard=1.0, transfer_us=1.0), {"repeat": 3}, "yes", "Every shape"),
        (World(failing={"n64-p2-r2": "out of memory"}, contention=1.0), {}, "unsure", "out of memory"),
        (World(within=0.02), {"benchmark_runs": 3}, "unsure", "without an interval over starts"),
        (World(contention=0.2, within=0.001), {"repeat": 1}, "unsure", "without an interval over starts"),
        (World(), {"worlds": (1,)}, "unsure", "only one rank"),
    ],
)
def test_the_gate_says_why(world: World, changes: dict[str, object], verdict: str, said: str) -> None:
    asked = options(**{"sequences": (64,), "min_efficiency": 0.7, **changes})
    answer = evaluate_gate(asked, analyse_scaling(FOUR_CORES, asked, world.run(asked)))
    assert answer is not None
    assert answer.verdict == verdict
    assert said in answer.sentence
    assert about(found_in(world, asked)[0], "gate").gate == "passed"


def test_a_gate_without_an_interval_over_starts_is_refused_before_anything_is_measured() -> None:
    for repeat in (0, 1):
        with pytest.raises(BadInput, match=rf"can never fail with --repeat {repeat}, .* Use --repeat 5, the default"):
            refuse_blind_gate(0.7, repeat)
        refuse_blind_gate(None, repeat)
    for least, several in ((0.7, 2), (0.7, 5), (0.7, None), (None, 2), (None, None)):
        refuse_blind_gate(least, several)


def test_without_a_gate_there_is_no_answer() -> None:
    asked = options()
    assert evaluate_gate(asked, analyse_scaling(FOUR_CORES, asked, World().run(asked))) is None


def test_the_older_file_has_a_row_for_each_rank_under_the_older_names() -> None:
    world, asked = World(), options(sequences=(64,), worlds=(4,), rings=(1, 2, 4))
    records = world.run(asked)
    report = EXPERIMENT.report(FOUR_CORES, asked, records)
    findings = report.findings
    data = json.loads(str(report.files[RESULTS_FILE]))
    assert data["world_size"] == 4
    assert data["timestamp"] == "20261115_120000"
    assert data["config"]["embed_dim"] == 32
    assert data["config"]["segment_lengths"] == [16, 32, 64]
    rows = data["results"]
    assert [(row["ring_size"], row["world_size"], row["rank"]) for row in rows] == [
        (1, 1, 0), *((ring, 4, rank) for ring in (1, 2, 4) for rank in range(4)),
    ]  # fmt: skip
    assert all(set(row) == OLDER_KEYS for row in rows)
    ring = [row for row in rows if row["ring_size"] == 4]
    total, alone = world.time_us(asked, ScalingShape(64, 4, 4)), world.alone_us(asked, ScalingShape(64, 1, 1))
    assert ring[3]["total_time_ms"] == pytest.approx(total / 1e3)
    assert ring[0]["total_time_ms"] < ring[3]["total_time_ms"], "a rank's own time"
    assert ring[3]["backward_time_ms"] == pytest.approx(ring[3]["total_time_ms"] - ring[3]["forward_time_ms"])
    assert [row["throughput_tokens_per_sec"] for row in ring] == pytest.approx([2 * 64 / (total / 1e6)] * 4)
    assert ring[0]["distributed_overhead_ms"] == pytest.approx((total - alone / 4) / 1e3)
    assert ring[0]["communication_time_ms"] == pytest.approx(1.0)
    assert ring[0]["memory_allocated_gb"] == pytest.approx(25 * 2**20 / 1e9)
    assert ring[0]["effective_batch_size"] == 2
    assert rows[0]["communication_time_ms"] == 0.0
    baseline = rows[0]["throughput_tokens_per_sec"]
    efficiency = about(findings, "efficiency", world=4, ring=4).estimate
    assert efficiency is not None
    older = ring[0]["throughput_tokens_per_sec"] / (4 * baseline)
    assert older == pytest.approx(efficiency.value), "the older recipe for CI finds the same efficiency"


def test_a_shape_that_failed_has_no_row_in_the_older_file() -> None:
    world, asked = World(failing={"n64-p2-r2": "out of memory"}), options(sequences=(64,))
    records = world.run(asked)
    files = EXPERIMENT.report(FOUR_CORES, asked, records).files
    assert {row["ring_size"] for row in json.loads(str(files[RESULTS_FILE]))["results"]} == {1}


def test_numbers_are_written_with_their_intervals_in_one_unit() -> None:
    assert time_cell(known(1234.5, 1220.0, 12500.0)) == "1.234 ms (1.220–12.50)"
    assert time_cell(known(-3.2, -5.0, 1.0)) == "−3.200 µs (−5.000 to 1.000)"
    assert percent_cell(known(0.812, 0.78, 0.85)) == "81 % (78–85)"
    assert percent_cell(known(0.05)) == "5 %"
    assert ratio_cell(known(1.623, 1.55, 1.7)) == "1.62× (1.55–1.70)"
    assert ratio_cell(known(1.5, 0.001, 200.0)) == "1.50× (inconclusive)"
    assert factor_cell(known(0.9876, 0.981, 0.99), with_interval=True) == "0.988× (0.981–0.990)"
    assert factor_cell(known(0.62, 0.49, 0.78), with_interval=True) == "0.62× (0.49–0.78)"
    assert factor_cell(known(0.62, 0.49, 0.78), with_interval=False) == "0.62×"
    assert factor_cell(known(1.0, 1.0, 1.0), with_interval=True) == "1"
    assert rate_cell(known(165_730.0, 163_000.0, 170_000.0)) == "166 k (163–170)"
    assert time_cell(None) is None
