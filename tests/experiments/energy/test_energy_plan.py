"""What ``assay energy run`` measures next, on machines and in runs of which all is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Block, Done, Staged
from assay.experiments.base import find_experiment
from assay.experiments.energy import EXPERIMENT
from assay.experiments.energy.options import UNKNOWN_SENSOR_S, choose_stage_length
from assay.experiments.energy.plan import STARTUP_S, elapsed_s, list_cell_phases, list_cells, replay_run
from assay.experiments.energy.study import build_study
from assay.joules.sensor_model import CounterModel, SensorModel, save_sensor_model
from assay.machine.model import GpuLink
from assay.workloads.generation.params import Generation
from tests.experiments.energy.metered_world import World, config, gpus, options
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.energy.options import EnergyOptions

SERVER = {"type": "openai", "model": "some/model", "endpoint": "http://127.0.0.1:8000/v1"}


FIRST = ["process-1", "process-2", "process-3"]


def longer(number: int) -> list[str]:
    return [f"longer-{number}-{name}" for name in FIRST]


def first(wanted: EnergyOptions) -> Block:
    step = replay_run(wanted, Remembered([], {})).next_step
    assert isinstance(step, Block)
    return step


def told(block: Block) -> list[Generation]:
    return [Generation.model_validate(subject.params) for subject in block.trials[0].roles[0].subjects]


def test_it_is_known_by_its_name() -> None:
    assert find_experiment("energy") is EXPERIMENT


def test_one_process_measures_every_phase_of_every_cell_with_what_needs_most_memory_last() -> None:
    there = gpus(1)
    block = first(options(there, config(modes=["graphs", "eager"], batch_sizes=[32, 1], repeats=4)))
    (trial,) = block.trials
    assert isinstance(trial.mode, Staged)
    assert (trial.restarts, trial.mode.stage_s, trial.mode.warmup_runs) == (1, UNKNOWN_SENSOR_S, 1)
    assert block.why.startswith("process 1 of 4, 4 cells in 13 stages")
    assert [(each.mode, each.batch, each.phase) for each in told(block)] == [
        ("eager", 1, "idle"),
        *(
            (mode, batch, phase)
            for mode in ("eager", "graphs")
            for batch in (1, 32)
            for phase in ("prefill", "decode", "whole")
        ),
    ]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
    lengths=st.lists(st.integers(1, 4096), min_size=1, max_size=2, unique=True),
    served=st.booleans(),
)
def test_every_combination_is_a_cell_once_and_has_all_its_phases(
    sizes: list[int], lengths: list[int], served: bool
) -> None:
    asked: dict[str, Any] = {"concurrency": sizes} if served else {"batch_sizes": sizes, "modes": ["eager", "graphs"]}
    wanted = config(backend=SERVER if served else {}, input_tokens=lengths, **asked)
    cells = list_cells(wanted)
    assert len(set(cells)) == len(cells) == len(sizes) * len(lengths) * (1 if served else 2)
    places = list_cell_phases(wanted)
    assert len(set(places)) == len(places) == 1 + len(cells) * (1 if served else 3)


def test_device_ids_are_what_the_worker_sees_and_what_is_metered() -> None:
    there = gpus(4)
    wanted = options(there, config(backend={"device_ids": [2, 0], "max_memory": {2: "20GB", "cpu": "64GB"}}))
    (role,) = first(wanted).trials[0].roles
    assert (role.devices, role.metered, role.isolation) == (("cuda:2",), ("cuda:0",), "gpu")
    generation = told(first(wanted))[0]
    assert (generation.device_ids, generation.max_memory) == ("[2, 0]", '{"2": "20GB", "cpu": "64GB"}')


def test_tensor_parallel_has_a_rank_on_each_gpu_or_on_each_group_of_cores() -> None:
    there = gpus(2)
    (role,) = first(options(there, config(backend={"device_ids": [0, 1], "tp_plan": "auto"}))).trials[0].roles
    assert (role.ranks, role.devices, role.metered) == (2, ("cuda:0", "cuda:1"), ())
    bare = machine(cores=(2,))
    trial = first(options(bare, config(backend={"device": "cpu", "tp_plan": "auto", "tp_ranks": 2}))).trials[0]
    assert (trial.roles[0].ranks, trial.roles[0].devices, trial.cpu_groups) == (2, ("cpu:0", "cpu:1"), 2)
    with pytest.raises(MachineCannot, match="3 ranks of tensor parallelism need 3 cores; here are 2"):
        options(bare, config(backend={"device": "cpu", "tp_plan": "auto", "tp_ranks": 3}))


def test_a_model_without_a_gpu_computes_on_all_cores_and_says_so() -> None:
    bare = machine(cores=(4,))
    wanted = options(bare, config())
    assert (wanted.devices, wanted.cpu_groups, wanted.isolation, wanted.stage_s) == (("cpu:0",), 1, "none", 1.0)
    assert wanted.notes == ("the model computes on the CPU: NVML does not answer: no driver",)


@pytest.mark.parametrize(
    ("backend", "changes", "error", "words"),
    [
        ({"device_ids": [0, 5]}, {}, MachineCannot, "There is no GPU 5 here"),
        ({"device": "cuda"}, {"nodes": 2}, MachineCannot, "A model is not spread over 2 machines"),
        ({}, {"isolation": "none"}, BadInput, "device_ids restrict nothing"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    backend: dict[str, Any], changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        options(gpus(2), config(backend=backend), **changes)


def test_a_window_is_as_long_as_the_slowest_known_sensor_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    there = gpus(2)
    for gpu, period_s in zip(there.gpus, (0.1, 0.4), strict=True):
        counter = CounterModel(
            period_s=period_s, jitter_s=0.01, quantum_j=0.001, lag_s=0.05, lag_error_s=0.005, read_s=0.01
        )
        save_sensor_model(SensorModel(device=gpu.uuid, driver="580.1", counter=counter))
    fast_s, why = choose_stage_length(None, there.gpus[:1], "580.1", 0.03)
    slow_s, slow = choose_stage_length(None, there.gpus, "580.1", 0.03)
    assert 2.0 <= fast_s < slow_s
    assert (why, slow) == ("as the sensor of GPU 0 needs for ±3 %", "as the sensor of GPU 1 needs for ±3 %")
    assert choose_stage_length(None, there.gpus, "another", 0.03)[0] == UNKNOWN_SENSOR_S
    assert choose_stage_length(7.0, there.gpus, "580.1", 0.03)[0] == 7.0


def test_what_is_known_well_enough_ends_it() -> None:
    there = gpus(1)
    wanted = options(there, config())
    records = World(there).measured(wanted)
    assert [record.block for record in records] == FIRST
    step = replay_run(wanted, records).next_step
    assert isinstance(step, Done)
    assert "known to ±3 %" in step.why


def test_windows_that_a_sensor_refuses_as_too_short_are_measured_for_longer_and_then_told() -> None:
    there = gpus(1)
    wanted = options(there, config(batch_sizes=[1, 8], window_s=0.5, precision=0.05))
    world = World(there, refused=lambda window_s: window_s < 0.9)
    records = world.measured(wanted)
    assert [record.block for record in records] == [*FIRST, *longer(1)]
    again = replay_run(wanted, Remembered(list(records)[:3], world.kept)).next_step
    assert isinstance(again, Block)
    assert [each.phase for each in told(again)] == ["idle", "prefill", "prefill"], "calls of the others are longer"
    assert isinstance(again.trials[0].mode, Staged)
    assert again.trials[0].mode.stage_s == 1.0
    rows = build_study(there, wanted, records).result.rows
    assert all(row.figures["prefill_j_per_token"] is not None for row in rows)


def test_wide_intervals_are_measured_twice_and_four_times_as_long_and_all_windows_count() -> None:
    there = gpus(1)
    wanted = options(there, config())
    records = World(there, sensor=lambda window_s: 0.4 / window_s).measured(wanted)
    assert [record.block for record in records] == [*FIRST, *longer(1), *longer(2)]
    row = build_study(there, wanted, records).result.rows[0]
    found = row.figures["decode_j_per_token"]
    assert found is not None
    assert found.n == 9
    assert (found.relative_half_width or 1) < 0.05
    assert not row.partial


def test_resuming_walks_the_same_way() -> None:
    there = gpus(1)
    wanted = options(there, config(), budget_s=10_000.0)
    world = World(there, sensor=lambda window_s: 0.4 / window_s)
    records = world.measured(wanted)
    read_back = type(wanted).model_validate(wanted.as_json())
    for count in range(len(records)):
        step = EXPERIMENT.step(there, read_back, Remembered(list(records)[:count], world.kept))
        assert isinstance(step, Block)
        assert step.trials[0].id == records[count].trial
    assert isinstance(EXPERIMENT.step(there, read_back, records), Done)


def test_no_block_begins_that_the_budget_has_no_room_for() -> None:
    there = gpus(1)
    world = World(there, sensor=lambda window_s: 0.4 / window_s, takes_s=100.0)
    free = options(there, config())
    spent_s = elapsed_s(list(world.measured(free))[:3])
    assert spent_s == 300.0
    for budget_s, blocks, words in ((330.0, FIRST, "to measure"), (230.0, FIRST[:2], "for process 3")):
        bound = options(there, config(), budget_s=budget_s)
        records = world.measured(bound)
        assert [record.block for record in records] == blocks
        step = replay_run(bound, records).next_step
        assert isinstance(step, Done)
        assert f"the budget of {budget_s:g} s leaves no room {words}" in step.why
        assert (first(bound).left_s or 0) <= budget_s < (first(free).left_s or 0)
        assert first(bound).trials[0].mode.duration_s <= budget_s / 3
        assert all(row.partial == (len(blocks) < 3) for row in build_study(there, bound, records).result.rows)


def test_how_long_the_rest_takes_is_told_from_the_processes_before() -> None:
    there = gpus(1)
    wanted = options(there, config(modes=["eager", "graphs"]))
    world = World(there, takes_s=70.0)
    records = world.measured(wanted)
    assert [record.block for record in records] == FIRST
    lefts = [first(wanted).left_s or 0]
    for count in (1, 2):
        step = EXPERIMENT.step(there, wanted, Remembered(list(records)[:count], world.kept))
        assert isinstance(step, Block)
        lefts.append(step.left_s or 0)
    assert lefts == sorted(lefts, reverse=True)
    assert 2 * 70.0 < lefts[1] < lefts[0] / 2
    assert lefts[2] > 70.0


def test_a_budget_that_one_process_does_not_come_through_in_is_told_of_at_once() -> None:
    there = gpus(1)
    stages = 7 * options(there, config(modes=["eager", "graphs"])).stage_s
    for budget_s, said in ((stages - 1, ["a budget of"]), (stages + 1, [])):
        notes = options(there, config(modes=["eager", "graphs"]), budget_s=budget_s).notes
        assert [note[:11] for note in notes if "starts all the same" in note] == said
    tiny = first(options(there, config(), budget_s=1.0))
    assert (tiny.left_s or 0) > STARTUP_S


def test_nothing_is_measured_for_longer_without_joules_or_after_a_failure() -> None:
    there = gpus(1)
    for world, wanted, blocks in (
        (World(there, watched=False), options(there, config(metrics={"enabled": False})), FIRST),
        (World(there, sensor=lambda _: 0.4, lost=2), options(there, config()), FIRST[:2]),
        (World(there, sensor=lambda _: 0.4), options(there, config(), longer=False), FIRST),
        (World(there, silent=frozenset({0})), options(there, config()), FIRST),
    ):
        assert [record.block for record in world.measured(wanted)] == blocks


def test_one_output_token_has_nothing_to_decode_and_its_requests_stand_for_it() -> None:
    there = gpus(1)
    wanted = options(there, config(output_tokens=1))
    assert [each.phase for each in told(first(wanted))] == ["idle", "prefill", "whole"]
    records = World(there).measured(wanted)
    (row,) = build_study(there, wanted, records).result.rows
    assert "nothing is decoded" in row.missing_reasons["decode_j_per_token"]
    assert not row.partial
    assert "J per output token at batch 1" in EXPERIMENT.report(there, wanted, records).findings.headline


def test_layers_go_over_linked_gpus_in_turn_and_pcie_is_said() -> None:
    links = tuple(
        GpuLink(gpus=pair, nvlinks=4 if pair == (0, 2) else 0, path="node") for pair in ((0, 1), (0, 2), (1, 2))
    )
    there = gpus(3, links=links)
    wanted = options(there, config(backend={"device_ids": [0, 1, 2]}))
    order = (*wanted.devices, *wanted.metered)
    assert abs(order.index("cuda:0") - order.index("cuda:2")) == 1
    assert any("linked ones follow one another" in note for note in wanted.notes)
    assert any("not linked by NVLink" in note for note in wanted.notes)
    assert options(there, config(backend={"device_ids": [0, 1, 2], "device_map": {"": 1}})).devices == ("cuda:0",)
