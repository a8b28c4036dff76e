"""Call subjects continuously and keep each sample with its start, so that power can be related to calls.

duty 1     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
duty 0.5   ▓▓▓▓▓     ▓▓▓     ▓▓▓▓▓▓           bursts of unequal length, so that they do not beat with a
                                              sensor that is read at equal intervals; gaps are no samples

Calls run on a stream: the host's (each sample ends when its work is done) or a GPU's, where samples are queued ahead so
that the GPU never waits for the host, and timed by events in the stream:

    host     launch launch launch ············ launch ············
    stream   │▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│                │ an event before, an event after

A sample is one call, or several where a call is very short; each of its numbers is per call. Where there would be too
many samples, neighbours are averaged two by two, and so are those still to come. Events are reused. Only a first event
ties the GPU's time to the host's: over ten minutes the two clocks may drift apart by some milliseconds.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from assay.core import processes as copies
from assay.core.errors import TrialFailed
from assay.timing.interleaved import SampleBlock, SampleSeries
from assay.timing.sampling import group_durations, probe_shortest_ns
from assay.timing.wall import MAX_KEPT_SAMPLES, gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.sampling import Call
    from assay.timing.wall import TimedSubject


PERIOD_NS = 50_000_000
"""About how long a burst and the gap after it take together."""
DITHER = 0.4
"""By such a share a period is longer or shorter."""
MAX_OFFSET_NS = 50_000_000
"""So far bursts come earlier or later than they would at equal intervals."""
LONGEST_GAP_SLEEP_S = 0.05


def run_continuously(
    stream: CallStream,
    *,
    until_ns: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    duty: float = 1.0,
    seed: int = 0,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> SampleBlock:
    """Have the subjects of a lane called in turn until a moment, or until told to stop; at least once each.

    Args:
        stream: What they run on.
        until_ns: About when to end, in monotonic nanoseconds; a call that was begun is made to its end.
        stop: Asked after each round, and in gaps; what it says holds at once.
        duty: The share of the time that calls fill. The time ends with the gap that the last burst asks for.
        seed: Of how the bursts' lengths are drawn.
        clock: In monotonic nanoseconds.
        sleep: Waits for seconds.
    """
    rng = random.Random(seed)  # noqa: S311 - a length is no secret
    stray_ns = 0.0
    start_ns = stream.start()
    with gc_paused():
        while True:
            burst_ns = None if duty == 1 else duty * PERIOD_NS * rng.uniform(1 - DITHER, 1 + DITHER)
            before_ns = stream.busy_ns
            stopped = _run_burst(stream, burst_ns, until_ns, stop, clock)
            stream.finish()
            if stopped or duty == 1:
                break
            gap_ns = (stream.busy_ns - before_ns) * (1 - duty) / duty
            due_ns = start_ns + stream.busy_ns / duty
            if until_ns is not None and max(due_ns, clock()) >= until_ns:
                _wait_until(due_ns, stop, clock, sleep)
                break
            stray_ns = _reflect(stray_ns + rng.uniform(-1, 1) * gap_ns)
            if _wait_until(due_ns + stray_ns, stop, clock, sleep):
                break
    return SampleBlock(start_ns, clock(), stream.series())


def _run_burst(
    stream: CallStream, burst_ns: float | None, until_ns: int | None, stop: Callable[[], bool], clock: Callable[[], int]
) -> bool:
    """Make rounds of calls, for about so long where that is given; return whether it was told to stop."""
    left = None if burst_ns is None else round(burst_ns / stream.round_ns) if stream.round_ns else 1
    while True:
        for subject in range(stream.subjects):
            stream.launch(subject)
        if stop():
            return True
        left = None if left is None else left - 1
        late = until_ns is not None and clock() + stream.ahead_ns >= until_ns
        if late or (left is not None and left <= 0):
            return False


def _reflect(stray_ns: float) -> float:
    """Return a distance that was walked between two walls."""
    folded_ns = (stray_ns + MAX_OFFSET_NS) % (4 * MAX_OFFSET_NS)
    return min(folded_ns, 4 * MAX_OFFSET_NS - folded_ns) - MAX_OFFSET_NS


def _wait_until(
    due_ns: float, stop: Callable[[], bool], clock: Callable[[], int], sleep: Callable[[float], None]
) -> bool:
    """Wait until a moment; return whether it was told to stop before."""
    while (left_ns := due_ns - clock()) > 0:
        if stop():
            return True
        sleep(min(left_ns / 1e9, LONGEST_GAP_SLEEP_S))
    return False


START_US = "start_us"
"""The start of each sample since the start of its series, on the host's monotonic clock."""

SHORTEST_SAMPLE_NS = 2_000_000
"""The events around a sample leave the GPU idle for some 20 µs: a hundredth of this."""
PROBED_NS = 4_000_000


