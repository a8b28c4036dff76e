"""Lanes: calls follow one another on them, and each sample is kept with its start.

A sample is one call, or several where a call is very short; each of its numbers is of one call. Where there would be
too many samples, neighbours are put together, two by two, and so are those still to come.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from assay.core import copies
from assay.timing.batching import alike, least_ns
from assay.timing.stretch import Series
from assay.timing.wall import MOST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.wall import Timed

START_US = "start_us"
"""The start of each sample since the start of its series, on the host's monotonic clock."""

SHORTEST_SAMPLE_NS = 2_000_000
"""The events around a sample leave the GPU idle for some 20 µs: a hundredth of this."""
PROBED_NS = 4_000_000


class Lane(Protocol):
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

    def series(self) -> tuple[Series, ...]:
        """Return all that is kept."""
        ...


class Kept:
    """The samples of one subject; at most so many."""

    def __init__(self, calls: int, most: int = MOST_SAMPLES) -> None:
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
        self._call_us = _paired(self._call_us, pairs)
        self._extras = {name: _paired(values, pairs) for name, values in self._extras.items()}
        self.calls *= 2
        self.last_ns *= 2

    def clear(self) -> None:
        """Forget all samples."""
        self._start_us, self._call_us, self._extras = array("d"), array("d"), {}

    def series(self, subject: int, quantity: str) -> list[Series]:
        """Return the samples: how long a call took, when each sample began, and what calls reported."""
        named = {quantity: self._call_us, START_US: self._start_us, **self._extras}
        return [Series(subject, name, values, self.calls) for name, values in named.items()]


def _paired(values: array[float], pairs: int) -> array[float]:
    return array("d", [(values[2 * n] + values[2 * n + 1]) / 2 for n in range(pairs)])


class WallLane:
    """Calls by the host's clock: each sample ends when its work is done."""

    quantity = "call_us"

    def __init__(
        self,
        timed: Sequence[Timed],
        calls: Sequence[int],
        *,
        most: int = MOST_SAMPLES,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.subjects = len(timed)
        self.busy_ns = 0.0
        self._timed = tuple(timed)
        self._kept = [Kept(count, most) for count in calls]
        self._clock = clock
        self._zero_ns = 0

    def start(self) -> int:
        """Forget all samples, and count starts from now on."""
        for samples in self._kept:
            samples.clear()
        self.busy_ns = 0.0
        self._zero_ns = self._clock()
        return self._zero_ns

    def launch(self, subject: int) -> None:
        """Make the calls of one sample, and wait for them."""
        timed, samples = self._timed[subject], self._kept[subject]
        reported: object = None
        begin = self._clock()
        for _ in range(samples.calls):
            reported = timed.call()
        timed.synchronize()
        took = self._clock() - begin
        copies.end_copy()
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
        return sum(samples.last_ns for samples in self._kept)

    def series(self) -> tuple[Series, ...]:
        """Return all that is kept."""
        return tuple(s for n, samples in enumerate(self._kept) for s in samples.series(n, self.quantity))


def calls_in_a_sample(
    call: Callable[[], object], finish: Callable[[], None], clock: Callable[[], int] = time.perf_counter_ns
) -> int:
    """Return how many calls make a sample that is not too short, having made a few; the first one does not count."""
    return calls_in_samples([(call, finish)], clock)[0]


def calls_in_samples(
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
        least.append(least_ns(call, finish=finish, enough_ns=PROBED_NS, clock=clock))
    return [max(1, math.ceil(SHORTEST_SAMPLE_NS / shortest_ns)) for shortest_ns in alike(least)]
