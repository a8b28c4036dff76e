"""Which processes are which: identities that survive the reuse of process numbers, and marks that children inherit.

A process started with ``marks(token)`` in its environment passes the mark on to everything it starts. The kernel keeps
the environment a process began with in ``/proc/PID/environ``, so even a grandchild that left its session and its
parent is found again. Two things are out of reach: processes of other users, and a program that clears the environment
of what it starts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from assay.core.errors import MachineCannot

MARK = "ASSAY_MARK"

_PROC = Path("/proc")
_PAUSE_S = 0.005
_KILL_WITHIN_S = 5.0
_EMPTY_LOOKS = 20


@dataclass(frozen=True)
class Identity:
    """One process, for all time: no other process on any machine has the same identity."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - what models that hold one ask for

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int


class _Stat(NamedTuple):
    state: str
    start_ticks: int

    @property
    def running(self) -> bool:
        """Whether it still holds anything: a zombie waits only to be counted."""
        return self.state not in "ZXx"


def current() -> Identity:
    """Return the identity of this process."""
    identity = identify(os.getpid())
    if identity is None:
        raise MachineCannot("This machine shows no processes in /proc; Assay needs them to clean up after itself.")
    return identity


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has this number now; null if there is none, or a zombie."""
    stat = _stat(pid)
    if stat is None or not stat.running:
        return None
    return Identity(
        host=host_id(), boot_id=boot_id(), pid_namespace=_pid_namespace(), pid=pid, start_ticks=stat.start_ticks
    )


def host_id() -> str:
    """Return a short hash that names this host without giving its name away."""
    try:
        name = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        name = ""
    return hashlib.sha256((name or os.uname().nodename).encode()).hexdigest()[:16]


def boot_id() -> str:
    """Return what names this boot of the host; sandboxes without a boot id are named by their boot time."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        lines = (_PROC / "stat").read_text(encoding="ascii").splitlines()
        return next((line.replace(" ", "-") for line in lines if line.startswith("btime ")), "unknown")


def can_see(identity: Identity) -> bool:
    """Whether this process can tell if that one lives: same host, and same container unless the host has rebooted."""
    if identity.host != host_id():
        return False
    return identity.boot_id != boot_id() or identity.pid_namespace == _pid_namespace()


def alive(identity: Identity) -> bool:
    """Whether the process still runs. One that cannot be seen from here (`can_see`) counts as alive."""
    if not can_see(identity):
        return True
    return identity.boot_id == boot_id() and _runs(identity.pid, identity.start_ticks)


def marks(token: str) -> dict[str, str]:
    """Return the environment entries that mark a process and all it starts.

    ``SPT_NOENV`` keeps the ``setproctitle`` package, which vLLM and Ray use, from overwriting the mark.
    """
    _check(token)
    return {MARK: token, "SPT_NOENV": "1"}


def marked(token: str) -> list[int]:
    """Return the processes, other than this one, that carry the mark; zombies carry nothing."""
    _check(token)
    return sorted(_carriers(_pids(), token))


def kill_marked(token: str, grace_s: float = 0.0) -> int:
    """Kill every process that carries the mark, and what they start meanwhile; return how many there were.

    With a grace they are first asked to end (SIGTERM) and given that many seconds. When this returns, none of them
    runs: what they held, GPU memory included, is free.

    Raises:
        MachineCannot: Some could not be killed within 5 seconds.
    """
    _check(token)
    victims: dict[int, int] = {}
    if grace_s > 0 and _send_until_gone(token, signal.SIGTERM, victims, grace_s):
        return len(victims)
    if not _send_until_gone(token, signal.SIGKILL, victims, _KILL_WITHIN_S):
        left = _some(sorted({*marked(token), *_running(victims)}))
        raise MachineCannot(f"Could not kill process {left} within {_KILL_WITHIN_S:g} s; a driver may be stuck.")
    return len(victims)


def _some(pids: list[int]) -> str:
    more = f" and {len(pids) - 5} more" if len(pids) > 5 else ""
    return ", ".join(str(pid) for pid in pids[:5]) + more


def _check(token: str) -> None:
    if not token or "\0" in token:
        raise ValueError("a mark is a text of at least one character, none of them NUL")


def _send_until_gone(token: str, sent: signal.Signals, victims: dict[int, int], within_s: float) -> bool:
    """Signal marked processes until none is left, or time is up; note them in ``victims`` with their start ticks.

    A process dying gives up its environment before its files, so victims are watched to their end. One empty look is
    not believed: a process may have forked and ended behind the look's back, or be just between two programs. Two
    are, if no process was born or gone in between; on a machine too busy for that, a few more looks must do.
    """
    deadline = time.monotonic() + within_s
    signalled: set[int] = set()
    pids: list[int] = []
    empty_looks = 0
    while empty_looks < _EMPTY_LOOKS:
        before, pids = pids, _pids()
        carriers = _carriers(pids, token)
        for pid in carriers:
            if sent == signal.SIGKILL or pid not in signalled:
                _signal_marked(pid, token, sent, victims)
        signalled.update(carriers)
        empty_looks = 0 if carriers or _running(victims) else empty_looks + 1
        if empty_looks == 0 and time.monotonic() > deadline:
            return False
        if empty_looks > 1 and pids == before:
            break
        time.sleep(_PAUSE_S)
    return True


def _pids() -> list[int]:
    """Return the numbers of all processes but this one, the newest first: they are the likeliest to run away."""
    numbers = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return sorted((pid for pid in numbers if pid != os.getpid()), reverse=True)


def _carriers(pids: list[int], token: str) -> list[int]:
    return [pid for pid in pids if _carries(pid, token)]


def _running(victims: dict[int, int]) -> list[int]:
    return [pid for pid, start_ticks in victims.items() if _runs(pid, start_ticks)]


def _signal_marked(pid: int, token: str, sent: signal.Signals, victims: dict[int, int]) -> None:
    """Signal a process, and never another one that has got its number in the meantime."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            handle = -1
        else:
            return
    try:
        stat = _stat(pid)
        if stat is None or not _carries(pid, token):
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


def _carries(pid: int, token: str) -> bool:
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(f"{MARK}={token}") in entries


def _runs(pid: int, start_ticks: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat.running and stat.start_ticks == start_ticks


def _stat(pid: int) -> _Stat | None:
    """Read the state (field 3) and the start (field 22); the name in field 2 may hold spaces and parentheses."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Stat(fields[0].decode(), int(fields[19])) if len(fields) > 19 else None


def _pid_namespace() -> int:
    """Return the number of the container's own process numbering; 0 where the kernel does not say."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0