class CallStream(Protocol):
    """What calls run on: subjects by their number, samples one behind another.

    Attributes:
        subjects: How many there are.
        busy_ns: How long all samples that are kept took together.
    """

    subjects: int
    busy_ns: float

    def start(self) -> int:
        """Forget all samples; return the moment that starts are counted from, in monotonic nanoseconds."""
        ...

    def launch(self, subject: int) -> None:
        """Make the calls of one sample, or queue them."""
        ...

    def finish(self) -> None:
        """Wait until all that was launched is done and kept."""
        ...

    @property
    def ahead_ns(self) -> float:
        """About how long what is queued will take."""
        ...

    @property
    def round_ns(self) -> float:
        """About how long one sample of each subject takes; 0 where none was taken yet."""
        ...

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all that is kept."""
        ...


class StreamSamples:
    """The samples of one subject; at most so many."""

    def __init__(self, calls: int, most: int = MAX_KEPT_SAMPLES) -> None:
        self.calls = calls
        self.last_ns = 0.0
        self._most = most
        self._start_us = array("d")
        self._call_us = array("d")
        self._extras: dict[str, array[float]] = {}

    def add(self, start_us: float, took_us: float, reported: object = None) -> None:
        """Keep a sample that took so long as a whole; a call that timed itself is believed."""
        extras = dict(reported) if isinstance(reported, Mapping) else {}
        self.last_ns = 1e3 * took_us
        self._start_us.append(start_us)
        self._call_us.append(float(extras.pop("call_us", took_us / self.calls)))
        for name, value in extras.items():
            self._extras.setdefault(name, array("d")).append(float(value))

    @property
    def full(self) -> bool:
        """Whether there are too many samples."""
        return len(self._start_us) >= self._most

    def thin_out(self) -> None:
        """Put neighbours together; a last one without a neighbour is dropped."""
        pairs = len(self._start_us) // 2
        self._start_us = self._start_us[: 2 * pairs : 2]
        self._call_us = _average_pairs(self._call_us, pairs)
        self._extras = {name: _average_pairs(values, pairs) for name, values in self._extras.items()}
        self.calls *= 2
        self.last_ns *= 2

    def clear(self) -> None:
        """Forget all samples."""
        self._start_us, self._call_us, self._extras = array("d"), array("d"), {}

    def series(self, subject: int, quantity: str) -> list[SampleSeries]:
        """Return the samples: how long a call took, when each sample began, and what calls reported."""
        named = {quantity: self._call_us, START_US: self._start_us, **self._extras}
        return [SampleSeries(subject, name, values, self.calls) for name, values in named.items()]


def _average_pairs(values: array[float], pairs: int) -> array[float]:
    return array("d", [(values[2 * n] + values[2 * n + 1]) / 2 for n in range(pairs)])


class WallCallStream:
    """Calls by the host's clock: each sample ends when its work is done."""

    quantity = "call_us"

    def __init__(
        self,
        timed: Sequence[TimedSubject],
        calls: Sequence[int],
        *,
        most: int = MAX_KEPT_SAMPLES,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.subjects = len(timed)
        self.busy_ns = 0.0
        self._timed = tuple(timed)
        self._samples = [StreamSamples(count, most) for count in calls]
        self._clock = clock
        self._zero_ns = 0

    def start(self) -> int:
        """Forget all samples, and count starts from now on."""
        for samples in self._samples:
            samples.clear()
        self.busy_ns = 0.0
        self._zero_ns = self._clock()
        return self._zero_ns

    def launch(self, subject: int) -> None:
        """Make the calls of one sample, and wait for them."""
        timed, samples = self._timed[subject], self._samples[subject]
        reported: object = None
        begin = self._clock()
        for _ in range(samples.calls):
            reported = timed.call()
        timed.synchronize()
        took = self._clock() - begin
        copies.exit_if_forked()
        self.busy_ns += took
        samples.add((begin - self._zero_ns) / 1e3, took / 1e3, reported if timed.reports_extras else None)
        if samples.full:
            samples.thin_out()

    def finish(self) -> None:
        """Nothing is queued."""

    @property
    def ahead_ns(self) -> float:
        """Nothing is queued."""
        return 0.0

    @property
    def round_ns(self) -> float:
        """How long the last sample of each subject took."""
        return sum(samples.last_ns for samples in self._samples)

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all that is kept."""
        return tuple(s for n, samples in enumerate(self._samples) for s in samples.series(n, self.quantity))


def probe_calls_per_sample(
    call: Callable[[], object], finish: Callable[[], None], clock: Callable[[], int] = time.perf_counter_ns
) -> int:
    """Return how many calls make a sample that is not too short, having made a few; the first one does not count."""
    return probe_all_calls_per_sample([(call, finish)], clock)[0]


def probe_all_calls_per_sample(
    probed: Sequence[tuple[Callable[[], object], Callable[[], None]]],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Return the same for calls that follow one another in turn, each with what waits for it.

    Where they take about as long, as many of each make a sample; see ``batching``.
    """
    least = []
    for call, finish in probed:
        call()
        finish()
        least.append(probe_shortest_ns(call, finish=finish, enough_ns=PROBED_NS, clock=clock))
    return [max(1, math.ceil(SHORTEST_SAMPLE_NS / shortest_ns)) for shortest_ns in group_durations(least)]


QUEUED_NS = 4_000_000
"""About how much work is queued behind what runs."""
MAX_QUEUED_SAMPLES = 256
"""Samples that are queued at most."""
MAX_EVENT_DISTANCE_MS = 1000.0
"""Events so far apart are not compared: their distance comes as a 32-bit number."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.0002, 0.005


class StreamEvent(Protocol):
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


class _QueuedSample(NamedTuple):
    """A sample in the queue."""

    subject: int
    begin: StreamEvent
    end: StreamEvent


class EventCallStream:
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
        event: Callable[[], StreamEvent],
        synchronize: Callable[[], None],
        limit_s: float,
        most: int = MAX_KEPT_SAMPLES,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.subjects = len(calls)
        self.busy_ns = 0.0
        self._calls = tuple(calls)
        self._samples = [StreamSamples(count, most) for count in together]
        self._event = event
        self._synchronize = synchronize
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._free_events: list[StreamEvent] = []
        self._queue: deque[_QueuedSample] = deque()
        self._anchor = event()
        self._anchor_ms = 0.0

    def start(self) -> int:
        """Wait for the GPU, forget all samples, and tie its time to the host's by an event that nothing delays."""
        self.finish()
        self._synchronize()
        for samples in self._samples:
            samples.clear()
        self.busy_ns, self._anchor_ms = 0.0, 0.0
        zero_ns = self._clock()
        self._anchor.record()
        return zero_ns

    def launch(self, subject: int) -> None:
        """Queue the calls of one sample; wait where enough is queued."""
        begin, end = self._take_event(), self._take_event()
        begin.record()
        for _ in range(self._samples[subject].calls):
            self._calls[subject]()
        end.record()
        self._queue.append(_QueuedSample(subject, begin, end))
        self._limit_queue()
        if self._samples[subject].full:
            self.finish()
            self._samples[subject].thin_out()

    def finish(self) -> None:
        """Wait until all that was launched is done and kept."""
        while self._queue:
            self._collect_oldest()

    @property
    def ahead_ns(self) -> float:
        """About how long what is queued will take: each as long as the last one of its subject took."""
        return sum(self._samples[queued.subject].last_ns for queued in self._queue)

    @property
    def round_ns(self) -> float:
        """How long the last sample of each subject took."""
        return sum(samples.last_ns for samples in self._samples)

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all that is kept."""
        return tuple(s for n, samples in enumerate(self._samples) for s in samples.series(n, self.quantity))

    def _take_event(self) -> StreamEvent:
        return self._free_events.pop() if self._free_events else self._event()

    def _limit_queue(self) -> None:
        """Wait for the oldest samples as long as those behind them keep the GPU busy, or nobody knows for how long."""
        ahead_ns = self.ahead_ns
        while len(self._queue) > 1:
            oldest_ns = self._samples[self._queue[0].subject].last_ns
            ahead_ns -= oldest_ns
            if oldest_ns > 0 and ahead_ns < QUEUED_NS and len(self._queue) <= MAX_QUEUED_SAMPLES:
                return
            self._collect_oldest()

    def _collect_oldest(self) -> None:
        """Wait for the oldest sample, and keep it."""
        subject, begin, end = self._queue.popleft()
        samples = self._samples[subject]
        self._wait_for(end, samples.last_ns / 1e9)
        took_us = 1e3 * begin.elapsed_time(end)
        start_ms = self._anchor_ms + self._anchor.elapsed_time(begin)
        self.busy_ns += 1e3 * took_us
        samples.add(1e3 * start_ms, took_us)
        self._free_events.append(end)
        if start_ms - self._anchor_ms > MAX_EVENT_DISTANCE_MS:
            self._free_events.append(self._anchor)
            self._anchor, self._anchor_ms = begin, start_ms
        else:
            self._free_events.append(begin)

    def _wait_for(self, event: StreamEvent, expected_s: float) -> None:
        """Wait for an event asleep, for a while that is short against the sample and what is queued behind it."""
        nap_s = min(max(SHORTEST_POLL_S, expected_s / 20), LONGEST_POLL_S)
        begin = self._clock()
        while not event.query():
            if self._clock() - begin > self._limit_s * 1e9:
                raise TrialFailed(f"The GPU has not finished a sample within {self._limit_s:g} s.")
            self._sleep(nap_s)
