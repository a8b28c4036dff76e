"""The host's clock around calls: short ones put together, what the loop costs taken off, a setup before each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.timing.wall import SHORTEST_SAMPLE_NS, WallTimer

if TYPE_CHECKING:
    from collections.abc import Callable


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
