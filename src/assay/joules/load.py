"""Keep a device busy with calls back to back, and record when each call or batch ended.

On a GPU, batches of calls are queued ahead on a stream, each followed by an event:

host    put put put ── wait for space ── put ── …         a few batches are always queued, so that nothing on the
GPU     ▐batch▌▐batch▌▐batch▌▐batch▌▐batch▌ …             host, such as reading a slow sensor, makes the GPU wait
        anchor  event  event  event                       events are mapped to the host's clock by the anchor
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay.core.errors import TrialFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.readings import SleepingClock
    from assay.timing.cuda.device import GpuTimingDevice
    from assay.timing.sampling import Call


if TYPE_CHECKING:
    Array = NDArray[np.float64]


@dataclass(frozen=True)
class CallBoundary:
    """A moment between two calls, and how many had ended by then."""

    t_ns: int
    calls: int


@dataclass(frozen=True)
class DeviceActivity:
    """Call boundaries in order; where the number of calls does not change, the device was at rest.

    Attributes:
        times_s: The moments, on the same clock as the readings.
        calls: Number of calls ended by then.
    """

    times_s: Array
    calls: Array

    @property
    def is_empty(self) -> bool:
        """Whether no call has ended."""
        return len(self.times_s) < 2 or self.calls[-1] == self.calls[0]

    def progress(self, at_s: Array) -> Array:
        """Return how many calls had ended at given moments, including the fraction of the current one."""
        return np.asarray(np.interp(at_s, self.times_s, self.calls), dtype=np.float64)

    def rested_s(self, at_s: Array) -> Array:
        """Return how long the device had rested by then; before the first boundary and after the last it rests."""
        resting = np.where(np.diff(self.calls) == 0, np.diff(self.times_s), 0.0)
        first, last = self.times_s[0], self.times_s[-1]
        inside = np.interp(at_s, self.times_s, np.concatenate([[0.0], np.cumsum(resting)]))
        return np.asarray(inside + np.minimum(at_s - first, 0.0) + np.maximum(at_s - last, 0.0), dtype=np.float64)

    def is_busy(self, at_s: Array) -> NDArray[np.bool_]:
        """Return whether a call was running."""
        index = np.searchsorted(self.times_s, at_s, side="right")
        inside = (index > 0) & (index < len(self.times_s))
        at = np.clip(index, 1, len(self.times_s) - 1)
        return np.asarray(inside & (self.calls[at] > self.calls[at - 1]))

    def busy_s(self, from_s: float, until_s: float) -> float:
        """Return for how long calls were running between two moments."""
        rested = self.rested_s(np.array([from_s, until_s]))
        return float(until_s - from_s - (rested[1] - rested[0]))

    def first_at_or_after(self, t_s: float) -> float | None:
        """Return the first boundary at or after a moment; null where there is none."""
        index = int(np.searchsorted(self.times_s, t_s))
        return float(self.times_s[index]) if index < len(self.times_s) else None


def build_activity(boundaries: list[CallBoundary], origin_ns: int) -> DeviceActivity:
    """Return call boundaries as activity, in seconds since ``origin_ns``."""
    times = np.array([(boundary.t_ns - origin_ns) / 1e9 for boundary in boundaries], dtype=np.float64)
    return DeviceActivity(times, np.array([boundary.calls for boundary in boundaries], dtype=np.float64))


CHUNK_NS = 1_000_000
"""Short calls are grouped: a boundary is recorded about this often."""


class CallLoad(Protocol):
    """Makes calls back to back for a given time.

    Attributes:
        call_s: Approximate time per call, back to back.
        gap_s: How much of that the device waits for the host; null where it does not.
        how: How calls are launched, for people.
        notes: Notes on the calls.
    """

    call_s: float
    gap_s: float | None
    how: str
    notes: tuple[str, ...]

    def run(self, seconds: float) -> None:
        """Keep the device busy for some seconds from now, with at least one call; it may still be busy afterwards."""

    def rest(self, seconds: float) -> None:
        """Let the device finish, and leave it idle for some seconds."""

    def boundaries(self) -> list[CallBoundary]:
        """Return the call boundaries so far."""

    def close(self) -> None:
        """Let the device finish, and release what is held on it."""


class CpuCallLoad:
    """The host: a call is complete when it returns."""

    gap_s: float | None = None
    how = "called in a loop"

    def __init__(self, call: Call, clock: SleepingClock, call_s: float, notes: tuple[str, ...] = ()) -> None:
        self.call_s = call_s
        self.notes = notes
        self._call = call
        self._clock = clock
        self._per_chunk = max(1, int(CHUNK_NS / 1e9 / max(call_s, 1e-9)))
        self._boundaries: list[CallBoundary] = []
        self._calls = 0

    def run(self, seconds: float) -> None:
        """Make calls for some seconds."""
        now_ns = self._clock.now_ns()
        until_ns = now_ns + round(seconds * 1e9)
        self._boundaries.append(CallBoundary(now_ns, self._calls))
        while True:
            for _ in range(self._per_chunk):
                self._call()
            self._calls += self._per_chunk
            now_ns = self._clock.now_ns()
            self._boundaries.append(CallBoundary(now_ns, self._calls))
            if now_ns >= until_ns:
                return

    def rest(self, seconds: float) -> None:
        """Make no calls for some seconds."""
        self._clock.sleep(seconds)

    def boundaries(self) -> list[CallBoundary]:
        """Return the call boundaries so far."""
        return list(self._boundaries)

    def close(self) -> None:
        """Do nothing: nothing is held."""


QUEUE_AHEAD_S = 0.06
"""Amount of work queued ahead: more than reading the slowest sensor takes."""
LONG_BATCH_S = 0.3
"""The next batch is launched only after one that takes this long: next to it, host overhead is negligible."""
POLL_SLEEP_S = 0.0002


class CudaCallLoad:
    """Launches batches on a stream; ``batch`` makes ``calls`` calls, which take about ``batch_s`` in total."""

    def __init__(
        self,
        timing_device: GpuTimingDevice,
        clock: SleepingClock,
        batch: Call,
        *,
        calls: int,
        batch_s: float,
        how: str,
        gap_s: float | None = None,
        notes: tuple[str, ...] = (),
        limit_s: float = 60.0,
        release: Call | None = None,
    ) -> None:
        self.call_s = batch_s / calls
        self.gap_s = gap_s
        self.how = how
        self.notes = notes
        self._timing_device = timing_device
        self._clock = clock
        self._batch = batch
        self._per_batch = calls
        self._max_queued = 1 if batch_s >= LONG_BATCH_S else max(2, math.ceil(QUEUE_AHEAD_S / batch_s))
        self._limit_s = limit_s
        self._release = release
        self._queued: deque[tuple[Any, int]] = deque()
        self._anchor: tuple[Any, int] | None = None
        self._boundaries: list[CallBoundary] = []
        self._calls = 0

    def run(self, seconds: float) -> None:
        """Keep the GPU busy for some seconds from now; a few batches are still queued afterwards."""
        until_ns = self._clock.now_ns() + round(seconds * 1e9)
        with self._timing_device.torch.cuda.stream(self._timing_device.stream):
            self._begin()
            while True:
                self._batch()
                self._calls += self._per_batch
                self._queued.append((self._event(), self._calls))
                self._limit_queue(self._max_queued)
                if self._clock.now_ns() >= until_ns:
                    return

    def rest(self, seconds: float) -> None:
        """Let the GPU finish what is queued, and leave it idle for some seconds."""
        self._limit_queue(1)
        self._anchor = None
        self._clock.sleep(seconds)

    def boundaries(self) -> list[CallBoundary]:
        """Return the boundaries between batches that the GPU has passed."""
        return list(self._boundaries)

    def close(self) -> None:
        """Let the GPU finish, and release what is held on it."""
        self._limit_queue(1)
        if self._release is not None:
            self._release()

    def _event(self) -> Any:
        event = self._timing_device.torch.cuda.Event(enable_timing=True)
        event.record(self._timing_device.stream)
        return event

    def _begin(self) -> None:
        """Relate an event on the idle GPU to the host's clock; later events are related through it."""
        if self._anchor is not None:
            return
        before_ns = self._clock.now_ns()
        event = self._event()
        self._wait_for(event, nap=False)
        t_ns = (before_ns + self._clock.now_ns()) // 2
        self._anchor = event, t_ns
        self._boundaries.append(CallBoundary(t_ns, self._calls))

    def _limit_queue(self, max_queued: int) -> None:
        """Wait until fewer than ``max_queued`` batches are queued; completed ones become boundaries."""
        while self._queued and (len(self._queued) >= max_queued or self._queued[0][0].query()):
            event, calls = self._queued.popleft()
            self._wait_for(event, nap=True)
            if self._anchor is not None:
                anchor_event, t_ns = self._anchor
                self._boundaries.append(CallBoundary(t_ns + round(anchor_event.elapsed_time(event) * 1e6), calls))

    def _wait_for(self, event: Any, *, nap: bool) -> None:
        until_ns = self._clock.now_ns() + round(self._limit_s * 1e9)
        while not event.query():
            if self._clock.now_ns() > until_ns:
                raise TrialFailed(
                    f"The GPU has not finished within {self._limit_s:g} s; its work cannot be taken back."
                )
            self._clock.sleep(POLL_SLEEP_S if nap else 0.0)
