"""How many calls make a sample: from a probe that no single slow call can spoil, the same for calls that take turns.

A sample has to last long against reading the clock, so short calls are put together. How many were put together shows
in the result: reading the clock costs a sample of 9 calls a ninth a call, and where times are skewed the median of
single calls lies below that of means of nine. So calls that take turns are planned together (``plan_batches``):

    durations   0.40  0.43 0.71 µs            55  61 µs
    groups      └─── alike: gaps < 2× ───┘    └──────┘      the same number of calls within a group
    sample      ──────────── about equally long ──────      in every group, so that what strikes by time strikes alike
    batch       ──────────── equally many samples ────
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from assay.core import copies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.instrument import Call

TRIES, FEWEST_TRIES = 3, 2
"""A number of calls is long enough for a sample when the shortest of so many tries is."""
TRIES_OF_ONE = 5
"""The same where calls are timed one by one, however short."""
LONG_PROBE_NS = 100_000_000
"""Tries that took so long together are not repeated again, the fewest but made."""
MOST_TOGETHER = 2**20
GROWTH = 10
ALIKE = 2.0
"""Durations that differ by less than this factor, or have others in between that do, are planned as one."""
LONGEST_COMMON_SAMPLE_NS = 2_000_000
"""Short calls beside long ones are put together in samples of about their length, up to this."""
CONTRADICTED = 2.0
"""Samples that last so many times as long as planned, or less than this part of the shortest, contradict the probe."""


def _nothing() -> None:
    """Do nothing."""


def least_ns(
    call: Call,
    *,
    finish: Callable[[], None] = _nothing,
    before: Call = _nothing,
    enough_ns: float,
    one_by_one: bool = False,
    clock: Callable[[], int] | None = None,
) -> float:
    """Return how long a call takes at the least, in nanoseconds, seen over at least ``enough_ns`` where it is short.

    More and more calls are put together until the *shortest* of a few tries lasts long enough: a slow call only costs a
    try. ``one_by_one`` makes each try a single call, however short.
    """
    now = clock or time.perf_counter_ns

    def one_try(together: int) -> int:
        before()
        begin = now()
        for _ in repeat(None, together):
            call()
        finish()
        took = max(1, now() - begin)
        copies.end_copy()
        return took

    if one_by_one:
        return float(_shortest(one_try, 1, TRIES_OF_ONE, 0.0))
    together, least = 1, math.inf
    while True:
        took = _shortest(one_try, together, TRIES, enough_ns)
        least = min(least, took / together)
        if took >= enough_ns or together >= MOST_TOGETHER:
            return max(1.0, least)
        together = min(MOST_TOGETHER, GROWTH * together, max(together + 1, math.ceil(enough_ns / least)))


def _shortest(one_try: Callable[[int], int], together: int, tries: int, enough_ns: float) -> int:
    """Return the shortest of a few tries; one that is shorter than ``enough_ns`` says so by itself."""
    took: list[int] = []
    while len(took) < FEWEST_TRIES or (len(took) < tries and sum(took) < LONG_PROBE_NS):
        took.append(one_try(together))
        if took[-1] < enough_ns:
            break
    return min(took)


def alike(durations: Sequence[float]) -> list[float]:
    """Return for each duration the shortest of its group: neighbours that differ by less than ``ALIKE`` are one.

    Two that are about the same always come out the same, so that whatever is planned by it is the same for both.
    """
    shortest: dict[float, float] = {}
    last = group = math.nan
    for duration in sorted(set(durations)):
        if not duration < ALIKE * last:
            group = duration
        shortest[duration] = group
        last = duration
    return [shortest[duration] for duration in durations]


@dataclass(frozen=True)
class Batching:
    """How calls are put together: so many in a sample, and so many samples in a batch."""

    calls_per_sample: int
    samples_per_batch: int


def plan_batches(
    call_ns: Sequence[float], *, shortest_ns: float, batch_ns: float, most_samples: int, one_by_one: bool = False
) -> list[Batching]:
    """Return how the calls of several sides that take turns are put together, from how long one of each takes.

    Sides whose calls take about the same get the same number of calls. Where they differ widely each group gets as many
    as make a sample about as long as that of the others (up to ``LONGEST_COMMON_SAMPLE_NS``). All get equally many
    samples in a batch, as many as the longest allows.
    """
    groups = [max(1.0, shortest) for shortest in alike(call_ns)]
    if one_by_one:
        calls = [1] * len(groups)
    else:
        own_ns = [duration_ns * math.ceil(shortest_ns / duration_ns) for duration_ns in groups]
        common_ns = (
            max(shortest_ns, min(LONGEST_COMMON_SAMPLE_NS, max(own_ns))) if len(set(groups)) > 1 else shortest_ns
        )
        calls = [max(1, math.ceil(common_ns / duration_ns)) for duration_ns in groups]
    longest_ns = max(count * duration for count, duration in zip(calls, call_ns, strict=True))
    samples = max(1, min(most_samples, int(batch_ns / longest_ns)))
    return [Batching(count, samples) for count in calls]


def contradicted(sample_ns: float, planned_ns: float, shortest_ns: float, calls: int) -> bool:
    """Return whether samples that typically last so long contradict the probe that their number of calls rests on.

    They do where they are much too short for the clock, or much longer than several calls were planned to last.
    """
    too_short = sample_ns * CONTRADICTED < shortest_ns
    return too_short or (calls > 1 and sample_ns > CONTRADICTED * max(planned_ns, shortest_ns))
