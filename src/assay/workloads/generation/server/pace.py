"""How long is too long for a stream to be silent: by what it usually takes to a first token, and from one to the next.

A window that ends while a server has stalled would share the stall's joules among the tokens from before it, and nobody
would know how long it went on. So slices grow until whoever is silent for far longer than usual is heard again. That
costs time alone, and so it may be wrong at times; only ``request_timeout_s`` ends a load.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.workloads.generation.server.arrivals import Arrivals

LEAST_S = 0.25
"""No shorter silence is remarked upon."""
FAR = 3.0
"""A stream is late when it is silent for so many times what it usually takes at the most."""
FAR_FOR_ALL = 1.5
"""All of them together are, when each is silent for so many times as long: that does not happen by chance."""
USUALLY = 0.95
FEWEST_KEPT = 64
KEPT_PER_STREAM = 40
"""So many times are remembered, so that a stall of all streams at once does not pass for what is usual."""


class Pace:
    """What a load was seen to take lately."""

    def __init__(self, streams: int) -> None:
        most = max(FEWEST_KEPT, KEPT_PER_STREAM * streams)
        self._first_us: deque[float] = deque(maxlen=most)
        self._gap_us: deque[float] = deque(maxlen=most)
        self._first_s = self._gap_s = math.inf

    def learn(self, arrivals: Arrivals) -> None:
        """Take in what arrived within a while."""
        self._first_us.extend(arrivals.first_token_us)
        self._gap_us.extend(arrivals.gap_us)
        self._first_s = _usual_s(self._first_us)
        self._gap_s = _usual_s(self._gap_us)

    def late(self, silences: Iterable[tuple[float, bool]]) -> list[int]:
        """Return which streams are late: each is silent for so many s, and waits for its first token or for another."""
        usual = [(silent_s, self._usual_s(first=first)) for silent_s, first in silences]
        if len(usual) > 1 and all(silent_s > max(LEAST_S, FAR_FOR_ALL * usual_s) for silent_s, usual_s in usual):
            return list(range(len(usual)))
        return [index for index, (silent_s, usual_s) in enumerate(usual) if silent_s > max(LEAST_S, FAR * usual_s)]

    def _usual_s(self, *, first: bool) -> float:
        """Return what it takes at the most, usually; where no token follows another, what a first one takes."""
        return self._first_s if first or not self._gap_us else self._gap_s


def _usual_s(times_us: deque[float]) -> float:
    if not times_us:
        return math.inf
    return sorted(times_us)[math.ceil(USUALLY * len(times_us)) - 1] / 1e6
