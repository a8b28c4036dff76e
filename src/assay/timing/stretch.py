"""A stretch of a trial: several calls sampled in turns, until each is known well enough or the time is up."""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.stats.order import median
from assay.stats.shape import may_still_move
from assay.timing.adaptive import MOST_SAMPLES, interval, planned
from assay.timing.clocks import ClockWatch
from assay.timing.instrument import joined
from assay.timing.turns import Order
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.stats.anytime import Look
    from assay.timing.instrument import Batch
    from assay.timing.options import ClockReader
    from assay.timing.rig import Rigged

TIMED_ROUNDS = 3
"""The shortest of so many rounds says how many there may be: the first one may have been slow."""

FIRST_LOOK = 64
"""Samples before the first look: enough to see drift, bursts and levels in what is kept."""


@dataclass(frozen=True)
class Series:
    """Samples of one quantity of one subject, in order; ``window`` is when, where that is not the whole stretch."""

    subject: int
    quantity: str
    samples: array[float]
    calls_per_sample: int = 1
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Stretch:
    """When it was, and what was sampled."""

    start_ns: int
    end_ns: int
    series: tuple[Series, ...]


class _Sampled:
    """One call in its turns: what was taken, and whether that is enough."""

    def __init__(self, rigged: Rigged) -> None:
        self._rigged = rigged
        self._looks: list[Look] = []
        self._batches: list[Batch] = []
        self._calls_us = array("d")
        self.count = 0
        self.enough = False

    def go(self) -> None:
        """Take a batch, and a call as a caller sees it."""
        batch = self._rigged.instrument.take()
        self._batches.append(batch)
        self.count += len(batch.quantities[self._rigged.instrument.primary])
        if self._rigged.wall is not None:
            self._calls_us.append(self._rigged.wall.sample_us())

    def plan(self, most_rounds: int, rounds: int) -> None:
        """Plan the looks, now that it is known what so many rounds gave and how many there may be."""
        last = max(1, min(MOST_SAMPLES, self.count * max(rounds, most_rounds) // rounds))
        self._looks = list(planned(FIRST_LOOK, last))

    def look(self, precision: float) -> None:
        """Find out, at the looks that are due, whether the median is known well enough."""
        while self._looks and self._looks[0].n <= self.count and not self.enough:
            look = self._looks.pop(0)
            values = joined(self._batches)[self._rigged.instrument.primary][: look.n]
            within = interval(values, look, precision)
            middle = abs(median(values))
            precise = within is not None and within[1] - within[0] <= 2 * precision * middle
            self.enough = precise and not may_still_move(values)

    def series(self, subject: int) -> list[Series]:
        """Return all that was taken."""
        calls_per_sample = self._rigged.instrument.calls_per_sample
        all_series = [
            Series(subject, KEPT_AS.get(name, name), array("d", samples.tolist()), calls_per_sample)
            for name, samples in joined(self._batches).items()
        ]
        if self._rigged.wall is not None:
            all_series.append(Series(subject, "call_us", self._calls_us, self._rigged.wall.calls_per_sample))
        clock = [batch.mhz for batch in self._batches if batch.mhz is not None]
        if clock:
            all_series.append(Series(subject, "clock_mhz", array("d", clock), self.count // len(self._batches)))
        return all_series


KEPT_AS = {"cycles": "busy_cycles"}
"""What a quantity of an instrument is called in a series, where that differs."""


def take(
    rigged: Sequence[Rigged], *, until_ns: int, precision: float | None, seed: int, reader: ClockReader | None = None
) -> Stretch:
    """Sample every call once a round, in random order, until a moment; at least one round is taken.

    With a precision it ends as soon as every call is known to it, at a look planned beforehand. With a reader each
    round is labelled by whether the GPU's clock was held back.
    """
    watch = ClockWatch(reader)
    start = now = time.perf_counter_ns()
    order = Order(seed)
    with quiet_collector():
        sampled = [_Sampled(timed_call) for timed_call in rigged]
        for index in order.next(range(len(rigged))):
            sampled[index].go()
        round_ns = max(1, time.perf_counter_ns() - start)
        rounds = 1
        watch.look()
        while (now := time.perf_counter_ns()) + round_ns // 2 < until_ns:
            if all(call.enough or call.count >= MOST_SAMPLES for call in sampled):
                break
            for index in order.next(range(len(rigged))):
                sampled[index].go()
            watch.look()
            rounds += 1
            if rounds <= TIMED_ROUNDS:
                round_ns = max(1, min(round_ns, time.perf_counter_ns() - now))
            if precision is not None and rounds >= TIMED_ROUNDS:
                for call in sampled:
                    if rounds == TIMED_ROUNDS:
                        call.plan((until_ns - start) // round_ns, rounds)
                    call.look(precision)
        now = time.perf_counter_ns()
    series = [s for i, call in enumerate(sampled) for s in call.series(i)]
    if reader is not None and not math.isnan(watch.labels[0]):
        series += [Series(i, "throttled", array("d", watch.labels)) for i in range(len(sampled))]
    return Stretch(start, now, tuple(series))
