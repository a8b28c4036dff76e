"""Wall time of calls by the host's clock: what a caller waits.

``WallTimer`` is the instrument: short calls are put together, and the cost of the loop is subtracted. ``time_rounds``
is a plain timer of several interleaved subjects that keeps every sample in order.
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
"""A sample lasts at least this long, so that reading the clock costs it under half a percent."""

BATCH_NS = 2_000_000
MAX_SAMPLES_PER_BATCH = 16
SHORT_CALL_NS = 1_000
"""Calls shorter than this are timed mostly by what the loop around them costs."""

MAX_PROBES, MIN_SAMPLES_TO_REPLAN = 4, 3
"""A probe is repeated where the median of the last samples, at least so many, contradicts it; so often at most."""


def _nothing() -> None:
    """Do nothing."""


class WallTimer:
    """Times calls by the host's clock.

    Attributes:
        shortest_ns: How long a call takes at the least, by the probe.
        floor_ns: What the loop costs a call; it is taken off.
        single_calls: One call makes a sample.
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
        """Measure how long a call takes, and so how many make a sample; ``single_calls`` keeps one call a sample."""
        self._call = call
        self._finish = finish
        self._before = before
        self._probes = 0
        self._sample_ns: deque[int] = deque(maxlen=MAX_SAMPLES_PER_BATCH)
        self.single_calls = single_calls
        self._probe()

    def _probe(self) -> None:
        """Find out how long a call takes, and plan batches by it."""
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
        """Put calls together like this from now on; ``floor_ns`` is what the loop costs each."""
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
        """Repeat the probe where the last samples contradict it; return whether calls are put together anew."""
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
        """Nothing is held."""


def plan_shared_batches(clocks: Sequence[WallTimer]) -> None:
    """Plan the batches of clocks whose calls take turns, so that none is at an advantage; see ``plan_batches``.

    What the loop costs is measured once for each number of calls, and so is the same where that is.
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


WARMUP_SHARE = 0.1
MAX_KEPT_SAMPLES = 2_000_000

SubjectCall = Callable[[], object]


@dataclass(frozen=True)
class TimedSubject:
    """Something to time: a call, what waits for it to finish, whether it reports extras, and what comes before it.

    ``before`` is called before each sample, and before each call of a warm-up, and is not timed: ranks that must go in
    step wait for each other there.
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
        """Keep one sample and what its call reported; a call that timed itself is believed."""
        extras = dict(reported) if isinstance(reported, Mapping) else {}
        self.call_us.append(float(extras.pop("call_us", call_us)))
        for name, value in extras.items():
            self.extras.setdefault(name, array("d")).append(float(value))


@dataclass(frozen=True)
class WallBlock:
    """What one stretch of timing gave: when, and the samples of each subject."""

    start_ns: int
    end_ns: int
    samples: tuple[SubjectSamples, ...]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector out of the timed region. It is not run before: that can take a tenth of a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warm_up_subjects(subjects: Sequence[TimedSubject], *, runs: int | None, share_s: float) -> tuple[int, ...]:
    """Warm every subject up; return how many calls make one sample of each.

    A given number of runs is obeyed exactly, and then each call is a sample of its own. Otherwise calls go
    on for a tenth of the share, and short calls are put together.
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
    """Call a subject for its share of time, twice at least where there is any; return the shortest, in nanoseconds.

    A command is not warmed up, as each run of it starts afresh.
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
    """Time rounds in which every subject is sampled once, in random order, for a count or until a moment.

    At least one round is taken, whatever the time.
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
