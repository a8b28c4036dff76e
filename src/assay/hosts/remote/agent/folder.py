"""A job's folder on the machine where it runs, and the processes that belong to it.

Also the safe unpacking of uploads.
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

FOLDER_VARIABLE = "ASSAY_JOB_FOLDER"
JOBS, JOB, ENV, SUPERVISOR, HEARTBEAT, GONE, ENDED, LOG, RUN, WORK = (
    "jobs", "job.json", "env", "supervisor.json", "heartbeat", "gone", "ended", "job.log", "run", "work",
)  # fmt: skip

NO_ENVIRONMENT, WRONG_GPU, NOTHING_THERE = 44, 45, 47
"""Exit codes with a specific meaning."""


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(path)


def read_or_none(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; null when it is missing or not valid."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def process_started_at(pid: int) -> str | None:
    """Return a process's start time in the kernel's clock ticks; null when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZXx" else fields[19]


def supervisor_of(folder: Path) -> int | None:
    """Return the process id of a job's supervisor; null when there is none."""
    record = read_or_none(folder / SUPERVISOR)
    if record is None or process_started_at(record["pid"]) != record["started"]:
        return None
    return int(record["pid"])


def processes_of(folder: Path) -> list[int]:
    """Return the processes of a job, even detached ones: all inherited the variable with its folder."""
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


def wait_until_gone(folder: Path, grace_s: float) -> bool:
    """Wait until a job's processes have exited, kill the rest after the grace period; return whether all are gone."""
    deadline = time.monotonic() + grace_s
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
    """Unpack a tar stream into a folder.

    Raises:
        tarfile.TarError: It is not a tar, or is truncated.
        ValueError: A member leads out of the folder, or is neither a file nor a folder.
        OSError: A file cannot be written.
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
