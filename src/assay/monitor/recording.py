"""A recorder, seen from the process that started it."""

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
from assay.monitor.wire import ANSWER, Done, Failed, Flush, Flushed, Latest, Look, Ready, Remark, Stop, Wire

if TYPE_CHECKING:
    from types import TracebackType

    from assay.monitor.lines import End, Header, Line
    from assay.monitor.options import RecordingOptions
    from assay.monitor.wire import Answer, Order

ANSWER_WITHIN_S = 30.0
"""A driver that is asked for the first time may take seconds."""
END_WITHIN_S = 5.0

AnswerT = TypeVar("AnswerT", Ready, Flushed, Latest, Done)


class RecorderDied(EndedEarly):
    """The recorder ended before it was told to; what it wrote until then is kept."""


class Recording:
    """A recording in progress: ``with Recording.start(options) as recording: …``. Any thread may speak to it."""

    def __init__(self, options: RecordingOptions) -> None:
        self.options = options
        self.end: End | None = None
        self.trouble: AssayError | None = None
        """Why the recorder ended before it was told to, once that is known."""
        self._speaking = threading.Lock()
        self._last_words: list[str] = []
        ours, theirs = socket.socketpair()
        self._wire = Wire(ours)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write to it
        try:
            with theirs:
                self._process = _start(options, theirs.fileno(), self._errors.fileno())
        except BaseException:
            ours.close()
            self._errors.close()
            raise
        try:
            ready = self._hear(Ready)
        except BaseException:
            self._let_go()
            raise
        self.header: Header = ready.header
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
        return self._wire.socket.fileno()

    def mark(self, name: str, at_ns: int | None = None) -> None:
        """Name a moment, by default this one, in ns of the monotonic clock."""
        self._tell(Remark(name=_plain(name), start_ns=time.monotonic_ns() if at_ns is None else at_ns))

    def span(self, name: str, start_ns: int, end_ns: int) -> None:
        """Name a span that is over, such as a trial, in ns of the monotonic clock."""
        self._tell(Remark(name=_plain(name), start_ns=start_ns, end_ns=end_ns))

    def flush(self) -> int:
        """Have all looks until now written; return until when, in ns of the monotonic clock."""
        return self._ask(Flush(), Flushed).until_ns

    def latest(self) -> tuple[Line, ...]:
        """Return the newest look at each GPU and at the host."""
        return self._ask(Look(), Latest).lines

    def stop(self, reason: str = "told to") -> End:
        """Have the file finished and the recorder gone; return its last line, also when asked again.

        Raises:
            RecorderDied: It had ended before; the file keeps what it had written.
        """
        if self.trouble is not None:
            raise self.trouble
        if self.end is None:
            try:
                self.end = self._ask(Stop(reason=reason), Done).end
            finally:
                self._let_go()
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

    def _tell(self, order: Order) -> None:
        with self._speaking:
            if not self._sent(order):
                raise self._last_word()

    def _ask(self, order: Order, kind: type[AnswerT]) -> AnswerT:
        with self._speaking:
            self._sent(order)
            return self._hear(kind)

    def _sent(self, order: Order) -> bool:
        try:
            self._wire.send(order)
        except OSError:
            return False
        return True

    def _hear(self, kind: type[AnswerT]) -> AnswerT:
        """Wait for an answer; that of a recorder which failed is why it did."""
        while True:
            for message in self._messages():
                answer: Answer = ANSWER.validate_json(message)
                if isinstance(answer, kind):
                    return answer
                if isinstance(answer, Failed):
                    kind_of_trouble = BadInput if answer.exit_code == BadInput.exit_code else MachineCannot
                    raise self._told_of(kind_of_trouble(answer.reason))
            if self._wire.closed:
                raise self._death()

    def _messages(self) -> list[bytes]:
        try:
            self._wire.socket.settimeout(ANSWER_WITHIN_S)
            return self._wire.receive()
        except TimeoutError:
            message = f"The recorder has not answered for {ANSWER_WITHIN_S:.0f} s; a driver may be stuck."
            raise MachineCannot(message) from None
        except OSError:
            raise self._death() from None

    def _last_word(self) -> AssayError:
        """Return why the recorder hears no more."""
        try:
            self._hear(Done)
        except AssayError as error:
            return error
        return self._death()

    def _told_of(self, trouble: AssayError) -> AssayError:
        """Remember why the recorder is gone, the first reason if there are several."""
        self._let_go()
        self.trouble = self.trouble or trouble
        return self.trouble

    def _death(self) -> AssayError:
        self._let_go()
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        why = f"; it said: {self._last_words[-1]}" if self._last_words else ""
        message = f"The recorder ended before its time ({how}{why}); {self.path} keeps what it had written until then."
        return self._told_of(RecorderDied(message))

    def _let_go(self) -> None:
        """Have the process gone, by force if it does not go by itself."""
        self._wire.socket.close()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._errors.closed:
            with self._errors:
                self._errors.seek(0)
                self._last_words = self._errors.read().decode(errors="replace").strip().splitlines()


def _plain(name: str) -> str:
    """Return a mark's name on one line.

    Raises:
        BadInput: Nothing is left of it.
    """
    plain = " ".join(name.split())
    if not plain:
        raise BadInput("A mark needs a name.")
    return plain


def _start(options: RecordingOptions, line: int, errors: int) -> subprocess.Popen[bytes]:
    """Start the recorder's process in a session of its own, so that a Ctrl-C is for the parent alone.

    The kernel ties a process to the thread that started it. Only the main thread lives as long as the program: a
    recorder started by another thread watches the program itself.
    """
    tied = "tied" if threading.current_thread() is threading.main_thread() else "loose"
    command = [sys.executable, "-P", "-m", "assay.monitor.process"]
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
