"""The plain timer: counts obeyed, subjects interleaved, time on a clock that the test turns."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.timing import wall
from assay.timing.wall import SHORTEST_SAMPLE_NS, TimedSubject, WallTimer, gc_paused, time_rounds, warm_up_subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Journal:
    """Remembers which subject was called and which was waited for, in order."""

    calls: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def subject(self, index: int, work: Callable[[], object] = lambda: None, *, reports: bool = False) -> TimedSubject:
        def call() -> object:
            self.calls.append(index)
            return work()

        return TimedSubject(call, lambda: self.waits.append(index), reports)

    def subjects(self, count: int) -> list[TimedSubject]:
        return [self.subject(index) for index in range(count)]


class Clock:
    """Time that passes only in calls."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def takes(self, ns: int) -> Callable[[], None]:
        def work() -> None:
            self.now_ns += ns

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wall, "time", SimpleNamespace(perf_counter_ns=lambda: made.now_ns))
    return made


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the garbage collector as it was, whatever a test does to it."""
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 12), st.integers(0, 2**64))
def test_given_counts_are_obeyed_exactly(subjects: int, warmups: int, samples: int, seed: int) -> None:
    journal = Journal()
    timed = journal.subjects(subjects)
    grouping = warm_up_subjects(timed, runs=warmups, share_s=60.0)
    assert Counter(journal.calls) == {index: warmups for index in range(subjects) if warmups}
    assert grouping == (1,) * subjects
    journal.calls.clear()
    block = time_rounds(timed, grouping, samples=samples, until_ns=None, seed=seed)
    assert Counter(journal.calls) == dict.fromkeys(range(subjects), samples)
    assert [len(taken.call_us) for taken in block.samples] == [samples] * subjects


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**64))
def test_every_round_samples_every_subject_once(subjects: int, rounds: int, seed: int) -> None:
    journal = Journal()
    time_rounds(journal.subjects(subjects), (1,) * subjects, samples=rounds, until_ns=None, seed=seed)
    for number in range(rounds):
        assert sorted(journal.calls[number * subjects : (number + 1) * subjects]) == list(range(subjects))


def order(seed: int) -> list[int]:
    journal = Journal()
    time_rounds(journal.subjects(4), (1,) * 4, samples=50, until_ns=None, seed=seed)
    return journal.calls


def test_the_order_within_rounds_is_random_and_the_seed_gives_it_again() -> None:
    assert order(7) == order(7)
    assert order(7) != order(8)
    firsts = Counter(order(7)[::4])
    assert set(firsts) == {0, 1, 2, 3}


def test_a_sample_of_several_calls_is_reported_per_call(clock: Clock) -> None:
    journal = Journal()
    block = time_rounds([journal.subject(0, clock.takes(20_000))], (5,), samples=3, until_ns=None, seed=0)
    assert len(journal.calls) == 15
    assert list(block.samples[0].call_us) == [20.0, 20.0, 20.0]
    assert block.samples[0].calls_per_sample == 5


def test_work_is_waited_for_before_the_clock_is_read_once_a_sample(clock: Clock) -> None:
    calls: list[str] = []

    def wait() -> None:
        calls.append("wait")
        clock.now_ns += 9_000

    block = time_rounds([TimedSubject(lambda: calls.append("call"), wait)], (3,), samples=2, until_ns=None, seed=0)
    assert calls == ["call", "call", "call", "wait"] * 2
    assert list(block.samples[0].call_us) == [3.0, 3.0]


@pytest.mark.parametrize("call_ns", [1_000, 7_000, 49_999, 50_000, 3_000_000])
def test_short_calls_are_grouped_into_samples_long_enough_for_the_clock(clock: Clock, call_ns: int) -> None:
    (grouping,) = warm_up_subjects([Journal().subject(0, clock.takes(call_ns))], runs=None, share_s=1.0)
    assert grouping == math.ceil(SHORTEST_SAMPLE_NS / call_ns)
    assert grouping * call_ns >= SHORTEST_SAMPLE_NS


def test_calls_too_short_for_the_clock_to_see_are_grouped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = chain([0] * 9, repeat(10**9))
    monkeypatch.setattr(wall, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))
    (grouping,) = warm_up_subjects([Journal().subject(0)], runs=None, share_s=1.0)
    assert grouping == SHORTEST_SAMPLE_NS


def test_the_first_slow_calls_do_not_decide_how_calls_are_grouped(clock: Clock) -> None:
    durations = iter([40_000_000, *[5_000] * 100_000])

    def slow_at_first() -> None:
        clock.now_ns += next(durations)

    assert warm_up_subjects([Journal().subject(0, slow_at_first)], runs=None, share_s=1.0) == (10,)


def test_warming_up_takes_a_tenth_of_the_time_shared_among_the_subjects(clock: Clock) -> None:
    journal = Journal()
    subjects = [journal.subject(index, clock.takes(1_000_000)) for index in range(2)]
    began = clock.now_ns
    warm_up_subjects(subjects, runs=None, share_s=1.0)
    assert clock.now_ns - began == 100_000_000
    assert Counter(journal.calls) == {0: 50, 1: 50}


def test_without_time_to_warm_up_nothing_is_called_and_each_call_is_a_sample() -> None:
    journal = Journal()
    assert warm_up_subjects(journal.subjects(2), runs=None, share_s=0.0) == (1, 1)
    assert journal.calls == []


def test_at_least_one_round_is_taken_even_when_time_is_over(clock: Clock) -> None:
    journal = Journal()
    block = time_rounds(journal.subjects(3), (1, 1, 1), samples=None, until_ns=clock.now_ns - 10**9, seed=0)
    assert sorted(journal.calls) == [0, 1, 2]
    assert [len(taken.call_us) for taken in block.samples] == [1, 1, 1]


def test_rounds_go_on_until_the_moment_given_and_the_last_one_is_whole(clock: Clock) -> None:
    journal = Journal()
    subjects = [journal.subject(index, clock.takes(1_000_000)) for index in range(2)]
    began = clock.now_ns
    block = time_rounds(subjects, (1, 1), samples=None, until_ns=began + 9_000_000, seed=0)
    assert [len(taken.call_us) for taken in block.samples] == [5, 5]
    assert (block.start_ns, block.end_ns) == (began, began + 10_000_000)


def test_a_count_ends_the_rounds_before_the_moment_does(clock: Clock) -> None:
    journal = Journal()
    time_rounds([journal.subject(0, clock.takes(1_000))], (1,), samples=4, until_ns=clock.now_ns + 10**12, seed=0)
    assert len(journal.calls) == 4


def test_a_subject_that_reports_for_itself_is_not_warmed_up() -> None:
    journal = Journal()
    command, function = journal.subject(0, dict, reports=True), journal.subject(1)
    grouping = warm_up_subjects([command, function], runs=None, share_s=0.02)
    assert 0 not in journal.calls
    assert 1 in journal.calls
    assert grouping[0] == 1


def test_a_given_number_of_warm_up_runs_is_obeyed_for_a_command_too() -> None:
    journal = Journal()
    warm_up_subjects([journal.subject(0, dict, reports=True)], runs=2, share_s=1.0)
    assert journal.calls == [0, 0]


def test_a_subject_that_timed_itself_is_believed_and_its_extras_are_kept_in_order(clock: Clock) -> None:
    reports = iter([{"call_us": 5.0, "max_rss_mib": 1.0}, {"call_us": 6, "max_rss_mib": 2}])

    def work() -> object:
        clock.now_ns += 10**9
        return next(reports)

    block = time_rounds([Journal().subject(0, work, reports=True)], (1,), samples=2, until_ns=None, seed=0)
    assert list(block.samples[0].call_us) == [5.0, 6.0]
    assert {name: list(values) for name, values in block.samples[0].extras.items()} == {"max_rss_mib": [1.0, 2.0]}


def test_extras_without_a_time_leave_the_clocks_time(clock: Clock) -> None:
    def work() -> object:
        clock.now_ns += 2_000
        return {"loss": 0.5}

    block = time_rounds([Journal().subject(0, work, reports=True)], (1,), samples=1, until_ns=None, seed=0)
    assert list(block.samples[0].call_us) == [2.0]
    assert list(block.samples[0].extras["loss"]) == [0.5]


def test_what_a_function_returns_is_not_taken_for_a_report(clock: Clock) -> None:
    def work() -> object:
        clock.now_ns += 2_000
        return {"call_us": 0.0, "anything": "at all"}

    block = time_rounds([Journal().subject(0, work)], (1,), samples=1, until_ns=None, seed=0)
    assert list(block.samples[0].call_us) == [2.0]
    assert block.samples[0].extras == {}


def test_on_the_real_clock_samples_are_positive_and_lie_within_the_block() -> None:
    block = time_rounds(Journal().subjects(2), (1, 1), samples=20, until_ns=None, seed=0)
    total_us = sum(sum(taken.call_us) for taken in block.samples)
    assert all(us > 0 for taken in block.samples for us in taken.call_us)
    assert total_us <= (block.end_ns - block.start_ns) / 1000


@pytest.mark.parametrize("runs", [2, None])
def test_what_comes_before_a_call_comes_before_every_one_and_is_not_timed(clock: Clock, runs: int | None) -> None:
    told: list[str] = []

    def call() -> None:
        told.append("call")
        clock.now_ns += 10_000_000

    def before() -> None:
        told.append("before")
        clock.now_ns += 5_000_000

    subject = TimedSubject(call, lambda: None, before=before)
    calls_per_sample = warm_up_subjects([subject], runs=runs, share_s=1.0)
    warming = len(told)
    block = time_rounds([subject], calls_per_sample, samples=3, until_ns=None, seed=0)
    assert told == ["before", "call"] * (len(told) // 2)
    assert warming >= 4
    assert len(told) == warming + 6
    assert list(block.samples[0].call_us) == [10_000.0] * 3


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_timing_and_is_then_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    seen: list[bool] = []
    time_rounds(
        [TimedSubject(lambda: seen.append(gc.isenabled()), lambda: None)], (1,), samples=2, until_ns=None, seed=0
    )
    assert seen == [False, False]
    assert gc.isenabled() is enabled


def test_the_garbage_collector_is_as_it_was_even_when_a_call_fails() -> None:
    gc.enable()
    subject = TimedSubject(lambda: 1 / 0, lambda: None)
    with pytest.raises(ZeroDivisionError):
        time_rounds([subject], (1,), samples=1, until_ns=None, seed=0)
    assert gc.isenabled()


def test_the_garbage_collector_is_as_it_was_even_when_the_user_interrupts() -> None:
    gc.enable()
    with pytest.raises(KeyboardInterrupt), gc_paused():
        raise KeyboardInterrupt
    assert gc.isenabled()


def spin(ns: int) -> Callable[[], None]:
    """Return a call that takes so long on the same clock, and a little more."""

    def call() -> None:
        end = time.perf_counter_ns() + ns
        while time.perf_counter_ns() < end:
            pass

    return call


def lowest_us(clock: WallTimer, batches: int = 20) -> float:
    """Return the shortest sample: on a shared machine, the least disturbed."""
    return float(np.concatenate([clock.take().quantities["call_us"] for _ in range(batches)]).min())


@pytest.mark.parametrize("us", [5, 50, 1000])
def test_a_spin_of_known_duration_is_measured_as_that(us: int) -> None:
    measured = lowest_us(WallTimer(spin(us * 1000)))
    assert 0.95 <= measured / us <= 1.5


@pytest.mark.parametrize("us", [200, 2000])
def test_a_spin_timed_by_itself_is_measured_as_that(us: int) -> None:
    measured = lowest_us(WallTimer(spin(us * 1000), single_calls=True))
    assert 0.99 <= measured / us <= 1.5


def test_calls_shorter_than_a_sample_are_put_together() -> None:
    clock = WallTimer(lambda: None)
    assert clock.calls_per_sample > 50
    assert clock.floor_ns > 0
    assert clock.shortest_ns < SHORTEST_SAMPLE_NS


def test_an_empty_function_takes_far_less_than_a_microsecond_and_not_less_than_nothing() -> None:
    samples = np.concatenate([WallTimer(lambda: None).take().quantities["call_us"] for _ in range(10)])
    assert samples.min() >= 0
    assert np.median(samples) < 5


def test_ten_times_the_work_takes_about_ten_times_as_long() -> None:
    one, ten = (lowest_us(WallTimer(lambda n=n: sum(range(n)))) for n in (2_000, 20_000))  # type: ignore[misc]
    assert 5 < ten / one < 20


def test_a_call_longer_than_a_sample_is_timed_by_itself_and_nothing_is_taken_off() -> None:
    clock = WallTimer(spin(2 * SHORTEST_SAMPLE_NS))
    assert clock.calls_per_sample == 1
    assert clock.floor_ns == 0


def test_a_setup_goes_before_every_single_call_also_while_it_is_looked_at() -> None:
    stack: list[int] = []
    clock = WallTimer(stack.pop, before=lambda: stack.append(1), single_calls=True)
    clock.take()
    assert stack == []
    assert clock.calls_per_sample == 1


def test_a_sample_ends_when_the_work_is_finished() -> None:
    journal: list[str] = []
    clock = WallTimer(lambda: journal.append("call"), finish=lambda: journal.append("finish"), single_calls=True)
    journal.clear()
    clock.sample_us()
    assert journal == ["call", "finish"]


def test_a_batch_is_short_and_gives_what_a_caller_waits() -> None:
    batch = WallTimer(lambda: None).take()
    assert list(batch.quantities) == ["call_us"]
    assert 1 <= len(batch.quantities["call_us"]) <= 16
    assert batch.mhz is None
