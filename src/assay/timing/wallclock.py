"""What a caller waits: the host's clock around calls, short ones put together, what the loop costs taken off."""

from __future__ import annotations

import math
import time
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from assay.timing.instrument import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.timing.instrument import Call

SHORTEST_SAMPLE_NS = 50_000
"""A sample lasts at least this long, so that reading the clock costs it under half a percent."""

BATCH_NS = 2_000_000
MOST_PER_BATCH = 16
TIGHT_NS = 1_000
"""Calls shorter than this are timed mostly by what the loop around them costs."""


def _nothing() -> None:
    """Do nothing."""


class WallClock:
    """Times calls by the host's clock.

    Attributes:
        floor_ns: What the loop costs a call; it is taken off.
    """

    method = "wall"
    primary = "call_us"

    def __init__(
        self,
        call: Call,
        *,
        finish: Callable[[], None] = _nothing,
        before: Call = _nothing,
        alone: bool = False,
    ) -> None:
        """Find out how long a call takes, and so how many make a sample; ``alone`` keeps one call to a sample."""
        self._call = call
        self._finish = finish
        self._before = before
        self.shortest_ns = _shortest_ns(call, finish, before, alone=alone)
        self.calls_per_sample = 1 if alone else max(1, math.ceil(SHORTEST_SAMPLE_NS / self.shortest_ns))
        self.floor_ns = _loop_ns(self.calls_per_sample)
        sample_ns = self.shortest_ns * self.calls_per_sample
        self._per_batch = max(1, min(MOST_PER_BATCH, int(BATCH_NS / sample_ns)))

    def take(self) -> Batch:
        """Take a few samples, one after another."""
        return Batch({"call_us": np.array([self.sample_us() for _ in range(self._per_batch)], dtype=np.float64)})

    def sample_us(self) -> float:
        """Take one sample: microseconds per call."""
        call, finish = self._call, self._finish
        self._before()
        begin = time.perf_counter_ns()
        for _ in repeat(None, self.calls_per_sample):
            call()
        finish()
        end = time.perf_counter_ns()
        return max(0.0, (end - begin) / self.calls_per_sample - self.floor_ns) / 1000

    def close(self) -> None:
        """Nothing is held."""


def _shortest_ns(call: Call, finish: Callable[[], None], before: Call, *, alone: bool) -> float:
    """Return how long one call takes at the least, out of a few; very short ones are put together to see them."""
    shortest, together = math.inf, 1
    for _ in range(5):
        before()
        begin = time.perf_counter_ns()
        for _ in repeat(None, together):
            call()
        finish()
        took = max(1, time.perf_counter_ns() - begin)
        shortest = min(shortest, took / together)
        if took >= SHORTEST_SAMPLE_NS:
            break
        if not alone:
            together = max(1, min(together * 10, int(SHORTEST_SAMPLE_NS / max(1.0, shortest))))
    return max(shortest, 1.0)


def _loop_ns(times: int) -> float:
    """Return what a loop costs each time round, at the least; nothing where calls are timed one by one."""
    if times == 1:
        return 0.0
    least = math.inf
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in repeat(None, times):
            pass
        least = min(least, time.perf_counter_ns() - begin)
    return least / times
