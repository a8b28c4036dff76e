"""How a process ended, in words."""

from __future__ import annotations

import re
import signal
from pathlib import Path

_MEANINGS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error",
    signal.SIGABRT: "it aborted itself",
    signal.SIGFPE: "an arithmetic fault",
    signal.SIGILL: "an illegal instruction",
    signal.SIGKILL: "somebody, or the kernel, killed it",
    signal.SIGTERM: "somebody ended it",
}


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since it booted; 0 where it does not say."""
    path = Path("/proc/vmstat")
    match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return int(match[1]) if match else 0


def describe_end(code: int, *, out_of_memory: bool = False) -> str:
    """Return how a worker ended that owed an answer."""
    if code >= 0:
        return f"the worker ended without an answer (exit code {code})"
    cause = signal.Signals(-code)
    if cause == signal.SIGKILL and out_of_memory:
        return "out of memory: the kernel killed the worker (SIGKILL)"
    return f"the worker died of {cause.name}: {_MEANINGS.get(cause, 'a signal')}"
