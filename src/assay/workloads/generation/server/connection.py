"""A connection that stamps what comes: bytes get their time as they are taken from the socket, and are read later.

When many streams have news at once, all of them are stamped before the first is looked at.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from assay.workloads.generation.server import faults

if TYPE_CHECKING:
    import ssl

    from assay.workloads.generation.server.endpoint import Endpoint

Piece = tuple[int, bytes]
"""When bytes came, in nanoseconds of the performance counter, and the bytes."""


class Fault(Exception):
    """What a server did wrong, as a clause."""


class Closed(Exception):
    """The server has closed the connection, and all that came has been read."""


class Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self) -> None:
        self.heard_ns = time.perf_counter_ns()
        """When a request was sent, or a part of its answer came; whoever reads answers keeps it."""
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()
        self._pending: list[Piece] = []
        self._waiter: asyncio.Future[None] | None = None
        self._fault: str | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this."""
        self._transport = transport  # type: ignore[assignment]  # of a stream, so that it is read from and written to

    def data_received(self, data: bytes) -> None:
        """Stamp what came; asyncio calls this."""
        self._pending.append((time.perf_counter_ns(), data))
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Keep that it ended; asyncio calls this."""
        if error is not None:
            self._fault = self._fault or faults.of_connection(error)
        self._lost.set_result(None)
        self._wake()

    @property
    def is_open(self) -> bool:
        """Whether something may still be sent."""
        return self._transport is not None and not self._transport.is_closing() and not self._lost.done()

    def send(self, request: bytes) -> None:
        """Send a request."""
        if self._transport is not None:
            self.heard_ns = time.perf_counter_ns()
            self._transport.write(request)

    async def pieces(self) -> list[Piece]:
        """Wait for bytes, and return all that came.

        Raises:
            Fault: It was given up, or broke.
            Closed: The server closed it, as it may after an answer.
        """
        if not self._pending and not self._lost.done() and self._fault is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._pending:
            came, self._pending = self._pending, []
            return came
        if self._fault is not None:
            raise Fault(self._fault)
        raise Closed

    def give_up(self, clause: str) -> None:
        """Have whoever waits for bytes hear that they do not come."""
        self._fault = clause
        self._wake()

    async def hang_up(self) -> None:
        """End it now, and return when it has ended."""
        if self._transport is not None:
            self._transport.abort()
            await self._lost

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Connection:
    """Return a connection to a server.

    Raises:
        Fault: There is none to be had.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(faults.CONNECT_WITHIN_S):
            _, made = await loop.create_connection(Connection, endpoint.host, endpoint.port, ssl=tls)
    except OSError as error:
        raise Fault(faults.of_connection(error)) from None
    return made
