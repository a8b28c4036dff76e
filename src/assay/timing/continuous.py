"""Call subjects continuously and record when each sample starts, so that power can be related to calls.

duty 1     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
duty 0.5   ▓▓▓▓▓     ▓▓▓     ▓▓▓▓▓▓           bursts of unequal length, so that they do not alias with a
                                              sensor that is read at equal intervals; gaps are not samples

Calls run on a stream: the host's (each sample ends when its work is done) or a GPU's, where samples are queued ahead so
that the GPU never waits for the host, and are timed with events in the stream:

    host     launch launch launch ············ launch ············
    stream   │▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│▓▓▓▓▓▓▓▓▓│                │ an event before, an event after

A sample is one call, or several where a call is very short; its numbers are per call. When there are too many samples,
neighbours are averaged in pairs, and so are all later samples. Events are reused. Only the first event relates the
GPU's time to the host's: over ten minutes the two clocks may drift apart by some milliseconds.
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
"""Approximate duration of a burst plus the gap after it."""
DITHER = 0.4
"""A period is longer or shorter by up to this share."""
MAX_OFFSET_NS = 50_000_000
"""Bursts start earlier or later than at equal intervals by up to this much."""
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
    """Call the subjects of a stream in turn until a deadline or until ``stop`` returns true; at least once each.

    Args:
        stream: What they run on.
        until_ns: Approximate end, in monotonic nanoseconds; a call that has started is completed.
        stop: Polled after each round and in gaps; takes effect immediately.
        duty: Share of the time filled with calls. The run ends after the gap that belongs to the last burst.
        seed: Seed for the burst lengths.
        clock: Returns monotonic nanoseconds.
        sleep: Sleeps for a number of seconds.
    """
    rng = random.Random(seed)  # noqa: S311 - a length is no secret
    offset_ns = 0.0
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
            offset_ns = _reflect(offset_ns + rng.uniform(-1, 1) * gap_ns)
            if _wait_until(due_ns + offset_ns, stop, clock, sleep):
                break
    return SampleBlock(start_ns, clock(), stream.series())


def _run_burst(
    stream: CallStream, burst_ns: float | None, until_ns: int | None, stop: Callable[[], bool], clock: Callable[[], int]
) -> bool:
    """Make rounds of calls, for about ``burst_ns`` where given; return whether ``stop`` returned true."""
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


def _reflect(offset_ns: float) -> float:
    """Return an offset reflected at ±``MAX_OFFSET_NS``."""
    folded_ns = (offset_ns + MAX_OFFSET_NS) % (4 * MAX_OFFSET_NS)
    return min(folded_ns, 4 * MAX_OFFSET_NS - folded_ns) - MAX_OFFSET_NS


def _wait_until(
    due_ns: float, stop: Callable[[], bool], clock: Callable[[], int], sleep: Callable[[float], None]
) -> bool:
    """Wait until ``due_ns``; return whether ``stop`` returned true before."""
    while (left_ns := due_ns - clock()) > 0:
        if stop():
            return True
        sleep(min(left_ns / 1e9, LONGEST_GAP_SLEEP_S))
    return False


START_US = "start_us"
"""Start of each sample relative to the start of its series, on the host's monotonic clock."""

SHORTEST_SAMPLE_NS = 2_000_000
"""The events around a sample leave the GPU idle for some 20 µs: a hundredth of this."""
PROBED_NS = 4_000_000


class CallStream(Protocol):
    """What calls run on: subjects identified by index, samples one after another.

    Attributes:
        subjects: Number of subjects.
        busy_ns: Total duration of all recorded samples.
    """

    subjects: int
    busy_ns: float

    def start(self) -> int:
        """Discard all samples; return the zero point of start times, in monotonic nanoseconds."""
        ...

    def launch(self, subject: int) -> None:
        """Make the calls of one sample, or queue them."""
        ...

    def finish(self) -> None:
        """Wait until everything launched is done and recorded."""
        ...

    @property
    def ahead_ns(self) -> float:
        """Approximate duration of the queued work."""
        ...

    @property
    def round_ns(self) -> float:
        """Approximate duration of one sample of each subject; 0 where none was taken yet."""
        ...

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all recorded samples."""
        ...


class StreamSamples:
    """The samples of one subject; at most ``most`` of them."""

    def __init__(self, calls: int, most: int = MAX_KEPT_SAMPLES) -> None:
        self.calls = calls
        self.last_ns = 0.0
        self._most = most
        self._start_us = array("d")
        self._call_us = array("d")
        self._extras: dict[str, array[float]] = {}

    def add(self, start_us: float, took_us: float, reported: object = None) -> None:
        """Add a sample of duration ``took_us``; a ``call_us`` reported by the call itself takes precedence."""
        extras = dict(reported) if isinstance(reported, Mapping) else {}
        self.last_ns = 1e3 * took_us
        self._start_us.append(start_us)
        self._call_us.append(float(extras.pop("call_us", took_us / self.calls)))
        for name, value in extras.items():
            self._extras.setdefault(name, array("d")).append(float(value))

    @property
    def full(self) -> bool:
        """Whether the limit on samples is reached."""
        return len(self._start_us) >= self._most

    def thin_out(self) -> None:
        """Average neighbours in pairs; a last one without a neighbour is dropped."""
        pairs = len(self._start_us) // 2
        self._start_us = self._start_us[: 2 * pairs : 2]
        self._call_us = _average_pairs(self._call_us, pairs)
        self._extras = {name: _average_pairs(values, pairs) for name, values in self._extras.items()}
        self.calls *= 2
        self.last_ns *= 2

    def clear(self) -> None:
        """Discard all samples."""
        self._start_us, self._call_us, self._extras = array("d"), array("d"), {}

    def series(self, subject: int, quantity: str) -> list[SampleSeries]:
        """Return the samples: how long a call took, when each sample started, and what calls reported."""
        named = {quantity: self._call_us, START_US: self._start_us, **self._extras}
        return [SampleSeries(subject, name, values, self.calls) for name, values in named.items()]


def _average_pairs(values: array[float], pairs: int) -> array[float]:
    return array("d", [(values[2 * n] + values[2 * n + 1]) / 2 for n in range(pairs)])


class WallCallStream:
    """Calls timed with the host's clock: each sample ends when its work is done."""

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
        """Discard all samples, and make now the zero point of start times."""
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
        """Do nothing: nothing is queued."""

    @property
    def ahead_ns(self) -> float:
        """Always 0: nothing is queued."""
        return 0.0

    @property
    def round_ns(self) -> float:
        """Duration of the last sample of each subject, summed."""
        return sum(samples.last_ns for samples in self._samples)

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all recorded samples."""
        return tuple(s for n, samples in enumerate(self._samples) for s in samples.series(n, self.quantity))


def probe_calls_per_sample(
    call: Callable[[], object], finish: Callable[[], None], clock: Callable[[], int] = time.perf_counter_ns
) -> int:
    """Return how many calls make a sample that is long enough, from a few calls; the first one does not count."""
    return probe_all_calls_per_sample([(call, finish)], clock)[0]


def probe_all_calls_per_sample(
    probed: Sequence[tuple[Callable[[], object], Callable[[], None]]],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Return the same for several interleaved calls, each with the function that waits for it.

    Calls of similar duration get the same number per sample; see ``timing.sampling``.
    """
    least = []
    for call, finish in probed:
        call()
        finish()
        least.append(probe_shortest_ns(call, finish=finish, enough_ns=PROBED_NS, clock=clock))
    return [max(1, math.ceil(SHORTEST_SAMPLE_NS / shortest_ns)) for shortest_ns in group_durations(least)]


