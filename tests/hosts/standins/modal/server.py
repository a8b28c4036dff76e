"""A stand-in of Modal on loopback: gRPC by the SDK's own descriptions, so that the real SDK talks to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2

from tests.hosts.standins.modal.calls import Calls
from tests.hosts.standins.modal.sandboxes import Sandbox, Sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN_ID, TOKEN_SECRET = "ak-standin0id", "as-standin0secret"


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call of a method."""

    status: Status = Status.UNAVAILABLE
    message: str = "the stand-in is out of sorts"
    after: bool = False
    """Whether what was asked for has been done."""
    cut: bool = False
    """Whether the connection is cut instead of an answer."""
    retry_after_s: float | None = None
    hang_s: float = 0.0


class ModalStandIn:
    """The server in a thread of its own. Its state is plain to see; faults wait for the calls they are for."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.sandboxes = Sandboxes(folder, clock)
        self.faults: dict[str, deque[Fault]] = {}
        self.calls: list[str] = []
        self.apps: dict[str, str] = {}
        self.images: dict[str, str] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.capacity = True
        self.image_fails: str | None = None
        self.token = (TOKEN_ID, TOKEN_SECRET)
        self.told: list[bytes] = []
        """Everything that it was asked, but for the headers with the token."""
        self.keys_honoured = True
        self.at_once = 0
        self.on_create: Callable[[Sandbox], None] = lambda sandbox: None
        self._by_key: dict[str, Any] = {}
        self.transports: set[Any] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="modal-stand-in")
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, method: str, *faults: Fault) -> None:
        self.faults.setdefault(method, deque()).extend(faults)

    def launched(self, name: str) -> int:
        return sum(each.name == name for each in self.sandboxes.all.values())

    def stop(self) -> None:
        self.sandboxes.end_all()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server([Calls(self)], status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", 0)
        self.port: int = server._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for transport in self.transports:
            transport.abort()
        await server.wait_closed()

    async def answered(self, name: str, stream: Any, method: Callable[..., Any]) -> None:
        """Take a request, do it or let it go wrong, and answer."""
        request = await stream.recv_message()
        self.calls.append(name)
        self.told.append(request.SerializeToString())
        waiting = self.faults.get(name)
        fault = waiting.popleft() if waiting else None
        if fault is not None:
            await asyncio.sleep(fault.hang_s)
            if not fault.after:
                self.go_wrong(fault, stream)
        self._check_token(name, stream.metadata)
        key = stream.metadata.get("x-idempotency-key")
        if name == "SandboxCreate" and self.keys_honoured and key in self._by_key:
            answer = self._by_key[key]
        else:
            answer = await method(request)
            self._by_key[key] = answer
        if fault is not None and fault.after:
            self.go_wrong(fault, stream)
        await stream.send_message(answer)

    def go_wrong(self, fault: Fault, stream: Any) -> None:
        if fault.cut:
            stream._stream._transport.abort()
            raise asyncio.CancelledError
        wait = fault.retry_after_s
        details = None if wait is None else [api_pb2.RPCRetryPolicy(retry_after_secs=wait)]
        raise GRPCError(fault.status, fault.message, details)

    def _check_token(self, name: str, metadata: Any) -> None:
        if name.startswith("TaskExec"):
            if not metadata.get("authorization", "").startswith("Bearer "):
                raise GRPCError(Status.UNAUTHENTICATED, "no access to this machine")
        elif (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != self.token:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")
