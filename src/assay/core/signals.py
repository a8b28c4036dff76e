"""Ctrl-C, SIGTERM and hang-ups as a request to stop that is cleaned up after, once, and cannot get lost.

    signal ──▶ StopRequested is raised in the main thread ──▶ everything is cleaned up on its way out
                    │                                             (further signals do not disturb that)
                    └─ lost: in a finalizer, in a C callback, in a library's bare `except`
                         ▲ raised again until it propagates ── a reminder every 0.2 s

Python prints and drops an exception that leaves `__del__`, a weak reference's callback or a C callback, and a signal
handler may run inside any of them. So the request is also stored, and a thread reminds the main thread of it with
SIGURG, which is harmless where it is not expected.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

from assay.core.errors import EXIT_STOPPED, StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REMINDER = signal.SIGURG
_REMINDER_INTERVAL_S = 0.2


class _StopRequest:
    """The request to stop in the outermost `stop_on_signals` block of this process."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.deferrals = 0
        self.hook_before = sys.unraisablehook
        self.acknowledged = False


class _ProcessState:
    """The stop request of this process; null outside of every block."""

    request: ClassVar[_StopRequest | None] = None


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into `StopRequested`; further ones do not interrupt the cleanup.

    Nested in another one, or outside of the main thread, it only makes sure that no request was lost: the outer block
    handles signals until everything is cleaned up. A hang-up that is ignored, as under ``nohup``, stays ignored.

    Raises:
        StopRequested: A signal arrived; raised by the end of the block at the latest.
    """
    if _ProcessState.request is not None or threading.current_thread() is not threading.main_thread():
        yield
        raise_if_stop_requested()
        return
    with _signals_blocked():
        request = _ProcessState.request = _StopRequest()
        before = _install_handlers()
        sys.unraisablehook = _on_unraisable
    try:
        yield
        raise_if_stop_requested()
    finally:
        with _signals_blocked():
            sys.unraisablehook = request.hook_before
            _ProcessState.request = None
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def raise_if_stop_requested() -> None:
    """Raise the request to stop, unless there is none, it is already propagating, or it is deferred.

    Raises:
        StopRequested: There is one.
    """
    request = _ProcessState.request
    if request is None or request.reason is None or request.deferrals or request.acknowledged:
        return
    if threading.current_thread() is threading.main_thread() and not _is_propagating():
        raise StopRequested(request.reason)


@contextmanager
def defer_stop() -> Iterator[None]:
    """Defer a request to stop to the end of a ``with`` block, for something short that must be all or nothing."""
    request = _ProcessState.request
    if request is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    request.deferrals += 1
    try:
        yield
    finally:
        request.deferrals -= 1
    raise_if_stop_requested()


def stop_main_thread(reason: str) -> bool:
    """Ask the main thread to stop, from any thread, as a signal would; return whether it can be asked."""
    request = _ProcessState.request
    if request is None:
        return False
    if request.reason is None:
        request.reason = reason
        with suppress(RuntimeError):  # no thread can be started: the request is raised here, or at the next check
            _thread.start_new_thread(_remind, (request,))
    return True


def acknowledge_stop() -> None:
    """Mark a request as handled: until the end of the block further signals have no effect."""
    if _ProcessState.request is not None:
        _ProcessState.request.acknowledged = True


def stop_reason() -> str | None:
    """Return the reason to stop, as a clause; null: there is none."""
    return None if _ProcessState.request is None else _ProcessState.request.reason


def exit_on_signals() -> None:
    """Make a signal end this process at once with a message and exit code, while there is nothing to clean up."""
    for number in _STOP_SIGNALS:
        if not _stays_ignored(number):
            signal.signal(number, _exit_at_once)


def ignore_signals() -> None:
    """Ignore stop signals, so that they cannot change the exit code once everything is done."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _install_handlers() -> dict[signal.Signals, Handler]:
    handled = [number for number in _STOP_SIGNALS if not _stays_ignored(number)]
    before: dict[signal.Signals, Handler] = {number: signal.signal(number, _on_signal) for number in handled}
    before[_REMINDER] = signal.signal(_REMINDER, _on_reminder)
    return before


def _stays_ignored(number: signal.Signals) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while handlers are exchanged, so that none runs in between."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signature of signal handlers
    stop_main_thread(_reason(number))
    raise_if_stop_requested()


def _on_reminder(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signature of signal handlers
    raise_if_stop_requested()


def _on_unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Suppress the message on a request that was dropped in a finalizer or a callback: it is raised again."""
    if _ProcessState.request is not None and not issubclass(lost.exc_type, StopRequested):
        _ProcessState.request.hook_before(lost)


def _exit_at_once(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signature of signal handlers
    os.write(2, f"assay: {_reason(number)}; nothing was begun.\n".encode())
    os._exit(EXIT_STOPPED)


def _reason(number: int) -> str:
    return f"Stopped by {signal.Signals(number).name}"


def _remind(request: _StopRequest) -> None:
    """Remind the main thread of a request until it is acknowledged; no effect while it propagates."""
    main = threading.main_thread().ident
    while main is not None and _ProcessState.request is request and not request.acknowledged:
        signal.pthread_kill(main, _REMINDER)
        time.sleep(_REMINDER_INTERVAL_S)


def _is_propagating() -> bool:
    """Return whether the interrupted code is handling a request, or an error caused by one."""
    waiting = [sys.exc_info()[1]]
    visited: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in visited:
            continue
        if isinstance(error, StopRequested):
            return True
        visited.add(id(error))
        waiting += [error.__context__, error.__cause__]
    return False
