"""More edges of timing, on values worked out by hand: budgets, batches, what processes say together, and words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay.timing.cuda.device
from assay.core.errors import BadInput, TrialFailed
from assay.core.results import GpuSnapshot
from assay.timing import do_bench, interleaved, pick
from assay.timing.cuda import timers
from assay.timing.options import TimingOptions
from assay.timing.processes import combine_processes
from assay.timing.results import ClockSummary, Pick, PickCandidate, describe_precision, describe_scope, format_clock
from assay.timing.sampling import SampleBatch
from assay.timing.setup import BoundCall, CudaTimerSetup, FirstCalls, calls_per_batch, set_up_wall_timer
from tests.launch.test_one_shot import Starts, ran, timed
from tests.timing.faking import Known, KnownRig, VirtualTime, noisy, nothing
from tests.timing.machine_clock import VirtualMachine
from tests.timing.test_interleaved import rigged
from tests.timing.test_timing_edges import Tape
from tests.timing.test_timing_processes import T_OF_2, compared, measured, merged, merged_all, us
from tests.timing.test_timing_results import comparison, measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.timing.options import ClockReader
    from assay.timing.sampling import Instrument


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``do_bench`` asks to be measured; the samples are 1, 2, 9 and 4 ms."""
    calls: list[Any] = []

    def measure(_function: object, **options: object) -> Any:
        calls.append(SimpleNamespace(**options))
        return SimpleNamespace(series={"span_us": (1000.0, 2000.0, 9000.0, 4000.0)})

    monkeypatch.setattr(do_bench, "measure", measure)
    return calls


def test_do_bench_returns_what_is_asked_for_in_milliseconds(asked: list[Any]) -> None:
    found = {mode: do_bench.do_bench(nothing, return_mode=mode) for mode in ("min", "max", "mean", "median", "all")}
    assert found == {"min": 1.0, "max": 9.0, "mean": 4.0, "median": 3.0, "all": [1.0, 2.0, 9.0, 4.0]}
    assert do_bench.do_bench(nothing, quantiles=[0.5]) == 3.0
    assert do_bench.do_bench(nothing, quantiles=[1.0, 0.0]) == [9.0, 1.0]


def test_do_bench_spends_warm_up_and_repetitions_together_and_a_millisecond_at_least(asked: list[Any]) -> None:
    do_bench.do_bench(nothing)
    do_bench.do_bench(nothing, warmup=0, rep=0)
    do_bench.do_bench(nothing, warmup=3, rep=4)
    assert [each.budget_s for each in asked] == pytest.approx([0.125, 0.001, 0.007])


def test_do_bench_removes_gradients_only_where_there_are_some_to_remove(asked: list[Any]) -> None:
    tensors = [SimpleNamespace(grad=1), SimpleNamespace(grad=2)]
    do_bench.do_bench(nothing)
    do_bench.do_bench(nothing, grad_to_none=tensors)
    assert asked[0].setup is None
    asked[1].setup()
    assert [tensor.grad for tensor in tensors] == [None, None]


@dataclass
class Lasting(Tape):
    """A tape whose batches last so long each, in binary fractions of a second; the last one's length stays."""

    time: VirtualTime = field(default_factory=VirtualTime)
    took_s: Sequence[float] = (0.25,)

    def take(self) -> SampleBatch:
        self.time.now_s += self.took_s[min(self.taken, len(self.took_s) - 1)]
        return super().take()


class Race:
    """Candidates that play tapes, a quarter of a second a batch, on a rig that may have a reader."""

    def __init__(self, virtual: VirtualTime, patch: pytest.MonkeyPatch) -> None:
        self._virtual, self._patch = virtual, patch
        self.turns: list[str] = []

    def __call__(self, tapes: dict[str, Sequence[float]], own: ClockReader | None = None, **options: Any) -> Pick:
        self.turns.clear()
        instruments: dict[str, Instrument] = {
            name: Lasting(name, [[value] * 5 for value in values], self.turns, calls_per_sample=3, time=self._virtual)
            for name, values in tapes.items()
        }
        KnownRig(instruments).install(self._patch)
        self._patch.setattr(KnownRig, "reader", lambda _: own)
        return pick.pick(dict.fromkeys(tapes, nothing), **options)


