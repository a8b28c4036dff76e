"""The matrix, before anything is measured: who meets whom, where, in which order, and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import HOST, Block, Done, Subject
from assay.experiments.budget import DEFAULT_WORKER_START_S, TRIAL_OVERHEAD_S
from assay.experiments.contention.options import NAMED_AGGRESSORS, default_victims, resolve_aggressors
from assay.experiments.matrix import EXPERIMENT
from assay.experiments.matrix.plan import MatrixOptions, build_block, matrix_pairs, next_block, promising_pairs
from assay.isolation.placement import allot_cores
from assay.store.records import Records
from tests.experiments.matrices import CPU, HBM, MACHINE, MEMORY, SOFTMAX, TRIAL_S, folder_in, options, record_of, world
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path


def test_each_victim_is_alone_twice_and_once_unpinned_and_meets_each_aggressor_at_two_levels() -> None:
    block = build_block(options(), 1)
    phases = [(t.settings["phase"], t.settings["aggressor"], t.roles[0].isolation) for t in block.trials]
    assert sorted(phases, key=str) == sorted(
        [
            ("alone", None, "full"), ("again", None, "full"), ("bare", None, "gpu"),
            ("naive", "cpu", "gpu"), ("isolated", "cpu", "full"),
            ("naive", "memory", "gpu"), ("isolated", "memory", "full"),
        ],
        key=str,
    )  # fmt: skip
    assert len({trial.id for trial in block.trials}) == len(block.trials)


def test_the_order_is_drawn_by_lot_and_another_in_each_block() -> None:
    orders = [[t.settings for t in build_block(options(), number).trials] for number in (1, 2, 3)]
    assert orders[0] != orders[1] != orders[2]
    assert build_block(options(), 1) == build_block(options(), 1)
    assert build_block(options(), 1) != build_block(options(seed=1), 1)


def test_an_aggressor_is_on_the_host_or_a_second_worker_on_the_victims_own_gpu() -> None:
    wanted = options(aggressors=(CPU, HBM), devices=("cuda:0", "cuda:1"))
    for trial in build_block(wanted, 1).trials:
        victim, *loads = trial.roles
        assert victim.duty == "timed"
        for load in loads:
            on_host = trial.settings["aggressor"] == "cpu"
            assert (load.devices, load.worker) == ((HOST,) if on_host else victim.devices, 0 if on_host else 1)
            assert (load.duty, load.isolation) == ("load", victim.isolation)


@pytest.mark.parametrize("gpus", [4, 8])
def test_on_many_gpus_a_victim_has_the_same_cores_alone_and_beside_any_aggressor(gpus: int) -> None:
    there = machine(cores=(16, 16), gpus=[gpu % 2 for gpu in range(gpus)])
    devices = tuple(f"cuda:{gpu}" for gpu in range(gpus))
    wanted = MatrixOptions(victims=default_victims("cuda"), aggressors=resolve_aggressors((), "cuda"), devices=devices)
    block = build_block(wanted, 1)
    assert len(block.trials) == gpus * 3 * (3 + 2 * len(NAMED_AGGRESSORS))
    for trial in block.trials:
        victim = trial.roles[0].devices[0]
        placed = allot_cores(there, tuple(trial.workers), "full", workers=trial.workers)
        assert trial.workers == {**dict.fromkeys((*devices, HOST), 1), victim: 2}
        seats = [set(each.cpus or ()) for each in placed.allotments]
        assert all(seats)
        assert sum(map(len, seats)) == len(set.union(*seats))
        assert placed.of(victim) == allot_cores(there, tuple(block.trials[0].workers), "full", workers={victim: 2}).of(
            victim
        )


def test_by_default_a_gpu_meets_all_five_and_a_cpu_the_two_on_the_host() -> None:
    assert [a.name for a in resolve_aggressors((), "cuda")] == ["cpu", "memory", "pcie", "sm", "hbm"]
    assert [a.name for a in resolve_aggressors((), "cpu")] == ["cpu", "memory"]
    assert [s.label for s in default_victims("cuda")] == ["softmax@torch", "gemm@torch", "triad@torch"]
    assert [s.label for s in default_victims("cpu")] == ["softmax@numpy"]


def test_an_aggressor_that_needs_a_gpu_is_refused_by_name_where_there_is_none() -> None:
    with pytest.raises(MachineCannot, match="pcie needs a GPU"):
        resolve_aggressors(("cpu", "pcie"), "cpu")
    with pytest.raises(BadInput, match=r"Unknown aggressor 'memori'.*Did you mean memory"):
        resolve_aggressors(("memori",), "cpu")


def test_any_workload_can_be_an_aggressor_and_runs_where_it_can() -> None:
    on_host, on_gpu = resolve_aggressors(("softmax@numpy", "gemm"), "cuda")
    assert (on_host.location, on_host.subject.impl) == ("host", "numpy")
    assert (on_gpu.location, on_gpu.subject.impl) == ("device", "torch")


def test_blocks_are_asked_for_until_all_are_measured(tmp_path: Path) -> None:
    folder, wanted = folder_in(tmp_path), options(repeat=2)
    records = world(folder, wanted, lambda *_: 1.0)
    first = EXPERIMENT.step(MACHINE, wanted, Records([], tmp_path))
    assert isinstance(first, Block)
    assert first.left_s == pytest.approx(2 * 7 * (wanted.duration_s + DEFAULT_WORKER_START_S + TRIAL_OVERHEAD_S))
    second = EXPERIMENT.step(MACHINE, wanted, records[:7])
    assert isinstance(second, Block)
    assert second.name == "block-2"
    assert isinstance(EXPERIMENT.step(MACHINE, wanted, records), Done)


def test_no_block_begins_that_the_budget_has_no_room_for(tmp_path: Path) -> None:
    folder, wanted = folder_in(tmp_path), options(budget_s=2.5 * 7 * TRIAL_S)
    records = world(folder, wanted, lambda *_: 1.0)
    assert isinstance(next_block(wanted, records[:7]), Block)
    done = next_block(wanted, records[:14])
    assert isinstance(done, Done)
    assert done.why == "2 of 6 blocks fill the budget of 35 s"


def test_what_fails_again_and_again_is_not_tried_for_ever(tmp_path: Path) -> None:
    folder, wanted = folder_in(tmp_path), options(aggressors=(CPU, MEMORY))
    tried = [
        record_of(folder, t, [1.0], "it died" if t.settings["aggressor"] == "memory" else None)
        for number in (1, 2)
        for t in build_block(wanted, number).trials
    ]
    after_one = {m.aggressor for m in promising_pairs(wanted, 2, tried[:7])}
    after_two = {m.aggressor for m in promising_pairs(wanted, 3, tried)}
    assert (after_one, after_two) == ({None, "cpu", "memory"}, {None, "cpu"})


def test_a_victim_that_cannot_be_timed_alone_meets_nobody(tmp_path: Path) -> None:
    other = Subject(workload="gemm", impl="numpy")
    folder, wanted = folder_in(tmp_path), options(victims=(SOFTMAX, other), aggressors=(CPU,))
    tried = [
        record_of(folder, t, [1.0], "it died" if t.roles[0].subjects == (other,) else None)
        for number in (1, 2)
        for t in build_block(wanted, number).trials
    ]
    assert {m.victim for m in promising_pairs(wanted, 3, tried)} == {0}
    assert len(matrix_pairs(wanted)) == 10
    dead = [record.model_copy(update={"status": "failed", "reason": "x"}) for record in tried]
    done = next_block(wanted, dead)
    assert isinstance(done, Done)
    assert done.why == "no victim could be timed"
