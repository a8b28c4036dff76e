"""What a recorder and the process that started it say to each other: one JSON object a line, over a socket.

parent                         recorder
  │ ◀───────── Ready ─────────────│      the file is open, the first tick is due
  │ ── Remark ──────────────────▶ │      a moment or a span with a name
  │ ── Flush ──▶ ◀── Flushed ──── │      all looks until now are in the file
  │ ── Look ───▶ ◀── Latest ───── │      the newest look at each
  │ ── Stop ───▶ ◀── Done ─────── │      the file is finished
  │ ◀───────── Failed ────────────│      in place of any answer: why it can go no further
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from assay.core.values import Value
from assay.monitor.lines import End, Header, Line

if TYPE_CHECKING:
    import socket


class Remark(Value):
    """A moment, or a span with an end, that is to be named in the file."""

    say: Literal["remark"] = "remark"
    name: str
    start_ns: int
    end_ns: int | None = None


class Flush(Value):
    """Write down what you have."""

    say: Literal["flush"] = "flush"


class Look(Value):
    """Tell what you saw last."""

    say: Literal["look"] = "look"


class Stop(Value):
    """Finish the file."""

    say: Literal["stop"] = "stop"
    reason: str


class Ready(Value):
    """The recording has begun."""

    say: Literal["ready"] = "ready"
    header: Header
    pid: int


class Flushed(Value):
    """All looks until then are in the file."""

    say: Literal["flushed"] = "flushed"
    until_ns: int


class Latest(Value):
    """The newest look at each GPU and at the host."""

    say: Literal["latest"] = "latest"
    lines: tuple[Annotated[Line, Field(discriminator="kind")], ...]


class Done(Value):
    """The file is finished."""

    say: Literal["done"] = "done"
    end: End


class Failed(Value):
    """The recorder cannot go on; ``exit_code`` tells bad input from a machine that cannot."""

    say: Literal["failed"] = "failed"
    reason: str
    exit_code: int


Order: TypeAlias = Remark | Flush | Look | Stop
Answer: TypeAlias = Ready | Flushed | Latest | Done | Failed

ORDER: TypeAdapter[Order] = TypeAdapter(Annotated[Order, Field(discriminator="say")])
ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="say")])

_CHUNK_BYTES = 65536


class Wire:
    """One end of the socket, and the piece of a message that has come so far."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.closed = False
        self._come = b""

    def send(self, message: Order | Answer) -> None:
        """Say something.

        Raises:
            OSError: Nobody is there to hear it.
        """
        self.socket.sendall(message.model_dump_json(exclude_none=True).encode() + b"\n")

    def receive(self) -> list[bytes]:
        """Return the whole messages that have come, waiting for something to come; at the end ``closed`` is set."""
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        *whole, self._come = (self._come + data).split(b"\n")
        return whole
