"""What the hub (rank 0 of a torchrun) and the agents (the other ranks) say to each other: JSON, a line each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter

from assay.core.plan import Role
from assay.core.processes import Identity
from assay.core.values import Value
from assay.isolation.allot import Allotment
from assay.machine.model import Machine

if TYPE_CHECKING:
    import socket


class Hello(Value):
    """An agent, or the line of one of its workers, presents itself."""

    kind: Literal["hello"] = "hello"
    token: str
    rank: int
    worker: int | None = Field(default=None, description="Null: the agent's own line.")
    process: Identity = Field(description="Of the agent.")
    node: int = 0
    machine: Machine | None = Field(default=None, description="Of another node than the hub's, from its first rank.")


class Start(Value):
    """Start a worker and connect its line to the hub."""

    kind: Literal["start"] = "start"
    worker: int
    trial: str
    attempt: int
    role: Role
    rank: int
    restart: int
    allotment: Allotment
    port: int


class Stop(Value):
    """End a worker and all it started; answered with how it ended and what it printed last."""

    kind: Literal["stop"] = "stop"
    worker: int


class Ended(Value):
    """How a worker ended."""

    kind: Literal["ended"] = "ended"
    worker: int
    fate: str
    tail: str | None


class Bye(Value):
    """The run is over; end with this exit code."""

    kind: Literal["bye"] = "bye"
    exit_code: int


Said = Annotated[Hello | Start | Stop | Ended | Bye, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Said] = TypeAdapter(Said)


class Wire:
    """One line-wise connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""

    def send(self, said: Said) -> None:
        """Say something."""
        self.socket.sendall(_ADAPTER.dump_json(said) + b"\n")

    def receive(self) -> Said | None:
        """Wait for what is said next; null when the other side is gone."""
        while b"\n" not in self._buffer:
            try:
                data = self.socket.recv(2**16)
            except (ConnectionResetError, TimeoutError):
                return None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _ADAPTER.validate_python(json.loads(line))
