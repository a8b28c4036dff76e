"""A gate restarts until it knows, says what it knows, and never more."""

from __future__ import annotations

import numpy as np
import pytest

from assay.core.errors import BadInput
from assay.core.values import Block, Done
from assay.experiments.base import RunResult
from assay.experiments.gate import EXPERIMENT, build_answers, head_first, paired_ratio
from tests.experiments.gate.revisions import MACHINE, World, options, revision
from tests.experiments.remembered import Remembered


def judged(world: World, **changes: object) -> RunResult:
    wanted = options(**changes)
    records = world.measured(wanted)
    report = EXPERIMENT.report(MACHINE, wanted, records)
    return RunResult(report.findings, report.page, records)


def test_a_planted_slow_down_of_five_percent_fails() -> None:
    found = judged(World({"call_us": 1.05}))
    gate, quantity = found.findings.findings
    assert (gate.verdict, gate.facts["answer"], found.exit_code) == ("no", "fails", 1)
    assert found.findings.headline.startswith("Fails: head against base, time of a call +")
    assert "the limit is +2 % (5 restarts)." in found.findings.headline
    assert quantity.estimate is not None
    assert quantity.estimate.low is not None
    assert 1.02 < quantity.estimate.low < 1.05 < (quantity.estimate.high or 0)


def test_the_same_commit_twice_passes_and_is_called_so() -> None:
    same = options().checkouts.model_copy(
        update={"revisions": (revision("base", "main", "a" * 40), revision("head", "x", "a" * 40))}
    )
    found = judged(World(), checkouts=same)
    assert (found.findings.findings[0].verdict, found.exit_code) == ("yes", 0)
    assert "head against base, the same commit twice, time of a call" in found.findings.headline


def test_noise_asks_for_more_restarts_and_no_more_than_the_budget_has() -> None:
    noisy = World({"call_us": 1.01}, between=0.03, takes_s=5.0)
    found = judged(noisy, budget_s=40.0)
    assert len(found.records) == 8
    assert found.findings.headline.startswith("Not enough data: ")
    assert found.exit_code == 0
    assert judged(noisy, budget_s=40.0, unsure="fail").exit_code == 1
    assert len(judged(World(between=0.02), budget_s=600.0).records) > 5


def test_at_least_two_restarts_are_made_whatever_the_budget() -> None:
    assert len(judged(World(takes_s=100.0), budget_s=10.0).records) == 2


def test_what_would_decide_it_is_said() -> None:
    found = judged(World({"call_us": 1.0}, between=0.02, seed=3), budget_s=20.0)
    assert "restarts would decide it: --budget " in found.findings.headline


def test_a_restart_that_fails_ends_it_and_is_what_is_told() -> None:
    found = judged(World(fails_in=2))
    assert len(found.records) == 2
    assert "head: ValueError: the moon." in found.findings.headline
    assert found.exit_code == 4


def test_of_several_quantities_one_that_is_worse_decides() -> None:
    wanted = {"lower_is_better": ("loss",), "higher_is_better": ("rate",)}
    good = judged(World({"call_us": 1.0, "loss": 0.9, "rate": 1.1}), **wanted)
    assert good.exit_code == 0
    assert [f.facts.get("quantity") for f in good.findings.findings] == [None, "call_us", "loss", "rate"]
    slow = judged(World({"call_us": 1.0, "loss": 1.0, "rate": 0.9}), **wanted)
    assert slow.exit_code == 1
    assert "rate −" in slow.findings.headline
    assert "the limit is −1.96 %" in slow.findings.headline
    assert "call" not in slow.findings.headline


def test_only_metrics_are_judged_where_that_is_asked_for() -> None:
    world = World({"call_us": 2.0, "loss": 1.0})
    assert judged(world, lower_is_better=("loss",), gate_time=False).exit_code == 0
    with pytest.raises(ValueError, match="nothing is judged"):
        options(gate_time=False)


@pytest.mark.parametrize(("decide_on", "judges"), [("both", 2), ("kernels", 1), ("call", 1)])
def test_on_a_gpu_kernels_and_calls_are_judged(decide_on: str, judges: int) -> None:
    found = judged(World({"busy_us": 1.0, "call_us": 1.2}), decide_on=decide_on)
    assert len(found.findings.findings) == 1 + judges
    assert found.exit_code == (0 if decide_on == "kernels" else 1)


def test_a_metric_that_neither_revision_reports_is_refused_and_one_not_above_zero_is_not_judged() -> None:
    with pytest.raises(BadInput, match=r"^Neither revision reported loss: add --metric loss=REGEX"):
        judged(World(), lower_is_better=("loss",), budget_s=20.0)
    below = judged(World({"call_us": 1.0, "loss": 1.0}, level=-1.0), lower_is_better=("loss",), budget_s=20.0)
    assert "is not above zero, and has no ratio" in below.findings.headline


def test_each_revision_has_the_first_turn_equally_often_in_an_order_of_its_own() -> None:
    wanted = options()
    orders = [head_first(wanted, number) for number in range(40)]
    assert sum(orders) == 20
    assert all(orders[n] != orders[n + 1] for n in range(0, 40, 2))
    assert orders != [head_first(options(seed=1), number) for number in range(40)]
    block = EXPERIMENT.step(MACHINE, wanted, Remembered([], {}))
    assert isinstance(block, Block)
    assert [role.name for role in block.trials[0].roles] == (["head", "base"] if orders[0] else ["base", "head"])


def test_both_roles_take_the_same_subject_from_their_own_checkouts() -> None:
    block = EXPERIMENT.step(MACHINE, options(), Remembered([], {}))
    assert isinstance(block, Block)
    by_role = {role.name: role.subjects[0] for role in block.trials[0].roles}
    assert [by_role[name].source.checkout for name in ("base", "head")] == ["/gates/base", "/gates/head"]  # type: ignore[union-attr]
    assert len({subject.model_copy(update={"source": None}).model_dump_json() for subject in by_role.values()}) == 1
    assert block.trials[0].schedule == "turns"
    assert block.trials[0].workers == {"cpu:0": 1}


def test_the_same_records_give_the_same_step() -> None:
    wanted, world = options(), World({"call_us": 1.05})
    records = world.measured(wanted)
    assert isinstance(EXPERIMENT.step(MACHINE, wanted, records), Done)
    for n in range(len(records)):
        block = EXPERIMENT.step(MACHINE, wanted, records[:n])
        assert isinstance(block, Block)
        assert block.trials[0].id == records[n].trial


def test_a_machine_that_slows_down_for_a_while_slows_down_neighbouring_turns_alike() -> None:
    chance = np.random.default_rng(1)
    busy = np.repeat([1.0, 1.6, 1.6, 1.0, 1.6, 1.0, 1.0, 1.6, 1.6, 1.0], 5)
    base = 100 * busy * np.exp(chance.normal(0, 0.01, 50))
    head = 105 * busy * np.exp(chance.normal(0, 0.01, 50))
    ratio = paired_ratio(base, head)
    assert ratio == pytest.approx(1.05, abs=0.01)
    assert paired_ratio(np.array([1.0]), np.array([2.0, 3.0])) == pytest.approx(2.5)
    assert paired_ratio(np.array([0.0]), np.array([1.0])) is None


def test_nothing_measured_is_told_as_that() -> None:
    found = judged(World(fails_in=1))
    assert build_answers(options(), found.records)[0].change is None
    assert "time of a call not measured" in found.findings.headline
