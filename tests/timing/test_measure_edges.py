"""Measuring at its edges: shares of a budget, looks, warm-ups, stretches, and how many calls are put together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay
from assay.core.errors import MachineCannot
from assay.core.results import GpuSnapshot
from assay.stats.sequential import InterimLook
from assay.timing import interleaved, measure, sampling
from assay.timing.conditions import ClockWatch, ContextSwitchCounter
from assay.timing.options import TimingOptions
from assay.timing.sampling import (
    BatchPlan,
    SampleBatch,
    WarmUp,
    collect_samples,
    looks_between,
    plan_batches,
    plan_budget_looks,
    probe_shortest_ns,
    warm_up,
)
from assay.timing.setup import BoundCall, FirstCalls, TimedCall
from tests.timing.faking import KnownRig, VirtualTime, between, nothing
from tests.timing.machine_clock import VirtualMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.sampling import Samples

CHOSEN = TimingOptions("cpu", "warm", budget_s=10.0)


@dataclass
class Tape:
    """An instrument that plays batches, the last one over and over; each lasts so long on a clock that is turned."""

    batches: Sequence[Sequence[float]]
    time: VirtualTime = field(default_factory=VirtualTime)
    took_s: Sequence[float] = (1.0,)
    replans: Sequence[bool] = ()
    primary: str = "call_us"
    method: str = "tape"
    calls_per_sample: int = 1
    mhz: float | None = None
    cycles: bool = False
    taken: int = 0
    asked: int = 0

    def take(self) -> SampleBatch:
        self.time.now_s += self.took_s[min(self.taken, len(self.took_s) - 1)]
        values = np.array(self.batches[min(self.taken, len(self.batches) - 1)], dtype=np.float64)
        self.taken += 1
        assert self.taken < 1000, "it does not end"
        return SampleBatch(
            {self.primary: values, "cycles": 2 * values} if self.cycles else {self.primary: values}, self.mhz
        )

    def replan(self) -> bool:
        self.asked += 1
        return self.asked <= len(self.replans) and self.replans[self.asked - 1]

    def close(self) -> None: ...


class Waits:
    """Stands for what times a caller's wait: 5 µs, one more each time."""

    calls_per_sample = 4

    def __init__(self, shortest_ns: float = 1e9) -> None:
        self.shortest_ns = shortest_ns
        self.samples = 0

    def sample_us(self) -> float:
        self.samples += 1
        return 4.0 + self.samples


def rigged(instrument: Any = None, device: str = "cuda:0", **more: Any) -> TimedCall:
    return TimedCall(BoundCall("f", nothing), instrument or Tape([[1.0]]), "call_us", device, "", **more)


# What comes beside the decisive time


def test_a_fifth_of_the_budget_is_kept_for_calls_where_they_are_timed_beside() -> None:
    wall: Any = Waits()
    assert measure._sampling_budget_s(CHOSEN, rigged(wall=wall)) == 8.0
    assert measure._sampling_budget_s(CHOSEN, rigged()) == 10.0


def test_kernels_are_timed_beside_in_two_dozen_calls() -> None:
    for size, batches in ((8, 3), (5, 5), (24, 1), (23, 2)):
        beside = Tape([[1.0] * size], primary="busy_us")
        found, notes = measure._measure_busy(rigged(busy_instrument=beside, operations=3))
        assert (beside.taken, len(found["busy_us"]), notes) == (batches, batches * size, ())


def test_kernels_are_not_timed_beside_where_nothing_can_or_nobody_knows_how_many_there_are() -> None:
    beside = Tape([[1.0]], primary="busy_us")
    for none in (rigged(operations=3), rigged(busy_instrument=beside), rigged()):
        assert measure._measure_busy(none) == ({}, ())
    assert beside.taken == 0


def test_kernels_that_cannot_be_timed_beside_are_what_is_left_of_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Tape) -> SampleBatch:
        raise MachineCannot("no trace here")

    monkeypatch.setattr(Tape, "take", refuses)
    found, notes = measure._measure_busy(rigged(busy_instrument=Tape([]), operations=3))
    assert found == {}
    assert notes == ("busy_us is what the boundaries between 3 operations leave of span_us: no trace here",)


@pytest.mark.parametrize(("shortest_ns", "count"), [(40e6, 50), (1.0, 200), (10e6, 200), (10.1e6, 198), (1e15, 1)])
def test_there_are_as_many_calls_as_a_fifth_of_the_budget_pays_for_from_one_to_two_hundred(
    shortest_ns: float, count: int
) -> None:
    wall: Any = Waits(shortest_ns)
    found = measure._measure_call_us(rigged(wall=wall), CHOSEN)
    assert list(found) == ["call_us"]
    assert found["call_us"].tolist() == [5.0 + n for n in range(count)]
    assert measure._measure_call_us(rigged(), CHOSEN) == {}


# What is made of it


@dataclass
class Beside(KnownRig):
    """A rig that also has instruments beside the decisive one, and a reader of its own."""

    more: dict[str, Any] = field(default_factory=dict)
    own: Any = None

    def set_up(self, bound: BoundCall, options: TimingOptions, first: FirstCalls) -> TimedCall:
        (instrument,) = self.instruments.values()
        return TimedCall(bound, instrument, self.decisive, self.device, "known", notes=self.notes, **self.more)

    def reader(self) -> Any:
        return self.own


