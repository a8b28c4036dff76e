"""Calls without a pause, for power: watts can be laid over calls when each call's start is known.

duty 1     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
duty 0.5   ▓▓▓▓▓     ▓▓▓     ▓▓▓▓▓▓           bursts of unequal length, so that they do not beat with a
                                              sensor that looks at equal intervals; the gaps are no samples
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from assay.timing.stretch import Stretch
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.timing.lanes import Lane

PERIOD_NS = 50_000_000
"""About how long a burst and the gap after it take together."""
DITHER = 0.4
"""By such a share a period is longer or shorter."""
STRAY_NS = 50_000_000
"""So far bursts come earlier or later than they would at equal intervals."""
LONGEST_NAP_S = 0.05


def take(
    lane: Lane,
    *,
    until_ns: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    duty: float = 1.0,
    seed: int = 0,
    clock: Callable[[], int] = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Stretch:
    """Have the subjects of a lane called in turn until a moment, or until told to stop; at least once each.

    Args:
        lane: What they run on.
        until_ns: About when to end, in monotonic nanoseconds; a call that was begun is made to its end.
        stop: Asked after each round, and in gaps; what it says holds at once.
        duty: The share of the time that calls fill. The time ends with the gap that the last burst asks for.
        seed: Of how the bursts' lengths are drawn.
        clock: In monotonic nanoseconds.
        sleep: Waits for seconds.
    """
    rng = random.Random(seed)  # noqa: S311 - a length is no secret
    stray_ns = 0.0
    start_ns = lane.start()
    with quiet_collector():
        while True:
            burst_ns = None if duty == 1 else duty * PERIOD_NS * rng.uniform(1 - DITHER, 1 + DITHER)
            before_ns = lane.busy_ns
            stopped = _burst(lane, burst_ns, until_ns, stop, clock)
            lane.finish()
            if stopped or duty == 1:
                break
            gap_ns = (lane.busy_ns - before_ns) * (1 - duty) / duty
            due_ns = start_ns + lane.busy_ns / duty
            if until_ns is not None and max(due_ns, clock()) >= until_ns:
                _idle(due_ns, stop, clock, sleep)
                break
            stray_ns = _reflected(stray_ns + rng.uniform(-1, 1) * gap_ns)
            if _idle(due_ns + stray_ns, stop, clock, sleep):
                break
    return Stretch(start_ns, clock(), lane.series())


def _burst(
    lane: Lane, burst_ns: float | None, until_ns: int | None, stop: Callable[[], bool], clock: Callable[[], int]
) -> bool:
    """Make rounds of calls, for about so long where that is given; return whether it was told to stop."""
    left = None if burst_ns is None else round(burst_ns / lane.round_ns) if lane.round_ns else 1
    while True:
        for subject in range(lane.subjects):
            lane.launch(subject)
        if stop():
            return True
        left = None if left is None else left - 1
        late = until_ns is not None and clock() + lane.ahead_ns >= until_ns
        if late or (left is not None and left <= 0):
            return False


def _reflected(stray_ns: float) -> float:
    """Return a distance that was walked between two walls."""
    folded_ns = (stray_ns + STRAY_NS) % (4 * STRAY_NS)
    return min(folded_ns, 4 * STRAY_NS - folded_ns) - STRAY_NS


def _idle(due_ns: float, stop: Callable[[], bool], clock: Callable[[], int], sleep: Callable[[float], None]) -> bool:
    """Wait until a moment; return whether it was told to stop before."""
    while (left_ns := due_ns - clock()) > 0:
        if stop():
            return True
        sleep(min(left_ns / 1e9, LONGEST_NAP_S))
    return False
