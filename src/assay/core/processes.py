"""Processes and signals: identities that survive PID reuse, marks, forked copies of a worker, and requests to stop.

A process started with ``mark_environment(token)`` in its environment passes the mark on to everything it starts. The
kernel keeps the environment a process began with in ``/proc/PID/environ``, so even a grandchild that left its session
and its parent is found. Two things are out of reach: processes of other users, and a program that clears the
environment of what it starts.

If a user's function forks and the child returns, two processes continue the work of one worker, and each would fork
again on the next call. So workers watch for forks (`watch_for_forks`), and code that makes calls checks after each
sample, outside the timed region, whether it runs in such a copy (`exit_if_forked`).

Ctrl-C, SIGTERM and hang-ups are a request to stop that is cleaned up after, once, and cannot get lost:

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
import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from assay.core.errors import EXIT_STOPPED, MachineCannot, StopRequested

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


MARK = "ASSAY_MARK"

_PROC = Path("/proc")
_PAUSE_S = 0.005
_KILL_WITHIN_S = 5.0
_MAX_EMPTY_SCANS = 20


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of one process: no other process on any machine ever has the same one."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - required by models that contain one

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int


class _ProcessStat(NamedTuple):
    state: str
    start_ticks: int

    @property
    def running(self) -> bool:
        """Whether it still holds anything: a zombie only waits to be reaped."""
        return self.state not in "ZXx"


def current_process() -> ProcessIdentity:
    """Return the identity of this process."""
    identity = identify_process(os.getpid())
    if identity is None:
        raise MachineCannot("This machine shows no processes in /proc; Assay needs them to clean up after itself.")
    return identity


def identify_process(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has this PID now; null if there is none, or a zombie."""
    stat = _read_stat(pid)
    if stat is None or not stat.running:
        return None
    return ProcessIdentity(
        host=host_id(), boot_id=boot_id(), pid_namespace=_pid_namespace(), pid=pid, start_ticks=stat.start_ticks
    )


def host_id() -> str:
    """Return a short hash that identifies this host without revealing its name."""
    import hashlib

    try:
        name = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        name = ""
    return hashlib.sha256((name or os.uname().nodename).encode()).hexdigest()[:16]


def boot_id() -> str:
    """Return the id of this boot of the host; sandboxes without a boot id use the boot time."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
        return next((line.replace(" ", "-") for line in lines if line.startswith("btime ")), "unknown")


def is_visible(identity: ProcessIdentity) -> bool:
    """Whether this process can check if that one is alive: same host, and same container unless the host rebooted."""
    if identity.host != host_id():
        return False
    return identity.boot_id != boot_id() or identity.pid_namespace == _pid_namespace()


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether the process still runs. One that is not visible from here (`is_visible`) counts as alive."""
    if not is_visible(identity):
        return True
    return identity.boot_id == boot_id() and _is_running(identity.pid, identity.start_ticks)


def mark_environment(token: str) -> dict[str, str]:
    """Return the environment entries that mark a process and all its descendants.

    ``SPT_NOENV`` keeps the ``setproctitle`` package, which vLLM and Ray use, from overwriting the mark.
    """
    _check_token(token)
    return {MARK: token, "SPT_NOENV": "1"}


def list_marked(token: str) -> list[int]:
    """Return the processes, other than this one, that carry the mark; zombies do not."""
    _check_token(token)
    return sorted(_carriers(_pids(), token))


def kill_marked(token: str, grace_s: float = 0.0) -> int:
    """Kill every process that carries the mark, and what they start meanwhile; return how many there were.

    With a grace period they first get SIGTERM and that many seconds. When this returns, none of them runs: what they
    held, including GPU memory, is free.

    Raises:
        MachineCannot: Some could not be killed within 5 seconds.
    """
    _check_token(token)
    victims: dict[int, int] = {}
    if grace_s > 0 and _send_until_gone(token, signal.SIGTERM, victims, grace_s):
        return len(victims)
    if not _send_until_gone(token, signal.SIGKILL, victims, _KILL_WITHIN_S):
        pids = sorted({*list_marked(token), *_running(victims)})
        left = ", ".join(map(str, pids[:5])) + (f" and {len(pids) - 5} more" if len(pids) > 5 else "")
        raise MachineCannot(f"Could not kill process {left} within {_KILL_WITHIN_S:g} s; a driver may be stuck.")
    return len(victims)


def _check_token(token: str) -> None:
    if not token or "\0" in token:
        raise ValueError("a mark is a text of at least one character, none of them NUL")


