"""A GPU's lane: samples are queued ahead so that the GPU never waits for the host, and timed by events in the stream.

    host     launch launch launch ············ launch ············
    stream   │▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│                │ an event before, an event after

The events are handed in, and are used again and again. Only a first one ties the GPU's time to the host's: over ten
minutes the two clocks may part by some milliseconds.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from assay.core.errors import TrialFailed
from assay.timing.lanes import Kept
from assay.timing.wall import MOST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.instrument import Call
    from assay.timing.stretch import Series

QUEUED_NS = 4_000_000
"""About how much work is queued behind what runs."""
DEEPEST = 256
"""Samples that are queued at most."""
FAR_MS = 1000.0
"""Events so far apart are not compared: their distance comes as a 32-bit number."""
SHORTEST_NAP_S, LONGEST_NAP_S = 0.0002, 0.005


class Event(Protocol):
    """A mark in a stream, as PyTorch's."""

    def record(self) -> None:
        """Put it behind all that is in the stream."""
        ...

    def query(self) -> bool:
        """Return whether the stream has come past it."""
        ...

    def elapsed_time(self, later: Self, /) -> float:
        """Return the milliseconds between two that the stream has come past."""
        ...


class _Flying(NamedTuple):
    """A sample in the queue."""

    subject: int
    begin: Event
    end: Event


class EventLane:
    """Calls on one stream of a GPU.

    Args:
        calls: What is called, one for each subject.
        together: How many calls make a sample of each.
        event: Makes an event.
        synchronize: Waits until the GPU has no more work.
        limit_s: A GPU that has not finished a sample for so long has failed.
        most: So many samples of a subject at most.
        clock: In monotonic nanoseconds.
        sleep: Waits for seconds.
    """

    quantity = "span_us"

    def __init__(
        self,
        calls: Sequence[Call],
        together: Sequence[int],
        *,
        event: Callable[[], Event],
        synchronize: Callable[[], None],
        limit_s: float,
        most: int = MOST_SAMPLES,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.subjects = len(calls)
        self.busy_ns = 0.0
        self._calls = tuple(calls)
        self._kept = [Kept(count, most) for count in together]
        self._event = event
        self._synchronize = synchronize
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._idle: list[Event] = []
        self._queue: deque[_Flying] = deque()
        self._anchor = event()
        self._anchor_ms = 0.0

    def start(self) -> int:
        """Wait for the GPU, forget all samples, and tie its time to the host's by an event that nothing delays."""
        self.finish()
        self._synchronize()
        for samples in self._kept:
            samples.clear()
        self.busy_ns, self._anchor_ms = 0.0, 0.0
        zero_ns = self._clock()
        self._anchor.record()
        return zero_ns

    def launch(self, subject: int) -> None:
        """Queue the calls of one sample; wait where enough is queued."""
        begin, end = self._fresh(), self._fresh()
        begin.record()
        for _ in range(self._kept[subject].calls):
            self._calls[subject]()
        end.record()
        self._queue.append(_Flying(subject, begin, end))
        self._keep_up()
        if self._kept[subject].full:
            self.finish()
            self._kept[subject].thin_out()

    def finish(self) -> None:
        """Wait until all that was launched is done and kept."""
        while self._queue:
            self._land()

    @property
    def ahead_ns(self) -> float:
        """About how long what is queued will take: each as long as the last one of its subject took."""
        return sum(self._kept[queued.subject].last_ns for queued in self._queue)

    @property
    def round_ns(self) -> float:
        """How long the last sample of each subject took."""
        return sum(samples.last_ns for samples in self._kept)

    def series(self) -> tuple[Series, ...]:
        """Return all that is kept."""
        return tuple(s for n, samples in enumerate(self._kept) for s in samples.series(n, self.quantity))

    def _fresh(self) -> Event:
        return self._idle.pop() if self._idle else self._event()

    def _keep_up(self) -> None:
        """Wait for the oldest samples as long as those behind them keep the GPU busy, or nobody knows for how long."""
        ahead_ns = self.ahead_ns
        while len(self._queue) > 1:
            oldest_ns = self._kept[self._queue[0].subject].last_ns
            ahead_ns -= oldest_ns
            if oldest_ns > 0 and ahead_ns < QUEUED_NS and len(self._queue) <= DEEPEST:
                return
            self._land()

    def _land(self) -> None:
        """Wait for the oldest sample, and keep it."""
        subject, begin, end = self._queue.popleft()
        samples = self._kept[subject]
        self._wait_for(end, samples.last_ns / 1e9)
        took_us = 1e3 * begin.elapsed_time(end)
        start_ms = self._anchor_ms + self._anchor.elapsed_time(begin)
        self.busy_ns += 1e3 * took_us
        samples.add(1e3 * start_ms, took_us)
        self._idle.append(end)
        if start_ms - self._anchor_ms > FAR_MS:
            self._idle.append(self._anchor)
            self._anchor, self._anchor_ms = begin, start_ms
        else:
            self._idle.append(begin)

    def _wait_for(self, event: Event, expected_s: float) -> None:
        """Wait for an event asleep, for a while that is short against the sample and what is queued behind it."""
        nap_s = min(max(SHORTEST_NAP_S, expected_s / 20), LONGEST_NAP_S)
        begin = self._clock()
        while not event.query():
            if self._clock() - begin > self._limit_s * 1e9:
                raise TrialFailed(f"The GPU has not finished a sample within {self._limit_s:g} s.")
            self._sleep(nap_s)
