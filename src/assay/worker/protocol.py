"""Messages between parent and worker: prepare → ready → take → tune → trace → hold → finish.

    parent                                    worker
      │ ── Prepare ──────────────────────────► │  bind, load the subjects, check them
      │ ◄──── WorkerReady | MeasurementFailed ─┤
      │ ── TakeBlock | TakeSamples | TakeStage │  wait for the start, warm up, time
      │ ◄────────────────────────── BlockDone ─┤  with the samples; then holds the load, if asked
      │ ── Tune ─────────────────────────────► │  wait for the start, run the role's tuner
      │ ◄────────────────────────────── Tuned ─┤  with the configuration; then holds the load, if asked
      │ ── TakeTrace ────────────────────────► │  call every subject once under the profiler
      │ ◄────────────────────────── TraceDone ─┤  with the trace
      │ ── Hold ─────────────────────────────► │  (a load role) run without being timed
      │ ◄──────────────────────────── Holding ─┤  after its first call
      │ ── Release ──────────────────────────► │  end the load
      │ ◄─────────────────────────── Released ─┤
      │ ── Finish ───────────────────────────► │
      │ ◄─────────────────────────── Finished ─┤  with the evidence; then it ends

Frames travel on a separate socket, so that the output of user code cannot corrupt them: two lengths, a JSON
message, and raw float64 samples, or a trace, after it.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from assay.core.results import FailureCode, IsolationLimit, SubjectFacts, TriedConfig
from assay.core.values import Isolation, Mode, Params, Role, Value
from assay.isolation.placement import Allotment

if TYPE_CHECKING:
    import socket

_LENGTHS = struct.Struct("!II")
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_PAYLOAD_BYTES = 512 * 2**20


class Prepare(Value):
    """Prepare one rank of a role."""

    kind: Literal["prepare"] = "prepare"
    role: Role
    rank: int
    restart: int
    allotment: Allotment
    all_cpus: tuple[int, ...] = Field(description="Where an unpinned process may run.")
    mode: Mode
    seed: int


class _Request(Value):
    """What requests to time or to tune have."""

    start_at_ns: int | None = Field(default=None, description="Monotonic; every role starts then.")
    hold: bool = Field(default=False, description="Continue untimed afterwards, until released.")
    seed: int = 0


class TakeBlock(_Request):
    """Time the subjects, or pairs of them, for a duration."""

    kind: Literal["block"] = "block"
    duration_s: float
    warmup_runs: int | None = None
    precision: float | None = Field(default=None, description="Relative half-width to stop at early.")


class TakeSamples(_Request):
    """Time a number of calls of each subject, one by one."""

    kind: Literal["samples"] = "samples"
    samples: int
    warmup_runs: int | None = None


class TakeStage(Value):
    """Time one subject for its stage."""

    kind: Literal["stage"] = "stage"
    subject: int
    start_at_ns: int | None = Field(default=None, description="Monotonic; every rank starts then.")


class Tune(_Request):
    """Let the role's tuner choose a configuration of its first subject."""

    kind: Literal["tune"] = "tune"


class TakeTrace(Value):
    """Make one call of each subject under the profiler."""

    kind: Literal["trace"] = "trace"


class Hold(Value):
    """Run untimed until released."""

    kind: Literal["hold"] = "hold"


class Release(Value):
    """Stop running untimed."""

    kind: Literal["release"] = "release"


class Finish(Value):
    """Report the evidence, and exit."""

    kind: Literal["finish"] = "finish"


class WorkerReady(Value):
    """Everything is loaded and passed its checks."""

    kind: Literal["ready"] = "ready"
    facts: tuple[SubjectFacts, ...]


class MeasurementFailed(Value):
    """It cannot be measured; why, in one sentence."""

    kind: Literal["failed"] = "failed"
    reason: str
    code: FailureCode = "error"


class SeriesHeader(Value):
    """Describes the next ``n`` float64 numbers of the payload."""

    subject: int
    quantity: str
    n: int
    calls_per_sample: int
    window: tuple[int, int] | None = Field(default=None, description="When, where that is not the whole stretch.")


class BlockDone(Value):
    """The samples, after this message; for subjects in pairs also the facts learned about them."""

    kind: Literal["done"] = "done"
    start_ns: int
    end_ns: int
    series: tuple[SeriesHeader, ...]
    facts: tuple[SubjectFacts, ...] | None = None


