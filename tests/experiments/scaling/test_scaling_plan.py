"""What is planned: shapes and those that are skipped, trials in order, predictions before measurements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.core.values import Block, Counted, Done
from assay.experiments.scaling import EXPERIMENT
from assay.experiments.scaling.plan import (
    ScalingShape,
    UnavailableWorld,
    check_shapes,
    describe_skipped,
    format_shape,
    list_shapes,
    list_skipped,
    plan_blocks,
    plan_trials,
)
from assay.experiments.scaling.prediction import LinkModel
from tests.experiments.remembered import Remembered
from tests.experiments.scaling.worlds import ATTENTION, FOUR_CORES, GEMM, World, options, trial_of

sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), min_size=1, max_size=4, unique=True).map(tuple)


def changed(**params: Any) -> Any:
    return ATTENTION.model_copy(update={"params": {**ATTENTION.params, **params}})


@given(worlds=sizes, rings=sizes)
def test_every_combination_is_either_measured_or_skipped_with_a_reason(
    worlds: tuple[int, ...], rings: tuple[int, ...]
) -> None:
    asked = options(worlds=worlds, rings=rings, sequences=(64,))
    done = {(shape.world, shape.ring) for shape in list_shapes(asked)}
    left = {(each.world, each.ring) for each in list_skipped(asked)}
    assert not done & left
    both = {(world, ring) for world in worlds for ring in rings}
    assert done | left | {(1, 1)} == both | {(1, 1)}
    assert all(world % ring == 0 for world, ring in done)
    said = " ".join(describe_skipped(list_skipped(asked)))
    assert all(f"{world} rank" in said and str(ring) in said for world, ring in left)


def test_ranks_that_are_not_there_are_skipped_in_words() -> None:
    asked = options(worlds=(1, 2), unavailable=(UnavailableWorld(world=8, reason="there are only 2 cores"),))
    assert describe_skipped(list_skipped(asked))[0] == "8 ranks: there are only 2 cores."


def test_what_is_skipped_for_one_reason_is_said_together() -> None:
    asked = options(worlds=(2, 6), rings=(1, 2, 4, 8, 16))
    assert describe_skipped(list_skipped(asked)) == [
        "Rings of 4, 8 and 16 over 2 ranks: larger than the world of 2.",
        "Rings of 4 over 6 ranks: 6 ranks do not divide into them.",
        "Rings of 8 and 16 over 6 ranks: larger than the world of 6.",
    ]


def test_one_rank_and_shares_come_before_more_ranks() -> None:
    asked = options(worlds=(2, 4), rings=(1, 2, 4), sequences=(64,))
    names = [block.name for block in plan_blocks(asked)]
    first = ["repeat-1-n64-alone", "repeat-1-n64-p2-r1", "repeat-1-n64-p2-r2"]
    assert names == [*first, "repeat-1-n64-p4-r1", "repeat-1-n64-p4-r2", "repeat-1-n64-p4-r4"]
    alone = [each for each in plan_trials(asked) if each.trial.block == "repeat-1-n64-alone"]
    assert [(each.kind, each.shape.ring) for each in alone] == [("ring", 1), ("share", 2), ("share", 4)]
    assert all(each.trial.roles[0].ranks == 1 for each in alone)


def test_subjects_are_the_three_runs_where_something_is_sent_and_only_then() -> None:
    asked = options(sequences=(64, 128))
    by_shape = {each.shape: each.names for each in plan_trials(asked) if each.kind == "ring"}
    assert by_shape[ScalingShape(64, 1, 1)] == ("forward", "total")
    assert by_shape[ScalingShape(64, 2, 1)] == ("forward", "total")
    assert by_shape[ScalingShape(64, 2, 2)] == ("forward", "total", "compute", "communication")
    assert by_shape[ScalingShape(128, 2, 2)] == ("forward", "total"), "every segment lies within a shard of 64"
    subjects = trial_of(asked, "ring", ScalingShape(64, 2, 2)).roles[0].subjects
    told = [(s.params["passes"], s.params["only"], s.params["sequence"], s.params["ring"]) for s in subjects]
    assert told == [
        ("forward", "all", 64, 2), ("total", "all", 64, 2), ("total", "compute", 64, 2),
        ("total", "communication", 64, 2),
    ]  # fmt: skip


def test_weak_scaling_lengthens_the_sequence_with_the_ring() -> None:
    asked = options(sequences=(64,), worlds=(4,), rings=(1, 4), mode="weak")
    assert trial_of(asked, "ring", ScalingShape(64, 4, 4)).roles[0].subjects[0].params["sequence"] == 256
    assert trial_of(asked, "share", ScalingShape(64, 4, 4)).roles[0].subjects[0].params["sequence"] == 256
    assert trial_of(asked, "ring", ScalingShape(64, 4, 1)).roles[0].subjects[0].params["sequence"] == 64
    assert trial_of(asked, "ring", ScalingShape(64, 1, 1)).roles[0].subjects[0].params["sequence"] == 64


def test_every_rank_has_a_device_and_ranks_beyond_them_share() -> None:
    asked = options(worlds=(4,), rings=(4,), devices=("cpu:0", "cpu:1"), sequences=(64,))
    assert trial_of(asked, "ring", ScalingShape(64, 4, 4)).roles[0].devices == ("cpu:0", "cpu:1", "cpu:0", "cpu:1")


def test_given_counts_are_obeyed_and_every_repeat_has_trials_of_its_own() -> None:
    asked = options(repeat=3, warmup_runs=2, benchmark_runs=7)
    found = list(plan_trials(asked))
    modes = [each.trial.mode for each in found]
    assert all(isinstance(mode, Counted) and (mode.warmup_runs, mode.runs) == (2, 7) for mode in modes)
    assert len({each.trial.id for each in found}) == len(found)
    orders = [
        [b.name.partition("n")[2] for b in plan_blocks(asked) if b.name.startswith(f"repeat-{n}")] for n in (1, 2, 3)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


def test_only_the_first_shape_asked_for_is_traced_and_once() -> None:
    asked = options(profile=True, repeat=2)
    assert [each.shape for each in plan_trials(asked) if each.trial.profile] == [ScalingShape(64, 2, 1)]
    assert [e.shape for e in plan_trials(options(profile=True, worlds=(1,))) if e.trial.profile] == [
        ScalingShape(64, 1, 1)
    ]


def test_energy_is_metered_in_a_trial_of_its_own_in_the_first_repeat() -> None:
    asked = options(energy=True, repeat=2, sequences=(64,))
    metered = [each for each in plan_trials(asked) if each.kind == "energy"]
    assert [each.shape for each in metered] == [ScalingShape(64, 1, 1), ScalingShape(64, 2, 1), ScalingShape(64, 2, 2)]
    assert all(len(each.trial.roles[0].subjects) == 1 and each.trial.mode.kind == "adaptive" for each in metered)


def test_without_a_link_nothing_is_predicted() -> None:
    world, asked = World(), options()
    records: list[Any] = []
    plans = {each.trial.id: each for each in plan_trials(asked)}
    while isinstance(block := EXPERIMENT.step(FOUR_CORES, asked, Remembered(records, world.kept)), Block):
        assert block.prediction is None
        records += [world.record(asked, plans[trial.id]) for trial in block.trials]
    assert records


def test_with_a_link_each_shape_of_several_ranks_is_predicted_from_what_was_measured_until_then() -> None:
    world = World()
    asked = options(link=LinkModel(name="slow", alpha_s=1e-4, beta_bytes_per_s=1e8))
    records: list[Any] = []
    plans = {each.trial.id: each for each in plan_trials(asked)}
    said = {}
    while isinstance(block := EXPERIMENT.step(FOUR_CORES, asked, Remembered(records, world.kept)), Block):
        said[block.name] = block.prediction
        records += [world.record(asked, plans[trial.id]) for trial in block.trials]
    assert said["repeat-1-n64-alone"] is None
    ring, apart = said["repeat-1-n64-p2-r2"], said["repeat-1-n64-p2-r1"]
    assert ring is not None
    assert apart is not None
    assert ring["compute_s"] == pytest.approx(world.share_us(asked, ScalingShape(64, 2, 2)) / 1e6)
    assert ring["communication_s"] == pytest.approx(ring["messages"] * 1e-4 + ring["received_bytes"] / 1e8)
    assert ring["time_low_s"] < ring["time_s"] < ring["time_high_s"]
    assert apart["communication_s"] == 0
    assert apart["time_s"] == pytest.approx(world.alone_us(asked, ScalingShape(64, 1, 1)) / 1e6)
    assert isinstance(EXPERIMENT.step(FOUR_CORES, asked, Remembered(records, world.kept)), Done)


def test_the_time_left_is_reckoned_once_a_trial_is_measured() -> None:
    world, asked = World(), options(sequences=(64,))
    first = EXPERIMENT.step(FOUR_CORES, asked, Remembered([], {}))
    assert isinstance(first, Block)
    assert first.left_s is None
    plans = {each.trial.id: each for each in plan_trials(asked)}
    records = [world.record(asked, plans[trial.id]) for trial in first.trials]
    then = EXPERIMENT.step(FOUR_CORES, asked, Remembered(records, world.kept))
    assert isinstance(then, Block)
    assert then.left_s == pytest.approx(2 * 2 * 2.0), "two trials of more ranks, each given twice the time"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subject": changed(segments="16,32", rates="1,2,4")}, "2 segment lengths but 3 dilation rates"),
        ({"subject": changed(segments="16,32,66", rates="1,2,4")}, "66 is not divisible by its dilation rate 4"),
        ({"subject": changed(segments="0,32,64")}, "at least 1, not 0"),
        ({"subject": changed(rates="0,2,4")}, "at least 1, not 0"),
        ({"subject": changed(segments="", rates="")}, "at least one branch"),
        ({"subject": changed(key_heads=3)}, "cannot share 3 key heads"),
        ({"sequences": (96,)}, "not divisible by the segment length 64"),
        ({"worlds": (3,), "rings": (3,)}, "not divisible among 3 ranks"),
        ({"sequences": (192,), "worlds": (4,), "rings": (4,)}, "neither is a multiple of the other"),
        ({"subject": changed(segments="4,32,64", rates="1,2,4"), "worlds": (32,), "rings": (32,)}, "dilation rate 4"),
    ],
)
def test_a_rule_that_a_shape_breaks_is_said_before_anything_is_started(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check_shapes(options(**changes))


def test_a_ring_that_is_skipped_breaks_no_rule() -> None:
    asked = options(worlds=(2,), rings=(2, 3))
    check_shapes(asked)
    assert {shape.ring for shape in list_shapes(asked)} == {2}


def test_another_workload_is_scaled_by_calls_or_by_a_parameter_that_ranks_share_out() -> None:
    by_calls = options(subject=GEMM, sequences=(), rings=(1,), worlds=(2, 4))
    assert [shape.world for shape in list_shapes(by_calls)] == [2, 4]
    assert {each.trial.roles[0].subjects[0].params["m"] for each in plan_trials(by_calls)} == {64}
    shared = by_calls.model_copy(update={"ranks_param": "m"})
    assert [each.trial.roles[0].subjects[0].params["m"] for each in plan_trials(shared)] == [64, 32, 16]
    for name, said in (("q", "no parameter 'q'"), ("dtype", "whole number")):
        with pytest.raises(BadInput, match=said):
            check_shapes(by_calls.model_copy(update={"ranks_param": name}))
    with pytest.raises(BadInput, match="not divisible among 3"):
        check_shapes(shared.model_copy(update={"worlds": (3,)}))


def test_shapes_have_names_that_people_read() -> None:
    named = [
        format_shape(options(), shape)
        for shape in (ScalingShape(64, 1, 1), ScalingShape(64, 4, 1), ScalingShape(64, 4, 2), ScalingShape(64, 4, 4))
    ]
    assert named == [
        "64 tokens, 1 rank", "64 tokens, 4 ranks, each by itself", "64 tokens, 4 ranks in 2 rings",
        "64 tokens, 4 ranks in one ring",
    ]  # fmt: skip
    assert format_shape(options(subject=GEMM, sequences=()), ScalingShape(0, 4, 1)) == "4 ranks"
