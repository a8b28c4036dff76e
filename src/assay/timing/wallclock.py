"""What a caller waits: the host's clock around calls, short ones put together, what the loop costs taken off."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from assay.core import copies
from assay.timing.batching import contradicted, least_ns, plan_batches
from assay.timing.instrument import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.batching import Batching
    from assay.timing.instrument import Call

SHORTEST_SAMPLE_NS = 50_000
"""A sample lasts at least this long, so that reading the clock costs it under half a percent."""

BATCH_NS = 2_000_000
MOST_PER_BATCH = 16
TIGHT_NS = 1_000
"""Calls shorter than this are timed mostly by what the loop around them costs."""

MOST_PROBES, FEWEST_SAMPLES = 4, 3
"""A probe is repeated where the median of the last samples, at least so many, contradicts it; so often at most."""


def _nothing() -> None:
    """Do nothing."""


class WallClock:
    """Times calls by the host's clock.

    Attributes:
        shortest_ns: How long a call takes at the least, by the probe.
        floor_ns: What the loop costs a call; it is taken off.
        alone: One call makes a sample.
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
        self._probes = 0
        self._sample_ns: deque[int] = deque(maxlen=MOST_PER_BATCH)
        self.alone = alone
        self._probe()

    def _probe(self) -> None:
        """Find out how long a call takes, and plan batches by it."""
        self._probes += 1
        self.shortest_ns = least_ns(
            self._call,
            finish=self._finish,
            before=self._before,
            enough_ns=SHORTEST_SAMPLE_NS,
            one_by_one=self.alone,
        )
        share_batches([self])

    def use(self, batching: Batching, floor_ns: float) -> None:
        """Put calls together like this from now on; ``floor_ns`` is what the loop costs each."""
        self._sample_ns.clear()
        self.batching = batching
        self.calls_per_sample = batching.calls_per_sample
        self.floor_ns = floor_ns

    def take(self) -> Batch:
        """Take a few samples, one after another."""
        samples_us = [self.sample_us() for _ in range(self.batching.samples_per_batch)]
        return Batch({"call_us": np.array(samples_us, dtype=np.float64)})

    def sample_us(self) -> float:
        """Take one sample: microseconds per call."""
        call, finish = self._call, self._finish
        self._before()
        begin = time.perf_counter_ns()
        for _ in repeat(None, self.calls_per_sample):
            call()
        finish()
        took_ns = time.perf_counter_ns() - begin
        copies.end_copy()
        self._sample_ns.append(took_ns)
        return max(0.0, took_ns / self.calls_per_sample - self.floor_ns) / 1000

    def replan(self) -> bool:
        """Repeat the probe where the last samples contradict it; return whether calls are put together anew."""
        if self.alone or len(self._sample_ns) < FEWEST_SAMPLES or self._probes >= MOST_PROBES:
            return False
        typical_ns = float(np.median(self._sample_ns))
        planned_ns = self.shortest_ns * self.calls_per_sample
        if not contradicted(typical_ns, planned_ns, SHORTEST_SAMPLE_NS, self.calls_per_sample):
            return False
        before = self.batching
        self._probe()
        return self.batching != before

    def close(self) -> None:
        """Nothing is held."""


def share_batches(clocks: Sequence[WallClock]) -> None:
    """Plan the batches of clocks whose calls take turns, so that none is at an advantage; see ``plan_batches``.

    What the loop costs is measured once for each number of calls, and so is the same where that is.
    """
    for one_by_one in (False, True):
        those = [clock for clock in clocks if clock.alone == one_by_one]
        if not those:
            continue
        plans = plan_batches(
            [clock.shortest_ns for clock in those],
            shortest_ns=SHORTEST_SAMPLE_NS,
            batch_ns=BATCH_NS,
            most_samples=MOST_PER_BATCH,
            one_by_one=one_by_one,
        )
        floors = {calls: _loop_ns(calls) for calls in {plan.calls_per_sample for plan in plans}}
        for clock, plan in zip(those, plans, strict=True):
            clock.use(plan, floors[plan.calls_per_sample])


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
