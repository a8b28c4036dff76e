"""Wait until a recording is over: its duration passed, the command ended, a signal came, or the recorder died.

A watched command and all processes it started end with Assay, however Assay ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from assay.core import leases
from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.core.processes import kill_marked, mark_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

    from assay.monitor.client import Recording


EndCause: TypeAlias = Literal["duration", "command", "signal", "recorder"]

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class WaitResult:
    """Why the recording ended."""

    why: EndCause
    signal: signal.Signals | None = None

    @property
    def in_words(self) -> str:
        """The reason, for the last line of the recording."""
        if self.signal is not None:
            return f"stopped by {self.signal.name}"
        return {"duration": "its time was over", "command": "the command ended"}.get(self.why, self.why)


@dataclass(frozen=True)
class WaitConditions:
    """What ends a recording; ``show`` is called every ``every_s`` seconds."""

    duration_s: float | None
    command: WatchedCommand | None
    every_s: float
    show: Callable[[], None]
    died: Callable[[], None]
    """Called once if the recorder dies while the command continues."""


class SignalListener:
    """Receives Ctrl-C, SIGTERM and SIGHUP for the duration of a ``with`` block, and wakes whoever waits on it.

    It also wakes them when a child process ends, such as the watched command.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on_signal) for number in (*_ENDING_SIGNALS, signal.SIGCHLD)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._ours.close()
        self._theirs.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.received = self.received or signal.Signals(number)

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a signal arrives."""
        return self._ours.fileno()

    def clear(self) -> None:
        """Discard pending wake-ups, but remember the first signal."""
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(4096)


def wait_for_end(recording: Recording, listener: SignalListener, conditions: WaitConditions) -> WaitResult:
    """Block until the first condition that ends the recording.

    A command is waited for even if the recorder dies: it is the user's work and must not be killed.
    """
    deadline = None if conditions.duration_s is None else recording.header.t_ns / 1e9 + conditions.duration_s
    died = False
    show_at = time.monotonic() + conditions.every_s
    while listener.received is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return WaitResult("recorder" if died else "duration")
        responds = True
        if now >= show_at and not died:
            show_at, responds = now + conditions.every_s, _try_show(conditions.show)
        until = min(deadline or math.inf, math.inf if died else show_at) if responds else now
        dead = _recorder_dies_within(until - now, listener, None if died or not responds else recording)
        if conditions.command is not None and conditions.command.ended:
            return WaitResult("recorder" if died else "command")
        if not died and (dead or not responds):
            if conditions.command is None:
                return WaitResult("recorder")
            died = True
            conditions.died()
    return WaitResult("signal", listener.received)


def _recorder_dies_within(seconds: float, listener: SignalListener, recording: Recording | None) -> bool:
    """Sleep until the timeout, a signal, or an unsolicited message of the recorder, which means that it is ending."""
    watched = [listener.fileno(), *([] if recording is None else [recording.fileno()])]
    ready, _, _ = select.select(watched, [], [], None if math.isinf(seconds) else max(0.0, seconds))
    listener.clear()
    return len(set(ready) - {listener.fileno()}) > 0


def _try_show(show: Callable[[], None]) -> bool:
    try:
        show()
    except AssayError:
        return False
    return True


GRACE_S = 5.0


class WatchedCommand:
    """A running command. It shares the terminal, and so receives Ctrl-C too."""

    def __init__(self, argv: Sequence[str], *, stdout: int | None = None) -> None:
        token = leases.new_lease_id()
        self._lease = leases.take_lease(
            "process", f"watched command {argv[0]}", f"{__name__}:end_all", {"token": token}
        )
        try:
            self._process = subprocess.Popen(argv, stdout=stdout, env={**os.environ, **mark_environment(token)})
        except BaseException as error:
            leases.release_lease(self._lease)
            if isinstance(error, OSError):
                raise MachineCannot(f"{argv[0]} could not be started: {error.strerror}.") from error
            raise

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def end(self, sent: signal.Signals) -> int:
        """End the command: signal it, wait, then kill what is left of it; return its exit code.

        Ctrl-C has already reached it.
        """
        if self._process.poll() is None:
            if sent != signal.SIGINT:
                self._process.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        leases.release_lease(self._lease)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left of the command."""
        leases.release_lease(self._lease)
        self._process.wait()


def check_command(argv: Sequence[str]) -> None:
    """Check that a command exists.

    Raises:
        BadInput: It does not.
    """
    if shutil.which(argv[0]) is None:
        raise BadInput(f"There is no command {argv[0]!r} to be found.")


def end_all(token: str) -> None:
    """End a watched command and all processes it started; safe to call twice."""
    kill_marked(token)
