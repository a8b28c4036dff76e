"""Wall time of calls, measured with the host's clock: what a caller waits.

``WallTimer`` is the instrument: short calls are batched, and the loop overhead is subtracted. ``time_rounds`` is a
plain timer for several interleaved subjects that keeps every sample in order.
"""

from __future__ import annotations

import gc
import math
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from assay.core import processes as copies
from assay.timing.sampling import SampleBatch, contradicts_probe, group_durations, plan_batches, probe_shortest_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.timing.sampling import BatchPlan, Call


SHORTEST_SAMPLE_NS = 50_000
"""A sample lasts at least this long, so that reading the clock costs less than half a percent of it."""

BATCH_NS = 2_000_000
MAX_SAMPLES_PER_BATCH = 16
SHORT_CALL_NS = 1_000
"""Below this, the measured time is dominated by the loop overhead."""

MAX_PROBES, MIN_SAMPLES_TO_REPLAN = 4, 3
"""The probe is repeated where the median of at least this many recent samples contradicts it; at most 4 probes."""


def _nothing() -> None:
    """Do nothing."""


class WallTimer:
    """Times calls with the host's clock.

    Attributes:
        shortest_ns: Shortest duration of a call in the probe.
        floor_ns: Loop overhead per call, which is subtracted.
        single_calls: Whether each sample is a single call.
    """

    method = "wall"
    primary = "call_us"

    def __init__(
        self,
        call: Call,
        *,
        finish: Callable[[], None] = _nothing,
        before: Call = _nothing,
        single_calls: bool = False,
    ) -> None:
        """Probe how long a call takes, to choose the calls per sample; ``single_calls`` makes it one."""
        self._call = call
        self._finish = finish
        self._before = before
        self._probes = 0
        self._sample_ns: deque[int] = deque(maxlen=MAX_SAMPLES_PER_BATCH)
        self.single_calls = single_calls
        self._probe()

    def _probe(self) -> None:
        """Measure how long a call takes, and plan batches from it."""
        self._probes += 1
        self.shortest_ns = probe_shortest_ns(
            self._call,
            finish=self._finish,
            before=self._before,
            enough_ns=SHORTEST_SAMPLE_NS,
            one_by_one=self.single_calls,
        )
        plan_shared_batches([self])

    def use(self, batch_plan: BatchPlan, floor_ns: float) -> None:
        """Use this batch plan from now on; ``floor_ns`` is the loop overhead per call."""
        self._sample_ns.clear()
        self.batch_plan = batch_plan
        self.calls_per_sample = batch_plan.calls_per_sample
        self.floor_ns = floor_ns

    def take(self) -> SampleBatch:
        """Take a few samples, one after another."""
        samples_us = [self.sample_us() for _ in range(self.batch_plan.samples_per_batch)]
        return SampleBatch({"call_us": np.array(samples_us, dtype=np.float64)})

    def sample_us(self) -> float:
        """Take one sample: microseconds per call."""
        call, finish = self._call, self._finish
        self._before()
        begin = time.perf_counter_ns()
        for _ in repeat(None, self.calls_per_sample):
            call()
        finish()
        took_ns = time.perf_counter_ns() - begin
        copies.exit_if_forked()
        self._sample_ns.append(took_ns)
        return max(0.0, took_ns / self.calls_per_sample - self.floor_ns) / 1000

    def replan(self) -> bool:
        """Repeat the probe where the last samples contradict it; return whether the batch plan changed."""
        if self.single_calls or len(self._sample_ns) < MIN_SAMPLES_TO_REPLAN or self._probes >= MAX_PROBES:
            return False
        typical_ns = float(np.median(self._sample_ns))
        planned_ns = self.shortest_ns * self.calls_per_sample
        if not contradicts_probe(typical_ns, planned_ns, SHORTEST_SAMPLE_NS, self.calls_per_sample):
            return False
        before = self.batch_plan
        self._probe()
        return self.batch_plan != before

    def close(self) -> None:
        """Do nothing: nothing is held."""


def plan_shared_batches(clocks: Sequence[WallTimer]) -> None:
    """Plan the batches of interleaved timers so that none has an advantage; see ``plan_batches``.

    The loop overhead is measured once per number of calls, and so is identical where that number is.
    """
    for one_by_one in (False, True):
        those = [clock for clock in clocks if clock.single_calls == one_by_one]
        if not those:
            continue
        plans = plan_batches(
            [clock.shortest_ns for clock in those],
            shortest_ns=SHORTEST_SAMPLE_NS,
            batch_ns=BATCH_NS,
            most_samples=MAX_SAMPLES_PER_BATCH,
            one_by_one=one_by_one,
        )
        floors = {calls: _loop_overhead_ns(calls) for calls in {plan.calls_per_sample for plan in plans}}
        for clock, plan in zip(those, plans, strict=True):
            clock.use(plan, floors[plan.calls_per_sample])


