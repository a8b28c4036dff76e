"""Which step is measured when, under which settings, and what a workload refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Block, Continuous, Done
from assay.experiments.power.sweep.options import load_points, size_parameters
from assay.experiments.power.sweep.plan import (
    build_block,
    build_trial,
    check_steps,
    describe_changes,
    limit_range,
    next_block,
    plan_changes,
    plan_visits,
    settable_gpu,
)
from tests.experiments.power.sweeps import LIMITS, MACHINE, Card, gpu, options, points, world

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Trial
    from assay.experiments.power.sweep.options import SweepOptions

NUMPY: Any = {"device_kind": "cpu", "params": {}}


def blocks(wanted: SweepOptions) -> list[Block]:
    found = [build_block(wanted, number) for number in range(1, wanted.repeat + 1)]
    return [block for block in found if block is not None]


@pytest.mark.parametrize("together", [False, True])
def test_each_repeat_has_every_step_once_and_the_gpu_as_it_was_found(*, together: bool) -> None:
    wanted = options(devices=("cuda:0", "cuda:1"), together=together)
    for block in blocks(wanted):
        found = [(trial.settings.get("power_limit_w"), trial.devices) for trial in block.trials]
        casts = [("cuda:0", "cuda:1")] if together else [("cuda:0",), ("cuda:1",)]
        assert sorted(found, key=str) == sorted([(s, c) for s in (None, *LIMITS) for c in casts], key=str)
        assert {trial.schedule for trial in block.trials} == {"together" if together else "alone"}


def test_the_order_is_drawn_by_the_seed_and_anew_for_each_repeat() -> None:
    first, second, _ = ([t.settings["phase"] for t in block.trials] for block in blocks(options(seed=7)))
    again = [t.settings["phase"] for t in blocks(options(seed=7))[0].trials]
    other = [t.settings["phase"] for t in blocks(options(seed=8))[0].trials]
    assert first == again
    assert first != second
    assert first != other
    assert sorted(map(str, first)) == sorted(map(str, other))


def test_trials_are_continuous_steady_and_set_only_what_is_swept() -> None:
    capped = build_trial(options(settle_s=12.0), plan_visits(options())[1], 1)
    assert isinstance(capped.mode, Continuous)
    assert (capped.settle_s, capped.mode.duty) == (12.0, 1.0)
    assert capped.settings == {"phase": "limit 200 W", "power_limit_w": 200.0}
    load = options(knob="duty", points=points(0.1, 1.0))
    idle, _ = (build_trial(load, visit, 1) for visit in plan_visits(load))
    assert isinstance(idle.mode, Continuous)
    assert (idle.settings, idle.mode.duty) == ({"phase": "duty 10 %"}, 0.1)


def walked(wanted: SweepOptions, **world_of: Any) -> tuple[list[int], str]:
    """Return how many trials each repeat has, and why it ended, when measured to the end."""
    records: list[Any] = []
    sizes: list[int] = []
    made = {record.trial: record for record in world(wanted, lambda _, s: Card().at(s), calls=5, **world_of)}
    while isinstance(step := next_block(wanted, records), Block):
        sizes.append(len(step.trials))
        records += [made[trial.id] for trial in step.trials]
    return sizes, step.why


def test_it_ends_when_all_repeats_are_measured_or_the_budget_is_spent() -> None:
    assert walked(options()) == ([12, 12, 12], "all 3 repeats are measured")
    assert walked(options(budget_s=200.0))[1] == "1 of 3 repeats fill the budget of 200 s"
    first = next_block(options(budget_s=5000.0), [])
    assert isinstance(first, Block)
    assert first.left_s == pytest.approx(12 * 3 * (10 + 4 + 30 + 0.4))


def test_a_step_that_never_works_is_not_tried_a_third_time() -> None:
    def fails(trial: Trial) -> str | None:
        return "the GPU said no" if trial.settings.get("power_limit_w") == 200.0 else None

    assert walked(options(), fails=fails)[0] == [12, 12, 11]
    sizes, why = walked(options(), fails=lambda _: "no")
    assert (sizes, why) == ([12, 12], "no step could be measured")
    assert isinstance(next_block(options(), []), Block)
    assert not isinstance(next_block(options(), []), Done)


@pytest.mark.parametrize(
    ("knob", "spec", "asked", "names"),
    [
        ("size", "gemm@numpy", (), ("m", "n", "k")),
        ("size", "memory_hog@numpy", ("mib",), ("mib",)),
        ("size", "softmax@numpy", ("rows", "cols"), ("rows", "cols")),
        ("size", "folder/mine.py:work", (), ("n",)),
        ("dtype", "gemm@numpy", (), ("dtype",)),
        ("batch", "flash_attention@numpy", (), ("batch",)),
    ],
)
def test_sizes_set_the_parameter_that_is_the_size(
    knob: Any, spec: str, asked: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert size_parameters(knob, spec, asked, **NUMPY) == names


@pytest.mark.parametrize(
    ("knob", "spec", "asked", "given", "said"),
    [
        ("size", "softmax@numpy", (), {}, "no parameter that is its size .* Name one with --size-param"),
        ("size", "gemm@numpy", ("q",), {}, "--sizes: gemm@numpy has no parameter 'q'"),
        ("batch", "gemm@numpy", (), {}, "--batches: gemm@numpy has no parameter 'batch'"),
        ("size", "gemm@numpy", (), {"n": "5"}, "--param n=5 and --sizes both set n"),
    ],
)
def test_a_parameter_that_is_not_there_is_said(
    knob: Any, spec: str, asked: tuple[str, ...], given: dict[str, str], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        size_parameters(knob, spec, asked, device_kind="cpu", params=given)


def test_what_the_workload_refuses_is_a_refused_point_and_all_refused_is_bad_input() -> None:
    good, bad = load_points("dtype", ("float32", "float17"), "gemm@numpy", names=("dtype",), **NUMPY)
    assert good.subject is not None
    assert good.subject.params["dtype"] == "float32"
    assert bad.subject is None
    assert "float17" in str(bad.refused)
    wanted = options(knob="dtype", points=(good, bad), devices=("cpu:0",))
    assert [visit.point for visit in plan_visits(wanted)] == [0]
    with pytest.raises(BadInput, match="float17"):
        load_points("dtype", ("float17",), "gemm@numpy", names=("dtype",), **NUMPY)


def test_a_function_that_takes_another_size_is_told_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def call(m):\n    return lambda: m\n")
    with pytest.raises(BadInput, match=r"--sizes sets n, or what --size-param names\.$"):
        load_points("size", (16,), f"{tmp_path / 'own.py'}:call", device_kind="cpu", params={}, names=("n",))


def test_what_would_be_changed_is_told_with_what_is_missing() -> None:
    loose = MACHINE.model_copy(update={"gpus": (gpu(0), gpu(1, persistence=False))})
    wanted = options(devices=("cuda:0", "cuda:1"))
    intent = plan_changes(loose, wanted, {"cuda:0": (200, 700), "cuda:1": (200, 700)}, "rights")
    said = "\n".join(describe_changes(wanted, intent, loose))
    assert "cuda:1 (Example H): power limit 700 W now, takes 200 to 700 W; would be set to 11 steps: 200, 250" in said
    assert "Persistence mode is off on GPU 1" in said
    assert "72 trials, at most" in said
    assert "Missing: rights." in said
    assert said.endswith("--apply does both.")
    assert describe_changes(wanted, intent, loose, apply_requested=True)[-1].endswith(
        "without --dry-run both are done."
    )
    many = options(points=points(None, *map(float, range(200, 301, 5))))
    assert "21 steps: 200, 205, … 300 W" in "\n".join(
        describe_changes(many, plan_changes(MACHINE, many, {"cuda:0": (200, 700)}, None), MACHINE)
    )


def test_what_has_no_limit_or_takes_another_is_refused() -> None:
    with pytest.raises(MachineCannot, match="cpu:0 is a group of cores"):
        settable_gpu(MACHINE, "cpu:0")
    with pytest.raises(MachineCannot, match="cuda:0/1 is a part of a GPU"):
        settable_gpu(MACHINE, "cuda:0/1")
    with pytest.raises(MachineCannot, match="offers no power limit"):
        limit_range(gpu(0, power_limit_min_w=None))
    with pytest.raises(BadInput, match=r"power limit of 750 W is out of range: GPU 0 \(Example H\) takes 200 to 700 W"):
        check_steps(gpu(0), (300.0, 750.0), limit_range(gpu(0)), unit="W")
