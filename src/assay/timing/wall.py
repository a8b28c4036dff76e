"""A plain timer: wall time of calls, several subjects interleaved, every sample kept in order."""

from __future__ import annotations

import gc
import math
import random
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core import copies
from assay.timing.batching import alike

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHORTEST_SAMPLE_NS = 50_000
"""A sample lasts at least this long, so that reading the clock costs it under half a percent."""

WARMUP_SHARE = 0.1
MOST_SAMPLES = 2_000_000

Call = Callable[[], object]


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Timed:
    """Something to time: a call, what waits for it to finish, whether it reports extras, and what comes before it.

    ``before`` is called before each sample, and before each call of a warm-up, and is not timed: ranks that must go in
    step wait for each other there.
    """

    call: Call
    synchronize: Callable[[], None]
    reports_extras: bool = False
    before: Callable[[], None] = _nothing


@dataclass
class Taken:
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
class Block:
    """What one stretch of timing gave: when, and the samples of each subject."""

    start_ns: int
    end_ns: int
    taken: tuple[Taken, ...]


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector out of the timed region. It is not run before: that can take a tenth of a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warm_up(subjects: Sequence[Timed], *, runs: int | None, share_s: float) -> tuple[int, ...]:
    """Warm every subject up; return how many calls make one sample of each.

    A given number of runs is obeyed exactly, and then each call is a sample of its own. Otherwise calls go
    on for a tenth of the share, and short calls are put together.
    """
    if runs is not None:
        for subject in subjects:
            for _ in range(runs):
                subject.before()
                subject.call()
                copies.end_copy()
            subject.synchronize()
        return (1,) * len(subjects)
    called = [subject for subject in subjects if not subject.reports_extras]
    shortest_ns = iter(alike([_warm_one(subject, share_s * WARMUP_SHARE / len(subjects)) for subject in called]))
    return tuple(
        1 if subject.reports_extras else max(1, math.ceil(SHORTEST_SAMPLE_NS / max(next(shortest_ns), 1)))
        for subject in subjects
    )


def _warm_one(subject: Timed, share_s: float) -> float:
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
        copies.end_copy()
        shortest = min(shortest, end - begin)
        calls += 1
    return shortest


def take(
    subjects: Sequence[Timed],
    calls_per_sample: Sequence[int],
    *,
    samples: int | None,
    until_ns: int | None,
    seed: int,
) -> Block:
    """Time rounds in which every subject is sampled once, in random order, for a count or until a moment.

    At least one round is taken, whatever the time.
    """
    by_subject = tuple(Taken(k) for k in calls_per_sample)
    order = list(range(len(subjects)))
    shuffle = random.Random(seed).shuffle  # noqa: S311 - an order is no secret
    most = samples if samples is not None else MOST_SAMPLES
    with quiet_collector():
        start = now = time.perf_counter_ns()
        for _ in range(most):
            if len(order) > 1:
                shuffle(order)
            for index in order:
                now = _sample(subjects[index], by_subject[index])
            if until_ns is not None and now >= until_ns:
                break
    return Block(start, now, by_subject)


def _sample(subject: Timed, into: Taken) -> int:
    """Take one sample; return when it ended, in monotonic nanoseconds."""
    call, repeats = subject.call, into.calls_per_sample
    reported: object = None
    subject.before()
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        reported = call()
    subject.synchronize()
    end = time.perf_counter_ns()
    copies.end_copy()
    into.add((end - begin) / 1000 / repeats, reported if subject.reports_extras else None)
    return end
