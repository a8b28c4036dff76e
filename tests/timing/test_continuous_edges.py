"""Calls without a pause at their edges: how long bursts and gaps are, how far they stray, and when they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from assay.timing import continuous
from assay.timing.continuous import run_continuously

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.timing.interleaved import SampleSeries

MS = 1_000_000


@dataclass
class Hand:
    """A clock that stands still unless a call or a nap moves it."""

    now_ns: int = 0
    naps_s: list[float] = field(default_factory=list)
    reads: int = 0

    def clock(self) -> int:
        self.reads += 1
        assert self.reads < 1000, "it does not end"
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.naps_s.append(seconds)
        assert len(self.naps_s) < 1000, "it does not end"
        self.now_ns += round(seconds * 1e9)


@dataclass
class Played:
    """A lane whose samples all take equally long; it notes which subject was launched when."""

    hand: Hand
    takes_ns: int
    round_ns: float = 0.0
    ahead_ns: float = 0.0
    subjects: int = 1
    idle_ns: int = 0
    busy_ns: float = 0.0
    launched: list[tuple[int, int]] = field(default_factory=list)
    finished: int = 0

    def start(self) -> int:
        return self.hand.now_ns

    def launch(self, subject: int) -> None:
        self.launched.append((subject, self.hand.now_ns))
        self.hand.now_ns += self.takes_ns + self.idle_ns
        self.busy_ns += self.takes_ns

    def finish(self) -> None:
        self.finished += 1

    def series(self) -> tuple[SampleSeries, ...]:
        return ()

    @property
    def starts_ms(self) -> list[float]:
        return [at_ns / MS for _, at_ns in self.launched]


class Draws:
    """Stands for the module ``random``: what is drawn is given beforehand, and what was asked for is kept."""

    def __init__(self, values: Iterable[float]) -> None:
        self._values: Iterator[float] = iter(values)
        self.seeds: list[int] = []
        self.asked: list[tuple[float, float]] = []

    def seeded(self, seed: int) -> Draws:
        self.seeds.append(seed)
        return self

    def uniform(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return next(self._values)


@pytest.fixture
def hand() -> Hand:
    return Hand()


def draws(patch: pytest.MonkeyPatch, *values: float) -> Draws:
    made = Draws(values)
    patch.setattr(continuous, "random", SimpleNamespace(Random=made.seeded))
    return made


def asked_until(times: int) -> Iterator[bool]:
    """Say no so many times, and then yes."""
    yield from [False] * times
    yield True


def test_without_a_duty_calls_follow_one_another_until_the_moment_is_reached(hand: Hand) -> None:
    lane = Played(hand, 10 * MS, subjects=2)
    stretch = run_continuously(lane, until_ns=40 * MS, clock=hand.clock, sleep=hand.sleep)
    assert lane.launched == [(0, 0), (1, 10 * MS), (0, 20 * MS), (1, 30 * MS)]
    assert (stretch.start_ns, stretch.end_ns, hand.naps_s, lane.finished) == (0, 40 * MS, [], 1)
    short = Played(Hand(), 10 * MS)
    run_continuously(short, until_ns=40 * MS - 1, clock=short.hand.clock)
    assert len(short.launched) == 4


def test_what_is_queued_counts_as_if_it_had_been_made(hand: Hand) -> None:
    lane = Played(hand, 10 * MS, ahead_ns=20.0 * MS)
    run_continuously(lane, until_ns=40 * MS, clock=hand.clock)
    assert lane.starts_ms == [0, 10]


def test_without_a_moment_to_end_calls_go_on_until_told_to_stop(hand: Hand) -> None:
    lane, told = Played(hand, 10 * MS), asked_until(3)
    run_continuously(lane, stop=lambda: next(told), clock=hand.clock, sleep=hand.sleep)
    assert lane.starts_ms == [0, 10, 20, 30]


def test_the_bursts_of_half_the_time_are_drawn_about_half_a_period_long(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draws(monkeypatch, 1.0, 0.0, 1.4, 0.0, 1.0)
    # 25 ms in rounds of 10 ms are two and a half, taken as two; 35 ms are three and a half, taken as four.
    lane = Played(hand, 10 * MS, round_ns=10 * MS)
    run_continuously(lane, until_ns=130 * MS, duty=0.5, clock=hand.clock, sleep=hand.sleep)
    assert lane.starts_ms == [0, 10, 40, 50, 60, 70, 120]
    assert drawn.seeds == [0]
    assert drawn.asked == [(0.6, 1.4), (-1, 1), (0.6, 1.4), (-1, 1), (0.6, 1.4)]


def test_a_burst_is_as_many_rounds_as_fit_and_never_none(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    for burst, rounds in ((0.1, 1), (1.0, 1), (1.4, 2)):  # 0.1, 1.0 and 1.4 of 25 ms, in rounds of 18 ms
        draws(monkeypatch, burst, 0.0)
        lane = Played(Hand(), 18 * MS, round_ns=18 * MS)
        run_continuously(lane, until_ns=18 * MS * 2 * rounds, duty=0.5, clock=lane.hand.clock, sleep=lane.hand.sleep)
        assert len(lane.launched) == rounds
    draws(monkeypatch, 1.0, 0.0)
    first = Played(hand, 10 * MS)
    run_continuously(first, until_ns=20 * MS, duty=0.5, clock=hand.clock, sleep=hand.sleep)
    assert first.starts_ms == [0]


def test_bursts_stray_by_a_part_of_their_own_gap_from_where_they_are_due(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws(monkeypatch, 1.0, 0.5, 1.0, 0.25, 1.0, -0.5, 1.0)
    lane = Played(hand, 10 * MS, round_ns=10 * MS)
    run_continuously(lane, until_ns=160 * MS, duty=0.25, clock=hand.clock, sleep=hand.sleep)
    # Due every 40 ms, with gaps of 30 ms: 15 ms later, another 7.5 ms later, 15 ms earlier again.
    assert lane.starts_ms == [0, 55, 102.5, 127.5]
    assert hand.now_ns == 160 * MS
    assert hand.naps_s == pytest.approx([0.045, 0.0375, 0.015, 0.0225])


@pytest.mark.parametrize(
    ("walked_ms", "stray_ms"),
    [(0, 0), (50, 50), (60, 40), (100, 0), (160, -40), (250, 50), (-50, -50), (-60, -40), (-160, 40)],
)
def test_a_stray_is_thrown_back_at_fifty_milliseconds_on_either_side(walked_ms: int, stray_ms: int) -> None:
    assert continuous._reflect(walked_ms * MS) == stray_ms * MS


def test_the_last_burst_is_the_one_whose_gap_reaches_the_end(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    for until_ms, bursts in ((40, 1), (39, 1), (40.000001, 2)):
        draws(monkeypatch, 1.0, 0.0, 1.0, 0.0)
        lane = Played(Hand(), 10 * MS, round_ns=10 * MS)
        run_continuously(lane, until_ns=round(until_ms * MS), duty=0.25, clock=lane.hand.clock, sleep=lane.hand.sleep)
        assert (len(lane.launched), lane.hand.now_ns) == (bursts, 40 * MS * bursts)
    draws(monkeypatch, 1.0, 0.0)
    slow = Played(hand, 10 * MS, round_ns=10 * MS, idle_ns=50 * MS)
    run_continuously(slow, until_ns=60 * MS, duty=0.25, clock=hand.clock, sleep=hand.sleep)
    assert (slow.starts_ms, hand.naps_s) == ([0], [])


def test_a_load_is_ended_after_any_round_of_a_burst_and_before_any_nap_of_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[tuple[int, int, list[float]]] = [(0, 1, []), (1, 2, []), (2, 2, []), (3, 2, [0.05]), (4, 2, [0.05] * 2)]
    for times, launches, naps in ended:
        draws(monkeypatch, 3.2, 0.0)
        lane, told = Played(Hand(), 10 * MS, round_ns=10 * MS), asked_until(times)
        run_continuously(
            lane,
            stop=lambda told=told: next(told),  # type: ignore[misc]
            duty=0.125,
            clock=lane.hand.clock,
            sleep=lane.hand.sleep,
        )
        assert (len(lane.launched), lane.hand.naps_s) == (launches, naps)


def test_a_gap_is_slept_in_short_naps_until_exactly_its_end(hand: Hand) -> None:
    assert not continuous._wait_until(120 * MS, lambda: False, hand.clock, hand.sleep)
    assert hand.naps_s == pytest.approx([0.05, 0.05, 0.02])
    assert hand.now_ns == 120 * MS

    def asked() -> bool:
        raise AssertionError("nobody is asked once the time is up")

    assert not continuous._wait_until(120 * MS, asked, hand.clock, hand.sleep)
    assert continuous._wait_until(120 * MS + 1, lambda: True, hand.clock, hand.sleep)
    assert len(hand.naps_s) == 3
