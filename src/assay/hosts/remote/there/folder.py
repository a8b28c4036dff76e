"""An order's folder on the machine where it runs, and the processes that belong to it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "ASSAY_ORDER_FOLDER"
JOB, ENV, KEEPER, HEARD, GONE, ENDED, LOG, RUN, WORK = (
    "job.json", "env", "keeper.json", "heard", "gone", "ended", "job.log", "run", "work",
)  # fmt: skip

NO_ENVIRONMENT, WRONG_GPU, NOTHING_THERE = 44, 45, 47
"""Exit codes that say more than that something failed."""


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """Return what a file says; null when it is not there."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def started_at(pid: int) -> str | None:
    """Return when a process began, by the kernel's count; null when it is not there or only waits to be counted."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZXx" else fields[19]


def keeper_of(folder: Path) -> int | None:
    """Return the process that watches over an order; null when there is none."""
    record = read(folder / KEEPER)
    if record is None or started_at(record["pid"]) != record["started"]:
        return None
    return int(record["pid"])


def belonging(folder: Path) -> list[int]:
    """Return the processes of an order, wherever they have gone: all inherited its folder's name."""
    mark = os.fsencode(f"{FOLDER_VARIABLE}={folder}")
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def see_gone(folder: Path, patience_s: float) -> bool:
    """Wait until an order's processes have gone by themselves, kill those that have not; return whether all have."""
    deadline = time.monotonic() + patience_s
    while left := belonging(folder):
        late_s = time.monotonic() - deadline
        if late_s > 0:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
        if late_s > 10:
            return False
        time.sleep(0.05)
    return True
