"""Two calls sampled in turns, one right after the other, so that round by round their times can be divided.

    round     1          2          3          4
          ┌───┴───┐  ┌───┴───┐  ┌───┴───┐  ┌───┴───┐
          ref  fast  fast  ref  ref  fast  fast  ref        what drifts, drifts for both

A round keeps one number of each quantity of each call: the median of a batch.
"""

from __future__ import annotations

import math
import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from assay.timing.clocks import ClockWatch
from assay.timing.stretch import KEPT_AS, Series
from assay.timing.turns import Order
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.timing.options import ClockReader
    from assay.timing.rig import Rigged

FEWEST_ROUNDS = 4
"""Rounds that are taken even when the time is up before: with fewer nothing can be said."""


class _Side:
    """One of the two: a number a round for each quantity."""

    def __init__(self, rigged: Rigged) -> None:
        self._rigged = rigged
        self._kept: dict[str, array[float]] = {}
        self._calls: dict[str, int] = {}

    def go(self) -> None:
        """Take a batch, and a call as a caller sees it."""
        instrument, wall = self._rigged.instrument, self._rigged.wall
        batch = instrument.take()
        for quantity, samples in batch.quantities.items():
            self._keep(quantity, float(np.median(samples)), len(samples) * instrument.calls_per_sample)
        if batch.mhz is not None:
            self._keep("clock_mhz", batch.mhz, 1)
        if wall is not None:
            self._keep("call_us", wall.sample_us(), wall.calls_per_sample)

    def _keep(self, quantity: str, value: float, calls: int) -> None:
        name = KEPT_AS.get(quantity, quantity)
        self._kept.setdefault(name, array("d")).append(value)
        self._calls[name] = calls

    def series(self, subject: int, window: tuple[int, int]) -> list[Series]:
        """Return all that was taken."""
        return [Series(subject, name, values, self._calls[name], window) for name, values in self._kept.items()]


def take(
    pair: tuple[Rigged, Rigged],
    subjects: tuple[int, int],
    *,
    rounds: int,
    until_ns: int,
    seed: int,
    reader: ClockReader | None = None,
) -> list[Series]:
    """Sample both so many rounds, or fewer where the time is up; the order within a round is random, then reversed.

    Args:
        pair: The two calls with their instruments.
        subjects: What they are called in the series.
        rounds: How many at the most.
        until_ns: No round begins after this moment, but for the first few.
        seed: Of the order.
        reader: With one, each round is labelled by whether the GPU's clock was held back.
    """
    watch, order = ClockWatch(reader), Order(seed)
    sides = [_Side(timed_call) for timed_call in pair]
    start = time.perf_counter_ns()
    with quiet_collector():
        for round_number in range(rounds):
            if round_number >= FEWEST_ROUNDS and time.perf_counter_ns() >= until_ns:
                break
            for index in order.next(range(2)):
                sides[index].go()
            watch.look()
    window = (start, time.perf_counter_ns())
    all_series = [
        series for side, subject in zip(sides, subjects, strict=True) for series in side.series(subject, window)
    ]
    return all_series + _throttled(watch.labels, subjects, window) if reader is not None else all_series


def _throttled(labels: Sequence[float], subjects: tuple[int, int], window: tuple[int, int]) -> list[Series]:
    if not labels or math.isnan(labels[0]):
        return []
    return [Series(subject, "throttled", array("d", labels), 1, window) for subject in subjects]