@pytest.fixture
def race(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Race:
    return Race(virtual, monkeypatch)


def test_a_round_begins_exactly_at_the_end_of_the_budget_and_none_after_it(race: Race) -> None:
    # A round takes 0.5 s, the one that warms up too: the third that counts begins at 1.5 s and ends at 2 s.
    found = race({"a": [9.0, 10.0, 40.0, 10.0], "b": [9.0, 30.0, 11.0, 12.0]}, budget_s=1.5)
    assert (found.stopped, found.rounds, found.took_s) == ("budget spent", 3, 2.0)
    assert found.calls == 2 * 4 * 5 * 3
    assert {place.name: place.time_us for place in found.ranking} == {"a": 10.0, "b": 12.0}
    assert (found.time_us, found.tolerance) == ({"a": 10.0, "b": 12.0}[found.winner], 0.01)


def test_rounds_are_those_of_who_stayed_longest(race: Race) -> None:
    found = race({"a": [9.0, 10.0], "fails at once": []})
    assert (found.winner, found.rounds, found.ranking[-1].rounds) == ("a", 1, 0)


def test_the_order_of_candidates_is_that_of_seed_0_unless_another_is_given(race: Race) -> None:
    tapes: dict[str, Sequence[float]] = {name: [9.0, 10.0, 40.0, 10.0] for name in "01234"}
    race(tapes, budget_s=0.1)
    order = interleaved.RoundOrder(0)
    assert race.turns == [str(place) for _ in range(2) for place in order.next(range(5))]


def test_the_clock_is_read_by_the_reader_that_is_given_or_by_that_of_the_device(race: Race) -> None:
    given, own = (lambda uuid=uuid: GpuSnapshot(uuid=uuid) for uuid in ("given", "own"))
    seen = [race({"a": [1.0]}, own, **how).clock.before for how in ({"reader": given}, {})]
    assert [moment.uuid if moment else None for moment in seen] == ["given", "own"]


@pytest.mark.parametrize("tolerance", [1, 1.5, -0.5])
def test_a_tolerance_of_all_or_more_is_bad_input(tolerance: float, race: Race) -> None:
    with pytest.raises(BadInput, match="tolerance is a share"):
        race({"a": [1.0]}, tolerance=tolerance)


def test_a_turn_keeps_medians_and_not_means() -> None:
    turn = interleaved.RoundMedians()
    turn.add(SampleBatch({"busy_us": np.array([1.0, 9.0, 2.0]), "cycles": np.array([10.0, 90.0, 20.0])}), "busy_us")
    assert (turn.us, turn.cycles) == ([2.0], [20.0])


def test_each_time_has_its_own_instrument_where_there_is_one() -> None:
    wall, beside = (Known(VirtualTime(), noisy(1.0), method=method) for method in ("wall", "beside"))
    many, alone = rigged("span_us", wall=wall, busy_instrument=beside), rigged("span_us")
    assert [interleaved.instrument_for(many, q).method for q in ("call_us", "busy_us", "span_us")] == [
        "wall", "beside", "known",
    ]  # fmt: skip
    assert {interleaved.instrument_for(alone, q).method for q in ("call_us", "busy_us", "span_us")} == {"known"}


def test_those_that_warm_up_divide_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float] = []
    monkeypatch.setattr(interleaved, "warm_up", lambda _, budget_s: budgets.append(budget_s))
    interleaved.warm_up_all([Tape(name, [[1.0]]) for name in "abcd"], 2.0)
    assert budgets == [0.5] * 4


