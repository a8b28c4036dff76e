"""The loop of a recorder: looks at steady ticks, writes once a second, hears orders in between.

tick 0     1     2     3     4          due at start + n × interval, by the monotonic clock: nothing adds up
  │look │look │look────────────│look     a look that lasts beyond the next tick is followed at once by the latest
     ▲                   missed          that is due, and what lies between is counted as missed
     └ orders are heard while it waits
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from assay.monitor.lines import Beat, End, Ended, GpuProcesses, GpuSample, HostSample, Mark
from assay.monitor.pcie import READ_EVERY_NS
from assay.monitor.wire import Done, Flush, Flushed, Latest, Look, Ready, Remark, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from assay.monitor.lines import Header, Line
    from assay.monitor.pace import Pace
    from assay.monitor.wire import Answer, Order

FLUSH_NS = 1_000_000_000
PULSE_NS = READ_EVERY_NS


class Sink(Protocol):
    """Takes lines."""

    def write(self, lines: Sequence[Line]) -> None:
        """Take the lines of one tick."""

    def flush(self) -> None:
        """Put what was taken where the recorder's death cannot reach it."""


@dataclass
class Beside:
    """A look too slow for the loop, taken beside it every so many ticks from the first on, never twice at once."""

    look: Callable[[int], list[Line]]
    every: int
    submit: Callable[[Callable[[int], list[Line]], int], Future[list[Line]]]
    first: int = 0
    since_ns: int | None = None
    """When the look began that is under way; what it sees is from then on."""
    _running: Future[list[Line]] | None = None

    def __post_init__(self) -> None:
        self._next = self.first

    def begin(self, tick: int, now_ns: int) -> None:
        """Begin a look if one is due."""
        if tick >= self._next and self._running is None:
            self._next = tick - tick % self.every + self.every
            self.since_ns = now_ns
            self._running = self.submit(self.look, tick)

    def collect(self) -> list[Line]:
        """Return what was seen, if a look is done."""
        if self._running is None or not self._running.done():
            return []
        lines, self._running, self.since_ns = self._running.result(), None, None
        return lines


class Recorder:
    """Records until it is told to stop. Everything it needs of the world is handed in."""

    def __init__(
        self,
        header: Header,
        sink: Sink,
        pace: Pace,
        *,
        look: Callable[[int], list[Line]],
        beside: Sequence[Beside] = (),
        pulse: Callable[[], None] | None = None,
        answer: Callable[[Answer], None],
    ) -> None:
        self._header = header
        self._sink = sink
        self._pace = pace
        self._look = look
        self._beside = beside
        self._answer = answer
        self._interval_ns = round(header.interval_s * 1e9)
        self._latest: dict[tuple[str, int], Line] = {}
        self._flushed_ns = header.t_ns
        self._pulse = pulse if self._interval_ns > PULSE_NS else None
        self._pulsed_ns = header.t_ns
        self._stop: str | None = None
        self.ticks = 0
        self.missed = 0

    def run(self) -> End:
        """Record from the header to the end; once the header is in the file, say so."""
        self._sink.write([self._header])
        self._sink.flush()
        self._answer(Ready(header=self._header, pid=os.getpid()))
        tick = 0
        while not self._waited(self._header.t_ns + tick * self._interval_ns):
            self._take(tick)
            tick = self._following(tick)
        return self._finish()

    def _waited(self, due_ns: int) -> bool:
        """Wait for a tick, obeying orders, and write once a second; return whether to stop instead.

        Orders are heard at every tick, also when there is no time left to wait.
        """
        self._obey(self._pace.wait(self._pace.now_ns()))
        while self._stop is None:
            now_ns = self._pace.now_ns()
            if now_ns - self._flushed_ns >= FLUSH_NS:
                self._flush()
            if now_ns >= due_ns:
                break
            self._obey(self._pace.wait(min(due_ns, self._flushed_ns + FLUSH_NS, self._pulsed(now_ns))))
        return self._stop is not None

    def _pulsed(self, now_ns: int) -> int:
        """Read what must be read between ticks, if it is time; return when it will be next."""
        if self._pulse is None:
            return now_ns + FLUSH_NS
        if now_ns - self._pulsed_ns >= PULSE_NS:
            self._pulse()
            self._pulsed_ns = now_ns
        return self._pulsed_ns + PULSE_NS

    def _take(self, tick: int) -> None:
        self._pulsed_ns = self._pace.now_ns()
        lines = [*self._look(tick), *self._collected()]
        for sampler in self._beside:
            sampler.begin(tick, self._pace.now_ns())
        self._remember(lines)
        self._sink.write(lines)
        self.ticks += 1

    def _collected(self) -> list[Line]:
        return [line for sampler in self._beside for line in sampler.collect()]

    def _following(self, tick: int) -> int:
        """Return the next tick, the latest that is due already if some are; those before it are missed."""
        due = (self._pace.now_ns() - self._header.t_ns) // self._interval_ns
        following = max(tick + 1, due)
        self.missed += following - tick - 1
        return following

    def _flush(self) -> None:
        collected, now_ns = self._collected(), self._pace.now_ns()
        self._remember(collected)
        self._sink.write(collected)
        self._sink.write([Beat(t_ns=now_ns, wall_ns=self._pace.wall_ns(), missed=self.missed)])
        self._sink.flush()
        self._flushed_ns = now_ns

    def _remember(self, lines: list[Line]) -> None:
        for line in lines:
            if isinstance(line, GpuSample | GpuProcesses | Ended):
                self._latest[line.kind, line.gpu] = line
            elif isinstance(line, HostSample):
                self._latest[line.kind, 0] = line

    def _obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case Remark(name=name, start_ns=start_ns, end_ns=end_ns):
                    self._sink.write([Mark(t_ns=self._pace.now_ns(), name=name, start_ns=start_ns, end_ns=end_ns)])
                case Flush():
                    self._flush()
                    under_way = [since_ns for sampler in self._beside if (since_ns := sampler.since_ns) is not None]
                    self._answer(Flushed(until_ns=min([self._flushed_ns, *under_way])))
                case Look():
                    self._answer(Latest(lines=tuple(self._latest.values())))
                case Stop(reason=reason):
                    self._stop = self._stop or reason

    def _finish(self) -> End:
        end = End(
            t_ns=self._pace.now_ns(),
            wall_ns=self._pace.wall_ns(),
            ticks=self.ticks,
            missed=self.missed,
            reason=self._stop or "",
        )
        self._sink.write(self._collected())
        self._sink.write([end])
        self._sink.flush()
        self._answer(Done(end=end))
        return end