def _send_until_gone(token: str, sent: signal.Signals, victims: dict[int, int], within_s: float) -> bool:
    """Signal marked processes until none is left, or time is up; record them in ``victims`` with their start ticks.

    A dying process releases its environment before its files, so victims are watched until they end. One empty scan
    is not conclusive: a process may have forked and ended during the scan, or be between two programs. Two are, if no
    process was created or ended in between; on a machine too busy for that, a limited number of scans must do.
    """
    deadline = time.monotonic() + within_s
    signalled: set[int] = set()
    pids: list[int] = []
    empty_scans = 0
    while empty_scans < _MAX_EMPTY_SCANS:
        before, pids = pids, _pids()
        carriers = _carriers(pids, token)
        for pid in carriers:
            if sent == signal.SIGKILL or pid not in signalled:
                _signal_marked(pid, token, sent, victims)
        signalled.update(carriers)
        empty_scans = 0 if carriers or _running(victims) else empty_scans + 1
        if empty_scans == 0 and time.monotonic() > deadline:
            return False
        if empty_scans > 1 and pids == before:
            break
        time.sleep(_PAUSE_S)
    return True


def _pids() -> list[int]:
    """Return the PIDs of all processes but this one, newest first: they are the likeliest to fork again."""
    numbers = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return sorted((pid for pid in numbers if pid != os.getpid()), reverse=True)


def _carriers(pids: list[int], token: str) -> list[int]:
    return [pid for pid in pids if _carries_mark(pid, token)]


def _running(victims: dict[int, int]) -> list[int]:
    return [pid for pid, start_ticks in victims.items() if _is_running(pid, start_ticks)]


def _signal_marked(pid: int, token: str, sent: signal.Signals, victims: dict[int, int]) -> None:
    """Signal a process, and never another one that has reused its PID."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            handle = -1
        else:
            return
    try:
        stat = _read_stat(pid)
        if stat is None or not _carries_mark(pid, token):
            return
        victims[pid] = stat.start_ticks
        if handle >= 0:
            signal.pidfd_send_signal(handle, sent)
        else:
            os.kill(pid, sent)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        if handle >= 0:
            os.close(handle)


def _carries_mark(pid: int, token: str) -> bool:
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(f"{MARK}={token}") in entries


def _is_running(pid: int, start_ticks: int) -> bool:
    stat = _read_stat(pid)
    return stat is not None and stat.running and stat.start_ticks == start_ticks


def _read_stat(pid: int) -> _ProcessStat | None:
    """Read the state (field 3) and the start (field 22); the name in field 2 may hold spaces and parentheses."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _ProcessStat(fields[0].decode(), int(fields[19])) if len(fields) > 19 else None


def _pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 where the kernel does not report it."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def _prctl(option: int, argument: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, argument)


def open_parent_socket(descriptor: int, parent_pid: int) -> socket.socket:
    """Set up a process that serves its parent, and return the socket inherited from it.

    The process ends with its parent, adopts its orphans, and leaves Ctrl-C to the parent. Output is flushed line by
    line: whatever is still buffered when a process is killed is lost.
    """
    import socket

    del sys.argv[1:]  # these are Assay's, and user code may read its own
    os.set_inheritable(descriptor, False)
    die_with_parent(parent_pid)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # descendants whose parent ends become our children, and remain findable
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    return socket.socket(fileno=descriptor)


def list_descendants(root_pid: int | None = None) -> list[int]:
    """Return all running descendants of a process, by default of this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    root = os.getpid() if root_pid is None else root_pid
    family: set[int] = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sorted(family - {root})


def kill_descendants() -> None:
    """Kill all descendants of this process, and what they start meanwhile."""
    while left := list_descendants():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


FORKED_COPY_REASON = "the function forks, and the copy comes back from the call too; it must end itself: os._exit(0)"


class _CopyState:
    """Fork state of this process."""

    report: Callable[[str], None]
    is_copy = False


def watch_for_forks(report: Callable[[str], None]) -> None:
    """Treat every process forked from this one as a copy; one that returns from a call reports the reason."""
    if not hasattr(_CopyState, "report"):
        os.register_at_fork(after_in_child=lambda: setattr(_CopyState, "is_copy", True))
    _CopyState.report = report


def exit_if_forked() -> None:
    """Exit in a copy; elsewhere this does nothing, in some 30 ns."""
    if _CopyState.is_copy:
        try:
            _CopyState.report(FORKED_COPY_REASON)
        finally:
            os._exit(1)


@contextlib.contextmanager
def temporary_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within a block, and restore it afterwards, also for child processes."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


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


@contextlib.contextmanager
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


@contextlib.contextmanager
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
        # Where no thread can be started, the request is raised here, or at the next check.
        with contextlib.suppress(RuntimeError):
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


@contextlib.contextmanager
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
