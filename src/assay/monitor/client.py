"""The parent's side of a recorder: start the process, mark, flush, read the latest samples, stop."""

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
from typing import TYPE_CHECKING, Self, TypeVar

from assay.core.errors import AssayError, BadInput, EndedEarly, MachineCannot
from assay.monitor.channel import (
    RECORDER_REPLY,
    AddMark,
    FlushRecording,
    GetLatest,
    LatestLines,
    RecorderConnection,
    RecorderFailed,
    RecorderReady,
    RecordingDone,
    RecordingFlushed,
    StopRecording,
)

if TYPE_CHECKING:
    from types import TracebackType

    from assay.monitor.channel import RecorderReply, RecorderRequest
    from assay.monitor.options import RecordingOptions
    from assay.monitor.samples import RecordingEnd, RecordingHeader, RecordingLine

REPLY_TIMEOUT_S = 30.0
"""A driver that is asked for the first time may take seconds."""
EXIT_TIMEOUT_S = 5.0

ReplyT = TypeVar("ReplyT", RecorderReady, RecordingFlushed, LatestLines, RecordingDone)


class RecorderDied(EndedEarly):
    """The recorder ended before it was told to; what it wrote until then is kept."""


class Recording:
    """A recording in progress: ``with Recording.start(options) as recording: …``. Any thread may speak to it."""

    def __init__(self, options: RecordingOptions) -> None:
        self.options = options
        self.end: RecordingEnd | None = None
        self.trouble: AssayError | None = None
        """Why the recorder ended before it was told to, once that is known."""
        self._channel_lock = threading.Lock()
        self._stderr_lines: list[str] = []
        ours, theirs = socket.socketpair()
        self._connection = RecorderConnection(ours)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write to it
        try:
            with theirs:
                self._process = _start_process(options, theirs.fileno(), self._errors.fileno())
        except BaseException:
            ours.close()
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
            BadInput: The file makes no sense.
            MachineCannot: The file cannot be written, or a GPU not be reached.
        """
        return cls(options)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.options.path)

    def fileno(self) -> int:
        """Return what becomes readable when the recorder dies."""
        return self._connection.socket.fileno()

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Name a moment, by default this one, in ns of the monotonic clock."""
        self._send_request(
            AddMark(name=_plain_mark_name(name), start_ns=time.monotonic_ns() if at_ns is None else at_ns)
        )

    def span(self, name: str, start_ns: int, end_ns: int) -> None:
        """Name a span that is over, such as a trial, in ns of the monotonic clock."""
        self._send_request(AddMark(name=_plain_mark_name(name), start_ns=start_ns, end_ns=end_ns))

    def flush(self) -> int:
        """Have all looks until now written; return until when, in ns of the monotonic clock."""
        return self._ask(FlushRecording(), RecordingFlushed).until_ns

    def latest(self) -> tuple[RecordingLine, ...]:
        """Return the newest look at each GPU and at the host."""
        return self._ask(GetLatest(), LatestLines).lines

    def stop(self, reason: str = "told to") -> RecordingEnd:
        """Have the file finished and the recorder gone; return its last line, also when asked again.

        Raises:
            RecorderDied: It had ended before; the file keeps what it had written.
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

    def close(self, reason: str = "told to") -> AssayError | None:
        """Have the recorder gone in any case; return why the file may be incomplete, null when it is finished."""
        try:
            self.stop(reason)
        except AssayError as error:
            return error
        return None

    def _send_request(self, order: RecorderRequest) -> None:
        with self._channel_lock:
            if not self._try_send(order):
                raise self._failure_reason()

    def _ask(self, order: RecorderRequest, kind: type[ReplyT]) -> ReplyT:
        with self._channel_lock:
            self._try_send(order)
            return self._receive_reply(kind)

    def _try_send(self, order: RecorderRequest) -> bool:
        try:
            self._connection.send(order)
        except OSError:
            return False
        return True

    def _receive_reply(self, kind: type[ReplyT]) -> ReplyT:
        """Wait for an answer; that of a recorder which failed is why it did."""
        while True:
            for message in self._messages():
                answer: RecorderReply = RECORDER_REPLY.validate_json(message)
                if isinstance(answer, kind):
                    return answer
                if isinstance(answer, RecorderFailed):
                    kind_of_trouble = BadInput if answer.exit_code == BadInput.exit_code else MachineCannot
                    raise self._remember_failure(kind_of_trouble(answer.reason))
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
        """Return why the recorder hears no more."""
        try:
            self._receive_reply(RecordingDone)
        except AssayError as error:
            return error
        return self._recorder_died()

    def _remember_failure(self, trouble: AssayError) -> AssayError:
        """Remember why the recorder is gone, the first reason if there are several."""
        self._reap()
        self.trouble = self.trouble or trouble
        return self.trouble

    def _recorder_died(self) -> AssayError:
        self._reap()
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        why = f"; it said: {self._stderr_lines[-1]}" if self._stderr_lines else ""
        message = f"The recorder ended before its time ({how}{why}); {self.path} keeps what it had written until then."
        return self._remember_failure(RecorderDied(message))

    def _reap(self) -> None:
        """Have the process gone, by force if it does not go by itself."""
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
        BadInput: Nothing is left of it.
    """
    plain = " ".join(name.split())
    if not plain:
        raise BadInput("A mark needs a name.")
    return plain


def _start_process(options: RecordingOptions, line: int, errors: int) -> subprocess.Popen[bytes]:
    """Start the recorder's process in a session of its own, so that a Ctrl-C is for the parent alone.

    The kernel ties a process to the thread that started it. Only the main thread lives as long as the program: a
    recorder started by another thread watches the program itself.
    """
    tied = "tied" if threading.current_thread() is threading.main_thread() else "loose"
    command = [sys.executable, "-P", "-m", "assay.monitor.recorder"]
    try:
        return subprocess.Popen(
            [*command, options.model_dump_json(), str(line), str(os.getpid()), tied],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_paths())},
            pass_fds=(line,),
            start_new_session=True,
        )
    except OSError as error:
        raise MachineCannot(f"The recorder could not be started: {error.strerror or error}.") from error


def _import_paths() -> list[str]:
    """Return where the recorder imports from: this very Assay, then as inherited; never the user's own folder."""
    ours = Path(__file__).resolve().parents[2]
    own = [] if str(ours) in {*site.getsitepackages(), site.getusersitepackages()} else [str(ours)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return own + [str(Path(entry).absolute()) for entry in inherited if entry]
