"""``assay.measure`` from end to end: a number with its interval, the way it was obtained, and what to know about it."""

from __future__ import annotations

import gc
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import assay
from assay.core.results import GpuSnapshot
from assay.stats.sequential import InterimLook
from assay.timing.measure import ANYTIME_METHOD, estimate_at_look
from tests.timing.faking import Known, KnownRig, between, noisy, nothing

if TYPE_CHECKING:
    from assay.timing.sampling import Samples
    from tests.timing.faking import VirtualTime


def summing() -> int:
    return sum(range(1000))


@pytest.fixture
def known(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure something whose truth is known."""

    def measured(draw: Any, *, mhz: Any = None, device: str = "cpu", **options: Any) -> assay.Measurement:
        rig = KnownRig({"it": Known(virtual, draw, mhz=mhz)}, device=device)
        rig.install(monkeypatch)
        return assay.measure(nothing, name="it", **options)

    return measured


def test_a_function_is_measured_with_all_that_belongs_to_a_number() -> None:
    result = assay.measure(summing, budget_s=0.5)
    assert result.name == "summing"
    assert (result.device, result.cache, result.method, result.decisive) == ("cpu", "warm", "wall", "call_us")
    assert result.why == "on a CPU a call returns when its work is done"
    assert result.time is result.call_us
    assert result.time.unit == "us"
    assert result.time.scope == "process"
    assert result.time.value > 0
    assert (result.busy_us, result.span_us, result.cycles) == (None, None, None)
    assert result.samples == result.time.n == len(result.series["call_us"])
    assert result.calls > result.samples
    assert result.took_s > 0


def test_arguments_are_handed_over() -> None:
    seen: list[tuple[object, ...]] = []
    assay.measure(lambda *a, **k: seen.append((a, k)), args=(1,), kwargs={"b": 2}, budget_s=0.05)
    assert set(map(str, seen)) == {"((1,), {'b': 2})"}


def test_a_result_survives_the_way_through_json() -> None:
    result = assay.measure(summing, budget_s=0.1)
    read = assay.Measurement.model_validate_json(result.model_dump_json())
    assert read == result.model_copy(update={"series": {}})
    assert "series" not in result.as_json()


def test_a_result_reads_as_a_few_lines(known: Any) -> None:
    lines = str(known(noisy(12.5, 0.001))).splitlines()
    assert lines[0] == "it on cpu, warm cache"
    assert lines[1].startswith("  call  12.5")
    assert lines[1].endswith("what a caller waits")
    assert lines[2] == "  by known: it is known"
    assert "±1 % reached; 16 samples in" in lines[3]


def test_the_known_truth_lies_in_the_interval_and_the_precision_is_reached(known: Any) -> None:
    result = known(noisy(10.0, 0.02), precision=0.005)
    assert result.stopped == "precise enough"
    assert result.time.low < 10.0 < result.time.high
    assert result.precision_reached <= result.precision_wanted == 0.005
    assert result.warmed_up
    assert result.notes == ()


def test_a_budget_that_is_too_small_is_said(known: Any) -> None:
    result = known(noisy(10.0, 0.3), precision=0.0001, budget_s=0.5)
    assert result.stopped == "budget spent"
    assert result.precision_reached > 0.0001
    assert "±0.01 % not reached, ±" in str(result)
    assert "when the budget was spent" in str(result)


def test_two_levels_are_told_apart_and_given_no_interval(known: Any) -> None:
    result = known(between(10.0, 13.0, every=6))
    assert (result.stopped, result.shape) == ("two levels", "two levels")
    assert result.time.low is None
    assert result.precision_reached is None
    (note,) = (note for note in result.notes if "levels" in note)
    assert "switch between two levels, 10 µs and 13 µs" in note
    assert "cannot be reached: the times switch between two levels" in str(result)


def test_drift_is_noted(known: Any) -> None:
    noise = noisy(1.0, 0.01)

    def drifting(first: int, n: int) -> Samples:
        return 10 * (1 + 2e-5 * np.arange(first, first + n)) * noise(first, n)

    result = known(drifting, precision=0.0005, budget_s=1.0)
    assert result.shape == "drift"
    assert "the times drift: the median is that of this window" in result.notes


def test_times_that_never_settle_are_noted(known: Any) -> None:
    result = known(lambda first, n: 10.0 + np.arange(first, first + n), budget_s=0.2)
    assert not result.warmed_up
    assert "the times had not settled when the warm-up ended" in result.notes


def test_the_clock_that_the_device_counted_is_in_the_result(known: Any) -> None:
    result = known(noisy(10.0, 0.001), mhz=lambda batch: 1900.0 + batch % 2, device="cuda:0")
    assert 1900 <= result.clock.mhz_low <= result.clock.mhz <= result.clock.mhz_high <= 1901
    assert result.cycles.value == pytest.approx(10.0 * 1900, rel=0.01)
    assert result.cycles.unit == "cycles"


def test_a_clock_that_is_held_back_is_noted_with_its_reasons(known: Any) -> None:
    held = GpuSnapshot(uuid="GPU-1", throttle=("power cap", "clocks set by the user"))
    result = known(noisy(10.0, 0.05), device="cuda:0", reader=lambda: held, precision=0.002)
    assert result.clock.before == result.clock.after == held
    assert result.clock.throttle == ("power cap",)
    assert result.clock.throttled_share == 1.0
    assert "the clock was throttled (power cap): read times together with cycles" in result.notes


def test_only_the_times_asked_for_are_given_and_the_decisive_one(known: Any) -> None:
    assert known(noisy(10.0), times=("busy",)).call_us is not None


def test_the_instrument_is_closed_whatever_happens(virtual: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(first: int, n: int) -> Samples:
        if first:
            raise ValueError("out of luck")
        return np.ones(n)

    instrument = Known(virtual, broken)
    KnownRig({"it": instrument}).install(monkeypatch)
    with pytest.raises(assay.TrialFailed, match="it raised ValueError: out of luck"):
        assay.measure(nothing, name="it")
    assert instrument.closed


@pytest.mark.parametrize("after", [10, 1000, 20_000])
def test_a_function_that_raises_later_has_failed_with_its_own_error_as_the_cause(after: int) -> None:
    calls = iter(range(after))

    def work() -> None:
        next(calls)

    with pytest.raises(assay.TrialFailed, match="work raised StopIteration") as caught:
        assay.measure(work)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_setup_goes_before_each_call() -> None:
    stack: list[int] = []
    result = assay.measure(stack.pop, setup=lambda: stack.append(1), budget_s=0.05)
    assert stack == []
    assert "a call takes less than 1 µs and is timed by itself" in result.notes[0]


def test_a_tiny_function_is_noted_with_what_was_taken_off() -> None:
    result = assay.measure(lambda: None, budget_s=0.1)
    assert "are put together in a sample" in result.notes[0]
    assert "ns that the loop costs are taken off each" in result.notes[0]


def test_a_call_longer_than_the_budget_is_measured_all_the_same_and_noted() -> None:
    def long() -> None:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass

    result = assay.measure(long, budget_s=0.01)
    assert result.samples >= 1
    assert "one call takes longer than the whole budget" in result.notes


def test_a_spin_of_known_duration_comes_out_as_that() -> None:
    def spin() -> None:
        end = time.perf_counter_ns() + 100_000
        while time.perf_counter_ns() < end:
            pass

    result = assay.measure(spin, budget_s=1.0)
    assert 0.99 < min(result.series["call_us"]) / 100 < 1.5


def test_the_garbage_collector_rests_meanwhile_and_is_then_as_it_was() -> None:
    gc.enable()
    seen: set[bool] = set()
    assay.measure(lambda: seen.add(gc.isenabled()), budget_s=0.05)
    assert gc.isenabled()
    assert False in seen


def test_bad_options_are_said_before_the_function_is_called() -> None:
    with pytest.raises(assay.BadInput):
        assay.measure(lambda: pytest.fail("it ran"), budget_s=-1)


def test_cuda_that_is_not_there_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", absent)
    with pytest.raises(assay.MachineCannot):
        assay.measure(summing, device="cuda")


def test_an_estimate_at_a_look_says_why_it_has_no_interval() -> None:
    few = estimate_at_look(np.array([1.0, 2.0]), InterimLook(2, 1.0), "us", 0.01)
    assert (few.low, few.method) == (
        None,
        f"{ANYTIME_METHOD}; no interval: too few effective samples",
    )
    torn = estimate_at_look(between(10.0, 13.0)(0, 200), InterimLook(200, 1.0), "us", 0.01)
    assert torn.low is None
    assert "no interval: two levels, 10 and 13" in torn.method
    close = estimate_at_look(between(10.0, 10.1)(0, 200), InterimLook(200, 1.0), "us", 0.01)
    assert close.low is not None
    assert close.method == "median between two levels close together"


def test_a_result_says_that_its_interval_is_of_this_process_and_window(known: Any) -> None:
    result = known(noisy(10.0, 0.01))
    assert (result.scope, result.time.scope, result.unsteady, result.no_interval) == ("process", "process", None, None)
    says = "the interval is of this process and this window; a fresh process may differ by more (assay time)"
    assert says in str(result)


def test_times_that_walk_at_random_are_called_drifting_and_not_precise(known: Any) -> None:
    path = 10 * np.exp(0.002 * np.cumsum(np.random.default_rng(1).standard_normal(20_000)))
    result = known(lambda first, n: path[first : first + n], budget_s=1.0)
    assert (result.unsteady, result.shape) == ("drift", "drift")
    assert result.stopped == "budget spent"
    assert result.took_s >= 1.0
    if result.time.low is None:
        assert result.no_interval == "drift"
    else:
        assert result.precision_reached > result.precision_wanted


def test_levels_that_both_take_their_share_are_the_reason_for_no_interval(known: Any) -> None:
    result = known(between(10.0, 13.0, every=60), budget_s=1.0, precision=1e-4)
    assert (result.unsteady, result.no_interval) == ("switching", "two levels")


def test_samples_that_are_all_equal_or_have_two_values_are_measured(known: Any) -> None:
    alike = known(lambda _, n: np.full(n, 5.0))
    assert (alike.time.low, alike.time.high, alike.stopped) == (5.0, 5.0, "precise enough")
    rng = np.random.default_rng(2)
    ticks = known(lambda _, n: np.where(rng.random(n) < 0.4, 5.0, 6.0), budget_s=0.5, precision=0.001)
    assert (ticks.shape, ticks.unsteady) == ("steady", None)