@pytest.mark.parametrize(
    ("took_s", "budget_s", "tried", "least_s"),
    [([3.0, 1.0, 2.0], 1000.0, 3, 1.0), ([1.0, 0.5, 0.5], 20.0, 1, 1.0), ([0.25, 0.75, 0.5], 20.0, 2, 0.25)],
)
def test_three_rounds_are_tried_unless_they_take_a_twentieth_of_the_budget(
    took_s: list[float], budget_s: float, tried: int, least_s: float, virtual: VirtualTime
) -> None:
    tape = Lasting("a", [[1.0]], time=virtual, took_s=took_s)
    assert interleaved.shortest_round_s([tape], budget_s) == least_s
    assert tape.taken == tried


def test_a_batch_has_as_many_calls_as_fit_and_few_where_they_are_long() -> None:
    assert calls_per_batch(40.0, "cold", 800.0) == 8  # each with 60 µs
    assert calls_per_batch(25.0, "warm", 800.0) == 20  # each with 15 µs
    assert calls_per_batch(1.0, "warm", 2000.0) == 32
    assert calls_per_batch(120.0, "cold", 1800.0) == 10
    assert calls_per_batch(120.5, "cold", 1800.0) == calls_per_batch(1000.0, "warm", 9e9) == 4
    assert calls_per_batch(1000.5, "warm", 9e9) == 2


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    made = VirtualMachine(read_ns=0)
    made.install(monkeypatch)
    return made


FIRST = FirstCalls(steady=True, least_us=40.0)


@pytest.mark.parametrize(
    ("call_ns", "words"),
    [(999, "less than 1 µs"), (1_000, None), (2_000_000, None), (2_000_001, "longer than the whole budget")],
)
def test_calls_at_the_edge_of_the_clock_or_of_the_budget_are_noted(
    call_ns: int, words: str | None, host: VirtualMachine
) -> None:
    notes = set_up_wall_timer(
        BoundCall("f", host.call(call_ns)), TimingOptions("cpu", "warm", budget_s=0.002), FIRST, why=""
    ).notes
    assert (len(notes) == 1 and words in notes[0]) if words else notes == ()


def test_a_setup_goes_before_each_call_that_the_host_times(host: VirtualMachine) -> None:
    order: list[str] = []

    def call() -> None:
        order.append("call")
        host.passes(900_000)

    found = set_up_wall_timer(
        BoundCall("f", call), TimingOptions("cpu", "warm", setup=lambda: order.append("setup")), FIRST, why=""
    )
    order.clear()
    found.instrument.take()
    assert order == ["setup", "call"] * 2


