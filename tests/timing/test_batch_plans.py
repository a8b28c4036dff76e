"""How many calls make a sample: one slow call decides nothing, and calls that take turns are put together alike."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.timing.compare import compare
from assay.timing.continuous import probe_all_calls_per_sample, probe_calls_per_sample
from assay.timing.cuda.timers import SHORT_US, GpuCallBatch, QueueTimer
from assay.timing.interleaved import equalize_plans, shortest_round_s, warm_up_all
from assay.timing.measure import measure
from assay.timing.pick import pick
from assay.timing.sampling import (
    LONGEST_COMMON_SAMPLE_NS,
    SIMILAR_FACTOR,
    collect_samples,
    contradicts_probe,
    group_durations,
    plan_batches,
    probe_shortest_ns,
    warm_up,
)
from assay.timing.setup import BoundCall, FirstCalls, equalize_first_calls, make_first_calls
from assay.timing.wall import (
    BATCH_NS,
    MAX_SAMPLES_PER_BATCH,
    SHORTEST_SAMPLE_NS,
    TimedSubject,
    WallTimer,
    plan_shared_batches,
)
from assay.timing.wall import warm_up_subjects as warm_up_plainly
from assay.worker.protocol import TakeBlock
from assay.worker.timer import SubjectTimer
from assay.workloads.base import PreparedWorkload
from tests.timing.machine_clock import VirtualMachine

if TYPE_CHECKING:
    from assay.timing.sampling import BatchPlan

SLOW_NS = 2_000_000.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    made = VirtualMachine()
    made.install(monkeypatch)
    return made


# One slow call


@pytest.mark.parametrize("number", [*range(1, 31), 100, 150, 250])
@pytest.mark.parametrize("slow_ns", [60_000.0, SLOW_NS, 3e9])
def test_one_slow_call_does_not_change_how_many_make_a_sample(
    machine: VirtualMachine, number: int, slow_ns: float
) -> None:
    undisturbed = WallTimer(machine.call(400.0))
    clock = WallTimer(machine.call(400.0, slow={number: slow_ns}))
    assert clock.batch_plan == undisturbed.batch_plan
    assert clock.calls_per_sample == math.ceil(SHORTEST_SAMPLE_NS / clock.shortest_ns) == 125
    assert clock.floor_ns == undisturbed.floor_ns


@settings(deadline=None, max_examples=60)
@given(st.floats(50, 5e6), st.integers(1, 60), st.floats(0, 1e9))
def test_the_probe_reads_the_same_with_and_without_a_slow_call(ns: float, number: int, slow_ns: float) -> None:
    def probed(slow: dict[int, float]) -> float:
        machine = VirtualMachine(read_ns=0)
        return probe_shortest_ns(machine.call(round(ns), slow=slow), enough_ns=SHORTEST_SAMPLE_NS, clock=machine.read)

    assert probed({number: slow_ns}) == pytest.approx(probed({}), rel=1e-9) == pytest.approx(round(ns), rel=1e-9)


def test_a_call_timed_by_itself_is_probed_more_than_once(machine: VirtualMachine) -> None:
    assert WallTimer(machine.call(400.0, slow={1: SLOW_NS}), single_calls=True).shortest_ns == 440.0


def test_a_long_call_is_probed_twice(machine: VirtualMachine) -> None:
    begun_ns = machine.now_ns
    WallTimer(machine.call(2_000_000_000.0))
    assert machine.now_ns - begun_ns == pytest.approx(2 * 2e9, rel=0.001)


def test_a_short_function_is_measured_right_though_its_fourth_call_is_slow(machine: VirtualMachine) -> None:
    found = measure(machine.call(400.0, slow={4: SLOW_NS}), device="cpu", budget_s=5.0)
    assert found.time.value == pytest.approx(0.4, rel=0.001)


@pytest.mark.parametrize("number", [4, 5, 6, 14, 40])
def test_the_same_function_compared_with_itself_is_the_same_though_one_call_is_slow(
    machine: VirtualMachine, number: int
) -> None:
    functions = {"a": machine.call(5_600.0), "b": machine.call(5_600.0, slow={number: SLOW_NS})}
    found = compare(functions, device="cpu", budget_s=1.0)
    assert found.verdict == "same"
    assert found.others[0].ratio == pytest.approx(1.0, abs=1e-6)


def test_a_candidate_with_a_slow_call_is_not_at_a_disadvantage(machine: VirtualMachine) -> None:
    candidates = {"a": machine.call(5_600.0), "b": machine.call(5_600.0, slow={4: SLOW_NS})}
    found = pick(candidates, device="cpu", budget_s=0.2)
    assert [each.behind for each in found.ranking] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_first_calls_say_how_long_the_shortest_took(machine: VirtualMachine) -> None:
    def first(slow: dict[int, float], **more: Any) -> FirstCalls:
        return make_first_calls(BoundCall("f", machine.call(1_000.0, slow=slow)), lambda: None, 60.0, **more)

    for number in (1, 2, 3):
        assert first({number: SLOW_NS}).least_us == pytest.approx(1.0, rel=0.2)
    compiled = {1: 30e9}
    assert first(compiled).least_us == pytest.approx(30e6, rel=0.01)
    assert first(compiled, at_least=2).least_us == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("number", range(1, 12))
def test_a_lane_puts_as_many_calls_together_whatever_one_call_takes(number: int) -> None:
    machine = VirtualMachine()
    call = machine.call(10_000.0, slow={number: 5_000_000.0})
    assert probe_calls_per_sample(call, lambda: None, machine.read) == 200


def test_a_plain_warm_up_that_one_call_uses_up_makes_another(machine: VirtualMachine) -> None:
    slow = TimedSubject(machine.call(5_000.0, slow={1: 1e9}), lambda: None)
    assert warm_up_plainly([slow], runs=None, share_s=0.5) == (10,)


def test_a_slow_round_does_not_decide_how_many_are_planned(machine: VirtualMachine) -> None:
    clock = WallTimer(machine.call(100_000.0))
    quick_s = shortest_round_s([clock], budget_s=60.0)
    slow = WallTimer(machine.call(100_000.0, slow={5: 1e9}))
    assert shortest_round_s([slow], budget_s=60.0) == pytest.approx(quick_s, rel=1e-6)


def test_a_slow_batch_does_not_say_what_one_costs(machine: VirtualMachine) -> None:
    warm = warm_up(WallTimer(machine.call(100_000.0, slow={40: 3e9})), budget_s=5.0)
    assert warm.batch_s == pytest.approx(16 * 100_080e-9, rel=0.01)


# A probe that samples contradict


def test_a_probe_of_calls_that_were_slow_at_first_is_repeated(machine: VirtualMachine) -> None:
    slow_at_first = dict.fromkeys(range(1, 12), 1_000_000.0)
    clock = WallTimer(machine.call(1_000.0, slow=slow_at_first))
    assert clock.calls_per_sample == 1
    warm = warm_up(clock, budget_s=5.0)
    assert clock.calls_per_sample == 1, "all calls so far were slow"
    collected = collect_samples(clock, warm, precision=0.01, budget_s=5.0)
    assert clock.calls_per_sample == 50
    assert collected.samples["call_us"] == pytest.approx(1.0, rel=0.001)


def test_a_probe_of_calls_that_were_quick_at_first_is_repeated(machine: VirtualMachine) -> None:
    slow_later = dict.fromkeys(range(130, 100_000), 20_000.0)
    clock = WallTimer(machine.call(1_000.0, slow=slow_later))
    assert clock.calls_per_sample == 50
    warm_up(clock, budget_s=5.0)
    assert clock.calls_per_sample == 3


def test_a_probe_that_the_samples_bear_out_is_not_repeated(machine: VirtualMachine) -> None:
    clock = WallTimer(machine.call(1_000.0))
    clock.take()
    assert not clock.replan()


def test_a_function_that_never_agrees_with_its_probe_is_timed_all_the_same(machine: VirtualMachine) -> None:
    calls = iter(range(10**9))

    def fickle() -> None:
        machine.passes(1_000.0 if next(calls) // 400 % 2 else 200_000.0)

    clock = WallTimer(fickle)
    warm_up(clock, budget_s=0.5)
    assert (clock.take().quantities["call_us"] > 0).all()


@pytest.mark.parametrize(
    ("sample_ns", "calls", "expected"),
    [(24_000, 1, True), (26_000, 1, False), (900_000, 1, False), (99_000, 9, False), (101_000, 9, True)],
)
def test_samples_contradict_a_probe_where_they_are_far_too_short_or_too_long(
    sample_ns: float, calls: int, expected: bool
) -> None:
    assert contradicts_probe(sample_ns, 50_000, 50_000, calls) == expected


# Calls that take turns


def planned(call_ns: list[float], **more: bool) -> list[BatchPlan]:
    return plan_batches(
        call_ns, shortest_ns=SHORTEST_SAMPLE_NS, batch_ns=BATCH_NS, most_samples=MAX_SAMPLES_PER_BATCH, **more
    )


def test_durations_form_groups_where_there_is_a_gap() -> None:
    assert group_durations([0.71, 0.40, 61.0, 0.43, 55.0]) == [0.40, 0.40, 55.0, 0.40, 55.0]
    assert group_durations([2.0, 1.0]) == [2.0, 1.0]
    assert group_durations([]) == []


def test_calls_that_take_about_as_long_are_put_together_alike() -> None:
    one, other = planned([24_900.0, 25_100.0])
    assert one == other
    assert one.calls_per_sample == 3


def test_a_short_call_beside_a_long_one_makes_samples_about_as_long() -> None:
    short, long = planned([400.0, 40_000.0])
    assert (short.calls_per_sample, long.calls_per_sample) == (200, 2)
    short, long = planned([400.0, 30_000_000.0])
    assert (short.calls_per_sample, long.calls_per_sample) == (LONGEST_COMMON_SAMPLE_NS // 400, 1)


def test_calls_that_are_timed_one_by_one_stay_so_in_batches_of_as_many() -> None:
    one, other = planned([400.0, 500_000.0], one_by_one=True)
    assert one == other
    assert (one.calls_per_sample, one.samples_per_batch) == (1, 4)


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=8))
def test_plans_are_fair_whatever_takes_turns(call_ns: list[float]) -> None:
    plans = planned(call_ns)
    assert len({plan.samples_per_batch for plan in plans}) == 1
    for one, plan in zip(call_ns, plans, strict=True):
        assert one * plan.calls_per_sample >= SHORTEST_SAMPLE_NS * (1 - 1e-9)
        for other, its in zip(call_ns, plans, strict=True):
            if max(one, other) < SIMILAR_FACTOR * min(one, other):
                assert plan == its


def test_the_loop_costs_the_same_where_as_many_calls_are_put_together(machine: VirtualMachine) -> None:
    clocks = [WallTimer(machine.call(ns)) for ns in (5_500.0, 5_600.0)]
    machine.read_ns = 90
    clocks.append(WallTimer(machine.call(5_700.0)))
    assert clocks[0].floor_ns != clocks[2].floor_ns
    plan_shared_batches(clocks)
    assert len({(clock.floor_ns, clock.batch_plan) for clock in clocks}) == 1


def test_warming_up_together_leaves_the_same_batches(machine: VirtualMachine) -> None:
    clocks = [WallTimer(machine.call(ns)) for ns in (24_900.0, 25_100.0)]
    assert clocks[0].calls_per_sample != clocks[1].calls_per_sample
    warm_up_all(clocks, budget_s=1.0)
    assert clocks[0].batch_plan == clocks[1].batch_plan


def test_a_worker_that_takes_turns_puts_its_subjects_together_alike(machine: VirtualMachine) -> None:
    prepared = [PreparedWorkload(machine.call(24_900.0)), PreparedWorkload(machine.call(25_100.0, slow={1: SLOW_NS}))]
    timer = SubjectTimer(prepared, ["a", "b"])
    timer.set_up("cpu:0", None, 60.0)
    stretch = timer.take(TakeBlock(duration_s=0.05))
    assert [series.calls_per_sample for series in stretch.series] == [3, 3]
    assert len({len(series.samples) for series in stretch.series}) == 1


def test_pairs_are_put_together_alike(machine: VirtualMachine) -> None:
    prepared = [PreparedWorkload(machine.call(24_900.0, slow={2: SLOW_NS})), PreparedWorkload(machine.call(25_100.0))]
    timer = SubjectTimer(prepared, ["a", "b"])
    timer.set_up("cpu:0", None, 60.0)
    series = timer.take_pair((0, 1), rounds=4, until_ns=machine.now_ns + 10**8, seed=0)
    assert len({each.calls_per_sample for each in series}) == 1


def test_lanes_put_calls_together_alike() -> None:
    machine = VirtualMachine()
    sides = [(machine.call(ns), lambda: None) for ns in (990_000.0, 1_010_000.0, 9_000.0)]
    assert probe_all_calls_per_sample(sides, machine.read) == [3, 3, 223]


def test_batches_on_a_gpu_go_by_the_shortest_first_call_of_those_alike() -> None:
    firsts = [FirstCalls(steady=True, least_us=us) for us in (25.0, 20.0, 300.0)]
    assert [each.least_us for each in equalize_first_calls(firsts)] == [20.0, 20.0, 300.0]


# Batches of a GPU: one sample of all calls, or one of each


def stamped(typical_us: float) -> QueueTimer:
    bench: Any = SimpleNamespace()
    clock = QueueTimer(bench, GpuCallBatch(lambda: None, "cold", calls=8))
    clock.average_by(typical_us)
    clock.typical_us = typical_us
    return clock


def test_a_slow_first_batch_does_not_decide_whether_short_calls_are_averaged() -> None:
    clock = stamped(3 * SHORT_US)
    assert clock.calls_per_sample == 1
    clock.typical_us = SHORT_US / 10
    assert clock.replan()
    assert clock.calls_per_sample == 8
    assert not clock.replan()


def test_calls_around_the_limit_do_not_go_back_and_forth() -> None:
    clock = stamped(0.99 * SHORT_US)
    clock.typical_us = 1.01 * SHORT_US
    assert not clock.replan()
    turns = [clock.typical_us * factor for factor in (0.01, 100.0) * 10]
    changes = 0
    for clock.typical_us in turns:
        changes += clock.replan()
    assert changes <= 4


def test_short_calls_that_take_turns_are_averaged_alike() -> None:
    clocks = [stamped(0.98 * SHORT_US), stamped(1.02 * SHORT_US), stamped(20 * SHORT_US)]
    equalize_plans(clocks)
    assert [clock.calls_per_sample for clock in clocks] == [8, 8, 1]


# The same function beside a busy neighbour


@pytest.mark.full
def test_a_function_is_not_called_faster_or_slower_than_itself_beside_a_busy_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = 0
    ratios = []
    for seed in range(20):
        machine = VirtualMachine(neighbour_every_ns=4e6, neighbour_ns=3e6, seed=seed)
        machine.install(monkeypatch)
        slow = {seed % 7 + 1: SLOW_NS}
        functions = {
            "a": machine.call(20_000.0, noise=0.05, seed=2 * seed),
            "b": machine.call(20_000.0, noise=0.05, seed=2 * seed + 1, slow=slow),
        }
        found = compare(functions, device="cpu", budget_s=1.0, seed=seed)
        wrong += found.verdict in {"faster", "slower"}
        ratios.append(found.others[0].ratio)
    assert wrong == 0
    assert abs(np.log(ratios)).max() < 0.01
