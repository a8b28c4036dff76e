"""Finding the guardian that watches over a process, and killing the two."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


def guardians_of(pid: int) -> list[int]:
    """Return the guardians that watch over a process; one that was told goodbye, and still cleans up, watches no more.

    A child belongs to the thread that started it.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [child for child in children if _watches(child)]


def guardian_of(pid: int) -> int:
    """Return the one guardian of a process."""
    (guardian,) = guardians_of(pid)
    return guardian


def kill_with_guardian(process: subprocess.Popen[Any]) -> None:
    """Kill -9 a process and its guardian; stopped first, it cannot start another one in between."""
    process.send_signal(signal.SIGSTOP)
    while _state(process.pid) not in {"T", "t"}:
        time.sleep(0.001)
    os.kill(guardian_of(process.pid), signal.SIGKILL)
    process.kill()
    process.communicate()


def wait_until_guardians_have_cleaned_up() -> None:
    """Wait for what guardians of this process that were told goodbye still have to undo."""
    for thread in threading.enumerate():
        if thread.name == "guardian":
            thread.join()


def _watches(child: int) -> bool:
    try:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        return b"assay.core.guardian" in words and str(Path(f"/proc/{child}/fd/0").readlink()).startswith("pipe:")
    except OSError:
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
