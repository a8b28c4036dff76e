"""Send the client a job's output as it grows, or the run folder of a job.

output FOLDER OUT ERR   frames, from these positions on until the job has ended
run FOLDER              the run folder as a lightly compressed tar
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import select
import sys
import tarfile
import time
from pathlib import Path

from assay.hosts.remote.agent import folder as job_folder

BEAT_S = 3.0
UNSUPERVISED_S = 5.0
WITHOUT_EVENTS_S = 0.2
_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100
_NONBLOCK_CLOEXEC = 0o2004000


def send_output(folder: Path, out_at: int, err_at: int) -> int:
    """Stream the output, from where the last client stopped to the end."""
    write_frame("f", os.fsencode(folder))
    events = FileEvents(folder, folder / "ranks")
    files = {"o": (folder / "ranks/0.out", out_at), "e": (folder / "ranks/0.err", err_at)}
    supervised_at = time.monotonic()
    while True:
        ended = job_folder.read_or_none(folder / job_folder.ENDED)
        for kind, (path, at) in files.items():
            data = _read_from(path, at)
            files[kind] = (path, at + len(data))
            if data:
                write_frame(kind, data)
        if ended is not None:
            lines = _read_from(folder / job_folder.LOG, -4000).decode(errors="replace").split("\n")
            log = next((line.strip() for line in reversed(lines) if line.strip()), "")
            write_frame("x", json.dumps({**ended, "log": log}).encode())
            return 0
        if job_folder.supervisor_of(folder) is not None:
            supervised_at = time.monotonic()
        elif time.monotonic() - supervised_at > UNSUPERVISED_S and not (folder / job_folder.ENDED).exists():
            write_frame("x", json.dumps({"code": None, "why": "unsupervised", "log": "", "answered": False}).encode())
            return 0
        (folder / job_folder.HEARTBEAT).touch()
        if not events.wait(BEAT_S):
            write_frame(".", b"")


def write_frame(kind: str, data: bytes) -> None:
    """Write one frame."""
    sys.stdout.buffer.write(f"{kind}{len(data)}\n".encode() + data)
    sys.stdout.buffer.flush()


def _read_from(path: Path, at: int) -> bytes:
    """Return the rest of a file from a position, counted from the end where it is negative; nothing without a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(at, -os.fstat(file.fileno()).st_size), os.SEEK_END if at < 0 else os.SEEK_SET)
            return file.read()
    except FileNotFoundError:
        return b""


class FileEvents:
    """Waits for file changes in some folders by inotify; polls where the kernel does not support it."""

    def __init__(self, *folders: Path) -> None:
        library = ctypes.CDLL(None)
        self._events = int(library.inotify_init1(_NONBLOCK_CLOEXEC)) if hasattr(library, "inotify_init1") else -1
        for folder in folders if self._events >= 0 else ():
            kinds = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
            if library.inotify_add_watch(self._events, os.fsencode(folder), kinds) < 0:
                os.close(self._events)
                self._events = -1
                break

    def wait(self, longest_s: float) -> bool:
        """Sleep until something changes, or for ``longest_s``; return whether something may have changed."""
        if self._events < 0:
            select.select([], [], [], WITHOUT_EVENTS_S)
            return True
        if not select.select([self._events], [], [], longest_s)[0]:
            return False
        os.read(self._events, 1 << 16)
        return True


def send_run(folder: Path) -> int:
    """Send the run folder; the exit code is ``NOTHING_THERE`` when there is none."""
    run = Path(os.fsdecode(_read_from(folder / job_folder.RUN, 0).split(b"\n")[0]) or "/nonexistent")
    if not run.is_dir():
        return job_folder.NOTHING_THERE
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for path in sorted(run.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name != ".lock":
                archive.add(path, arcname=str(Path(run.name) / path.relative_to(run)), recursive=False)
    start = (job_folder.read_or_none(folder / job_folder.JOB) or {})["start"]
    sys.stderr.write(json.dumps({"start": str(folder / start)}))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "output":
        raise SystemExit(send_output(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    raise SystemExit(send_run(Path(sys.argv[2])))
