"""What is found in worlds of known truth: the numbers that were put in, with intervals that hold them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.core.results import Estimate
from assay.experiments.scaling import EXPERIMENT
from assay.experiments.scaling.analysis import analyse_scaling, measure_matmul_flop_per_s
from assay.experiments.scaling.plan import ScalingShape, minimum_flop, shape_work
from assay.experiments.scaling.prediction import LinkModel
from assay.experiments.scaling.timings import QUANTITIES
from tests.experiments.scaling.worlds import (
    FOUR_CORES,
    GEMM,
    World,
    about,
    estimate_of,
    found_in,
    missing_of,
    options,
    table,
)
from tests.machines import machine
from tests.stats.chances import at_least

WORLDS = 60
RING = ScalingShape(64, 4, 4)
H200 = machine(cores=(4,), gpus=(0, 0, 0, 0))
H200 = H200.model_copy(
    update={"gpus": tuple(gpu.model_copy(update={"name": "NVIDIA H200"}) for gpu in H200.gpus), "gpu_note": None}
)


def test_what_was_put_in_comes_out() -> None:
    world, asked = World(), options(sequences=(64,), worlds=(4,), rings=(1, 2, 4))
    found = analyse_scaling(FOUR_CORES, asked, world.run(asked))
    ring = next(each for each in found.scaled if each.shape == RING)
    total, alone = world.time_us(asked, RING), world.alone_us(asked, RING)
    computing = world.computing_us(asked, RING)
    assert estimate_of(ring, "time").value == pytest.approx(total)
    assert estimate_of(ring, "forward").value == pytest.approx(0.4 * total)
    assert estimate_of(ring, "backward").value == pytest.approx(0.6 * total)
    assert estimate_of(ring, "throughput").value == pytest.approx(2 * 64 / (total / 1e6))
    assert estimate_of(ring, "speedup").value == pytest.approx(alone / total)
    assert estimate_of(ring, "efficiency").value == pytest.approx(alone / total / 4)
    assert estimate_of(ring, "compute").value == pytest.approx(computing.max())
    assert estimate_of(ring, "communication").value == pytest.approx(1000.0)
    assert estimate_of(ring, "exposed").value == pytest.approx(250.0)
    assert estimate_of(ring, "overlap").value == pytest.approx(0.75)
    assert estimate_of(ring, "split_contention").value == pytest.approx(world.share_us(asked, RING) / computing.max())
    assert estimate_of(ring, "split_balance").value == pytest.approx(0.9)
    assert estimate_of(ring, "split_exposed").value == pytest.approx(computing.max() / (computing.max() + 250.0))
    assert estimate_of(ring, "split_rest").value == pytest.approx(1.0)
    factors = [estimate_of(ring, name).value for name in QUANTITIES if name.startswith("split_")]
    assert math.prod(factors) == pytest.approx(estimate_of(ring, "efficiency").value)
    assert estimate_of(ring, "tflops").value == pytest.approx(minimum_flop(asked, RING) / (total / 1e6) / 1e12)


def test_ranks_by_themselves_are_held_against_one_and_nothing_is_sent() -> None:
    world, asked = World(), options(sequences=(64,), worlds=(4,), rings=(1,))
    (apart,) = analyse_scaling(FOUR_CORES, asked, world.run(asked)).scaled
    assert estimate_of(apart, "speedup").value == pytest.approx(4 * 0.8)
    assert estimate_of(apart, "efficiency").value == pytest.approx(0.8)
    assert estimate_of(apart, "split_contention").value == pytest.approx(0.8)
    assert estimate_of(apart, "split_shard").value == pytest.approx(1.0)
    assert apart["karp_flatt"] is None
    assert missing_of(apart, "overlap").code == "nothing_sent"


def test_two_rings_of_two_count_the_work_of_both() -> None:
    world, asked = World(), options(sequences=(64,), worlds=(4,), rings=(2,))
    (rings,) = analyse_scaling(FOUR_CORES, asked, world.run(asked)).scaled
    total, alone = world.time_us(asked, rings.shape), world.alone_us(asked, rings.shape)
    assert shape_work(asked, rings.shape) == 2 * 2 * 64
    assert estimate_of(rings, "efficiency").value == pytest.approx(alone / (2 * total))
    assert estimate_of(rings, "speedup").value == pytest.approx(2 * alone / total)
    serial = (total / alone - 1 / 2) / (1 - 1 / 2)
    assert estimate_of(rings, "karp_flatt").value == pytest.approx(serial)


def test_weak_scaling_holds_the_same_work_to_a_rank_against_one() -> None:
    world, asked = World(shard=1.0), options(sequences=(64,), worlds=(4,), rings=(4,), mode="weak")
    (ring,) = analyse_scaling(FOUR_CORES, asked, world.run(asked)).scaled
    alone = world.alone_us(asked, ScalingShape(64, 1, 1))
    assert estimate_of(ring, "efficiency").value == pytest.approx(alone / world.time_us(asked, ring.shape))
    assert estimate_of(ring, "speedup").value == pytest.approx(4 * alone / world.time_us(asked, ring.shape))
    factors = [estimate_of(ring, name).value for name in QUANTITIES if name.startswith("split_")]
    assert math.prod(factors) == pytest.approx(estimate_of(ring, "efficiency").value)
    assert missing_of(ring, "karp_flatt").code == "weak_scaling"


@pytest.mark.full
@pytest.mark.parametrize("repeat", [1, 3])
def test_intervals_hold_the_truth_about_as_often_as_they_say(repeat: int) -> None:
    """Over repeats also where starts differ; within one start only what that start would have given."""
    starts = 0.0 if repeat == 1 else 0.03
    asked = options(sequences=(64,), worlds=(2,), rings=(2,), repeat=repeat)
    truth = World(balance=0.7)
    shape = ScalingShape(64, 2, 2)
    total, alone = truth.time_us(asked, shape), truth.alone_us(asked, shape)
    expected = {"time": total, "efficiency": alone / total / 2, "exposed": 250.0, "split_contention": 0.7 * 0.8}
    hits, given = dict.fromkeys(expected, 0), dict.fromkeys(expected, 0)
    for seed in range(WORLDS):
        world = World(balance=0.7, starts=starts, within=0.02, seed=seed)
        (ring,) = analyse_scaling(FOUR_CORES, asked, world.run(asked)).scaled
        for name, value in expected.items():
            if (ends := estimate_of(ring, name).bounds) is not None:
                given[name] += 1
                hits[name] += ends[0] <= value <= ends[1]
    assert min(given.values()) >= 0.6 * WORLDS, "few samples are now and then refused an interval, not as a rule"
    assert all(hits[name] >= at_least(0.95, given[name]) for name in expected), (hits, given)


def test_an_interval_says_how_it_was_found_and_of_what() -> None:
    asked = options(sequences=(64,), rings=(2,))
    (once,) = analyse_scaling(FOUR_CORES, asked, World(within=0.02).run(asked)).scaled
    assert estimate_of(once, "speedup").scope == "process"
    assert "bootstrap over iterations of one start" in estimate_of(once, "speedup").method
    again = asked.model_copy(update={"repeat": 3})
    (thrice,) = analyse_scaling(FOUR_CORES, again, World(within=0.02, starts=0.02).run(again)).scaled
    assert estimate_of(thrice, "speedup").scope == "run"
    assert "3 repeats" in estimate_of(thrice, "speedup").method


def test_too_few_samples_give_numbers_without_intervals_and_say_so() -> None:
    asked = options(sequences=(64,), benchmark_runs=3)
    findings, page = found_in(World(within=0.02), asked)
    efficiency = about(findings, "efficiency", world=2, ring=2)
    assert efficiency.estimate is not None
    assert efficiency.estimate.low is None
    assert efficiency.verdict == "unsure"
    assert "3 samples of one process are too few" in (efficiency.reason or "")
    assert "no interval" in findings.headline
    assert "No interval" in (table(page, "Speedup").note or "")


def test_a_repeat_that_failed_leaves_the_others() -> None:
    asked = options(sequences=(64,), rings=(2,), repeat=3)
    world = World(within=0.02)
    records = world.run(asked)
    broken = [
        r.model_copy(update={"status": "failed", "reason": "out of memory", "series": ()}) if n == 2 else r
        for n, r in enumerate(records)
    ]
    (ring,) = analyse_scaling(FOUR_CORES, asked, type(records)(broken, world.kept)).scaled
    assert broken[2].block == "repeat-1-n64-p2-r2"
    assert "2 repeats" in estimate_of(ring, "time").method


def test_one_rank_that_does_not_fit_leaves_times_but_no_speedup() -> None:
    asked = options(sequences=(64,), rings=(2,))
    findings, page = found_in(World(failing={"n64-p1-r1": "out of memory: 80 GiB"}), asked)
    assert about(findings, "speedup", world=2).estimate is None
    assert "out of memory" in (about(findings, "speedup", world=2).reason or "")
    assert about(findings, "time", world=2).estimate is not None
    assert about(findings, "status", world=1).verdict == "no"
    assert "2 ranks in one ring: " in findings.headline
    assert "one rank alone was not measured: out of memory" in findings.headline
    assert any("failed" in map(str, row) for row in table(page, "Speedup").rows)


def test_a_share_that_could_not_be_measured_leaves_the_efficiency_but_not_its_factors() -> None:
    asked = options(sequences=(64,), rings=(2,))
    findings, _ = found_in(World(failing={"share n64-p2-r2": "killed"}), asked)
    assert about(findings, "efficiency", world=2).estimate is not None
    assert about(findings, "split_shard", world=2).estimate is None
    assert "the limiting factor is unknown" in findings.headline


def test_nothing_measured_is_said() -> None:
    asked = options(sequences=(64,), rings=(2,))
    failing = dict.fromkeys(("n64-p1-r1", "n64-p2-r2", "share n64-p2-r2"), "no torch")
    findings, page = found_in(World(failing=failing), asked)
    assert findings.headline == "Nothing could be measured."
    assert page.lead_tone == "bad"


def test_one_rank_alone_says_how_to_ask_for_more() -> None:
    findings, page = found_in(World(), options(worlds=(1,), rings=(1, 2)))
    assert "--nproc 2" in findings.headline
    assert "1 rank: " in findings.headline
    assert about(findings, "skipped").reason == "skipped: larger than the world of 1"
    assert any("Rings of 2 over 1 rank" in e.text for s in page.sections for e in s.elements if e.kind == "text")


def test_the_headline_says_what_more_ranks_buy_and_what_limits_it() -> None:
    findings, page = found_in(World(contention=0.5, within=0.005), options(rings=(2,), repeat=3))
    assert findings.headline.startswith("2 ranks in one ring: speedup")
    assert "largest loss: contention (×0.45)" in findings.headline
    assert "at 128 tokens" in findings.headline
    assert "at 64" in findings.headline
    assert page.lead == findings.headline


def test_errors_and_bytes_are_shown_and_judged() -> None:
    findings, page = found_in(World(error=3e-6), options(sequences=(64,), rings=(2,)))
    right = about(findings, "check_total", world=2)
    assert (right.verdict, right.facts["tolerance"]) == ("yes", 1e-5)
    assert right.estimate is not None
    assert right.estimate.value == 3e-6
    assert about(findings, "received_bytes", world=2).verdict == "yes"
    assert any("3e-06" in row for row in table(page, "Errors relative").rows)
    more, _ = found_in(World(extra_bytes=8.0), options(sequences=(64,), rings=(2,)))
    assert about(more, "received_bytes", world=2).verdict == "no"


def test_work_that_is_done_twice_shows_as_inflation() -> None:
    asked = options(sequences=(64,), worlds=(4,), rings=(4,))
    (ring,) = analyse_scaling(FOUR_CORES, asked, World().run(asked)).scaled
    assert ring.facts is not None
    assert ring.facts.flop_inflation == pytest.approx(1.0)
    assert ring.facts.byte_inflation == pytest.approx(1.0)
    (more,) = analyse_scaling(FOUR_CORES, asked, World(extra_bytes=ring.facts.received_bytes or 0.0).run(asked)).scaled
    assert more.facts is not None
    assert more.facts.byte_inflation == pytest.approx(5.0)


def test_on_a_gpu_operations_are_held_against_the_data_sheet_and_a_matmul_and_memory_is_told() -> None:
    asked = options(
        sequences=(64,), worlds=(2,), rings=(2,), devices=("cuda:0", "cuda:1"), energy=True,
        matmul=GEMM.model_copy(update={"params": {**GEMM.params, "m": 8192}}),
    )  # fmt: skip
    joules = Estimate(value=5.0, low=4.0, high=6.0, unit="J", scope="run", method="counter", n=1)
    world = World(joules=joules)
    found = analyse_scaling(H200, asked, world.run(asked, H200))
    (ring,) = found.scaled
    rate = minimum_flop(asked, ring.shape) / (world.time_us(asked, ring.shape) / 1e6)
    assert estimate_of(ring, "mfu_datasheet").value == pytest.approx(100 * rate / (2 * 66.9e12))
    matmul = measure_matmul_flop_per_s(asked, world.run(asked, H200))
    assert isinstance(matmul, Estimate)
    assert matmul.value == pytest.approx(2e9 / 1e-3)
    assert estimate_of(ring, "mfu_matmul").value == pytest.approx(100 * rate / (2 * 2e12))
    assert estimate_of(ring, "energy_per_token").value == pytest.approx(5.0 / (10 * 2 * 64))
    assert estimate_of(ring, "energy_per_token").bounds == pytest.approx((4.0 / 1280, 6.0 / 1280))
    assert ring.facts is not None
    assert [(m.allocated_mib, m.device_mib) for m in ring.facts.memory] == [(50.0, 900.0), (50.0, None)]
    report = EXPERIMENT.report(H200, asked, world.run(asked, H200))
    findings = report.findings
    page = report.page
    assert "2 GPUs in one ring" in findings.headline
    assert table(page, "Peak memory").columns[3].title == "allocated, MiB"
    assert {figure.name for figure in page.figures} >= {"throughput", "speedup", "efficiency", "memory", "samples_64"}


def test_of_ranks_on_other_machines_nothing_is_sensed_here() -> None:
    joules = Estimate(value=5.0, low=4.0, high=6.0, unit="J", scope="run", method="counter", n=1)
    asked = options(sequences=(64,), worlds=(2,), rings=(2,), devices=("cuda:0",), energy=True, local_ranks=1)
    (ring,) = analyse_scaling(H200, asked, World(joules=joules).run(asked, H200)).scaled
    assert missing_of(ring, "energy_per_token").code == "remote_ranks"
    assert ring.facts is not None
    assert [memory.device_mib for memory in ring.facts.memory] == [900.0, None]
    assert (asked.local_rank_count, asked.model_copy(update={"local_ranks": None}).local_rank_count) == (1, 2)


def test_without_sensors_or_yardsticks_there_is_a_reason_and_no_number() -> None:
    asked = options(sequences=(64,), rings=(2,))
    (ring,) = analyse_scaling(FOUR_CORES, asked, World().run(asked)).scaled
    codes = {"mfu_matmul": "not_requested", "mfu_datasheet": "no_datasheet", "energy_per_token": "not_requested"}
    for name, code in codes.items():
        assert ring[name] is None
        assert missing_of(ring, name).code == code
    metered = asked.model_copy(update={"energy": True})
    (ring,) = analyse_scaling(FOUR_CORES, metered, World().run(metered)).scaled
    assert missing_of(ring, "energy_per_token").code == "not_watched"


@pytest.mark.parametrize(
    ("link", "outcome"), [("10us:1GB/s", "as predicted"), ("1ns:900GB/s", "slower"), ("1s:1kB/s", "faster")]
)
def test_predictions_are_scored_against_what_was_measured(link: str, outcome: str) -> None:
    from assay.experiments.scaling.prediction import parse_link

    asked = options(sequences=(64,), rings=(2,), link=parse_link(link))
    world = World(contention=1.0, balance=1.0, transfer_us=40.0) if outcome == "as predicted" else World(contention=0.5)
    findings, page = found_in(world, asked)
    score = about(findings, "prediction", world=2)
    assert score.verdict == ("yes" if outcome == "as predicted" else "no")
    assert isinstance(score.facts["error"], float)
    (row,) = table(page, "Predictions made before").rows
    assert outcome in str(row[-1])


def test_a_prediction_without_an_interval_decides_nothing() -> None:
    link = LinkModel(name="l", alpha_s=1e-6, beta_bytes_per_s=1e9)
    findings, _ = found_in(World(), options(sequences=(64,), rings=(2,), link=link, benchmark_runs=3))
    assert about(findings, "prediction", world=2).verdict == "unsure"


def test_another_workload_has_calls_a_second_and_no_factors() -> None:
    asked = options(subject=GEMM, sequences=(), rings=(1,), worlds=(2, 4))
    findings, page = found_in(World(contention=0.6), asked)
    two = about(findings, "efficiency", world=2)
    assert two.estimate is not None
    assert two.estimate.value == pytest.approx(0.6)
    shared = asked.model_copy(update={"ranks_param": "m"})
    split_up, _ = found_in(World(contention=0.6), shared)
    halved = about(split_up, "efficiency", world=2).estimate
    assert halved is not None
    assert halved.value == pytest.approx(0.3), "the same time for half the work"
    assert about(findings, "split_shard", world=2).reason == "what gemm@torch sends is unknown"
    assert "4 ranks: speedup" in findings.headline
    assert table(page, "Speedup").columns[2].title == "calls/s"
    assert EXPERIMENT.report(FOUR_CORES, asked, World().run(asked)).files == {}


def test_a_causal_mask_does_not_pass_for_contention() -> None:
    """The last rank has most to do: that is imbalance, however quiet the neighbours are."""
    asked = options(sequences=(64,), rings=(2,))
    world = World(contention=1.0, balance=0.75, shard=1.0)
    records = world.run(asked)
    share = world.computing_us(asked, ScalingShape(64, 2, 2)).max()
    for series in (s for r in records for s in r.series if r.block.endswith("alone") and s.n and len(r.series) == 1):
        world.kept[series.file] = np.full(10, share)  # what the last place computes, alone
    (ring,) = analyse_scaling(FOUR_CORES, asked, records).scaled
    assert estimate_of(ring, "split_contention").value == pytest.approx(1.0)
    assert estimate_of(ring, "split_balance").value == pytest.approx(0.75)
    assert estimate_of(ring, "split_shard").value == pytest.approx(1.0)
