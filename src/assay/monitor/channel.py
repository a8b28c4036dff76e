"""Messages between a recorder and the process that started it: one JSON object a line, over a socket.

parent                         recorder
  │ ◀──────── RecorderReady ────────│      the file is open, the first tick is due
  │ ── AddMark ────────────────────▶│      a named moment or span
  │ ── FlushRecording ─────────────▶│
  │ ◀──────── RecordingFlushed ─────│      all samples until now are in the file
  │ ── GetLatest ──────────────────▶│
  │ ◀──────── LatestLines ──────────│      the newest sample of each source
  │ ── StopRecording ──────────────▶│
  │ ◀──────── RecordingDone ────────│      the file is finished
  │ ◀──────── RecorderFailed ───────│      instead of any reply: why it cannot continue
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from assay.core.values import Value
from assay.monitor.samples import RecordingEnd, RecordingHeader, RecordingLine

if TYPE_CHECKING:
    import socket


class AddMark(Value):
    """Name a moment, or a span if there is an end, in the file."""

    kind: Literal["add_mark"] = "add_mark"
    name: str
    start_ns: int
    end_ns: int | None = None


class FlushRecording(Value):
    """Write all samples to the file."""

    kind: Literal["flush"] = "flush"


class GetLatest(Value):
    """Return the newest samples."""

    kind: Literal["get_latest"] = "get_latest"


class StopRecording(Value):
    """Finish the file."""

    kind: Literal["stop"] = "stop"
    reason: str


class RecorderReady(Value):
    """The recording has started."""

    kind: Literal["ready"] = "ready"
    header: RecordingHeader
    pid: int


class RecordingFlushed(Value):
    """All samples until ``until_ns`` are in the file."""

    kind: Literal["flushed"] = "flushed"
    until_ns: int


class LatestLines(Value):
    """The newest sample of each GPU and of the host."""

    kind: Literal["latest"] = "latest"
    lines: tuple[Annotated[RecordingLine, Field(discriminator="kind")], ...]


class RecordingDone(Value):
    """The file is finished."""

    kind: Literal["done"] = "done"
    end: RecordingEnd


class RecorderFailed(Value):
    """The recorder cannot continue; ``exit_code`` distinguishes bad input from a machine error."""

    kind: Literal["failed"] = "failed"
    reason: str
    exit_code: int


RecorderRequest: TypeAlias = AddMark | FlushRecording | GetLatest | StopRecording
RecorderReply: TypeAlias = RecorderReady | RecordingFlushed | LatestLines | RecordingDone | RecorderFailed

RECORDER_REQUEST: TypeAdapter[RecorderRequest] = TypeAdapter(Annotated[RecorderRequest, Field(discriminator="kind")])
RECORDER_REPLY: TypeAdapter[RecorderReply] = TypeAdapter(Annotated[RecorderReply, Field(discriminator="kind")])

_CHUNK_BYTES = 65536


class RecorderConnection:
    """One end of the socket, with a buffer for a partly received message."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.closed = False
        self._partial = b""

    def send(self, message: RecorderRequest | RecorderReply) -> None:
        """Send a message.

        Raises:
            OSError: The other end is closed.
        """
        self.socket.sendall(message.model_dump_json(exclude_none=True).encode() + b"\n")

    def receive(self) -> list[bytes]:
        """Return the complete messages received, blocking until some data comes; ``closed`` is set at end of stream."""
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        *whole, self._partial = (self._partial + data).split(b"\n")
        return whole
