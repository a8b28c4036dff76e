"""A steady load: so many streams in a closed loop, in a thread of their own, and what arrives from them slice by slice.

    stream 0  ▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒
    stream 1  ▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒
    stream 2  ▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒
    stream 3  ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒
                           │ steady: slices ├────┼────┼────┤

The first answers have different lengths, so that streams do not all read prompts at once, and then all write.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from assay.core.errors import TrialFailed
from assay.workloads.generation.server import faults
from assay.workloads.generation.server.arrivals import Arrivals
from assay.workloads.generation.server.client import tls_context
from assay.workloads.generation.server.line import Line
from assay.workloads.generation.server.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.generation.server.arrivals import Scale
    from assay.workloads.generation.server.endpoint import Endpoint

FAILED_SHARE = 0.05
FAILED_IN_A_ROW = 3
END_WITHIN_S = 20.0
LOOK_EVERY_S = 0.02
"""While streams are waited for that are silent."""
WATCH_EVERY_S = 1.0


def too_many(errors: int, in_a_row: int, ended: int) -> bool:
    """Return whether so many failed requests, of all that ended, are more than bad luck."""
    return in_a_row >= FAILED_IN_A_ROW or errors > max(1.0, FAILED_SHARE * ended)


class Load:
    """Streams that ask a server, from ``start`` to ``close``. Asked by one thread, it works in another."""

    def __init__(
        self,
        endpoint: Endpoint,
        streams: int,
        next_request: Callable[[int, int], tuple[bytes, int]],
        scale: Scale,
        *,
        timeout_s: float,
        warm: int = 1,
    ) -> None:
        self.endpoint = endpoint
        self.tls = tls_context() if endpoint.tls else None
        self.scale = scale
        self.next_request = next_request
        self.lock = threading.Lock()
        self.arrivals = Arrivals()
        self.cpu_ns = 0
        self._streams = streams
        self._timeout_s = timeout_s
        self._warm = warm
        self._pace = Pace(streams)
        self._lines: list[Line] = []
        self._requests = self._errors = self._in_a_row = 0
        self._failure: str | None = None
        self._was_silent = self._is_told = False
        self._defect: BaseException | None = None
        self._is_steady = self._has_begun = False
        self._news = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_asked: asyncio.Event | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="assay-load", daemon=True)
        self._taken_ns = self._cpu_taken_ns = 0

    def start(self) -> tuple[float, float]:
        """Begin, and return when every stream has answered as often as it is warmed up.

        Returned are the seconds it took, and the seconds of a core that the load took of them.

        Raises:
            TrialFailed: Too much went wrong before.
        """
        begun_ns = time.perf_counter_ns()
        self._thread.start()
        self._news.wait()
        self._raise_failure()
        _, cpu_s = self._drop()
        return (self._taken_ns - begun_ns) / 1e9, cpu_s

    def take(self, slice_s: float) -> tuple[Arrivals, float]:
        """Wait for a slice to pass; return what arrived within it, and the seconds of a core that the load took.

        The first slice begins when it is asked for, each other where the one before it ended: nothing falls between.
        It is longer where streams are silent for far longer than usual: it ends when they are heard again. One in
        which the load fails ends there; the failure is raised by the next.

        Raises:
            TrialFailed: Too much went wrong.
        """
        if not self._has_begun:
            self._has_begun = True
            self._drop()
        self._news.wait(slice_s)
        silence_us = self._outwait()
        if not self._may_be_kept():
            self._raise_failure()
        arrivals, cpu_s = self._drop()
        arrivals.silence_us += silence_us
        return arrivals, cpu_s

    def close(self) -> None:
        """End all streams, their connections and the thread; nothing is left when this returns."""
        self._closed = True
        with self.lock:
            if self._loop is not None and self._close_asked is not None:
                self._loop.call_soon_threadsafe(self._close_asked.set)
        if self._thread.ident is not None:
            self._thread.join(END_WITHIN_S)
            if self._thread.is_alive():
                raise TrialFailed(f"the load on {self.endpoint.url} did not end within {END_WITHIN_S:g} s")

    def answered(self) -> None:
        """Hear of an answer that is whole; a line calls this."""
        self._requests += 1
        self._in_a_row = 0
        if not self._is_steady and all(line.answered >= self._warm for line in self._lines):
            self._is_steady = True
            self._news.set()

    def failed(self, clause: str) -> None:
        """Hear of a request that failed; a line calls this."""
        with self.lock:
            self.arrivals.errors += 1
        self._errors += 1
        self._in_a_row += 1
        if too_many(self._errors, self._in_a_row, self._requests + self._errors):
            often = f", {self._errors} of {self._requests + self._errors} requests failed" if self._errors > 1 else ""
            self._fail(f"{clause}{often}")

    def _fail(self, clause: str) -> None:
        """Keep why the load has failed: the first reason."""
        if self._failure is None:
            self._failure = f"The server at {self.endpoint.url} {clause} (after {self._requests} whole answers)."
            self._news.set()
            if self._close_asked is not None:
                self._close_asked.set()

    def _outwait(self) -> list[float]:
        """Wait while streams are silent for far longer than usual, or the load fails; return how long they were, in us.

        Some that are late by turns, one or another at all times, are waited for as long as one may be silent.
        """
        since: dict[Line, int] = {}
        silence_us: list[float] = []
        until_ns = time.perf_counter_ns() + int((self._timeout_s + 2 * WATCH_EVERY_S) * 1e9)
        while self._failure is None and self._defect is None and (now_ns := time.perf_counter_ns()) < until_ns:
            for line, from_ns in list(since.items()):
                if (heard_ns := line.heard_ns) > from_ns:
                    silence_us.append((heard_ns - from_ns) / 1e3)
                    del since[line]
            heard = [(line, line.heard_ns) for line in self._lines]
            late = self._pace.late(((now_ns - heard_ns) / 1e9, line.waits_for_first) for line, heard_ns in heard)
            since = {**dict(heard[index] for index in late), **since}
            if not since:
                break
            self._news.wait(LOOK_EVERY_S)
        self._was_silent = self._was_silent or bool(since and self._failure)
        return [*silence_us, *((time.perf_counter_ns() - from_ns) / 1e3 for from_ns in since.values())]

    def _may_be_kept(self) -> bool:
        """Return whether what came counts: also where the load has failed since, but once, and not where it stalled."""
        if self._failure is None and self._defect is None:
            return True
        reported, self._is_told = self._is_told, True
        return not (reported or self._was_silent or self._defect) and self.arrivals.output_tokens > 0

    def _raise_failure(self) -> None:
        if self._defect is not None:
            raise self._defect
        if self._failure is not None:
            raise TrialFailed(self._failure)

    def _drop(self) -> tuple[Arrivals, float]:
        """Begin a new slice; return what arrived in the last one, and the CPU time it took."""
        if self._failure is None:
            self._news.clear()
        with self.lock:
            fresh = Arrivals(input_tokens=None if self.scale.input_tokens is None else 0.0)
            arrivals, self.arrivals = self.arrivals, fresh
            self._taken_ns = time.perf_counter_ns()
            spent_ns, self._cpu_taken_ns = self.cpu_ns - self._cpu_taken_ns, self.cpu_ns
        self._pace.learn(arrivals)
        return arrivals, spent_ns / 1e9

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as error:  # noqa: BLE001 - raised again where a slice is asked for
            self._defect = error
        self._news.set()

    async def _work(self) -> None:
        with self.lock:
            self._loop, self._close_asked = asyncio.get_running_loop(), asyncio.Event()
        self._lines = [Line(self, index) for index in range(self._streams)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(line.run()) for line in self._lines if not self._closed]
                tasks.append(group.create_task(self._watch()))
                if not self._closed:
                    await self._close_asked.wait()
                for task in tasks:
                    task.cancel()
        finally:
            with self.lock:
                self._loop = None

    async def _watch(self) -> None:
        """Look for streams on which nothing comes any more."""
        limit_ns = int(self._timeout_s * 1e9)
        while True:
            await asyncio.sleep(min(WATCH_EVERY_S, self._timeout_s / 4))
            silent_since = time.perf_counter_ns() - limit_ns
            open_ones = [line.connection for line in self._lines if line.connection is not None]
            late = [candidate for candidate in open_ones if candidate.heard_ns < silent_since]
            self._was_silent = self._was_silent or bool(late)
            if late and len(late) == len(open_ones):
                self._fail(faults.silent(self._timeout_s))
            for connection in late:
                connection.give_up(faults.silent(self._timeout_s))
