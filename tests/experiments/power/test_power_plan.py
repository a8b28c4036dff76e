"""Where cases are measured: every GPU equally often, noise beside it, near or far by the machine's links."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Block, Done, Subject
from assay.experiments.power.characterize import EXPERIMENT
from assay.experiments.power.characterize.options import (
    CaseSpec,
    CaseWorkload,
    NoiseWorkload,
    fit_budget,
    resolve_options,
    skipped_reasons,
)
from assay.experiments.power.characterize.plan import (
    CaseDoesNotFit,
    build_block,
    build_trial,
    cases_by_trial,
    distance_text,
    misfit_reason,
    next_block,
    place_case,
    trial_duration_s,
)
from assay.isolation.placement import allot_cores
from assay.machine.model import GpuLink
from assay.store.records import Records
from tests.experiments.power.characterized import (
    ALONE,
    BESIDE,
    FAR,
    FOUR,
    NEAR,
    QUIET,
    SGEMM,
    case,
    noise,
    options,
    world,
)
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

PLACEMENTS = st.sampled_from(["near", "far", "any", "same"])


@settings(max_examples=60, deadline=None)
@given(
    gpus=st.integers(1, 8),
    count=st.integers(1, 8),
    beside=st.lists(st.tuples(st.integers(1, 3), PLACEMENTS), max_size=3),
    repeat=st.integers(1, 9),
    seed=st.integers(0, 3),
)
def test_every_gpu_is_timed_equally_often_and_noise_is_elsewhere_unless_asked(
    gpus: int, count: int, beside: list[tuple[int, Any]], repeat: int, seed: int
) -> None:
    there = machine(cores=(4, 4), gpus=[n % 2 for n in range(gpus)])
    devices = tuple(f"cuda:{n}" for n in range(gpus))
    wanted = case("c", count, *(noise(each, placement) for each, placement in beside))
    asked = options(wanted, devices=devices, seed=seed)
    try:
        found = place_case(there, asked, wanted, repeat)
    except CaseDoesNotFit as reason:
        loads = sum(each for each, placement in beside if placement != "same")
        if count + loads <= gpus and "equally near" not in str(reason):
            raise
        return
    assert found == place_case(there, asked, wanted, repeat)
    for where in found:
        elsewhere = [each.device for each in where.noise if each.part.placement != "same"]
        everyone = [*where.base, *elsewhere]
        assert len(set(everyone)) == len(everyone)
        assert set(everyone) <= set(devices)
        same = Counter(each.device for each in where.noise if each.part.placement == "same")
        assert set(same) <= set(where.base)
    if not any(placement in {"near", "far"} for _, placement in beside):
        often = Counter(device for where in found for device in where.base)
        assert len(often) == gpus
        assert len(set(often.values())) == 1


def test_near_neighbours_share_a_switch_and_far_ones_only_the_system() -> None:
    asked = options(NEAR, FAR)
    near = {where.base[0]: where.noise[0].device for where in place_case(FOUR, asked, NEAR, 1)}
    far = {where.base[0]: where.noise[0].device for where in place_case(FOUR, asked, FAR, 1)}
    assert near == {"cuda:0": "cuda:1", "cuda:1": "cuda:0", "cuda:2": "cuda:3", "cuda:3": "cuda:2"}
    assert far == {"cuda:0": "cuda:3", "cuda:1": "cuda:2", "cuda:2": "cuda:1", "cuda:3": "cuda:0"}
    assert distance_text(FOUR, "cuda:0", "cuda:1") == "one PCIe switch"
    assert distance_text(FOUR, "cuda:0", "cuda:3") == "across sockets"


def test_nvlink_is_nearest_of_all_and_without_links_memory_nodes_tell() -> None:
    linked = machine(
        gpus=[0, 0, 0], links=(GpuLink(gpus=(0, 2), nvlinks=4, path="system"), GpuLink(gpus=(0, 1), path="board"))
    )
    three = options(NEAR, devices=("cuda:0", "cuda:1", "cuda:2"))
    assert place_case(linked, three, NEAR, 1)[0].noise[0].device == "cuda:2"
    assert distance_text(linked, "cuda:0", "cuda:2") == "NVLink ×4, across sockets"
    by_node = machine(cores=(4, 4), gpus=[0, 1, 0])
    assert place_case(by_node, three, NEAR, 1)[0].noise[0].device == "cuda:2"
    assert place_case(by_node, three, FAR, 1)[0].noise[0].device == "cuda:1"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (case("c", 5), "it needs 5 GPUs, and there are 4"),
        (case("c", 2, noise(3)), "it needs 5 GPUs (2 timed, 3 beside), and there are 4"),
        (case("c", None, noise(1)), "it needs 5 GPUs (4 timed, 1 beside), and there are 4"),
        (case("c", 1, noise(3, "far")), "near and far neighbours would be equally near"),
    ],
)
def test_a_case_that_does_not_fit_says_why(wanted: Any, words: str) -> None:
    assert misfit_reason(FOUR, options(wanted), wanted) == words


def test_given_devices_are_taken_as_they_are() -> None:
    base = ALONE.base.model_copy(update={"devices": ("cuda:3", "cuda:1")})
    fixed = ALONE.model_copy(update={"base": base, "noise": (noise(2, "any"),)})
    (where,) = place_case(FOUR, options(fixed), fixed, 2)
    assert (where.base, where.concurrent_with("cuda:1")) == (
        ("cuda:3", "cuda:1"),
        ("cuda:3 sgemm@torch", "cuda:0 resnet50@torch", "cuda:2 resnet50@torch"),
    )
    assert misfit_reason(FOUR, options(fixed, devices=("cuda:0", "cuda:1")), fixed) == (
        "cuda:3 is not among the devices of this run"
    )


def test_a_trial_calls_without_a_pause_settles_first_and_gives_everybody_the_same_cores() -> None:
    crowded = case("same", 1, noise(None, "same"), settle_s=60.0, restarts=2)
    asked = options(ALONE, crowded, QUIET)
    block = build_block(FOUR, asked, 1)
    assert block is not None
    known = cases_by_trial(FOUR, asked, 1)
    assert len(block.trials) == 4 + 4 + 1
    for trial in block.trials:
        where = known[trial.id]
        assert trial.mode.kind == "continuous"
        assert trial.settle_s == where.case.settle_s
        assert trial.schedule == ("together" if len(where.base) > 1 else "alone")
        assert trial.workers == dict.fromkeys(asked.devices, 2)
        timed = {role.devices[0] for role in trial.roles if role.duty == "timed"}
        assert timed == set(where.base)
        placed = allot_cores(FOUR, tuple(trial.workers), "full", workers=trial.workers)
        seats = [set(each.cpus or ()) for each in placed.allotments]
        assert sum(map(len, seats)) == len(set.union(*seats))
    settled = [trial_duration_s(trial) for trial in block.trials if trial.settle_s]
    assert min(settled) >= 2 * 60.0 + 2.0


def test_repeats_are_in_an_order_by_lot_until_all_are_measured_or_the_budget_is_spent(tmp_path: Path) -> None:
    asked = options(ALONE, BESIDE, QUIET)
    blocks = [build_block(FOUR, asked, repeat) for repeat in (1, 2)]
    orders = [[trial.settings["phase"] for trial in block.trials] for block in blocks if block is not None]
    assert orders[0] != orders[1]
    assert build_block(FOUR, asked, 1) == build_block(FOUR, asked, 1)
    first = EXPERIMENT.step(FOUR, asked, Records([], tmp_path))
    assert isinstance(first, Block)
    assert first.left_s == pytest.approx(4 * sum(map(trial_duration_s, first.trials)))
    records = world(asked, lambda *_: 1000.0)
    assert isinstance(next_block(FOUR, asked, records), Done)
    short = asked.model_copy(update={"budget_s": 250.0})
    done = next_block(FOUR, short, records[:18])
    assert isinstance(done, Done)
    assert done.why == "2 of 4 repeats fill the budget of 250 s"


def test_what_went_wrong_twice_on_a_gpu_is_not_tried_there_again() -> None:
    asked = options(ALONE)
    records = world(asked, lambda *_: 1.0, fails=lambda w: "it is lost" if w.base == ("cuda:1",) else None)
    third = build_block(FOUR, asked, 3, records[:8])
    assert third is not None
    assert {trial.devices for trial in third.trials} == {("cuda:0",), ("cuda:2",), ("cuda:3",)}


def wanted(workload: str, *beside: NoiseWorkload, **params: Any) -> CaseSpec:
    return CaseSpec(
        name=workload, base=CaseWorkload(workload=workload, params=params), noise=beside, location="cases.yaml, line 7"
    )


def test_a_workload_that_there_is_not_is_named_with_its_line_and_one_that_runs_elsewhere_is_left_out() -> None:
    with pytest.raises(BadInput, match=r"cases.yaml, line 7: Unknown workload 'sofmax'.*Did you mean softmax"):
        resolve_options(FOUR, [wanted("sofmax")], devices=("cpu:0",))
    with pytest.raises(BadInput, match=r"line 7: .*has no parameter 'row'.*Did you mean rows"):
        resolve_options(FOUR, [wanted("softmax", row=3)], devices=("cpu:0",))
    found = resolve_options(FOUR, [wanted("softmax", rows=64), wanted("pcie_copy")], devices=("cpu:0",))
    assert [each.case for each in found.skipped] == ["pcie_copy"]
    assert skipped_reasons(FOUR, found) == {"pcie_copy": "pcie_copy@torch runs on cuda, not on cpu"}
    assert found.cases[-1].base.subject.params["rows"] == 64
    with pytest.raises(MachineCannot, match=r"No case can be measured here; 'pcie_copy'"):
        resolve_options(FOUR, [wanted("pcie_copy")], devices=("cpu:0",))
    with pytest.raises(
        MachineCannot, match=r"'softmax': it needs 2 groups of cores .1 timed, 1 beside., and there is 1"
    ):
        resolve_options(FOUR, [wanted("softmax", NoiseWorkload(workload="gemm"))], devices=("cpu:0",))


def test_idleness_of_all_devices_is_measured_in_every_repeat_whether_the_file_has_it_or_not() -> None:
    found = resolve_options(FOUR, [wanted("softmax")], devices=("cpu:0", "cpu:1"))
    assert [(each.name, each.base.count) for each in found.cases] == [("idle", None), ("softmax", 1)]
    own = CaseSpec(name="nothing", base=CaseWorkload(workload="idle", gpus=None))
    assert [each.name for each in resolve_options(FOUR, [own, wanted("softmax")], devices=("cpu:0",)).cases] == [
        "nothing", "softmax"
    ]  # fmt: skip


def test_a_budget_shortens_timing_and_settling_until_a_repeat_fits() -> None:
    asked = options(case("a", settle_s=100.0, duration_s=20.0), budget_s=300.0)
    found, share = fit_budget(FOUR, asked)
    assert 0 < share < 1
    assert sum(
        trial_duration_s(build_trial(found, each)) for each in place_case(FOUR, found, found.cases[0], 1)
    ) == pytest.approx(300.0)
    with pytest.raises(BadInput, match="--budget 20 s is too little for a repeat of 4 trials"):
        fit_budget(FOUR, asked.model_copy(update={"budget_s": 20.0}))
    assert fit_budget(FOUR, asked.model_copy(update={"budget_s": 9000.0}))[1] == 1.0


def test_two_cases_with_one_base_have_trials_of_their_own() -> None:
    asked = options(ALONE, case("twin", subject=Subject(**SGEMM.model_dump())))
    assert len(cases_by_trial(FOUR, asked, 4)) == 2 * 4 * 4
