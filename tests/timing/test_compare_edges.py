"""Comparing at its edges, and what it rests on: rounds, verdicts, the host's clock, lanes, options, processes."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay
from assay.core.errors import BadInput, MachineCannot
from assay.core.results import GpuSnapshot
from assay.stats.sequential import InterimLook
from assay.timing import compare, options, wall
from assay.timing.compare import ComparisonRounds, ComparisonSetup, confirm_by_cycles
from assay.timing.conditions import ClockWatch, ContextSwitchCounter
from assay.timing.continuous import StreamSamples, WallCallStream, probe_calls_per_sample
from assay.timing.interleaved import RoundMedians, RoundOrder
from assay.timing.options import TimingOptions
from assay.timing.processes import combine_processes
from assay.timing.results import Comparison, Measurement, PickCandidate, ProcessTimes
from assay.timing.sampling import BatchPlan
from assay.timing.setup import BoundCall, FirstCalls, TimedCall, _digest, make_first_calls, set_up_wall_timer
from assay.timing.wall import TimedSubject, WallTimer
from tests.timing.faking import KnownRig, VirtualTime, nothing
from tests.timing.machine_clock import VirtualMachine
from tests.timing.test_measure_edges import Tape
from tests.timing.test_timing_processes import compared, measured, merged_all, us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.results import Verdict

EARLY, LATE = InterimLook(3, 0.125, early=True), InterimLook(6, 0.875)


def contest(*tapes: Tape, budget_s: float = 5.0, device: str = "cpu", **more: Any) -> ComparisonSetup:
    sides = [
        TimedCall(BoundCall(name, nothing), tape, "call_us", device, "")
        for name, tape in zip("abcd", tapes, strict=False)
    ]
    chosen = TimingOptions(device, "cold" if device != "cpu" else "warm", budget_s=budget_s, **more)
    return ComparisonSetup(tuple(sides), "call_us", 0.01, chosen)


class Rounds:
    """Rounds on a clock that is turned: how long one takes, the looks and the verdicts are said by the test."""

    def __init__(self, time: VirtualTime, patch: pytest.MonkeyPatch) -> None:
        self.time = time
        self.round_s = [1.0]
        self.looks = [EARLY, LATE]
        self.planned: list[tuple[int, int]] = []
        self.shared = 0
        self.tried = 0
        self.decided_at: set[int] = set()
        self.watch = ClockWatch(None)
        patch.setattr(compare, "shortest_round_s", self._round_seconds)
        patch.setattr(compare, "looks_between", self._plan)
        patch.setattr(compare, "equalize_plans", self._share)
        patch.setattr(compare, "_all_decided", lambda _, look, __: look.n in self.decided_at)

    def _round_seconds(self, _: object, __: float) -> float:
        self.tried += 1
        return self.round_s[min(self.tried, len(self.round_s)) - 1]

    def _plan(self, first: int, last: int) -> list[InterimLook]:
        self.planned.append((first, last))
        return self.looks

    def _share(self, _: object) -> None:
        self.shared += 1

    def tapes(self, count: int = 2, **how: Any) -> list[Tape]:
        return [Tape([[10.0]], self.time, took_s=(1.0 / count,), **how) for _ in range(count)]

    def taken(self, *tapes: Tape, seed: int = 0, budget_s: float = 5.0) -> ComparisonRounds:
        return compare._run_rounds(contest(*(tapes or self.tapes()), budget_s=budget_s), seed, self.watch)


@pytest.fixture
def rounds(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(virtual, monkeypatch)


@pytest.mark.parametrize(
    ("budget_s", "round_s", "likely"),
    [(100.0, 2.0, 50), (5.0, 2.0, 2), (1.0, 100.0, 2), (6.0, 2.0, 3), (1e6, 1.0, 50_000), (30.5e-9, 0.0, 30)],
)
def test_looks_are_planned_for_as_many_rounds_as_are_likely(
    budget_s: float, round_s: float, likely: int, rounds: Rounds
) -> None:
    rounds.round_s, rounds.decided_at = [round_s], {3}
    rounds.taken(*(replace(tape, took_s=(0.0,)) for tape in rounds.tapes()), budget_s=budget_s)
    assert (rounds.planned, rounds.tried, rounds.shared) == ([(64, likely)], 1, 0)


def test_rounds_are_tried_again_where_one_function_was_put_together_anew(rounds: Rounds) -> None:
    for replanned in (0, 1):
        rounds.planned, rounds.tried, rounds.shared, rounds.round_s = [], 0, 0, [1.0, 0.5]
        tapes = rounds.tapes()
        tapes[replanned].replans = (True,)
        rounds.taken(*tapes)
        assert (rounds.planned, rounds.tried, rounds.shared) == ([(64, 10)], 2, 1)


@pytest.mark.parametrize(
    ("budget_s", "pairs", "share"),
    [(5.0, 6, 0.875), (4.75, 5, 0.875), (2.0, 3, 0.875), (1.5, 2, 0.125), (0.5, 2, 0.125), (9.0, 10, 0.875)],
)
def test_the_last_round_begins_no_later_than_the_budget_ends_and_two_are_always_taken(
    budget_s: float, pairs: int, share: float, rounds: Rounds
) -> None:
    found = rounds.taken(budget_s=budget_s)
    assert (found.look, found.stopped) == (InterimLook(pairs, share), "budget spent")
    assert [len(turn.us) for turn in found.medians] == [pairs, pairs]
    assert len(rounds.watch.labels) == pairs


def test_rounds_end_where_all_is_decided_at_a_planned_look_or_at_the_end(rounds: Rounds) -> None:
    for at, pairs in ((3, 3), (6, 6)):
        rounds.decided_at = {at}
        found = rounds.taken()
        assert (found.look.n, len(found.medians[0].us), found.stopped) == (pairs, pairs, "decided")
    assert found.look.share == LATE.share


def test_as_many_rounds_as_are_kept_ended_it_where_they_were_taken_in_time(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MAX_ROUNDS", 4)
    for budget_s, stopped in ((100.0, "sample limit"), (4.0, "sample limit"), (3.75, "budget spent")):
        found = rounds.taken(budget_s=budget_s)
        assert (found.look.n, found.stopped) == (4, stopped)


def test_a_function_without_rivals_takes_its_rounds_too(rounds: Rounds) -> None:
    (alone,) = rounds.tapes(1)
    found = rounds.taken(alone)
    assert (len(found.medians), found.look.n) == (1, 6)
    told = compare._build_comparison(contest(alone), found, ClockWatch(None), 1.0)
    assert (told.others, told.pairs) == ((), 6)


def turn(*us_: float, cycles: Sequence[float] = (), mhz: Sequence[float] = ()) -> RoundMedians:
    return RoundMedians(list(us_), list(cycles), list(mhz))


class Judge:
    """Stands for what compares two sides: what it was asked is kept, and what it says goes by the second side."""

    def __init__(self, patch: pytest.MonkeyPatch, **says: str) -> None:
        self.asked: list[tuple[list[float], list[float], float]] = []
        self._says = says
        patch.setattr(compare, "compare_at_look", self)

    def __call__(
        self, first: Any, second: Any, look: InterimLook, *, minimum_effect: float, confidence: float, block: int
    ) -> Any:
        assert (minimum_effect, block) == (0.01, 2)
        self.asked.append((first.tolist(), second.tolist(), confidence))
        ratio = float(second[0] / first[0])
        verdict = self._says.get(f"at_{second[0]:g}", "unsure")
        return SimpleNamespace(verdict=verdict, ratio=ratio, low=0.5, high=2.0, reason="why", caveat="too early")


def test_the_error_is_shared_among_the_functions_beside_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for others, confidence in ((1, 0.95), (2, 0.975), (5, 0.99)):
        judge = Judge(monkeypatch)
        turns = [turn(5.0, 0.0), *[turn(0.0, 7.0)] * others]
        compare._compare_to_first(turns, 1, InterimLook(2, 1.0), 0.01)
        ((first, second, asked),) = judge.asked
        assert (first, second) == ([5.0, 1e-6], [1e-6, 7.0])
        assert asked == pytest.approx(confidence)


def test_it_is_decided_where_every_other_function_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, decided in (((7.0, 8.0), True), ((7.0, 9.0), False), ((9.0, 7.0), False)):
        judge = Judge(monkeypatch, at_7="slower", at_8="same")
        turns = [turn(5.0), *(turn(us_) for us_ in seconds)]
        assert compare._all_decided(turns, InterimLook(1, 1.0), 0.01) == decided
        assert all(second != [5.0] for _, second, _ in judge.asked)


def told(*turns: RoundMedians, device: str = "cpu", **more: Any) -> Comparison:
    tapes = [Tape([[1.0]], method=f"tape {place}") for place in range(len(turns))]
    raced = ComparisonRounds(turns, InterimLook(len(turns[0].us), 1.0), "decided")
    return compare._build_comparison(contest(*tapes, device=device, **more), raced, ClockWatch(None), 2.5)


def test_a_comparison_tells_each_function_against_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, at_7="slower", at_4="faster")
    found = told(turn(5.0, 5.0, 6.0), turn(7.0, 7.0, 7.0), turn(4.0, 4.0, 4.0))
    assert (found.first, found.first_us.value, found.pairs, found.stopped, found.took_s) == (
        "a",
        5.0,
        3,
        "decided",
        2.5,
    )
    assert [(o.name, o.verdict, o.ratio, o.time_us.value) for o in found.others] == [
        ("b", "slower", 1.4, 7.0), ("c", "faster", 0.8, 4.0),
    ]  # fmt: skip
    assert {(o.low, o.high, o.reason, o.caveat, o.cycles_verdict) for o in found.others} == {
        (0.5, 2.0, "why", "too early", None)
    }
    assert found.methods == {"a": "tape 0", "b": "tape 1", "c": "tape 2"}
    assert found.series == {"a": (5.0, 5.0, 6.0), "b": (7.0, 7.0, 7.0), "c": (4.0, 4.0, 4.0)}
    assert (found.device, found.cache, found.quantity, found.minimum_effect) == ("cpu", "warm", "call_us", 0.01)
    assert told(turn(5.0), turn(7.0), device="cuda:0").cache == "cold"
    assert told(turn(5.0), turn(7.0), device="cuda:0").device == "cuda:0"


def test_cycles_are_compared_where_both_sides_counted_them_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, partly, uncounted = turn(5.0, 5.0, cycles=(50.0, 50.0)), turn(7.0, 7.0, cycles=(70.0,)), turn(7.0, 7.0)
    Judge(monkeypatch, at_7="slower", at_70="faster", at_50="same")
    both = told(counted, turn(7.0, 7.0, cycles=(70.0, 70.0)), counted).others
    assert [(o.cycles_verdict, o.cycles_ratio) for o in both] == [("faster", 1.4), ("same", 1.0)]
    for first, second in ((counted, partly), (counted, uncounted), (uncounted, counted), (partly, counted)):
        (other,) = told(first, second).others
        assert (other.cycles_verdict, other.cycles_ratio) == (None, None)


def test_a_verdict_that_is_taken_back_says_that_the_clock_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    Judge(monkeypatch, at_7="slower", at_70="same")
    sides = [turn(us_, us_, us_, cycles=(10 * us_,) * 3, mhz=mhz) for us_, mhz in (
        (5.0, (1000.0, 1000.0, 1300.0)), (7.0, (900.0, 900.0, 600.0)),
    )]  # fmt: skip
    found = told(*sides)
    (other,) = found.others
    assert (other.verdict, other.caveat) == ("unsure", "clock moved")
    assert other.reason == "it is slower in time, and in cycles same: the clock moved (1000 and 900 MHz in the median)"
    assert (found.clock.mhz_low, found.clock.mhz, found.clock.mhz_high) == (600.0, 950.0, 1300.0)


@pytest.mark.parametrize(
    ("first_mhz", "second_mhz", "verdict"),
    [
        ((995.0, 1000.0), (1005.0,), "slower"),
        ((995.0, 1000.0), (1005.5,), "unsure"),
        ((1000.0,) * 4, (990.0,), "slower"),
        ((1000.0,) * 4, (989.9,), "unsure"),
        ((), (1000.0,), "slower"),
        ((), (), "slower"),
    ],
)
def test_a_clock_has_moved_where_it_did_so_by_more_than_a_hundredth_of_its_median(
    first_mhz: tuple[float, ...], second_mhz: tuple[float, ...], verdict: Verdict
) -> None:
    first, second = turn(1.0, mhz=first_mhz), turn(1.0, mhz=second_mhz)
    assert confirm_by_cycles("slower", "same", first, second)[0] == verdict
    assert confirm_by_cycles("slower", "slower", first, second) == ("slower", None)
    assert confirm_by_cycles("slower", None, first, second) == ("slower", None)
    assert confirm_by_cycles("same", "slower", first, second) == ("same", None)


class Whole:
    """Functions that play tapes, compared from end to end."""

    def __init__(self, time: VirtualTime, patch: pytest.MonkeyPatch) -> None:
        self._time, self._patch = time, patch
        self.turns: list[str] = []
        self.chosen: list[TimingOptions] = []
        self.device = "cpu"
        self.own: Any = None

    def __call__(self, names: str = "012", **how: Any) -> Comparison:
        self.turns.clear()
        whole = self

        class Noted(Tape):
            def take(self) -> Any:
                whole.turns.append(self.method)
                return super().take()

        instruments: dict[str, Any] = {
            name: Noted([[10.0 + n]], self._time, took_s=(0.125,), method=name) for n, name in enumerate(names)
        }

        class Rig(KnownRig):
            def first_calls(self, bound: BoundCall, options: TimingOptions) -> FirstCalls:
                whole.chosen.append(options)
                return super().first_calls(bound, options)

            def set_up(self, bound: BoundCall, options: TimingOptions, first: FirstCalls) -> TimedCall:
                made = super().set_up(bound, options, first)
                return made if bound.name == "0" else replace(made, device="cpu")

            def reader(self) -> Any:
                return whole.own

        Rig(instruments, device=self.device).install(self._patch)
        return assay.compare(dict.fromkeys(names, nothing), **{"budget_s": 3.0, **how})


@pytest.fixture
def whole(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Whole:
    return Whole(virtual, monkeypatch)


def test_functions_take_turns_in_the_order_of_seed_0_unless_another_is_given(whole: Whole) -> None:
    for seed in (0, 5):
        found = whole(seed=seed) if seed else whole()
        order = RoundOrder(seed)
        expected = [str(place) for _ in range(found.pairs) for place in order.next(range(3))]
        assert whole.turns[-3 * found.pairs :] == expected
        assert found.took_s == pytest.approx(0.125 * len(whole.turns))
    assert {chosen.batch_us for chosen in whole.chosen} == {800.0}


def test_a_comparison_reads_the_clock_by_the_reader_that_is_given_or_by_the_devices_own(whole: Whole) -> None:
    given, whole.own = (lambda uuid=uuid: GpuSnapshot(uuid=uuid) for uuid in ("given", "own"))
    for found, uuid in ((whole(reader=given), "given"), (whole(), "own")):
        clock = found.clock
        assert clock.before is not None
        assert clock.after is not None
        assert (clock.before.uuid, clock.after.uuid) == (uuid, uuid)


def test_others_that_took_the_core_are_noted_where_the_host_was_timed(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContextSwitchCounter, "notes", lambda _: ("busy here",))
    assert whole().notes == ("busy here",)
    whole.device = "cuda:0"
    on_gpu = whole()  # the others have nothing to do there, and are timed on the host
    assert (on_gpu.notes, on_gpu.device) == ((), "cuda:0")


def test_two_functions_and_an_effect_between_nothing_and_all_are_enough(whole: Whole) -> None:
    for functions in ({"0": nothing}, [nothing, nothing]):
        with pytest.raises(BadInput, match="at least two functions"):
            assay.compare(functions)  # type: ignore[arg-type]
    for effect in (0, 1):
        with pytest.raises(BadInput, match="minimum_effect is a share"):
            whole(minimum_effect=effect)
    assert whole("01", minimum_effect=0.5).minimum_effect == 0.5


# The host's clock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    made = VirtualMachine(now_ns=0, read_ns=0)
    made.install(monkeypatch)
    return made


class Fickle:
    """A call on a machine that only keeps time; how long it takes can be changed."""

    def __init__(self, machine: VirtualMachine, ns: int) -> None:
        self._machine = machine
        self.ns = ns
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._machine.passes(self.ns)


@pytest.mark.parametrize(
    ("ns", "plan"),
    [
        (50_000, (1, 16)), (49_999, (2, 16)), (1_000, (50, 16)), (125_000, (1, 16)), (200_000, (1, 10)),
        (666_667, (1, 2)), (5_000_000, (1, 1)),
    ],
)  # fmt: skip
def test_calls_are_put_together_to_samples_of_fifty_and_batches_of_two_thousand_microseconds(
    ns: int, plan: tuple[int, int], machine: VirtualMachine
) -> None:
    clock = WallTimer(machine.call(ns))
    assert (clock.batch_plan, clock.shortest_ns) == (BatchPlan(*plan), ns)
    assert clock.take().quantities["call_us"] == pytest.approx([ns / 1000] * plan[1])


def test_a_call_under_a_microsecond_is_noted_as_short(machine: VirtualMachine) -> None:
    for ns, notes in ((1_000, 0), (999, 1)):
        found = set_up_wall_timer(
            BoundCall("f", machine.call(ns)), TimingOptions("cpu", "warm"), FirstCalls(True, 1.0), why=""
        )
        assert len(found.notes) == notes


def test_a_probe_is_repeated_three_times_at_most_and_never_for_less_than_three_samples(machine: VirtualMachine) -> None:
    call = Fickle(machine, 1_000)
    clock = WallTimer(call)
    for again, ns in ((True, 10_000), (True, 1_000), (True, 10_000), (False, 1_000)):
        call.ns = ns
        for _ in range(2):
            clock.sample_us()
        assert not clock.replan()
        clock.sample_us()
        before = clock.calls_per_sample
        assert clock.replan() == again
        assert (clock.calls_per_sample != before) == again


def test_calls_timed_alone_are_not_probed_again(machine: VirtualMachine) -> None:
    call = Fickle(machine, 1_000)
    clock = WallTimer(call, single_calls=True)
    for _ in range(5):
        clock.sample_us()
    made = call.calls
    assert not clock.replan()
    assert call.calls == made


def test_samples_that_last_as_planned_do_not_contradict_however_long_that_is(machine: VirtualMachine) -> None:
    call = Fickle(machine, 1_000)
    clock = WallTimer(call)
    clock.use(BatchPlan(200, 4), 0.0)
    clock.take()
    made = call.calls
    assert not clock.replan()
    call.ns = 2_000
    clock.use(BatchPlan(200, 4), 0.0)
    clock.take()
    assert not clock.replan()
    assert call.calls == made + 800
    call.ns = 2_001
    clock.use(BatchPlan(200, 4), 0.0)
    clock.take()
    assert clock.replan()


def test_one_slow_sample_of_three_contradicts_nothing_and_a_probe_that_finds_the_same_changes_nothing(
    machine: VirtualMachine,
) -> None:
    call = Fickle(machine, 1_000)
    clock = WallTimer(call)
    for ns in (1_000, 1_000, 100_000):
        call.ns = ns
        clock.sample_us()
    made = call.calls
    assert not clock.replan()
    assert call.calls == made
    for _ in range(3):
        clock.sample_us()
    call.ns = 1_000
    assert not clock.replan()
    assert call.calls > made + 3 * 50


def test_only_the_last_sixteen_samples_can_contradict(machine: VirtualMachine) -> None:
    call = Fickle(machine, 1_000)
    clock = WallTimer(call)
    for slow, again in ((7, False), (8, True)):
        clock.use(BatchPlan(50, 1), 0.0)
        for ns in [1_000] * 30 + [10_000] * slow:
            call.ns = ns
            clock.sample_us()
        made = call.calls
        clock.replan()
        assert (call.calls > made) == again


def test_what_the_loop_costs_is_taken_off_and_no_time_is_less_than_nothing(machine: VirtualMachine) -> None:
    clock = WallTimer(machine.call(1_000))
    clock.use(BatchPlan(5, 1), 30.0)
    assert clock.sample_us() == pytest.approx(0.97)
    clock.use(BatchPlan(5, 1), 1_030.0)
    assert clock.sample_us() == 0.0


def test_the_loop_costs_the_least_of_five_each_time_round(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter([0, 500, 1000, 1300, 2000, 2400, 3000, 3600, 4000, 4350])
    monkeypatch.setattr(wall, "time", SimpleNamespace(perf_counter_ns=lambda: next(at)))
    assert wall._loop_overhead_ns(100) == 3.0
    assert list(at) == []
    assert wall._loop_overhead_ns(1) == 0.0


def test_clocks_that_share_batches_are_planned_together_those_alone_among_themselves(machine: VirtualMachine) -> None:
    clocks = [WallTimer(machine.call(ns), single_calls=ns >= 500_000) for ns in (400, 40_000, 500_000, 700_000)]
    wall.plan_shared_batches(clocks)
    assert [clock.batch_plan for clock in clocks] == [
        BatchPlan(200, 16),
        BatchPlan(2, 16),
        BatchPlan(1, 2),
        BatchPlan(1, 2),
    ]
    wall.plan_shared_batches([])


# The plain timer


def timed(call: Callable[[], object], **how: Any) -> TimedSubject:
    return TimedSubject(call, nothing, **how)


def test_each_of_several_subjects_warms_up_for_its_part_of_a_tenth_of_the_time(machine: VirtualMachine) -> None:
    first, reporting = Fickle(machine, 10_000_000), Fickle(machine, 10_000_000)
    subjects = [timed(first), timed(reporting, reports_extras=True)]
    assert wall.warm_up_subjects(subjects, runs=None, share_s=1.0) == (1, 1)
    assert (first.calls, reporting.calls) == (5, 0)
    long = Fickle(machine, 60_000_000)
    wall.warm_up_subjects([timed(long)], runs=None, share_s=0.5)
    assert long.calls == 2
    unshared = Fickle(machine, 1_000)
    assert wall.warm_up_subjects([timed(unshared)], runs=None, share_s=0.0) == (1,)
    assert unshared.calls == 0


@pytest.mark.parametrize(("ns", "calls"), [(50_000, 1), (49_999, 2), (60_000, 1), (1, 50_000), (1_000, 50)])
def test_a_plain_sample_lasts_fifty_microseconds(ns: int, calls: int, machine: VirtualMachine) -> None:
    assert wall.warm_up_subjects([timed(machine.call(ns))], runs=None, share_s=1e-7) == (calls,)


def test_a_call_that_takes_no_time_is_taken_for_a_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "_warm_up_subject", lambda _, __: 0.0)
    assert wall.warm_up_subjects([timed(nothing)], runs=None, share_s=1.0) == (50_000,)


def test_a_number_of_runs_is_obeyed_and_each_call_is_a_sample(machine: VirtualMachine) -> None:
    calls = [Fickle(machine, 10), Fickle(machine, 10)]
    assert wall.warm_up_subjects([timed(call) for call in calls], runs=3, share_s=9.0) == (1, 1)
    assert [call.calls for call in calls] == [3, 3]


def test_plain_rounds_end_exactly_at_the_moment_or_with_their_number(machine: VirtualMachine) -> None:
    for until_ns, samples, taken in ((3_000, None, 3), (3_001, None, 4), (None, 2, 2), (0, None, 1), (9_000, 5, 5)):
        machine.now_ns = 0
        block = wall.time_rounds([timed(machine.call(1_000))], [1], samples=samples, until_ns=until_ns, seed=0)
        assert (block.start_ns, block.end_ns, len(block.samples[0].call_us)) == (0, 1_000 * taken, taken)
    block = wall.time_rounds([timed(machine.call(1_000))], [4], samples=1, until_ns=None, seed=0)
    assert list(block.samples[0].call_us) == [1.0]
    assert wall.MAX_KEPT_SAMPLES == 2_000_000


def test_plain_rounds_of_two_are_shuffled(machine: VirtualMachine) -> None:
    order: list[int] = []
    subjects = [timed(lambda n=n: order.append(n)) for n in range(2)]  # type: ignore[misc]
    wall.time_rounds(subjects, [1, 1], samples=30, until_ns=None, seed=3)
    firsts = order[::2]
    assert {*firsts} == {0, 1}
    expected, shuffle = [0, 1], random.Random(3).shuffle
    shuffle(expected)
    assert order[:2] == expected


# Lanes


def test_a_lane_counts_from_nothing_before_it_starts_and_from_its_start_then() -> None:
    machine = VirtualMachine(now_ns=5_000, read_ns=0)
    lane = WallCallStream([timed(machine.call(3_000))], [2], clock=machine.read)
    lane.launch(0)
    assert (lane.busy_ns, lane.round_ns, lane.ahead_ns) == (6_000, 6_000, 0.0)
    assert {s.quantity: list(s.samples) for s in lane.series()} == {"call_us": [3.0], "start_us": [5.0]}
    assert lane.start() == 11_000
    lane.launch(0)
    lane.launch(0)
    assert {s.quantity: list(s.samples) for s in lane.series()} == {"call_us": [3.0, 3.0], "start_us": [0.0, 6.0]}
    assert (lane.busy_ns, {s.calls_per_sample for s in lane.series()}) == (12_000, {2})


def test_a_lane_that_is_full_makes_samples_of_twice_the_calls() -> None:
    machine = VirtualMachine(now_ns=0, read_ns=0)
    lane = WallCallStream([timed(machine.call(1_000)), timed(machine.call(500))], [1, 1], most=4, clock=machine.read)
    lane.start()
    for _ in range(3):
        lane.launch(0)
    assert lane.round_ns == 1_000
    lane.launch(0)
    assert lane.round_ns == 2_000
    told = [(s.subject, s.quantity, list(s.samples), s.calls_per_sample) for s in lane.series()]
    assert told == [
        (0, "call_us", [1.0, 1.0], 2), (0, "start_us", [0.0, 2.0], 2), (1, "call_us", [], 1), (1, "start_us", [], 1),
    ]  # fmt: skip
    lane.launch(1)
    assert lane.round_ns == 2_500


def test_neighbours_are_put_together_with_what_they_reported() -> None:
    kept = StreamSamples(3, most=5)
    for n, call_us in enumerate((10.0, 14.0, 20.0, 26.0, 90.0)):
        assert not kept.full
        kept.add(100.0 * n, 30.0, {"call_us": call_us, "gflops": 2.0 * n})
    assert (kept.full, kept.last_ns) == (True, 30_000.0)
    kept.thin_out()
    assert {s.quantity: (list(s.samples), s.calls_per_sample) for s in kept.series(0, "call_us")} == {
        "call_us": ([12.0, 23.0], 6), "start_us": ([0.0, 200.0], 6), "gflops": ([1.0, 5.0], 6),
    }  # fmt: skip
    assert kept.last_ns == 60_000.0


def test_calls_of_a_lane_are_probed_over_four_milliseconds_and_make_samples_of_two() -> None:
    machine = VirtualMachine(now_ns=0, read_ns=0)
    for ns, together, calls in ((400_000, 5, 32), (1_000_000, 2, 14), (1_900_000, 2, None), (5_000_000, 1, 4)):
        call = Fickle(machine, ns)
        assert probe_calls_per_sample(call, nothing, machine.read) == together
        assert calls is None or call.calls == calls


# Options


def test_options_that_nobody_names_are_these() -> None:
    assert TimingOptions("cpu", "warm") == TimingOptions(
        device="cpu", cache="warm", method="auto", precision=0.01, budget_s=10.0, times=("busy", "span", "call"),
        limit_s=60.0, setup=None, lock_mhz=None, reader=None, batch_us=2000.0,
    )  # fmt: skip
    assert [TimingOptions(device, "warm").index for device in ("cuda", "cuda:0", "cuda:3")] == [0, 0, 3]
    assert [TimingOptions(device, "warm").on_gpu for device in ("cuda", "cuda:1", "cpu")] == [True, True, False]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, current_device=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def asked(**how: Any) -> TimingOptions:
    given: dict[str, Any] = {
        "device": "cpu", "cache": None, "method": "auto", "precision": 0.01, "budget_s": 1.0, "times": ("call",),
        "limit_s": 1.0,
    }  # fmt: skip
    return options.resolve_options(**{**given, **how})


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"precision": 0}, "precision is a share between 0 and 1, such as 0.01 for ±1 %, not 0."),
        ({"precision": 1}, "precision is a share between 0 and 1, such as 0.01 for ±1 %, not 1."),
        ({"precision": "x"}, "precision is a share between 0 and 1, such as 0.01 for ±1 %, not 'x'."),
        ({"precision": True}, "precision is a share between 0 and 1, such as 0.01 for ±1 %, not True."),
        ({"budget_s": 0}, "budget_s is a positive number of seconds, not 0."),
        ({"budget_s": float("inf")}, "budget_s is a positive number of seconds, not inf."),
        ({"budget_s": "1"}, "budget_s is a positive number of seconds, not '1'."),
        ({"limit_s": -1}, "limit_s is a positive number of seconds, not -1."),
        ({"limit_s": 0.0009}, "limit_s is 0.001 s at least, not 0.0009."),
        ({"lock_mhz": 0.5}, "lock_mhz is a clock in MHz, such as 1410, not 0.5."),
        ({"lock_mhz": "x"}, "lock_mhz is a clock in MHz, such as 1410, not 'x'."),
        ({"times": ()}, "times must name at least one of busy, span and call."),
        ({"device": "cpu:1"}, "device is cpu, cuda or cuda:N, not 'cpu:1': groups of cores are for `assay run`."),
        ({"device": "cuda:x"}, "device is cpu, cuda or cuda:N, not 'cuda:x'."),
        ({"device": "tpu"}, "device is cpu, cuda or cuda:N, not 'tpu'."),
        ({"device": "tpu:1"}, "device is cpu, cuda or cuda:N, not 'tpu:1'."),
    ],
)
def test_an_option_that_makes_no_sense_is_named_with_what_would(how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as error:
        asked(**how)
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"cache": "cold"}, "cache='cold'"),
        ({"cache": "cold", "method": "graph"}, "cache='cold'"),
        ({"method": "trace"}, "method='trace'"),
        ({"lock_mhz": 1410}, "lock_mhz"),
        ({"method": "wall", "lock_mhz": 1410}, "method='wall'"),
    ],
)
def test_what_is_for_a_gpu_is_refused_on_a_cpu(how: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput) as error:
        asked(**how)
    assert (
        str(error.value) == f"{named} is for a GPU; cpu is timed by the host's clock, its caches as calls leave them."
    )


@pytest.mark.usefixtures("two_gpus")
def test_what_is_just_allowed_is_taken() -> None:
    assert asked(limit_s=0.001).limit_s == 0.001
    assert asked(precision=0.999, cache="warm", method="wall") == TimingOptions(
        "cpu", "warm", "wall", 0.999, 1.0, ("call",), 1.0, None, None, None, 2000.0
    )
    assert asked().cache == "warm"
    assert (asked(device="cuda", lock_mhz=1).lock_mhz, asked(device="cuda", cache="warm").cache) == (1, "warm")
    assert [asked(device=device).device for device in ("cuda", "cuda:0", "cuda:1", None)] == [
        "cuda:1", "cuda:0", "cuda:1", "cuda:1",
    ]  # fmt: skip
    assert asked(device="cuda", method="graph").cache == "cold"
    with pytest.raises(MachineCannot, match=r"^There is no cuda:2: PyTorch here sees 2 GPUs\.$"):
        asked(device="cuda:2")


def test_a_gpu_is_the_default_where_pytorch_is_loaded_and_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert asked(device=None).device == "cpu"
    blind = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False, current_device=lambda: 0))
    monkeypatch.setitem(sys.modules, "torch", blind)
    assert asked(device=None).device == "cpu"


def test_on_a_cpu_only_calls_can_decide() -> None:
    cpu, gpu = TimingOptions("cpu", "warm"), TimingOptions("cuda:0", "warm")
    for by, on in ((None, cpu), ("call", cpu), ("busy", gpu), ("span", gpu), ("call", gpu)):
        options.require_time_kind(by, on)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"^by='busy' is for a GPU; on cpu there is only call\.$"):
        options.require_time_kind("busy", cpu)
    with pytest.raises(BadInput, match="by is one of busy, span, call, not 'wait'"):
        options.require_time_kind("wait", gpu)  # type: ignore[arg-type]


# Processes and values


def test_an_unsteady_process_counts_only_with_both_ends_of_its_interval() -> None:
    values = [us(value) for value in (100.0, 100.5, 100.0)]
    wide = us(100.0).model_copy(update={"low": 10.0, "high": 190.0})
    halves = [
        us(100.0).model_copy(update=update) for update in ({"low": 1.0, "high": None}, {"low": None, "high": 1e3})
    ]
    found = combine_processes(values, [*halves, wide])
    assert (found.low, found.high) == (10.0, 190.0)


def test_the_least_difference_that_counts_is_that_of_the_first_process() -> None:
    one, other = compared(1.1), compared(1.1001)
    second = other.model_copy(update={"minimum_effect": 0.5, "others": other.others * 3})
    assert merged_all([one, second]).verdict == merged_all([one, other]).verdict == "slower"
    assert merged_all([one, second]).others[0].low == merged_all([one, other]).others[0].low


def test_values_say_nothing_of_what_nobody_counted() -> None:
    assert ProcessTimes(process=1) == ProcessTimes(
        process=1, status="ok", reason=None, times={}, ratios={}, samples=0, took_s=0.0
    )
    assert PickCandidate(name="a") == PickCandidate(name="a", config=None, status="ok", reason=None, rounds=0)
    for made in (measured(1.0), compared(1.5)):
        told = {name: value for name, value in dict(made).items() if name != "processes"}
        assert type(made).model_validate(told).processes == 1
        for fewest, right in ((1, True), (0, False)):
            kind: type[Measurement | Comparison] = type(made)
            if right:
                assert kind.model_validate({**told, "processes": fewest}).processes == fewest
            else:
                with pytest.raises(ValueError, match="processes"):
                    kind.model_validate({**told, "processes": fewest})
    with pytest.raises(ValueError, match="process"):
        ProcessTimes(process=0)


# Subjects


class Foreign:
    """Something that can be put into another shape, and tells none."""

    def __init__(self) -> None:
        self.values = np.zeros(3)

    def reshape(self, _: int) -> Any:
        return self.values


def test_only_what_has_a_shape_and_can_be_put_into_another_is_looked_at() -> None:
    assert _digest(Foreign()) is None
    assert _digest(SimpleNamespace(shape=(3,))) is None
    assert _digest(np.zeros(3)) == bytes(24)
    foreign = Foreign()

    def changing() -> None:
        foreign.values += 1

    assert make_first_calls(BoundCall("f", changing, (foreign,)), nothing, 60.0).notes == ()
