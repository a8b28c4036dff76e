"""One of a load's streams: a request follows another as soon as its answer has ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from assay.workloads.generation.server import faults
from assay.workloads.generation.server.arrivals import Answer
from assay.workloads.generation.server.connection import Closed, Fault, connect
from assay.workloads.generation.server.stream import DONE, Events, read
from assay.workloads.generation.server.wire import NotHttp, Reader

if TYPE_CHECKING:
    import ssl
    import threading

    from assay.workloads.generation.server.arrivals import Arrivals, Scale
    from assay.workloads.generation.server.connection import Connection, Piece
    from assay.workloads.generation.server.endpoint import Endpoint

LONGEST_ERROR = 64 << 10
REST_WITHIN_S = 1.0
"""For the last bytes of HTTP behind an answer that has said that it ended; then a new connection is cheaper."""


class Crew(Protocol):
    """Whom a line belongs to: it says what to ask, and hears what became of it."""

    endpoint: Endpoint
    tls: ssl.SSLContext | None
    scale: Scale
    arrivals: Arrivals
    lock: threading.Lock
    """Held while something is counted."""
    cpu_ns: int
    """CPU time that the thread of the lines has taken."""

    def next_request(self, line: int, number: int) -> tuple[bytes, int]:
        """Return a line's next request, and for how many tokens it asks."""
        ...

    def answered(self) -> None:
        """Hear that an answer came to its end."""
        ...

    def failed(self, clause: str) -> None:
        """Hear that a request failed, and what the server did."""
        ...


class Line:
    """A stream in a closed loop; it never ends by itself."""

    def __init__(self, crew: Crew, index: int) -> None:
        self.answered = 0
        self.connection: Connection | None = None
        self._crew = crew
        self._index = index
        self._asked: _Asked | None = None
        self._begun_ns = time.perf_counter_ns()

    @property
    def heard_ns(self) -> int:
        """When something of an answer came last, or was asked for."""
        connection = self.connection
        return self._begun_ns if connection is None else max(self._begun_ns, connection.heard_ns)

    @property
    def waits_for_first(self) -> bool:
        """Whether no token of the answer has come that it waits for."""
        return self._asked is None or not self._asked.chunks

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        number = 0
        try:
            while True:
                request, tokens = self._crew.next_request(self._index, number)
                number += 1
                try:
                    await self._ask(request, tokens)
                except Fault as fault:
                    await self._hang_up()
                    self._crew.failed(str(fault))
                    await asyncio.sleep(0)
        finally:
            await self._hang_up()

    async def _ask(self, request: bytes, tokens: int) -> None:
        """Ask once, over the connection that is there, or a new one where the server has closed it meanwhile."""
        self._begun_ns = time.perf_counter_ns()
        open_request = self._asked = _Asked(self._crew, Answer(self._begun_ns, tokens, self._crew.scale))
        if self.connection is not None and await self._converse(self.connection, request, open_request):
            return
        await self._hang_up()
        self.connection = await connect(self._crew.endpoint, self._crew.tls)
        if not await self._converse(self.connection, request, open_request):
            raise Fault("closed the connection without an answer")

    async def _converse(self, connection: Connection, request: bytes, asked: _Asked) -> bool:
        """Send a request and take its answer in; return false where the connection was closed before it began."""
        connection.send(request)
        while not asked.ended:
            try:
                pieces = await connection.pieces()
            except (Closed, Fault) as error:
                if not asked.touched and not connection.is_open:
                    return False
                if isinstance(error, Fault):
                    raise
                asked.closed()
                break
            with self._crew.lock:
                self._crew.cpu_ns = time.thread_time_ns()
                if asked.hear(pieces):
                    connection.heard_ns = pieces[-1][0]
        self.answered += 1
        self._crew.answered()
        if not await self._rest(connection, asked.reader):
            await self._hang_up()
        return True

    async def _rest(self, connection: Connection, reader: Reader) -> bool:
        """Read what HTTP still owes behind an answer; return whether the connection can be used again."""
        with suppress(TimeoutError, Closed, Fault, NotHttp):
            async with asyncio.timeout(REST_WITHIN_S):
                while not reader.done:
                    for _, data in await connection.pieces():
                        reader.feed(data)
        return reader.keeps_open

    async def _hang_up(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.hang_up()


class _Asked:
    """One request on its way: bytes become events, events are counted."""

    def __init__(self, crew: Crew, answer: Answer) -> None:
        self.reader = Reader()
        self.touched = False
        self.ended = False
        self._crew = crew
        self._answer = answer
        self._events = Events()
        self._said = b""

    @property
    def chunks(self) -> int:
        """How many chunks with text have come."""
        return self._answer.chunks

    def hear(self, pieces: list[Piece]) -> bool:
        """Take in what came; return whether something of an answer was in it, and not signs of life alone.

        Raises:
            Fault: It is not an answer.
        """
        self.touched, some = True, False
        for stamp_ns, data in pieces:
            try:
                body = self.reader.feed(data)
            except NotHttp as error:
                raise Fault(str(error)) from None
            if self.ended:
                continue
            if self.reader.status != 200 or not self._said:
                self._said = (self._said + body)[:LONGEST_ERROR]
            if self.reader.status == 200:
                events = self._events.feed(body)
                some = some or bool(events)
                self._count(stamp_ns, events)
            if self.reader.done and not self.ended:
                self._finish(stamp_ns)
        return some

    def closed(self) -> None:
        """Hear that nothing more comes."""
        if not self.reader.closed():
            raise Fault(faults.CLOSED)
        with self._crew.lock:
            self._finish(time.perf_counter_ns())

    def _count(self, stamp_ns: int, events: list[bytes]) -> None:
        for data in events:
            if data == DONE:
                self._end(stamp_ns)
                return
            chunk = read(data)
            if chunk.error is not None:
                raise Fault(self._crew.endpoint.clean(f"broke an answer off with {chunk.error!r}"))
            self._answer.heard(stamp_ns, chunk, self._crew.arrivals)

    def _finish(self, stamp_ns: int) -> None:
        """Judge an answer whose HTTP has ended, though it has not said that it was the end."""
        body = self._said.decode(errors="replace")
        if self.reader.status != 200:
            raise Fault(faults.of_status(self.reader.status, body, self._crew.endpoint))
        self._count(stamp_ns, self._events.end())
        if self.ended:
            return
        if faults.is_web_page(body):
            raise Fault("answered with a web page")
        if self._answer.finish is None:
            raise Fault("ended an answer without saying that it was whole")
        self._end(stamp_ns)

    def _end(self, stamp_ns: int) -> None:
        if self._answer.empty:
            raise Fault("answered without a token")
        self.ended = True
        self._answer.end(stamp_ns, self._crew.arrivals)