STEADY = [10.0, 10.5, 9.5, 10.25, 9.75, 10.0, 10.5, 9.5]


@pytest.fixture
def measured(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Callable[..., assay.Measurement]:
    def of(tape: Tape, *, options: dict[str, Any] | None = None, **how: Any) -> assay.Measurement:
        tape.time = virtual
        Beside({"f": tape}, **how).install(monkeypatch)
        return assay.measure(nothing, name="f", **{"budget_s": 50.0, **(options or {})})

    return of


def test_all_calls_are_counted_those_of_the_warm_up_and_beside_too(measured: Callable[..., assay.Measurement]) -> None:
    beside = Tape([[3.0] * 10], primary="busy_us")
    more = {"wall": Waits(2e9), "busy_instrument": beside, "operations": 2, "error_us": 0.25}
    tape = Tape([STEADY], calls_per_sample=3, primary="span_us", cycles=True, mhz=1500.0)
    found = measured(tape, decisive="span_us", device="cuda:0", more=more, options={"precision": 0.5}, notes=("hm",))
    # Two batches warm up, two make the sixteen samples of the first look; three beside, and 5 calls in 10 s.
    assert (found.samples, tape.taken, beside.taken) == (16, 4, 3)
    assert found.calls == 2 * 8 * 3 + 2 * 8 * 3 + 30 + 5
    assert (found.took_s, found.stopped, found.warmed_up, found.notes) == (4.0, "precise enough", True, ("hm",))
    assert (found.busy_us or found.time).value == 3.0
    assert (found.span_us or found.time).value == 10.0
    assert (found.call_us or found.time).value == 7.0
    assert (found.cycles or found.time).value == 20.0
    assert (found.device, found.cache, found.method, found.why) == ("cuda:0", "warm", "tape", "known")
    assert (found.decisive, found.instrument_error_us, found.operations) == ("span_us", 0.25, 2)
    assert (found.clock.mhz_low, found.clock.mhz, found.clock.mhz_high) == (1500.0, 1500.0, 1500.0)
    assert {name: len(values) for name, values in found.series.items()} == {
        "span_us": 16, "cycles": 16, "busy_us": 30, "call_us": 5,
    }  # fmt: skip


def test_only_what_is_asked_for_is_told_beside_the_decisive_time(measured: Callable[..., assay.Measurement]) -> None:
    beside = Tape([[3.0] * 10], primary="busy_us")
    more = {"wall": Waits(2e9), "busy_instrument": beside, "operations": 2}
    options = {"precision": 0.5, "times": ("busy",)}
    found = measured(Tape([STEADY], primary="span_us"), decisive="span_us", more=more, options=options)
    assert (found.busy_us is None, found.span_us is None, found.call_us is None) == (False, False, True)


def test_a_cache_is_told_as_chosen_on_a_gpu_only(
    measured: Callable[..., assay.Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        measure, "resolve_options", lambda **_: TimingOptions("cuda:0", "cold", precision=0.5, budget_s=50.0)
    )
    for device, cache in (("cuda:0", "cold"), ("cpu", "warm")):
        assert measured(Tape([STEADY]), device=device).cache == cache


def test_others_that_took_the_core_are_noted_where_the_host_is_timed(
    measured: Callable[..., assay.Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContextSwitchCounter, "notes", lambda _: ("busy here",))
    for device, notes in (("cpu", ("busy here",)), ("cuda:0", ())):
        assert measured(Tape([STEADY]), device=device, options={"precision": 0.5}).notes == notes


def test_the_reader_that_is_given_goes_before_that_of_the_device(measured: Callable[..., assay.Measurement]) -> None:
    given, own = (lambda uuid=uuid: GpuSnapshot(uuid=uuid) for uuid in ("given", "own"))
    for options, uuid in (({"reader": given}, "given"), ({}, "own")):
        before = measured(Tape([STEADY]), own=own, options={"precision": 0.5, **options}).clock.before
        assert before is not None
        assert before.uuid == uuid


def test_a_time_without_an_interval_says_why_and_reached_no_precision(
    measured: Callable[..., assay.Measurement],
) -> None:
    found = measured(Tape([[10.0]]), options={"budget_s": 3.0})
    assert (found.precision_reached, found.no_interval, found.shape) == (None, "too few samples", "too few")
    assert measured(Tape([STEADY]), options={"precision": 0.5}).no_interval is None


def test_a_clock_that_is_held_back_is_noted_on_a_gpu_only(measured: Callable[..., assay.Measurement]) -> None:
    def held() -> GpuSnapshot:
        return GpuSnapshot(uuid="GPU-1", throttle=("heat",))

    options = {"precision": 0.5, "reader": held}
    on_gpu, on_cpu = (measured(Tape([STEADY]), device=device, options=options) for device in ("cuda:0", "cpu"))
    assert on_gpu.notes == ("the clock was throttled (heat): read times together with cycles",)
    assert on_gpu.series["throttled"] == (1.0,) * 16
    assert (on_cpu.notes, "throttled" in on_cpu.series) == ((), False)


def labelled(labels: list[float], device: str = "cuda:0", n: int = 4) -> dict[str, list[float]]:
    watch = ClockWatch(None)
    watch.labels = labels
    batches = [SampleBatch({"call_us": np.ones(2)}), SampleBatch({"call_us": np.ones(3)})]
    collected = sampling.CollectedSamples(batches, InterimLook(n, 1.0))
    warm = WarmUp(settled=True, batches=1, samples_per_batch=1, batch_s=1.0)
    taken = measure.RawMeasurement(rigged(device=device), warm, collected, watch, {}, ())
    return {name: values.tolist() for name, values in measure._throttle_labels(taken).items()}


def test_each_sample_on_a_gpu_is_labelled_by_whether_the_clock_was_held_back() -> None:
    assert labelled([1.0, 0.0, 1.0]) == {"throttled": [1.0, 1.0, 0.0, 0.0]}
    assert labelled([0.0, 1.0], n=9) == {"throttled": [0.0, 0.0, 1.0, 1.0, 1.0]}
    (partly,) = labelled([math.nan, 1.0]).values()
    assert (math.isnan(partly[0]), partly[2:]) == (True, [1.0, 1.0])
    assert labelled([1.0, 0.0], "cpu") == labelled([]) == labelled([math.nan, math.nan]) == {}


def test_an_estimate_at_a_look_is_the_median_of_what_the_look_saw() -> None:
    values = np.array([1.0, 2.0, 9.0, 50.0])
    few = measure.estimate_at_look(values, InterimLook(3, 1.0), "us", 0.01)
    assert (few.value, few.n, few.low) == (2.0, 3, None)
    sixteen = np.array([*STEADY, *STEADY, 99.0])
    found = measure.estimate_at_look(sixteen, InterimLook(16, 1.0), "cycles", 0.01)
    assert (found.value, found.n, found.unit, found.scope, found.method) == (
        10.0, 16, "cycles", "process", measure.ANYTIME_METHOD,
    )  # fmt: skip
    assert found.low is not None
    assert found.high is not None
    assert found.low < 10.0 < found.high


def test_quantities_with_the_same_samples_have_the_same_estimate_and_others_their_unit() -> None:
    values = np.array(STEADY * 2)
    found = measure._estimate_quantities(
        {"busy_us": values, "span_us": values.copy(), "cycles": 2 * values}, InterimLook(16, 1.0), 0.01
    )
    assert found["span_us"] is found["busy_us"]
    assert (found["busy_us"].unit, found["cycles"].unit, found["cycles"].value) == ("us", "cycles", 20.0)


def said(
    values: Any = STEADY, shape: str = "steady", *, settled: bool = True, batches: int = 1, **how: Any
) -> list[str]:
    watch = ClockWatch(how.get("reader"))
    watch.label_batch()
    warm = WarmUp(settled=settled, batches=batches, samples_per_batch=1, batch_s=1.0)
    return measure._sample_notes(np.array(values), shape, warm, watch, on_gpu=how.get("on_gpu", True))


def test_what_a_reader_should_know_is_said_in_whole_sentences() -> None:
    assert said() == said(settled=False) == []
    assert said(settled=True, batches=2) == []
    assert said(settled=False, batches=2) == ["the times had not settled when the warm-up ended"]
    assert said(shape="drift") == ["the times drift: the median is that of this window"]
    assert said(shape="bursts") == ["there are bursts of long times; the median does not show them"]
    (torn,) = said(between(10.0, 13.0, every=6)(0, 240), "drift")
    assert (
        torn
        == "the times switch between two levels, 10 µs and 13 µs (50% of the time): no single number describes both"
    )

    def held() -> GpuSnapshot:
        return GpuSnapshot(uuid="GPU-1", throttle=("power cap", "heat"))

    assert said(reader=held, on_gpu=False) == []
    assert said(reader=held) == ["the clock was throttled (power cap, heat): read times together with cycles"]


# Warm-up


def batch(*values: float, cycles: Sequence[float] | None = None) -> SampleBatch:
    given = {"call_us": np.array(values)}
    return SampleBatch(given if cycles is None else {**given, "cycles": np.array(cycles)})


def settled(*batches: SampleBatch) -> bool:
    return sampling._has_settled(list(batches), "call_us")


def test_three_batches_must_agree_and_two_where_they_hold_four_samples() -> None:
    small, large = batch(5.0, 5.0, 5.0), batch(5.0, 5.0, 5.0, 5.0)
    assert [settled(*[small] * n) for n in (1, 2, 3)] == [False, False, True]
    assert [settled(*[large] * n) for n in (1, 2)] == [False, True]
    assert settled(batch(9.0), batch(9.0), large, large)
    assert settled(large, small, large)  # it goes by the last one
    assert not settled(large, large, small, batch(7.0, 7.0, 7.0))


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((199.0, 200.0, 200.0), True),
        ((198.99, 200.0, 200.0), False),
        ((200.0, 199.0, 200.0), True),
        ((200.0, 200.0, 199.0), False),  # it is a two-hundredth of the last one that counts
        ((-199.0, -200.0, -200.0), True),
        ((150.0, 199.0, 199.5, 200.0), True),
        ((200.0, 200.0, 199.5, 150.0), False),
        ((99.0, 99.7, 100.0, 100.0), True),
        ((40.0, 20.0, 40.0), False),
    ],
)
def test_batches_agree_where_their_medians_differ_by_a_two_hundredth_at_most(
    levels: tuple[float, ...], expected: bool
) -> None:
    assert settled(*(batch(level) for level in levels)) == expected


def test_batches_agree_where_their_medians_differ_by_no_more_than_their_noise() -> None:
    # The median of 96, 96, 104 and 104 has an error of 1.25 × 4 / 2, and three of them are 7.5.
    noisy = batch(96.0, 96.0, 104.0, 104.0)
    assert settled(noisy, batch(*[107.5] * 4))
    assert settled(batch(*[107.5] * 4), noisy)
    assert not settled(noisy, batch(*[107.6] * 4))
    assert not settled(batch(*[107.6] * 4), noisy)


def test_batches_agree_in_cycles_where_all_of_them_count_some() -> None:
    moving, still = (5.0, 9.0, 20.0), (7.0,)
    assert settled(*(batch(us, cycles=still) for us in moving))
    assert not settled(*(batch(5.0, cycles=(us,)) for us in moving))
    assert not settled(batch(5.0), *(batch(us, cycles=still) for us in moving[1:]))


def rising(n: int = 40, size: int = 1) -> list[list[float]]:
    return [[10.0 * 2**k] * size for k in range(n)]


def test_a_warm_up_ends_where_another_batch_would_take_it_past_a_fifth_of_the_budget(virtual: VirtualTime) -> None:
    # A fifth of 15 s is 3 s: another batch of 1 s would just fit after two, and not after three.
    found = warm_up(Tape(rising(size=2), virtual), 15.0)
    assert found == WarmUp(settled=False, batches=3, samples_per_batch=2, batch_s=1.0)
    assert warm_up(Tape(rising(size=2), virtual), 9.0).batches == 1
    slowing = Tape(rising(), virtual, took_s=(0.5, 0.25, 2.0))
    assert warm_up(slowing, 15.0) == WarmUp(settled=False, batches=3, samples_per_batch=1, batch_s=0.25)


def test_a_warm_up_ends_where_batches_agree(virtual: VirtualTime) -> None:
    found = warm_up(Tape([[9.0] * 4, [5.0] * 4], virtual), 1000.0)
    assert found == WarmUp(settled=True, batches=3, samples_per_batch=4, batch_s=1.0)


def test_a_warm_up_begins_again_where_calls_are_put_together_anew(virtual: VirtualTime) -> None:
    tape = Tape([[9.0] * 4], virtual, took_s=(0.5, 0.5, 2.0), replans=(True, False))
    found = warm_up(tape, 1000.0)
    assert (tape.taken, tape.asked) == (4, 2)
    assert found == WarmUp(settled=True, batches=2, samples_per_batch=4, batch_s=2.0)


# Looks


def sizes(first: int, last: int) -> list[int]:
    return [look.n for look in looks_between(first, last)]


def test_looks_grow_by_two_fifths_up_to_the_last_as_if_that_were_a_round_number() -> None:
    assert sizes(16, 100) == [16, 23, 32, 44, 62, 87, 100]
    assert sizes(16, 199) == [16, 23, 32, 44, 62, 87, 199]
    assert sizes(16, 200) == [16, 23, 32, 44, 62, 87, 121, 169, 200]
    assert sizes(2, 7) == [2, 3, 4, 6, 7]
    assert sizes(2, 19) == [2, 3, 4, 6, 8, 19]
    assert (sizes(16, 7), sizes(1, 1), sizes(64, 1)) == ([7], [1], [1])
    assert [look.early for look in looks_between(2, 7)] == [True] * 4 + [False]


def plan(budget_s: float, batch_s: float, per_batch: int) -> list[int]:
    warm = WarmUp(settled=True, batches=1, samples_per_batch=per_batch, batch_s=batch_s)
    return [look.n for look in plan_budget_looks(warm, budget_s)]


def test_as_many_looks_are_planned_as_batches_fit_into_the_budget() -> None:
    assert plan(50.0, 2.0, 4) == [16, 23, 32, 44, 62, 87, 100]
    assert plan(0.5, 2.0, 4) == plan(1e-3, 2.0, 4) == [1]
    assert plan(1.0, 2.0, 3) == [1]
    assert plan(4.0, 1.0, 1) == [4]
    assert plan(30.5e-9, 0.0, 1) == [16, 23, 30]
    assert plan(1e9, 1e-9, 1)[-1] == 100_000
    assert plan(1e9, 1e-9, 1)[0] == 16


WIDE = (1.0, 1e9)


@pytest.fixture
def intervals(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[float, float]]:
    """The interval at each look by its number of samples; a wide one where nothing is said."""
    known: dict[int, tuple[float, float]] = {}
    monkeypatch.setattr(sampling, "median_interval", lambda samples, look, _: known.get(look.n, WIDE))
    monkeypatch.setattr(sampling, "is_unsettled", lambda _: False)
    return known


def warmed(per_batch: int, batch_s: float = 1.0) -> WarmUp:
    return WarmUp(settled=True, batches=1, samples_per_batch=per_batch, batch_s=batch_s)


def test_sampling_ends_at_the_first_look_that_is_just_precise_enough(
    virtual: VirtualTime, intervals: dict[int, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals.update({16: (98.9, 101.0), 23: (99.0, 101.0), 32: (99.0, 101.0)})
    tape = Tape([[100.0] * 4], virtual)
    found = collect_samples(tape, warmed(4), precision=0.01, budget_s=1000.0)
    assert (found.look.n, found.stopped, len(found.batches), tape.taken) == (23, "precise enough", 6, 6)
    assert len(found.samples["call_us"]) == 23
    monkeypatch.setattr(sampling, "is_unsettled", lambda seen: len(seen) < 32)
    assert collect_samples(Tape([[100.0] * 4], virtual), warmed(4), precision=0.01, budget_s=1000.0).look.n == 32


def test_the_last_batch_begins_no_later_than_the_budget_ends(
    virtual: VirtualTime, intervals: dict[int, tuple[float, float]]
) -> None:
    for budget_s, batches in ((5.0, 6), (4.75, 5), (0.5, 1), (0.0, 1)):
        found = collect_samples(Tape([[100.0]], virtual), warmed(1), precision=0.01, budget_s=budget_s)
        assert (found.look.n, found.stopped, len(found.batches)) == (batches, "budget spent", batches)
    short = collect_samples(Tape([[100.0]], virtual), warmed(1, 1e-3), precision=0.01, budget_s=20.0)
    # Planned was to look at 16, 23, … samples: what the look at 23 may spend is spent on the 21 that there are.
    assert short.look == InterimLook(21, plan_budget_looks(warmed(1, 1e-3), 20.0)[1].share)


def test_a_number_of_samples_that_is_reached_just_in_time_is_what_ended_it(
    virtual: VirtualTime, intervals: dict[int, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MAX_SAMPLES", 8)
    for took_s, stopped in ((1.0, "sample limit"), (1.25, "budget spent")):
        tape = Tape([[100.0] * 5], virtual, took_s=(0.0, took_s))
        found = collect_samples(tape, warmed(5), precision=0.01, budget_s=1.0)
        assert (found.look.n, found.stopped, len(found.samples["call_us"]), tape.taken) == (8, stopped, 8, 2)
    intervals[8] = (99.0, 101.0)
    found = collect_samples(Tape([[100.0] * 5], virtual, took_s=(0.0, 2.0)), warmed(5), precision=0.01, budget_s=1.0)
    assert found.stopped == "precise enough"
    del intervals[8]
    monkeypatch.setattr(sampling, "find_competing_levels", lambda _: "levels")
    found = collect_samples(Tape([[100.0] * 5], virtual, took_s=(0.0, 2.0)), warmed(5), precision=0.01, budget_s=1.0)
    assert found.stopped == "two levels"


def test_calls_are_put_together_anew_before_the_first_look_only(
    virtual: VirtualTime, intervals: dict[int, tuple[float, float]]
) -> None:
    intervals[23] = (100.0, 100.0)
    tape = Tape([[7.0] * 4, [8.0] * 4, [9.0] * 4], virtual, replans=(False, True))
    looked: list[int] = []
    found = collect_samples(
        tape, warmed(4), precision=0.01, budget_s=1000.0, after_batch=lambda: looked.append(tape.taken)
    )
    # Two batches are given up, four make 16 samples and are asked about, two more make 23 and are not.
    assert (tape.taken, tape.asked, len(found.batches)) == (8, 6, 6)
    assert set(found.samples["call_us"]) == {9.0}
    assert looked == [1, 2, 3, 4, 5, 6, 7, 8]
    alone = Tape([[7.0], [8.0]], virtual, replans=(True,))
    only = collect_samples(alone, warmed(1), precision=0.01, budget_s=4.5)
    assert (alone.taken, alone.asked, set(only.samples["call_us"])) == (5, 5, {8.0})
    assert only.look.n == 4


def test_what_was_not_sampled_was_not_looked_at() -> None:
    nothing_yet = sampling.CollectedSamples()
    assert (nothing_yet.look, nothing_yet.stopped, nothing_yet.samples) == (InterimLook(0, 1.0), "budget spent", {})


def test_a_precision_is_half_the_interval_over_the_size_of_the_median() -> None:
    samples = np.array([90.0, 100.0, 150.0])
    assert sampling._is_precise((99.0, 101.0), samples, 0.01)
    assert sampling._is_precise((-101.0, -99.0), -samples, 0.01)
    assert not sampling._is_precise((99.0, 101.01), samples, 0.01)
    assert not sampling._is_precise((98.99, 101.0), samples, 0.01)
    assert not sampling._is_precise(None, samples, 0.01)


def test_of_two_levels_all_but_the_outermost_fortieths_are_the_interval_where_that_is_narrow_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples: Samples = np.arange(401.0)[::-1]
    monkeypatch.setattr(sampling, "interval_at_look", lambda *_: None)
    assert sampling.median_interval(samples, InterimLook(401, 1.0), 0.95) is None
    monkeypatch.setattr(sampling, "find_competing_levels", lambda _: "levels")
    assert sampling.median_interval(samples, InterimLook(401, 1.0), 0.95) == (10.0, 390.0)
    assert sampling.median_interval(-samples, InterimLook(401, 1.0), 0.95) == (-390.0, -10.0)
    assert sampling.median_interval(samples, InterimLook(401, 1.0), 0.9499) is None
    monkeypatch.setattr(sampling, "interval_at_look", lambda *_: (1.0, 2.0))
    assert sampling.median_interval(samples, InterimLook(401, 1.0), 0.95) == (1.0, 2.0)


# Stretches


@dataclass
class Lasting:
    """An instrument on a machine that only keeps time: each batch has so many samples and lasts so long."""

    machine: VirtualMachine
    lasts_ns: Sequence[int]
    size: int = 8
    mhz: float | None = None
    method: str = "known"
    primary: str = "span_us"
    calls_per_sample: int = 5
    taken: int = 0

    def take(self) -> SampleBatch:
        self.machine.passes(self.lasts_ns[min(self.taken, len(self.lasts_ns) - 1)])
        self.taken += 1
        values = np.full(self.size, 10.0)
        return SampleBatch({self.primary: values, "cycles": values}, self.mhz)

    def replan(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> VirtualMachine:
    made = VirtualMachine(now_ns=0, read_ns=0)
    made.install(monkeypatch)
    return made


def taken(*instruments: Lasting, until_ns: int, precision: float | None = None, **more: Any) -> interleaved.SampleBlock:
    wall = more.pop("wall", None)
    reader = more.pop("reader", None)
    sides = [rigged(each, wall=wall) for each in instruments]
    return interleaved.sample_interleaved(sides, until_ns=until_ns, precision=precision, seed=0, reader=reader)


@pytest.mark.parametrize(("until_ns", "rounds"), [(0, 1), (1500, 1), (1501, 2), (2500, 2), (2501, 3), (9501, 10)])
def test_another_round_is_taken_where_half_of_it_still_fits(
    until_ns: int, rounds: int, machine: VirtualMachine
) -> None:
    instrument = Lasting(machine, [1000])
    found = taken(instrument, until_ns=until_ns)
    assert (found.start_ns, found.end_ns, instrument.taken) == (0, 1000 * rounds, rounds)


def test_rounds_are_timed_from_when_they_begin(machine: VirtualMachine) -> None:
    machine.now_ns = 5_000
    instrument = Lasting(machine, [1000])
    found = taken(instrument, until_ns=6_501)
    assert (found.start_ns, found.end_ns, instrument.taken) == (5_000, 7_000, 2)


def test_rounds_that_take_no_time_go_on_until_there_are_enough_samples(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaved, "MAX_SAMPLES", 40)
    instrument = Lasting(machine, [0])
    taken(instrument, until_ns=1)
    assert instrument.taken == 5


def test_the_shortest_of_three_rounds_says_how_long_one_is(machine: VirtualMachine) -> None:
    # Rounds end at 1000, 1400, 1600 and 1700: half of 200 still fits before 1850 and 1900, and not before 1800.
    for until_ns, rounds in ((1700, 3), (1701, 4), (1800, 4), (1801, 5), (1901, 6)):
        machine.now_ns = 0
        instrument = Lasting(machine, [1000, 400, 200, 100])
        taken(instrument, until_ns=until_ns)
        assert instrument.taken == rounds
    machine.now_ns = 0
    growing = Lasting(machine, [200, 400, 1000])
    taken(growing, until_ns=1701)
    assert growing.taken == 4


def test_what_was_sampled_is_told_by_subject_with_the_clock_and_what_a_caller_waits(machine: VirtualMachine) -> None:
    first, second = Lasting(machine, [1000], mhz=1500.0), Lasting(machine, [1000], size=3)
    found = taken(first, second, until_ns=3001, wall=Waits())
    told = [(s.subject, s.quantity, len(s.samples), s.calls_per_sample) for s in found.series]
    assert told == [
        (0, "span_us", 16, 5), (0, "busy_cycles", 16, 5), (0, "call_us", 2, 4), (0, "clock_mhz", 2, 8),
        (1, "span_us", 6, 5), (1, "busy_cycles", 6, 5), (1, "call_us", 2, 4),
    ]  # fmt: skip
    assert interleaved.SampleSeries(0, "x", found.series[0].samples).calls_per_sample == 1


@pytest.mark.parametrize(
    ("throttles", "labels"), [([("heat",)], [1.0] * 3), ([()], [0.0] * 3), ([None], None), ([None, ("heat",)], None)]
)
def test_rounds_are_labelled_where_the_first_one_could_be(
    throttles: list[tuple[str, ...] | None], labels: list[float] | None, machine: VirtualMachine
) -> None:
    told = iter([*throttles, *[throttles[-1]] * 9])
    sides = Lasting(machine, [20_000_000]), Lasting(machine, [20_000_000])
    found = taken(*sides, until_ns=100_000_001, reader=lambda: GpuSnapshot(uuid="GPU-1", throttle=next(told)))
    kept = [(s.subject, list(s.samples), s.calls_per_sample) for s in found.series if s.quantity == "throttled"]
    assert kept == ([] if labels is None else [(0, labels, 1), (1, labels, 1)])


def test_one_round_is_labelled_too_and_none_without_a_reader(machine: VirtualMachine) -> None:
    found = taken(Lasting(machine, [1000]), until_ns=0, reader=lambda: GpuSnapshot(uuid="GPU-1", throttle=()))
    assert [list(s.samples) for s in found.series if s.quantity == "throttled"] == [[0.0]]
    silent = taken(Lasting(machine, [1000]), until_ns=0)
    assert "throttled" not in {s.quantity for s in silent.series}


def test_a_stretch_ends_at_the_first_look_where_all_are_known_well_enough(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaved, "median_interval", lambda *_: (9.9, 10.1))
    first, second = Lasting(machine, [1000], size=8), Lasting(machine, [1000], size=4)
    taken(first, second, until_ns=1_000_000, precision=0.02)
    assert (first.taken, second.taken) == (16, 16)  # 64 samples of the second
    third = Lasting(machine, [1000], size=8)
    taken(third, until_ns=machine.now_ns + 100_000, precision=None)
    assert third.taken == 100


def test_a_stretch_ends_where_there_are_as_many_samples_as_are_kept(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaved, "MAX_SAMPLES", 24)
    instrument = Lasting(machine, [1000], size=8)
    taken(instrument, until_ns=1_000_000)
    assert instrument.taken == 3


def looked(count: int, most_rounds: int, rounds: int) -> list[int]:
    sampled = interleaved._SampledCall(rigged())
    sampled.count = count
    sampled.plan_looks(most_rounds, rounds)
    return [look.n for look in sampled._looks]


def test_as_many_looks_are_planned_as_rounds_fit_from_what_the_first_ones_gave() -> None:
    assert looked(30, 10, 3) == [64, 90, 100]
    assert looked(9, 33, 3) == [64, 99]
    assert looked(30, 1, 3) == [30]
    assert looked(1, 1, 1) == looked(0, 5, 3) == [1]
    assert looked(2, 5, 3) == [3]
    assert looked(30, 10**9, 3)[-1] == 100_000


def test_rounds_that_may_still_come_are_counted_by_the_shortest(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_for: list[tuple[int, int]] = []
    monkeypatch.setattr(
        interleaved._SampledCall, "plan_looks", lambda _, most, rounds: planned_for.append((most, rounds))
    )
    machine.now_ns = 700
    taken(Lasting(machine, [1000, 400, 300]), until_ns=10_000, precision=0.01)
    assert planned_for == [(31, 3)]  # 9300 ns in rounds of 300 ns


def sampled(monkeypatch: pytest.MonkeyPatch, within: tuple[float, float] | None, *, moves: bool = False) -> Any:
    monkeypatch.setattr(interleaved, "median_interval", lambda *_: within)
    monkeypatch.setattr(interleaved, "is_unsettled", lambda _: moves)
    made = interleaved._SampledCall(rigged(Tape([[100.0] * 8])))
    made.plan_looks(100, 1)
    return made


def test_a_call_is_known_well_enough_exactly_at_the_precision_and_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    for within, moves, enough in (
        ((99.0, 101.0), False, True),
        ((98.9, 101.0), False, False),
        ((99.0, 101.1), False, False),
        ((99.0, 101.0), True, False),
        (None, False, False),
    ):
        made = sampled(monkeypatch, within, moves=moves)
        made._looks = list(looks_between(16, 100))
        made.sample()
        made.check_precision(0.01)
        assert (made.count, made.is_precise) == (8, False)
        made.sample()
        made.check_precision(0.01)
        assert (made.count, made.is_precise, made._looks[0].n) == (16, enough, 23)
    made = sampled(monkeypatch, (99.0, 101.0))
    made._looks = list(looks_between(2, 100))
    made.sample()
    made.check_precision(0.01)
    assert (made.is_precise, made._looks[0].n) == (True, 3)


# How many calls are put together


class Probe:
    """Calls that take so long each, the first ones as given; it counts how many are made in each try."""

    def __init__(self, each_ns: float, *first_ns: float) -> None:
        self._first_ns = iter(first_ns)
        self._each_ns = each_ns
        self._now_ns = 0.0
        self.tries: list[int] = []

    def before(self) -> None:
        self.tries.append(0)
        assert len(self.tries) < 100, "it does not end"

    def call(self) -> None:
        self.tries[-1] += 1
        self._now_ns += next(self._first_ns, self._each_ns)

    def clock(self) -> int:
        return int(self._now_ns)

    def least_ns(self, enough_ns: float, *, one_by_one: bool = False) -> float:
        return probe_shortest_ns(
            self.call, before=self.before, enough_ns=enough_ns, one_by_one=one_by_one, clock=self.clock
        )


@pytest.mark.parametrize(
    ("each_ns", "enough_ns", "tries"),
    [
        (100, 100, [1, 1, 1]),
        (100, 101, [1, 2, 2, 2]),
        (100, 1_000, [1, 10, 10, 10]),
        (100, 1_001, [1, 10, 11, 11, 11]),
        (100, 4_000, [1, 10, 40, 40, 40]),
        (300, 1_000, [1, 4, 4, 4]),
        (50_000_000, 100, [1, 1]),
        (49_999_999, 100, [1, 1, 1]),
    ],
)
def test_more_and_more_calls_are_tried_until_the_shortest_of_three_tries_lasts_long_enough(
    each_ns: int, enough_ns: int, tries: list[int]
) -> None:
    probe = Probe(each_ns)
    assert probe.least_ns(enough_ns) == each_ns
    assert probe.tries == tries


def test_a_probe_ends_with_about_a_million_calls_and_takes_no_call_for_shorter_than_a_nanosecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sampling.MAX_CALLS_PER_TRY == 1_048_576
    monkeypatch.setattr(sampling, "MAX_CALLS_PER_TRY", 16)
    probe = Probe(0.5)
    assert probe.least_ns(1e9) == 1.0
    assert probe.tries == [1, 10, 16]
    nothing_at_all = Probe(0.0)
    assert nothing_at_all.least_ns(1.0) == 1.0
    assert nothing_at_all.tries == [1, 1, 1]
    assert Probe(1.25).least_ns(1e9) == 1.0  # 1 ns of one, 12 of ten, 20 of sixteen


def test_the_shortest_of_all_tries_counts() -> None:
    assert Probe(100, 300, 100, 200).least_ns(100) == 100
    assert Probe(300, 200, 100, 200).least_ns(100) == 100
    slow_first = Probe(100, 400)
    assert slow_first.least_ns(1_000) == 100
    assert slow_first.tries == [1, 3, 10, 10, 10]
    slow_once = Probe(100, 100, *[500] * 10)
    assert slow_once.least_ns(1_000) == 100
    assert slow_once.tries == [1, 10, 10, 10]


def test_calls_that_are_timed_one_by_one_are_tried_five_times_and_long_ones_twice() -> None:
    for each_ns, tries in ((10, 5), (24_999_999, 5), (25_000_000, 4), (50_000_000, 2), (10**9, 2)):
        probe = Probe(each_ns)
        assert probe.least_ns(1e12, one_by_one=True) == each_ns
        assert probe.tries == [1] * tries


def together(call_ns: list[float], *, one_by_one: bool = False) -> list[BatchPlan]:
    return plan_batches(call_ns, shortest_ns=1_000, batch_ns=10_000, most_samples=4, one_by_one=one_by_one)


@pytest.mark.parametrize(
    ("call_ns", "plans"),
    [
        ([1_000.0], [(1, 4)]),
        ([999.0], [(2, 4)]),
        ([2_500.0], [(1, 4)]),
        ([2_501.0], [(1, 3)]),
        ([10_000.0], [(1, 1)]),
        ([20_000.0], [(1, 1)]),
        ([0.5], [(1_000, 4)]),
        ([33.1], [(31, 4)]),
        ([300.0, 500.0], [(4, 4), (4, 4)]),
        ([500.0, 900.0], [(2, 4), (2, 4)]),
        ([400.0, 900.0], [(5, 4), (2, 4)]),
        ([700.0, 2_900.0], [(5, 2), (1, 2)]),
        ([100.0, 3_000_000.0], [(20_000, 1), (1, 1)]),
        ([300.0, 5_000.0], [(17, 1), (1, 1)]),
    ],
)
def test_calls_make_samples_of_a_length_and_batches_of_as_many_samples(
    call_ns: list[float], plans: list[tuple[int, int]]
) -> None:
    assert together(call_ns) == [BatchPlan(*each) for each in plans]


def test_where_a_sample_must_be_longer_than_is_common_it_is() -> None:
    plans = plan_batches([100.0, 4_000_000.0], shortest_ns=3_000_000, batch_ns=10_000, most_samples=4)
    assert plans == [BatchPlan(30_000, 1), BatchPlan(1, 1)]


def test_calls_one_by_one_are_samples_of_their_own() -> None:
    assert together([1.0, 3_000.0], one_by_one=True) == [BatchPlan(1, 3)] * 2
    assert together([1.0, 30_000.0], one_by_one=True) == [BatchPlan(1, 1)] * 2


def test_durations_less_than_twice_apart_are_one_group() -> None:
    assert sampling.group_durations([1.0, 1.999]) == [1.0, 1.0]
    assert sampling.group_durations([2.0, 1.0, 3.5]) == [2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("sample_ns", "planned_ns", "calls", "expected"),
    [
        (500, 1_000, 1, False),
        (499, 1_000, 1, True),
        (2_000, 1_000, 2, False),
        (2_001, 1_000, 2, True),
        (2_001, 1_000, 1, False),
        (6_000, 3_000, 2, False),
        (6_001, 3_000, 2, True),
        (2_001, 500, 2, True),
        (2_000, 500, 2, False),
    ],
)
def test_a_probe_is_contradicted_by_samples_half_as_long_as_they_must_be_or_twice_as_long_as_planned(
    sample_ns: float, planned_ns: float, calls: int, expected: bool
) -> None:
    assert sampling.contradicts_probe(sample_ns, planned_ns, 1_000, calls) == expected
