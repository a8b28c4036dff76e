"""Waiting beside a recording until it is time: for a duration, a command's end, a signal, or the recorder's death."""

from __future__ import annotations

import contextlib
import math
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from assay.core.errors import AssayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from assay.monitor.command import WatchedCommand
    from assay.monitor.recording import Recording

Why: TypeAlias = Literal["duration", "command", "signal", "recorder"]

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """Why it is over."""

    why: Why
    signal: signal.Signals | None = None

    @property
    def in_words(self) -> str:
        """Why it is over, for the last line of the recording."""
        if self.signal is not None:
            return f"stopped by {self.signal.name}"
        return {"duration": "its time was over", "command": "the command ended"}.get(self.why, self.why)


@dataclass(frozen=True)
class Watch:
    """What a recording is waited for with; ``show`` is called every so many seconds."""

    duration_s: float | None
    command: WatchedCommand | None
    every_s: float
    show: Callable[[], None]
    died: Callable[[], None]
    """Called once when the recorder has died while the command goes on."""


class Bell:
    """Hears Ctrl-C, SIGTERM and hang-ups for the length of a ``with`` block; whoever waits for it wakes up.

    It wakes them also when a child process has ended, such as the command that is watched.
    """

    def __init__(self) -> None:
        self.rung: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._ring) for number in (*_ENDING_SIGNALS, signal.SIGCHLD)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._ours.close()
        self._theirs.close()

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.rung = self.rung or signal.Signals(number)

    def fileno(self) -> int:
        """Return what becomes readable when a signal has come."""
        return self._ours.fileno()

    def hush(self) -> None:
        """Forget that signals have come, but not which one rang first."""
        with contextlib.suppress(BlockingIOError):
            self._ours.recv(4096)


def wait(recording: Recording, bell: Bell, watch: Watch) -> Ending:
    """Wait for the first that ends it, asleep.

    A command is waited for even when the recorder dies: it is the user's work, and not ours to end.
    """
    deadline = None if watch.duration_s is None else recording.header.t_ns / 1e9 + watch.duration_s
    died = False
    show_at = time.monotonic() + watch.every_s
    while bell.rung is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return Ending("recorder" if died else "duration")
        answers = True
        if now >= show_at and not died:
            show_at, answers = now + watch.every_s, _shown(watch.show)
        until = min(deadline or math.inf, math.inf if died else show_at) if answers else now
        dead = _dies_within(until - now, bell, None if died or not answers else recording)
        if watch.command is not None and watch.command.ended:
            return Ending("recorder" if died else "command")
        if not died and (dead or not answers):
            if watch.command is None:
                return Ending("recorder")
            died = True
            watch.died()
    return Ending("signal", bell.rung)


def _dies_within(seconds: float, bell: Bell, recording: Recording | None) -> bool:
    """Sleep for so long, or until a signal comes or the recorder has something to say unasked: that it ends."""
    watched = [bell.fileno(), *([] if recording is None else [recording.fileno()])]
    ready, _, _ = select.select(watched, [], [], None if math.isinf(seconds) else max(0.0, seconds))
    bell.hush()
    return len(set(ready) - {bell.fileno()}) > 0


def _shown(show: Callable[[], None]) -> bool:
    try:
        show()
    except AssayError:
        return False
    return True