def _loop_overhead_ns(times: int) -> float:
    """Return the least overhead of one loop iteration; 0 where calls are timed one by one."""
    if times == 1:
        return 0.0
    least = math.inf
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in repeat(None, times):
            pass
        least = min(least, time.perf_counter_ns() - begin)
    return least / times


WARMUP_SHARE = 0.1
MAX_KEPT_SAMPLES = 2_000_000

SubjectCall = Callable[[], object]


@dataclass(frozen=True)
class TimedSubject:
    """A subject to time: its call, a function that waits for it, whether it reports extras, and its preparation.

    ``before`` is called before each sample and before each warm-up call, and is not timed: ranks that must stay in
    lockstep wait for each other there.
    """

    call: SubjectCall
    synchronize: Callable[[], None]
    reports_extras: bool = False
    before: Callable[[], None] = _nothing


@dataclass
class SubjectSamples:
    """The samples of one subject: microseconds per call, and the extras its calls reported."""

    calls_per_sample: int
    call_us: array[float] = field(default_factory=lambda: array("d"))
    extras: dict[str, array[float]] = field(default_factory=dict)

    def add(self, call_us: float, reported: object = None) -> None:
        """Add a sample and what its call reported; a ``call_us`` reported by the call itself takes precedence."""
        extras = dict(reported) if isinstance(reported, Mapping) else {}
        self.call_us.append(float(extras.pop("call_us", call_us)))
        for name, value in extras.items():
            self.extras.setdefault(name, array("d")).append(float(value))


@dataclass(frozen=True)
class WallBlock:
    """The start and end of a block of timing, and the samples of each subject."""

    start_ns: int
    end_ns: int
    samples: tuple[SubjectSamples, ...]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector in the timed region. It is not run first: that can take a tenth of a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warm_up_subjects(subjects: Sequence[TimedSubject], *, runs: int | None, share_s: float) -> tuple[int, ...]:
    """Warm up every subject; return how many calls make one sample of each.

    A given number of runs is followed exactly, and then each call is a sample of its own. Otherwise each subject is
    called for a tenth of its share of the time, and short calls are batched.
    """
    if runs is not None:
        for subject in subjects:
            for _ in range(runs):
                subject.before()
                subject.call()
                copies.exit_if_forked()
            subject.synchronize()
        return (1,) * len(subjects)
    called = [subject for subject in subjects if not subject.reports_extras]
    shortest_ns = iter(
        group_durations([_warm_up_subject(subject, share_s * WARMUP_SHARE / len(subjects)) for subject in called])
    )
    return tuple(
        1 if subject.reports_extras else max(1, math.ceil(SHORTEST_SAMPLE_NS / max(next(shortest_ns), 1)))
        for subject in subjects
    )


def _warm_up_subject(subject: TimedSubject, share_s: float) -> float:
    """Call a subject for its share of time, at least twice if there is any; return the shortest time in nanoseconds.

    A command is not warmed up, as each run of it is a new process.
    """
    end = time.perf_counter_ns()
    deadline = end + int(share_s * 1e9)
    shortest, calls = math.inf, 0
    while end < deadline or calls == 1:
        subject.before()
        begin = time.perf_counter_ns()
        subject.call()
        subject.synchronize()
        end = time.perf_counter_ns()
        copies.exit_if_forked()
        shortest = min(shortest, end - begin)
        calls += 1
    return shortest


def time_rounds(
    subjects: Sequence[TimedSubject],
    calls_per_sample: Sequence[int],
    *,
    samples: int | None,
    until_ns: int | None,
    seed: int,
) -> WallBlock:
    """Time rounds in which every subject is sampled once, in random order, for a count or until a deadline.

    At least one round is taken, even if the time is up.
    """
    by_subject = tuple(SubjectSamples(k) for k in calls_per_sample)
    order = list(range(len(subjects)))
    shuffle = random.Random(seed).shuffle  # noqa: S311 - an order is no secret
    most = samples if samples is not None else MAX_KEPT_SAMPLES
    with gc_paused():
        start = now = time.perf_counter_ns()
        for _ in range(most):
            if len(order) > 1:
                shuffle(order)
            for index in order:
                now = _take_sample(subjects[index], by_subject[index])
            if until_ns is not None and now >= until_ns:
                break
    return WallBlock(start, now, by_subject)


def _take_sample(subject: TimedSubject, into: SubjectSamples) -> int:
    """Take one sample; return when it ended, in monotonic nanoseconds."""
    call, repeats = subject.call, into.calls_per_sample
    reported: object = None
    subject.before()
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        reported = call()
    subject.synchronize()
    end = time.perf_counter_ns()
    copies.exit_if_forked()
    into.add((end - begin) / 1000 / repeats, reported if subject.reports_extras else None)
    return end