class Gpu:
    """A rig on a GPU that is not there: what a function allows and how it is timed is said by the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.overwritten = 0
        known = SimpleNamespace(error_us={"graph": 0.1, "queue": 0.2})
        bench = SimpleNamespace(calibration=known, finish=lambda _: None, overwrite_cache=self._overwrite)
        patch.setattr(assay.timing.cuda.device, "gpu_timing_device", lambda _: bench)
        for kind in ("GraphTimer", "QueueTimer", "TraceTimer"):
            patch.setattr(timers, kind, lambda _, work, kind=kind: SimpleNamespace(kind=kind, work=work))
        self._patch = patch
        self.rig = CudaTimerSetup(0)

    def _overwrite(self) -> None:
        self.overwritten += 1

    def set_up(self, chosen: str, operations: int, call: Any = nothing, **how: Any) -> Any:
        found = SimpleNamespace(operations=operations, branches=False, waits=False)
        self._patch.setattr(timers, "probe_capability", lambda *_, **__: found)
        self._patch.setattr(timers, "choose_method", lambda *_: (chosen, "why"))
        options = TimingOptions(**{"device": "cuda:0", "cache": "cold", "times": ("busy", "span"), **how})
        return self.rig.set_up(BoundCall("f", call), options, FIRST)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_a_call_of_one_kernel_is_timed_at_work_and_one_of_several_by_its_span(gpu: Gpu) -> None:
    one, two, queued = gpu.set_up("graph", 1), gpu.set_up("graph", 2), gpu.set_up("queue", 1)
    assert (one.instrument.kind, one.decisive, one.error_us, one.busy_instrument) == (
        "GraphTimer",
        "busy_us",
        0.1,
        None,
    )
    assert (two.instrument.kind, two.decisive, two.busy_instrument.kind) == ("GraphTimer", "span_us", "TraceTimer")
    assert (queued.instrument.kind, queued.error_us) == ("QueueTimer", 0.2)
    assert gpu.set_up("graph", 2, method="graph").busy_instrument is None
    assert gpu.set_up("graph", 2, times=("span",)).busy_instrument is None
    traced = gpu.set_up("trace", 2)
    assert (traced.instrument.kind, traced.decisive, traced.error_us) == ("TraceTimer", "busy_us", None)


def test_calls_without_work_for_the_gpu_are_timed_on_the_host(gpu: Gpu, host: VirtualMachine) -> None:
    assert gpu.set_up("graph", 0, host.call(9_000)).device == "cpu"
    for cache, overwrites in (("cold", True), ("warm", False)):
        found = gpu.set_up("wall", 1, host.call(9_000), cache=cache)
        gpu.overwritten = 0
        found.instrument.sample_us()
        assert (found.device, found.decisive, gpu.overwritten == 1) == ("cuda:0", "call_us", overwrites)


def test_on_a_gpu_slow_first_calls_are_made_twice(gpu: Gpu, host: VirtualMachine) -> None:
    begin_ns = host.now_ns
    gpu.rig.first_calls(BoundCall("f", host.call(2_000_000_000)), TimingOptions("cuda:0", "cold"))
    assert host.now_ns - begin_ns == 4_000_000_000


def test_an_unsteady_interval_is_the_typical_one_or_where_none_is_known_that_of_the_values() -> None:
    values = [us(value) for value in (90.0, 110.0, *[100.0] * 8)]
    bounds = ((80.0, 105.0), (90.0, 110.0), (95.0, 130.0))
    known = [us(100.0).model_copy(update={"low": low, "high": high}) for low, high in bounds]
    unknown = [us(100.0).model_copy(update={"low": None, "high": None})] * 2
    for unsteady in (known, unknown):
        found = combine_processes(values, unsteady)
        assert (found.low, found.high) == (90.0, 110.0)


def test_two_processes_that_are_left_are_enough_for_an_interval() -> None:
    found = ran(Starts([timed(100.0), TrialFailed("it died"), timed(101.0)]), 3).timed().measurement
    assert found is not None
    assert (found.processes, found.scope) == (2, "run")


def test_what_processes_share_is_said_as_the_first_one_says_it() -> None:
    assert merged([measured(1.0, why="first"), measured(1.1, why="second")]).why == "first"
    one, other = compared(1.1), compared(1.1001)
    renamed = other.others[0].model_copy(update={"name": "h", "time_us": us(11.0).model_copy(update={"unit": "s"})})
    changed = other.model_copy(update={"device": "cuda", "minimum_effect": 0.5, "others": (renamed,)})
    found = merged_all([one, changed])
    assert (found.device, found.verdict, found.others[0].name) == ("cpu", "slower", "g0")
    assert found.others[0].time_us.unit == "us"


def test_a_precision_that_is_just_reached_is_reached() -> None:
    pair = [measured(1.0), measured(1.1)]
    reached = merged(pair).precision_reached or math.nan
    exact, short = (
        [each.model_copy(update={"precision_wanted": w}) for each in pair] for w in (reached, 0.99 * reached)
    )
    assert (merged(exact).stopped, merged(short).stopped) == ("precise enough", "all processes")
    assert merged([measured(0.0), measured(0.0)]).stopped == "all processes"


@pytest.mark.parametrize(("others", "quantile"), [(1, T_OF_2), (2, 6.205347)])
def test_the_interval_of_a_ratio_is_students_shared_among_the_functions(others: int, quantile: float) -> None:
    found = merged_all([compared(*[ratio] * others) for ratio in (1.0, 1.1, 1.21)]).others[0]
    half = quantile * math.log(1.1) / math.sqrt(3)
    assert found.low == pytest.approx(1.1 * math.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(1.1 * math.exp(half), rel=1e-6)
    assert merged_all([compared(0.0), compared(0.0)]).others[0].ratio == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("clock", "verdict"),
    [
        (ClockSummary(mhz_low=995, mhz=1000, mhz_high=1005), "slower"),
        (ClockSummary(mhz_low=995, mhz=1000, mhz_high=1005.5), "unsure"),
        (ClockSummary(mhz_low=900, mhz_high=1005), "slower"),
        (ClockSummary(mhz=1000, mhz_high=1005), "slower"),
        (ClockSummary(mhz_low=900, mhz=1000), "slower"),
    ],
)
def test_a_clock_has_moved_where_it_did_so_by_more_than_a_hundredth(clock: ClockSummary, verdict: str) -> None:
    assert merged_all([compared(1.5, cycles=(1.0,), clock=clock)] * 2).verdict == verdict


def test_the_clock_of_three_processes_is_their_median_from_the_first_moment_to_the_last() -> None:
    clocks = [
        ClockSummary(
            mhz=mhz,
            throttled_share=share,
            locked_mhz=int(mhz),
            before=GpuSnapshot(uuid=uuid),
            after=GpuSnapshot(uuid=uuid),
        )
        for mhz, share, uuid in ((1600, 0.0, "a"), (2000, 0.0, "b"), (1700, 0.9, "c"))
    ]
    found = merged([measured(1.0, clock=clock) for clock in clocks]).clock
    assert (found.mhz, found.locked_mhz) == (1700, 1600)
    assert found.throttled_share == pytest.approx(0.3)
    assert (found.before, found.after) == (clocks[0].before, clocks[2].after)


def test_numbers_at_the_edge_of_what_is_written_differently() -> None:
    assert format_clock(ClockSummary(mhz_low=995, mhz=1000, mhz_high=1005)) == "1000 MHz (995–1005)"
    assert format_clock(ClockSummary(mhz_low=994, mhz=1000, mhz_high=1003)) == "1000 MHz"
    halves = (ClockSummary(mhz_low=1, mhz_high=2), ClockSummary(mhz=1, mhz_high=2), ClockSummary(mhz=1, mhz_low=1))
    assert {format_clock(clock) for clock in halves} == {""}


def test_what_an_interval_holds_for_is_said() -> None:
    assert "fresh processes" in describe_scope("run")
    assert "this machine" in describe_scope("machine")
    assert "not covered" in str(comparison())
    assert "not covered" not in str(comparison().model_copy(update={"scope": "run"}))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "when the budget was spent"),
        ({"processes": 2}, "over the processes"),
        ({"processes": 2, "precision_reached": None}, "no interval (steady)"),
        ({"precision_reached": None, "no_interval": "drift"}, "no interval (drift)"),
        ({"stopped": "sample limit"}, "as many samples as are kept"),
        ({"stopped": "two levels"}, "switch between two levels"),
        ({"stopped": "precise enough"}, "±1 % reached"),
    ],
)
def test_why_a_precision_was_not_reached_is_said(changed: dict[str, object], words: str) -> None:
    assert describe_precision(measurement(**{"stopped": "budget spent", **changed})).endswith(words)


def test_a_pick_lists_the_next_four_that_are_right_and_counts_those_that_are_not() -> None:
    ranking = [PickCandidate(name=f"c{n}", behind=n / 100) for n in range(6)]
    bad = PickCandidate(name="bad", status="wrong", reason="no")
    told = Pick(
        winner="c0", time_us=5.0, probability=0.98, expected_regret=0.01, tolerance=0.01, ranking=(*ranking, bad),
        quantity="busy_us", device="cpu", cache="warm", rounds=9, calls=9, stopped="decided", took_s=1.0,
    )  # fmt: skip
    lines = str(told).splitlines()
    assert lines[2:6] == [f"  c{n}: +{n}.0 %" for n in (1, 2, 3, 4)]
    assert lines[6] == "  1 of 7 failed or were wrong, first bad: no"
