"""A recorder process and the one that started it: the messages between them, and the parent's side.

One JSON object a line, over a socket:

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

import os
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot
from assay.core.values import Value
from assay.monitor.samples import RecordingEnd, RecordingHeader, RecordingLine

if TYPE_CHECKING:
    from types import TracebackType

    from assay.monitor.options import RecordingOptions


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


REPLY_TIMEOUT_S = 30.0
"""The first call into a driver may take seconds."""
EXIT_TIMEOUT_S = 5.0

ReplyT = TypeVar("ReplyT", RecorderReady, RecordingFlushed, LatestLines, RecordingDone)


class RecorderDied(EndedEarly):
    """The recorder ended before it was stopped; what it wrote until then is kept."""


class Recording:
    """A recording in progress: ``with Recording.start(options) as recording: …``. Safe to use from any thread."""

    def __init__(self, options: RecordingOptions) -> None:
        self.options = options
        self.end: RecordingEnd | None = None
        self.trouble: AssayError | None = None
        """Why the recorder ended before it was stopped; null: it did not."""
        self._channel_lock = threading.Lock()
        self._stderr_lines: list[str] = []
        parent_end, child_end = socket.socketpair()
        self._connection = RecorderConnection(parent_end)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write to it
        try:
            with child_end:
                self._process = _start_process(options, child_end.fileno(), self._errors.fileno())
        except BaseException:
            parent_end.close()
            self._errors.close()
            raise
        try:
            ready = self._receive_reply(RecorderReady)
        except BaseException:
            self._reap()
            raise
        self.header: RecordingHeader = ready.header
        self.pid = ready.pid

    @classmethod
    def start(cls, options: RecordingOptions) -> Self:
        """Start a recorder and wait until it records.

        Raises:
            BadInput: The path is invalid.
            MachineCannot: The file cannot be written, or a GPU cannot be reached.
        """
        return cls(options)

    @property
    def path(self) -> Path:
        """The path of the recording."""
        return Path(self.options.path)

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the recorder dies."""
        return self._connection.socket.fileno()

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Name a moment, by default now, in ns of the monotonic clock."""
        self._send_request(
            AddMark(name=_plain_mark_name(name), start_ns=time.monotonic_ns() if at_ns is None else at_ns)
        )

    def span(self, name: str, start_ns: int, end_ns: int) -> None:
        """Name a span that has ended, such as a trial, in ns of the monotonic clock."""
        self._send_request(AddMark(name=_plain_mark_name(name), start_ns=start_ns, end_ns=end_ns))

    def flush(self) -> int:
        """Write all samples so far; return the time up to which they are written, in ns of the monotonic clock."""
        return self._ask(FlushRecording(), RecordingFlushed).until_ns

    def latest(self) -> tuple[RecordingLine, ...]:
        """Return the newest sample of each GPU and of the host."""
        return self._ask(GetLatest(), LatestLines).lines

    def stop(self, reason: str = "stopped") -> RecordingEnd:
        """Finish the file and stop the recorder; return its last line, also when called again.

        Raises:
            RecorderDied: The recorder had already ended; the file keeps what it had written.
        """
        if self.trouble is not None:
            raise self.trouble
        if self.end is None:
            try:
                self.end = self._ask(StopRecording(reason=reason), RecordingDone).end
            finally:
                self._reap()
        return self.end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.close(f"{kind.__name__} in what was watched")

    def close(self, reason: str = "stopped") -> AssayError | None:
        """Stop the recorder in any case; return why the file may be incomplete, null if it is finished."""
        try:
            self.stop(reason)
        except AssayError as error:
            return error
        return None

    def _send_request(self, request: RecorderRequest) -> None:
        with self._channel_lock:
            if not self._try_send(request):
                raise self._failure_reason()

    def _ask(self, request: RecorderRequest, kind: type[ReplyT]) -> ReplyT:
        with self._channel_lock:
            self._try_send(request)
            return self._receive_reply(kind)

    def _try_send(self, request: RecorderRequest) -> bool:
        try:
            self._connection.send(request)
        except OSError:
            return False
        return True

    def _receive_reply(self, kind: type[ReplyT]) -> ReplyT:
        """Wait for a reply; raise the recorder's own reason if it failed."""
        while True:
            for message in self._messages():
                reply: RecorderReply = RECORDER_REPLY.validate_json(message)
                if isinstance(reply, kind):
                    return reply
                if isinstance(reply, RecorderFailed):
                    error_type = BadInput if reply.exit_code == BadInput.exit_code else MachineCannot
                    raise self._remember_failure(error_type(reply.reason))
            if self._connection.closed:
                raise self._recorder_died()

    def _messages(self) -> list[bytes]:
        try:
            self._connection.socket.settimeout(REPLY_TIMEOUT_S)
            return self._connection.receive()
        except TimeoutError:
            message = f"The recorder has not answered for {REPLY_TIMEOUT_S:.0f} s; a driver may be stuck."
            raise MachineCannot(message) from None
        except OSError:
            raise self._recorder_died() from None

    def _failure_reason(self) -> AssayError:
        """Return why the recorder no longer receives."""
        try:
            self._receive_reply(RecordingDone)
        except AssayError as error:
            return error
        return self._recorder_died()

    def _remember_failure(self, error: AssayError) -> AssayError:
        """Keep the first reason why the recorder ended, and return it."""
        self._reap()
        self.trouble = self.trouble or error
        return self.trouble

    def _recorder_died(self) -> AssayError:
        self._reap()
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        why = f"; it said: {self._stderr_lines[-1]}" if self._stderr_lines else ""
        message = f"The recorder ended before its time ({how}{why}); {self.path} keeps what it had written until then."
        return self._remember_failure(RecorderDied(message))

    def _reap(self) -> None:
        """Wait for the process to exit; kill it if it does not."""
        self._connection.socket.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._errors.closed:
            with self._errors:
                self._errors.seek(0)
                self._stderr_lines = self._errors.read().decode(errors="replace").strip().splitlines()


def _plain_mark_name(name: str) -> str:
    """Return a mark's name on one line.

    Raises:
        BadInput: The name is empty.
    """
    plain = " ".join(name.split())
    if not plain:
        raise BadInput("A mark needs a name.")
    return plain


def _start_process(options: RecordingOptions, channel_fd: int, stderr_fd: int) -> subprocess.Popen[bytes]:
    """Start the recorder in its own session, so that Ctrl-C reaches only the parent.

    With PR_SET_PDEATHSIG the kernel ties a process to the thread that started it. Only the main thread lives as long as
    the program: a recorder started by another thread watches for the end of the program itself.
    """
    tied = "tied" if threading.current_thread() is threading.main_thread() else "loose"
    command = [sys.executable, "-P", "-m", "assay.monitor.recorder"]
    try:
        return subprocess.Popen(
            [*command, options.model_dump_json(), str(channel_fd), str(os.getpid()), tied],
            stdin=subprocess.DEVNULL,
            stdout=stderr_fd,
            stderr=stderr_fd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_paths())},
            pass_fds=(channel_fd,),
            start_new_session=True,
        )
    except OSError as error:
        raise MachineCannot(f"The recorder could not be started: {error.strerror or error}.") from error


def _import_paths() -> list[str]:
    """Return the recorder's import paths: this Assay, then the inherited ones; never the working directory."""
    source_root = Path(__file__).resolve().parents[2]
    own_paths = [] if str(source_root) in {*site.getsitepackages(), site.getusersitepackages()} else [str(source_root)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return own_paths + [str(Path(entry).absolute()) for entry in inherited if entry]