QUEUED_NS = 4_000_000
"""Approximate amount of work queued behind the running sample."""
MAX_QUEUED_SAMPLES = 256
"""Maximum number of queued samples."""
MAX_EVENT_DISTANCE_MS = 1000.0
"""Events further apart are not compared: their distance is a 32-bit number."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.0002, 0.005


class StreamEvent(Protocol):
    """An event in a stream, as in PyTorch."""

    def record(self) -> None:
        """Record it behind everything in the stream."""
        ...

    def query(self) -> bool:
        """Return whether the stream has passed it."""
        ...

    def elapsed_time(self, later: Self, /) -> float:
        """Return the milliseconds between two events that the stream has passed."""
        ...


class _QueuedSample(NamedTuple):
    """A sample in the queue."""

    subject: int
    begin: StreamEvent
    end: StreamEvent


class EventCallStream:
    """Calls on one stream of a GPU.

    Args:
        calls: The call of each subject.
        together: Calls per sample, for each subject.
        event: Creates an event.
        synchronize: Waits until the GPU is idle.
        limit_s: A GPU that has not finished a sample within this time has failed.
        most: Maximum number of samples of a subject.
        clock: Returns monotonic nanoseconds.
        sleep: Sleeps for a number of seconds.
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
        """Wait for the GPU, discard all samples, and relate its time to the host's by an event on an idle stream."""
        self.finish()
        self._synchronize()
        for samples in self._samples:
            samples.clear()
        self.busy_ns, self._anchor_ms = 0.0, 0.0
        zero_ns = self._clock()
        self._anchor.record()
        return zero_ns

    def launch(self, subject: int) -> None:
        """Queue the calls of one sample; wait while enough is queued."""
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
        """Wait until everything launched is done and recorded."""
        while self._queue:
            self._collect_oldest()

    @property
    def ahead_ns(self) -> float:
        """Approximate duration of the queued work: each sample as long as the last one of its subject."""
        return sum(self._samples[queued.subject].last_ns for queued in self._queue)

    @property
    def round_ns(self) -> float:
        """Duration of the last sample of each subject, summed."""
        return sum(samples.last_ns for samples in self._samples)

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all recorded samples."""
        return tuple(s for n, samples in enumerate(self._samples) for s in samples.series(n, self.quantity))

    def _take_event(self) -> StreamEvent:
        return self._free_events.pop() if self._free_events else self._event()

    def _limit_queue(self) -> None:
        """Collect the oldest samples while those behind them keep the GPU busy, or their duration is unknown."""
        ahead_ns = self.ahead_ns
        while len(self._queue) > 1:
            oldest_ns = self._samples[self._queue[0].subject].last_ns
            ahead_ns -= oldest_ns
            if oldest_ns > 0 and ahead_ns < QUEUED_NS and len(self._queue) <= MAX_QUEUED_SAMPLES:
                return
            self._collect_oldest()

    def _collect_oldest(self) -> None:
        """Wait for the oldest sample and record it."""
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
        """Poll for an event, sleeping in between for a time that is short compared with the sample and the queue."""
        nap_s = min(max(SHORTEST_POLL_S, expected_s / 20), LONGEST_POLL_S)
        begin = self._clock()
        while not event.query():
            if self._clock() - begin > self._limit_s * 1e9:
                raise TrialFailed(f"The GPU has not finished a sample within {self._limit_s:g} s.")
            self._sleep(nap_s)
