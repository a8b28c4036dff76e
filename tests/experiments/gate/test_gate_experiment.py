"""A gate restarts until it knows, says what it knows, and never more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.results import Interference
from assay.core.values import Block, Done
from assay.experiments import gate
from assay.experiments.base import RunResult
from assay.experiments.gate import (
    EXPERIMENT,
    GateAnswer,
    GateQuestion,
    RestartPair,
    advice,
    answers_table,
    build_answers,
    build_findings,
    change_text,
    expected_restart_s,
    gate_questions,
    head_first,
    headline,
    limit_text,
    log_ratios,
    overall_verdict,
    paired_ratio,
    restart_pair,
    worker_start_s,
)
from assay.stats.blocks import BlockRatio, LimitDecision
from tests.experiments.gate.revisions import MACHINE, World, options, revision
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from assay.core.results import Record
    from assay.stats.blocks import LimitVerdict


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
    # A restart takes 4 s: the last one begins where exactly as much is left.
    assert [len(judged(World(takes_s=4.0), budget_s=s).records) for s in (11.9, 12.0, 15.9)] == [2, 3, 3]


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


# One part after the other, of answers and records that are made.

CALL, LOSS, RATE = GateQuestion("call_us"), GateQuestion("loss"), GateQuestion("rate", higher_is_better=True)
NOTHING = Remembered([], {})


def pair(number: int, base: float, ratio: float | None = 1.0) -> RestartPair:
    return RestartPair(f"t{number}", f"restart-{number}", base, base * (ratio or 0.0), ratio)


def answer(
    verdict: LimitVerdict, question: GateQuestion = CALL, ratio: BlockRatio | None = None, **changes: Any
) -> GateAnswer:
    told = {"pairs": tuple(pair(n, float(base)) for n, base in enumerate((9, 1, 5, 2), 1)), **changes}
    return GateAnswer(question, decision=LimitDecision(verdict, ratio), **told)


def world_records(count: int = 3, **quantities: float) -> tuple[list[Record], dict[str, Any]]:
    world = World(quantities or {"call_us": 1.0})
    return list(world.measured(options(budget_s=0.1, restarts=3)))[:count], world.kept


def test_what_is_asked_for_has_bounds_and_usual_values() -> None:
    wanted = options()
    assert (wanted.minimum_effect, wanted.timeout_s, wanted.retakes, wanted.seed) == (0.02, 120.0, 0, 0)
    least = {
        "minimum_effect": 0.001,
        "duration_s": 0.5,
        "budget_s": 0.5,
        "timeout_s": 0.5,
        "cpu_groups": 1,
        "retakes": 0,
    }
    assert options(**least).model_dump(include=set(least)) == least
    for name, refused in {**dict.fromkeys(least, 0), "retakes": -1}.items():
        with pytest.raises(ValidationError, match=name):
            options(**{name: refused})
    assert options(minimum_effect=0.999).minimum_effect == 0.999
    with pytest.raises(ValidationError, match="minimum_effect"):
        options(minimum_effect=1.0)
    for named in ({"lower_is_better": ("loss",)}, {"higher_is_better": ("rate",)}):
        assert not options(gate_time=False, **named).gate_time


def test_a_change_is_head_over_base_whichever_way_is_worse() -> None:
    worse = BlockRatio(1.25, 0.8, 2.0, 3)
    assert answer("unsure", ratio=worse).change == (1.25, 0.8, 2.0)
    assert answer("unsure", RATE, worse).change == (0.8, 0.5, 1.25)
    assert answer("unsure", RATE, BlockRatio(1.25, None, None, 1)).change == (0.8, None, None)
    assert answer("unsure").change is None
    assert log_ratios(CALL, [pair(1, 1.0, 2.0), pair(2, 1.0, None)]) == [math.log(2.0)]
    assert log_ratios(RATE, [pair(1, 1.0, 2.0), pair(2, 1.0, 0.5)]) == [-math.log(2.0), math.log(2.0)]
    assert (limit_text(options(), CALL), limit_text(options(), RATE)) == ("+2 %", "−1.96 %")
    assert limit_text(options(minimum_effect=0.25), RATE) == "−20 %"
    assert change_text(answer("unsure")) == "not measured"
    assert change_text(answer("unsure", reason="why")) == "why"
    assert change_text(answer("unsure", ratio=BlockRatio(1.25, None, None, 1))) == "+25.0 %, a single restart"


def test_kernels_are_judged_where_a_restart_that_worked_has_their_time() -> None:
    def asked(*records: Record, **changes: Any) -> list[str]:
        return [question.quantity for question in gate_questions(options(**changes), records)]

    (record, *_), _ = world_records(busy_us=1.0, call_us=1.0)
    failed = record.model_copy(update={"status": "failed", "reason": "it fell over"})
    assert asked(record) == ["busy_us", "call_us"]
    assert asked(record, failed) == ["busy_us", "call_us"]
    assert asked(failed) == asked() == asked(failed, decide_on="kernels") == ["call_us"]
    assert asked(record, decide_on="kernels") == ["busy_us"]


def test_a_restart_counts_where_both_revisions_gave_samples() -> None:
    (record, *_), kept = world_records()
    base, head = sorted(record.series, key=lambda series: series.role)
    kept |= {base.file: np.array([1.0, 2.0, 9.0]), head.file: np.array([2.0, 3.0, 40.0])}
    records = Remembered([record], kept)
    assert restart_pair(records, record, "call_us") == RestartPair(record.trial, record.block, 2.0, 3.0, 2.0)
    assert restart_pair(records, record, "busy_us") is None
    for series in ((base,), (head, base.model_copy(update={"n": 0})), ()):
        assert restart_pair(records, record.model_copy(update={"series": series}), "call_us") is None


def test_turns_are_held_against_each_other_by_their_medians() -> None:
    assert paired_ratio(np.array([0.5]), np.array([0.25])) == pytest.approx(0.5)
    two = np.array([1.0, 1.0])
    assert [paired_ratio(*each) for each in ((two, np.array([1.0, -1.0])), (np.array([-1.0, 1.0]), two))] == [None] * 2
    assert [paired_ratio(*each) for each in ((two, np.array([1.0, 0.0])), (np.array([0.0, 1.0]), two))] == [None] * 2
    # The ratios of three turns are 2, 3 and 64.
    assert paired_ratio(np.array([1.0, 2.0, 1.0]), np.array([2.0, 6.0, 64.0])) == pytest.approx(3.0)
    # Ten turns of three samples, whose medians are 2 and 3 and whose means are not.
    assert paired_ratio(np.tile([1.0, 2.0, 30.0], 10), np.tile([1.0, 3.0, 5.0], 10)) == pytest.approx(1.5)
    assert paired_ratio(np.tile([1.0, 2.0, 3.0], 10), np.tile([1.0, 3.0, 50.0], 10)) == pytest.approx(1.5)


def test_what_is_missing_once_is_not_judged() -> None:
    records, kept = world_records(call_us=1.0, loss=1.0)
    wanted = options(lower_is_better=("loss",), gate_time=False)
    (whole,) = build_answers(wanted, Remembered(records, kept))
    assert (len(whole.pairs), whole.reason) == (len(records), None)
    loss = next(series for series in records[0].series if series.quantity == "loss")
    kept[loss.file] = -kept[loss.file]
    (below,) = build_answers(wanted, Remembered(records, kept))
    assert (below.reason, below.verdict) == ("loss is not above zero, and has no ratio", "unsure")
    bare = records[0].model_copy(update={"series": ()})
    (missing,) = build_answers(wanted, Remembered([bare, *records[1:]], kept))
    assert (missing.reason, len(missing.pairs)) == ("loss was not reported in every restart", len(records) - 1)
    failed = bare.model_copy(update={"status": "failed", "reason": "it fell over"})
    (left,) = build_answers(wanted, Remembered([failed, *records[1:]], kept))
    assert (left.reason, len(left.pairs)) == (None, len(records) - 1)


def test_the_next_restart_takes_as_long_as_the_last_ones() -> None:
    assert expected_restart_s(options(), []) == pytest.approx(3.0 + 0.8 + 0.4)
    (record, *_), _ = world_records()

    def took(number: int, seconds: int, *setups_s: float) -> Record:
        window = record.window.model_copy(update={"start_ns": 0, "end_ns": seconds * 10**9})
        seen = tuple(record.evidence[0].model_copy(update={"setup_s": setup_s}) for setup_s in setups_s)
        return record.model_copy(update={"block": f"restart-{number}", "window": window, "evidence": seen})

    several = [took(1, 9), took(2, 1, 7.0), took(3, 5), took(4, 2, 0.5, 2.0)]
    assert expected_restart_s(options(), several) == 5.0
    assert expected_restart_s(options(), several[:3]) == 5.0
    assert worker_start_s(options(), several) == 2.0
    assert worker_start_s(options(), several[:2]) == 7.0
    assert worker_start_s(options(), several[:3]) == worker_start_s(options(), []) == 0.8


def test_what_would_help_is_said_by_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    records, kept = world_records(count=2)

    def said(*numbers: int | None, records: list[Record] = records, unsure: tuple[GateAnswer, ...] = ()) -> str:
        left = iter(numbers)
        monkeypatch.setattr(gate, "estimate_restarts_needed", lambda *_: next(left))
        return advice(options(), unsure or tuple(answer("unsure") for _ in numbers), Remembered(records, kept))

    assert said(10, 20) == said(20, 10) == "About 20 restarts would decide it: --budget 104s."
    assert said(5, None).startswith("It is too near the limit")
    why = answer("unsure", reason="it was not reported")
    assert said(5, 5, unsure=(answer("unsure"), why)) == ""
    busy = (Interference(kind="processes", source="cc", message="cc was busy"),)
    disturbed = [record.model_copy(update={"disturbed": busy}) for record in records]
    others = "Others kept the machine busy in {} restarts; --on-interference wait waits for them."
    assert said(10, records=[*disturbed, *records]) == "About 10 restarts would decide it: --budget 52s."
    assert said(10, records=[*disturbed, records[0]]) == others.format("2 of 3")
    assert said(10, records=disturbed) == others.format("2 of 2")
    failed = records[1].model_copy(update={"status": "failed", "reason": "it fell over"})
    assert said(10, records=[records[0], failed]) == "it fell over."


def test_what_would_decide_one_question_is_reckoned_with_its_part_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def needed(*told: Any) -> int:
        asked.append(told[1:])
        return 10

    monkeypatch.setattr(gate, "estimate_restarts_needed", needed)
    records, kept = world_records(call_us=1.0, loss=1.0)
    wanted = options(minimum_effect=0.03, lower_is_better=("loss",))
    said = headline(wanted, [answer("not worse"), answer("unsure", LOSS)], Remembered(records, kept))
    assert said.endswith("About 10 restarts would decide it: --budget 52s.")
    assert asked == [(0.03, 2)]


def test_answers_are_in_a_table_with_the_typical_base_and_what_head_makes_of_it() -> None:
    known = answer("worse", LOSS, BlockRatio(1.5, 1.25, 2.0, 4))
    open_one = answer("unsure", LOSS, BlockRatio(1.5, None, None, 1))
    table = answers_table(options(), [known, open_one, answer("unsure"), answer("unsure", reason="why")])
    assert [column.numeric for column in table.columns] == [False, True, True, True, True, True, False]
    assert [row[3:] for row in table.rows] == [
        ("+50.0 %", "+25.0 % to +100 %", "+2 %", "fails"),
        ("+50.0 %", None, "+2 %", "not enough data"),
        (None, None, "+2 %", "not enough data"),
        (None, None, "+2 %", "why"),
    ]
    assert table.rows[0][:3] == ("loss", LOSS.format_value(5.0), LOSS.format_value(7.5))
    assert gate._ratio_figure([answer("unsure")]) == []
    (figure,) = gate._ratio_figure([answer("unsure"), known])
    assert figure.kind == "strips"
    assert (figure.centre, len(figure.strips)) == (1.0, 1)


def test_a_gate_fails_where_it_is_worse_or_unsure_and_that_was_to_fail() -> None:
    def judged_so(*answers: GateAnswer, **changes: Any) -> list[Any]:
        findings = build_findings(options(**changes), answers, NOTHING).findings
        return [findings[0].gate, *(finding.reason for finding in findings[1:])]

    good, bad, open_one = answer("not worse"), answer("worse"), answer("unsure", reason="why")
    assert judged_so(good) == judged_so(good, unsure="fail") == ["passed", "not measured"]
    assert judged_so(bad, good)[0] == judged_so(bad, unsure="fail")[0] == judged_so(bad, open_one)[0] == "failed"
    assert judged_so(open_one, good) == ["passed", "why", "not measured"]
    assert judged_so(open_one, good, unsure="fail") == ["failed", "why", "not measured"]
    assert [overall_verdict(each) for each in ([], [good], [good, open_one], [open_one, bad])] == [
        "unsure", "yes", "unsure", "no",
    ]  # fmt: skip
