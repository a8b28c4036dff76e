"""Two calls in turns: one number a round, the order within a round random and then reversed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.timing import interleaved
from assay.timing.sampling import SampleBatch
from assay.timing.setup import BoundCall, TimedCall

if TYPE_CHECKING:
    from assay.timing.interleaved import SampleSeries


class Tape:
    """An instrument that gives known samples, and notes whose turn it was."""

    method, primary, calls_per_sample = "tape", "span_us", 2

    def __init__(self, name: str, turns: list[str]) -> None:
        self._name = name
        self._turns = turns
        self._taken = 0

    def take(self) -> SampleBatch:
        self._turns.append(self._name)
        self._taken += 1
        return SampleBatch({"span_us": np.array([1.0, 2.0, 9.0]) * self._taken, "cycles": np.array([5.0])}, mhz=1500.0)

    def replan(self) -> bool:
        return False

    def close(self) -> None: ...


def rigged(turns: list[str]) -> tuple[TimedCall, TimedCall]:
    first, second = (
        TimedCall(BoundCall(name, lambda: None), Tape(name, turns), "span_us", "cuda", "it is a test") for name in "ab"
    )
    return first, second


def taken(**how: Any) -> tuple[list[SampleSeries], list[str]]:
    turns: list[str] = []
    told = {"rounds": 6, "until_ns": time.perf_counter_ns() + 10**10, "seed": 1, **how}
    return interleaved.sample_pair(rigged(turns), (4, 5), **told), turns


def test_a_round_keeps_the_median_of_a_batch_and_how_many_calls_that_were() -> None:
    series, _ = taken()
    span = next(each for each in series if each.quantity == "span_us" and each.subject == 4)
    assert list(span.samples) == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert span.calls_per_sample == 6
    assert {(each.subject, each.quantity) for each in series} == {
        (subject, name) for subject in (4, 5) for name in ("span_us", "busy_cycles", "clock_mhz")
    }
    assert all(each.window is not None and each.window[0] < each.window[1] for each in series)


def test_every_round_has_both_and_every_second_the_other_way_round() -> None:
    _, turns = taken(rounds=20)
    rounds = ["".join(turns[place : place + 2]) for place in range(0, 40, 2)]
    assert set(rounds) == {"ab", "ba"}
    assert all(one == other[::-1] for one, other in zip(rounds[::2], rounds[1::2], strict=True))


def test_when_the_time_is_up_the_fewest_rounds_are_taken_all_the_same() -> None:
    series, _ = taken(rounds=50, until_ns=time.perf_counter_ns() - 1)
    assert {len(each.samples) for each in series} == {interleaved.MIN_PAIR_ROUNDS}
