"""A job's folder on the machine where it runs, the processes that belong to it.

The safe unpacking of what is uploaded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import IO, Any

FOLDER_VARIABLE = "ASSAY_ORDER_FOLDER"
JOB, ENV, SUPERVISOR, HEARTBEAT, GONE, ENDED, LOG, RUN, WORK = (
    "job.json", "env", "keeper.json", "heard", "gone", "ended", "job.log", "run", "work",
)  # fmt: skip

NO_ENVIRONMENT, WRONG_GPU, NOTHING_THERE = 44, 45, 47
"""Exit codes that say more than that something failed."""


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(path)


def read_or_none(path: Path) -> dict[str, Any] | None:
    """Return what a file says; null when it is not there."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def process_started_at(pid: int) -> str | None:
    """Return when a process began, by the kernel's count; null when it is not there or only waits to be counted."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZXx" else fields[19]


def supervisor_of(folder: Path) -> int | None:
    """Return the process that watches over an order; null when there is none."""
    record = read_or_none(folder / SUPERVISOR)
    if record is None or process_started_at(record["pid"]) != record["started"]:
        return None
    return int(record["pid"])


def processes_of(folder: Path) -> list[int]:
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


def wait_until_gone(folder: Path, patience_s: float) -> bool:
    """Wait until an order's processes have gone by themselves, kill those that have not; return whether all have."""
    deadline = time.monotonic() + patience_s
    while left := processes_of(folder):
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


def unpack(stream: IO[bytes], folder: Path) -> None:
    """Unpack a tar, as it comes, into a folder.

    Raises:
        tarfile.TarError: It is none, or was cut off.
        ValueError: It holds what it should not.
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{member.name!r} leads out of the folder")
            path = folder / name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                if source is None:
                    raise ValueError(f"{member.name!r} has no content")
                with path.open("xb") as target:
                    shutil.copyfileobj(source, target)
                if member.mode & 0o100:
                    path.chmod(path.stat().st_mode | 0o100)
            else:
                raise ValueError(f"{member.name!r} is neither a file nor a folder")
