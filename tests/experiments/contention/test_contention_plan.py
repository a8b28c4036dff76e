"""What is measured when: phases by lot and balanced, everybody in the right place, as long as the budget lasts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from assay.core.format import format_duration
from assay.core.values import HOST, Block, Done, Subject
from assay.experiments.budget import block_durations_s, expected_trial_s
from assay.experiments.contention import EXPERIMENT
from assay.experiments.contention.layout import TunerPick, WorkerSlot, build_layout
from assay.experiments.contention.options import PHASES, Aggressor, ContentionOptions
from assay.experiments.contention.plan import (
    RETIMED,
    WARM_UP,
    build_block,
    fit_to_budget,
    phase_order,
    predict_overrun,
    retiming_block,
)
from assay.launch.trial import compute_placements
from tests.experiments.contention.worlds import GEMM, SLOW, SOFTMAX, TWO_CORES, World, options
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.values import Params

HOG = Aggressor(name="cpu", subject=Subject(workload="cpu_hog", impl="python"), location="host")
TRIAD = Aggressor(name="hbm", subject=Subject(workload="triad", impl="torch"), location="device")
FLASH = Subject(workload="flash_attention", impl="triton", config={"block": 1})


def on_gpus(count: int, **changes: object) -> ContentionOptions:
    told = {"subjects": (FLASH,), "devices": tuple(f"cuda:{n}" for n in range(count)), **changes}
    return options(**told)


def test_each_phase_stands_in_each_place_and_behind_each_other_equally_often() -> None:
    rows = [phase_order(PHASES, block, seed=3) for block in range(1, 9)]
    for place in range(4):
        assert set(Counter(row[place] for row in rows).values()) == {2}
    assert set(Counter(pair for row in rows for pair in pairwise(row)).values()) == {2}
    assert rows == [phase_order(PHASES, block, seed=3) for block in range(1, 9)]
    assert rows != [phase_order(PHASES, block, seed=4) for block in range(1, 9)]


@pytest.mark.parametrize("count", [4, 8])
def test_on_two_nodes_quiet_phases_are_alone_and_crowded_ones_together_on_disjoint_cores(count: int) -> None:
    on = machine(cores=(16, 16), gpus=[0] * (count // 2) + [1] * (count // 2))
    block = build_block(on, on_gpus(count), 1)
    by_phase = {phase: [t for t in block.trials if t.settings["phase"] == phase] for phase in PHASES}
    for phase in ("baseline", "again"):
        assert sorted(t.devices[0] for t in by_phase[phase]) == [f"cuda:{n}" for n in range(count)]
        assert all(t.schedule == "alone" and t.roles[0].isolation == "full" for t in by_phase[phase])
    (naive,), (isolated,) = by_phase["naive"], by_phase["isolated"]
    assert {role.isolation for role in naive.roles} == {"gpu"}
    assert {role.isolation for role in isolated.roles} == {"full"}
    assert naive.schedule == isolated.schedule == "together"
    placed = compute_placements(on, isolated)["full"]
    cores = [set(placed.of(role.devices[0], role.worker).cpus or ()) for role in isolated.roles]
    assert len(set().union(*cores)) == sum(map(len, cores))
    alone = compute_placements(on, by_phase["baseline"][0])["full"]
    assert alone.of("cuda:0").cpus == placed.of("cuda:0").cpus
    node = {cpu: core.node for core in on.cores for cpu in core.cpus}
    assert {node[cpu] for cpu in cores[0]} == {0}
    assert {node[cpu] for cpu in cores[-1]} == {1}


def test_every_timed_role_tunes_and_carries_its_phase() -> None:
    block = build_block(TWO_CORES, options(tuning_s=2.5), 1)
    for trial in block.trials:
        assert trial.settings["phase"] in PHASES
        for role in trial.roles:
            assert role.tuner is not None
            assert (role.tuner.name, role.tuner.budget_s) == ("pick", 2.5)
    untuned = build_block(TWO_CORES, options(tuner=None), 1)
    assert all(role.tuner is None for trial in untuned.trials for role in trial.roles)


def test_workers_and_aggressors_are_there_side_by_side_and_not_alone() -> None:
    wanted = on_gpus(2, workers=2, aggressors=(HOG, TRIAD, TRIAD))
    on = machine(cores=(16,), gpus=(0, 0))
    block = build_block(on, wanted, 1)
    for trial in block.trials:
        loads = [role for role in trial.roles if role.duty == "load"]
        timed = [role for role in trial.roles if role.duty == "timed"]
        if trial.settings["phase"] in {"baseline", "again", WARM_UP}:
            assert (len(timed), loads) == (1, [])
            continue
        assert [(role.devices[0], role.worker) for role in timed] == [
            ("cuda:0", 0), ("cuda:0", 1), ("cuda:1", 0), ("cuda:1", 1)
        ]  # fmt: skip
        assert Counter(role.devices[0] for role in loads) == {HOST: 1, "cuda:0": 2, "cuda:1": 2}
        assert {role.isolation for role in loads} == {"gpu" if trial.settings["phase"] == "naive" else "full"}
        compute_placements(on, trial)


def test_one_device_and_one_worker_are_measured_twice_alone() -> None:
    block = build_block(TWO_CORES, options(devices=("cpu:0",)), 1)
    assert sorted(str(t.settings["phase"]) for t in block.trials) == ["again", "baseline"]
    beside = build_block(TWO_CORES, options(devices=("cpu:0",), aggressors=(HOG,)), 1)
    assert {t.settings["phase"] for t in beside.trials} == set(PHASES)


def test_blocks_go_on_until_there_are_as_many_as_asked_for_and_picks_are_timed_last() -> None:
    records = World().run(options(repeat=3))
    assert list(block_durations_s(records)) == ["block-1", "block-2", "block-3", RETIMED]
    assert isinstance(EXPERIMENT.step(TWO_CORES, options(repeat=3), records), Done)


def test_blocks_go_on_until_the_budget_is_used_but_two_there_are_always() -> None:
    long = World().run(options(repeat=None, budget_s=80.0))
    took = block_durations_s(long)
    assert sum(took.values()) <= 80.0
    assert len(took) - 1 >= 4
    assert list(block_durations_s(World().run(options(repeat=None, budget_s=1.0)))) == ["block-1", "block-2", RETIMED]


def test_the_same_records_give_the_same_step() -> None:
    world, wanted = World(seed=2), options(repeat=None, budget_s=60.0)
    records = list(world.run(wanted))
    first = list(dict.fromkeys(record.block for record in records))
    for count in range(len(first)):
        known = [record for record in records if record.block in first[:count]]
        step = EXPERIMENT.step(TWO_CORES, wanted, Remembered(known, world.kept))
        assert isinstance(step, Block)
        assert step.name == first[count]
        assert {trial.id for trial in step.trials} == {r.trial for r in records if r.block == first[count]}


def test_nothing_more_is_tried_when_nothing_could_be_measured() -> None:
    world = World(refused={(1, phase) for phase in PHASES})
    assert {record.block for record in world.run(options())} == {"block-1"}


def test_every_configuration_that_was_picked_is_timed_again_beside_the_default() -> None:
    world, wanted = (
        World(picks_wrong={"naive": 1.0}),
        options(repeat=2, subjects=(SOFTMAX, GEMM), tunable=(True, False)),
    )
    records = world.run(wanted)
    last = [record for record in records if record.block == RETIMED]
    assert len(last) == 2
    assert {series.subject for record in last for series in record.series} == {0, 1}
    none = World(picks_wrong={"naive": 1.0}).run(options(repeat=2, tuner=None))
    assert RETIMED not in block_durations_s(none)
    assert SLOW in [t.config for record in records for t in record.tunings]


@pytest.mark.parametrize(("quick", "least"), [(True, 3), (False, 4)])
def test_durations_follow_from_the_budget_so_that_enough_blocks_fit_two_cores(*, quick: bool, least: int) -> None:
    wanted = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=None, duration_s=None, quick=quick)
    assert wanted.budget_s == (60.0 if quick else 300.0)
    block = build_block(TWO_CORES, wanted, 1)
    assert least <= 0.88 * wanted.budget_s / sum(map(expected_trial_s, block.trials))
    assert wanted.timing_s >= 0.25


def test_on_groups_of_cores_a_quick_run_starts_quiet_workers_together_and_tunes_in_the_first_blocks_only() -> None:
    wanted = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=None, duration_s=None, quick=True)
    first, third = build_block(TWO_CORES, wanted, 1), build_block(TWO_CORES, wanted, 3)
    for block, tuned in ((first, True), (third, False)):
        assert Counter(trial.settings["phase"] for trial in block.trials) == dict.fromkeys(PHASES, 1)
        assert all((role.tuner is not None) == tuned for trial in block.trials for role in trial.roles)
    quiet = [trial for trial in first.trials if trial.schedule == "alone"]
    assert [sorted(trial.devices) for trial in quiet] == [["cpu:0", "cpu:1"]] * 2
    records = World().run(wanted)
    took = block_durations_s(records)
    assert len(took) - 1 >= 5
    assert sum(took.values()) <= 60.0
    found = build_layout(TWO_CORES, wanted, records)
    assert {choice.block for choice in found.choices} == {1, 2}
    assert {(cell.slot.device, cell.block) for cell in found.cells if cell.phase == "again"} == {
        (device, block) for device in ("cpu:0", "cpu:1") for block in found.blocks
    }


def test_devices_that_are_gpus_start_one_after_another_and_tune_in_every_block() -> None:
    on = machine(cores=(16, 16), gpus=[0, 1])
    wanted = fit_to_budget(on, on_gpus(2, repeat=None), budget_s=None, duration_s=None, quick=True)
    trials = build_block(on, wanted, 3).trials
    assert [len(trial.devices) for trial in trials if trial.schedule == "alone"] == [1] * 4
    assert all(role.tuner is not None for trial in trials for role in trial.roles)


def test_a_given_duration_is_that_of_a_trial_and_asks_for_a_few_blocks() -> None:
    wanted = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=None, duration_s=30.0, quick=False)
    assert wanted.timing_s + wanted.tuning_s == pytest.approx(30.0, abs=1.0)
    assert wanted.repeat is not None
    both = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=50.0, duration_s=2.0, quick=False)
    assert (both.repeat, both.budget_s) == (None, 50.0)
    assert both.timing_s + both.tuning_s == pytest.approx(2.0, abs=0.8)


def test_a_plan_that_cannot_fit_its_budget_is_said_before_anything_is_measured() -> None:
    on_time = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=60.0, duration_s=None, quick=False)
    assert predict_overrun(TWO_CORES, on_time) is None
    both = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=30.0, duration_s=20.0, quick=False)
    said = predict_overrun(TWO_CORES, both)
    assert said is not None
    assert said.startswith("This will take about 4 min ")
    assert "more than the budget of 30 s: 2 blocks are the fewest that tell anything" in said
    assert "each of 4 trials of about 30 s" in said
    many = fit_to_budget(TWO_CORES, options(repeat=50), budget_s=30.0, duration_s=None, quick=False)
    assert "50 blocks were asked for" in str(predict_overrun(TWO_CORES, many))
    alone = fit_to_budget(TWO_CORES, options(repeat=None), budget_s=None, duration_s=60.0, quick=False)
    assert predict_overrun(TWO_CORES, alone) is None


def test_what_is_foreseen_is_what_a_world_without_surprises_takes() -> None:
    wanted = options(repeat=2, budget_s=5.0)
    took_s = sum(block_durations_s(World().run(wanted)).values())
    assert f"about {format_duration(took_s)}" in str(predict_overrun(TWO_CORES, wanted))


def test_a_run_that_overran_its_budget_says_by_how_much() -> None:
    for wanted, late in ((options(repeat=4, budget_s=20.0), True), (options(repeat=4, budget_s=600.0), False)):
        records = World().run(wanted)
        report = EXPERIMENT.report(TWO_CORES, wanted, records)
        findings = report.findings
        about_it = [f for f in findings.findings if f.kind == "budget"]
        shown = report.page.sections[0].elements
        told = [e.text for e in shown if e.kind == "text" and "more than the budget of" in e.text]
        assert (len(about_it), len(told)) == (late, late)
    free = options(repeat=4, budget_s=20.0, keeps_to_budget=False)
    assert not [f for f in EXPERIMENT.report(TWO_CORES, free, records).findings.findings if f.kind == "budget"]


def test_what_is_compiled_is_tuned_once_on_each_model_before_the_first_block_and_counts_nowhere() -> None:
    plain = machine(cores=(8,), gpus=(0, 0, 0))
    other = plain.gpus[2].model_copy(update={"name": "Other"})
    on = plain.model_copy(update={"gpus": (*plain.gpus[:2], other)})
    wanted = on_gpus(3, repeat=2, budget_s=100.0)
    warm = [t for t in build_block(on, wanted, 1).trials if t.settings["phase"] == WARM_UP]
    assert [t.devices for t in warm] == [("cuda:0",), ("cuda:2",)]
    assert build_block(on, wanted, 1).trials[:2] == tuple(warm)
    assert all(t.roles[0].tuner is not None and t.roles[0].tuner.budget_s > wanted.tuning_s for t in warm)
    assert not any(t.settings["phase"] == WARM_UP for t in build_block(on, wanted, 2).trials)
    assert not any(t.settings["phase"] == WARM_UP for t in build_block(TWO_CORES, options(), 1).trials)
    records = World().run(wanted, on)
    assert {t.id for t in warm} <= {record.trial for record in records}
    assert not {t.id for t in warm} & {seen.record.trial for seen in build_layout(on, wanted, records).phase_trials}


def test_picks_from_a_tuners_own_space_are_timed_again_beside_the_default_that_has_no_name() -> None:
    kernel = Subject(workload="softmax", impl="helion")
    on = machine(cores=(8,), gpus=(0,))
    picked: Params = {"num_warps": "8"}
    choices = [TunerPick(WorkerSlot(0, "cuda:0"), 1, "baseline", picked, None, 15.0, "t")]
    for tuner, timed in (("helion", [None, picked]), ("command", None)):
        wanted = on_gpus(1, subjects=(kernel,), tuner=tuner)
        block = retiming_block(on, wanted, choices)
        assert (block is not None) == (timed is not None)
        if block is not None:
            assert [subject.config for subject in block.trials[0].roles[0].subjects] == timed


def test_where_starting_takes_long_fewer_blocks_are_planned_and_tuned_longer() -> None:
    on = machine(cores=(16,), gpus=(0,))
    told = on_gpus(1, repeat=None, subjects=(FLASH, SOFTMAX), tunable=(True, True), workers=2)
    wanted = fit_to_budget(on, told, budget_s=None, duration_s=None, quick=False)
    block_s = sum(map(expected_trial_s, build_block(on, wanted, 2).trials))
    assert 0.73 * wanted.budget_s / block_s >= 3
    assert wanted.tuning_s > 0.5


def test_beside_a_load_on_the_host_a_device_has_the_same_cores_alone_and_isolated() -> None:
    wanted, on = on_gpus(4, aggressors=(HOG,)), machine(cores=(16, 16), gpus=(0, 0, 1, 1))
    trials = build_block(on, wanted, 2).trials
    cores = {
        (str(trial.settings["phase"]), role.devices[0]): compute_placements(on, trial)["full"].of(role.devices[0]).cpus
        for trial in trials
        if trial.settings["phase"] in {"baseline", "isolated"}
        for role in trial.roles
        if role.duty == "timed"
    }
    for device in wanted.devices:
        assert cores["baseline", device] == cores["isolated", device]
