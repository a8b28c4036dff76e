"""A recorder on time that passes only when it waits, and lines to feed to what reads them."""

from __future__ import annotations

import heapq
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Protocol

from assay.monitor.recorder import BackgroundSampler, Recorder
from assay.monitor.samples import RecordingHeader, WatchedGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.monitor.client import RecorderReply, RecorderRequest
    from assay.monitor.samples import RecordingEnd, RecordingLine

S = 1_000_000_000
WALL_NS = 1_800_000_000 * S


class Time(Protocol):
    """Time that can be set; the fake NVML is one."""

    def now_ns(self) -> int: ...

    def set_time(self, seconds: float) -> None: ...


class PlainTime:
    """Time without anything else in it."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def set_time(self, seconds: float) -> None:
        self._now_ns = round(seconds * S)


class VirtualPace:
    """Lets time pass while it is waited for, and hands out orders when their time has come."""

    def __init__(self, time: Time | None = None) -> None:
        self.time: Time = time or PlainTime()
        self.wall_offset_ns = WALL_NS
        self.waits = 0
        self._orders: list[tuple[int, int, RecorderRequest]] = []
        self._numbers = count()

    def now_ns(self) -> int:
        return self.time.now_ns()

    def wall_ns(self) -> int:
        return self.now_ns() + self.wall_offset_ns

    def order(self, at_s: float, order: RecorderRequest) -> None:
        """Have something said at a time."""
        heapq.heappush(self._orders, (round(at_s * S), next(self._numbers), order))

    def wait(self, until_ns: int) -> Sequence[RecorderRequest]:
        self.waits += 1
        due = [self._orders[0][0]] if self._orders else []
        self._pass(min([until_ns, *due]))
        told: list[RecorderRequest] = []
        while self._orders and self._orders[0][0] <= self.now_ns():
            told.append(heapq.heappop(self._orders)[2])
        return told

    def spend(self, seconds: float) -> None:
        """Let time pass, as a slow look does."""
        self._pass(self.now_ns() + round(seconds * S))

    def _pass(self, until_ns: int) -> None:
        if until_ns > self.now_ns():
            self.time.set_time(until_ns / S)


class Shelf:
    """A sink that keeps lines, and which of them were there at the last flush."""

    def __init__(self) -> None:
        self.lines: list[RecordingLine] = []
        self.safe = 0
        self.flushes: list[int] = []

    def write(self, lines: Sequence[RecordingLine]) -> None:
        self.lines += lines

    def flush(self) -> None:
        self.safe = len(self.lines)
        self.flushes.append(self.safe)


def at_once(look: Callable[[int], list[RecordingLine]], tick: int) -> Future[list[RecordingLine]]:
    """Take a slow look on the spot, as if a thread had been quick."""
    done: Future[list[RecordingLine]] = Future()
    done.set_result(look(tick))
    return done


def header(interval_s: float = 0.1, gpus: int = 0, *, host_every: int | None = None, t_ns: int = 0) -> RecordingHeader:
    """Return a header of GPUs that are not there."""
    watched = tuple(WatchedGpu(index=index, uuid=f"GPU-{index}", name="Example") for index in range(gpus))
    return RecordingHeader(
        t_ns=t_ns, wall_ns=t_ns + WALL_NS, interval_s=interval_s, gpus=watched, host_every=host_every, origin="fake"
    )


def recorded(
    pace: VirtualPace,
    head: RecordingHeader,
    look: Callable[[int], list[RecordingLine]],
    *,
    beside: Sequence[BackgroundSampler] = (),
    pulse: Callable[[], None] | None = None,
    answers: list[RecorderReply] | None = None,
) -> tuple[Shelf, RecordingEnd, Recorder]:
    """Record until an order says stop; return what was recorded."""
    shelf = Shelf()
    heard: list[RecorderReply] = [] if answers is None else answers
    recorder = Recorder(head, shelf, pace, sample=look, background=beside, pulse=pulse, answer=heard.append)
    return shelf, recorder.run(), recorder