class Tuned(Value):
    """The tuner's result: a ``Tuning`` without the role and the restart, which the parent knows."""

    kind: Literal["tuned"] = "tuned"
    tuner: str
    version: str | None = None
    config: Params | None
    time_us: float | None
    tried: tuple[TriedConfig, ...] = ()
    tuning_s: float
    start_ns: int
    end_ns: int
    reason: str | None = None
    notes: tuple[str, ...] = ()


class TraceDone(Value):
    """The trace, after this message; or why there is none."""

    kind: Literal["traced"] = "traced"
    reason: str | None = None


class Holding(Value):
    """The load is running: at least one call of each subject was made."""

    kind: Literal["holding"] = "holding"


class Released(Value):
    """The load has stopped; the samples of continuous calls, after this message."""

    kind: Literal["released"] = "released"
    calls: int
    start_ns: int
    end_ns: int
    cpu_s: float = Field(description="CPU time that it used meanwhile.")
    series: tuple[SeriesHeader, ...] = ()


class Finished(Value):
    """What the worker read back about itself."""

    kind: Literal["finished"] = "finished"
    pid: int
    isolation_held: Isolation
    isolation_limits: tuple[IsolationLimit, ...]
    allowed_cores: tuple[int, ...]
    memory_nodes: tuple[int, ...] | None
    pages_by_node: dict[int, int] | None
    involuntary_switches: int
    voluntary_switches: int
    cpu_s: float
    peak_memory_mib: float


_FromParent = Prepare | TakeBlock | TakeSamples | TakeStage | Tune | TakeTrace | Hold | Release | Finish
_FromWorker = WorkerReady | MeasurementFailed | BlockDone | Tuned | TraceDone | Holding | Released | Finished
Message = Annotated[_FromParent | _FromWorker, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Message)


@dataclass(frozen=True)
class Frame:
    """A message and the payload after it."""

    message: Message
    payload: bytes = b""


class InvalidMessage(Exception):
    """The received data is not a message of this protocol."""


class ConnectionClosed(Exception):
    """The other side has closed the connection."""


def encode(message: Message, payload: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    text = _ADAPTER.dump_json(message)
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class FrameDecoder:
    """Assembles frames from received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next complete frame, or null when more bytes are needed."""
        if len(self._buffer) < _LENGTHS.size:
            return None
        message_size, payload_size = _LENGTHS.unpack_from(self._buffer)
        if message_size > MAX_MESSAGE_BYTES or payload_size > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"a frame of {message_size} + {payload_size} bytes")
        end = _LENGTHS.size + message_size
        if len(self._buffer) < end + payload_size:
            return None
        text = bytes(self._buffer[_LENGTHS.size : end])
        payload = bytes(self._buffer[end : end + payload_size])
        del self._buffer[: end + payload_size]
        try:
            return Frame(_ADAPTER.validate_json(text), payload)
        except ValidationError as error:
            raise InvalidMessage(f"{text[:80]!r}: {error.error_count()} errors") from None


def read_frame(sock: socket.socket, decoder: FrameDecoder) -> Frame | None:
    """Return the next complete frame, reading at most once; null if it is not complete yet."""
    if (frame := decoder.next()) is not None:
        return frame
    try:
        data = sock.recv(2**20)
    except ConnectionResetError:
        data = b""
    if not data:
        raise ConnectionClosed
    decoder.feed(data)
    return decoder.next()


class ParentConnection:
    """The parent's end: sends a message, and reads a frame where one is complete."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._decoder = FrameDecoder()

    def fileno(self) -> int:
        """Return the socket to wait on."""
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message; a broken connection is noticed when waiting for the reply."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(encode(message))

    def read(self) -> Frame | None:
        """Return the next complete frame, or null; raises `ConnectionClosed` or `InvalidMessage`."""
        return read_frame(self.socket, self._decoder)


class WorkerConnection:
    """The worker's end: blocking send and receive, and a check for a waiting message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = FrameDecoder()

    def send(self, message: Message, payload: bytes = b"") -> None:
        """Send a frame."""
        self._socket.sendall(encode(message, payload))

    def receive(self) -> Message:
        """Wait for the next message."""
        while (frame := read_frame(self._socket, self._decoder)) is None:
            pass
        return frame.message

    def has_message(self) -> bool:
        """Return whether a message of the parent is waiting."""
        self._socket.setblocking(False)
        try:
            data = self._socket.recv(2**20)
        except BlockingIOError:
            return False
        finally:
            self._socket.setblocking(True)
        if not data:
            raise ConnectionClosed
        self._decoder.feed(data)
        return True
