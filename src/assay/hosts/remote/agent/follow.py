"""Stream the output of a job, from where the last client stopped, until the job has ended."""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from pathlib import Path

from assay.hosts.remote.agent import folder as job_folder

BEAT_S = 3.0
UNSUPERVISED_S = 5.0
WITHOUT_EVENTS_S = 0.2
_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100
_NONBLOCK_CLOEXEC = 0o2004000


def main(folder: Path, out_at: int, err_at: int) -> int:
    """Stream the output to the end."""
    write_frame("f", os.fsencode(folder))
    events = FileEvents(folder, folder / "ranks")
    files = {"o": (folder / "ranks/0.out", out_at), "e": (folder / "ranks/0.err", err_at)}
    supervised_at = time.monotonic()
    while True:
        ended = job_folder.read_or_none(folder / job_folder.ENDED)
        for kind, (path, at) in files.items():
            files[kind] = (path, at + _pass_on(kind, path, at))
        if ended is not None:
            write_frame("x", json.dumps({**ended, "log": _last_line(folder / job_folder.LOG)}).encode())
            return 0
        if job_folder.supervisor_of(folder) is not None:
            supervised_at = time.monotonic()
        elif time.monotonic() - supervised_at > UNSUPERVISED_S and not (folder / job_folder.ENDED).exists():
            write_frame("x", json.dumps({"code": None, "why": "unkept", "log": "", "answered": False}).encode())
            return 0
        (folder / job_folder.HEARTBEAT).touch()
        if not events.wait(BEAT_S):
            write_frame(".", b"")


def write_frame(kind: str, data: bytes) -> None:
    """Write one frame."""
    sys.stdout.buffer.write(f"{kind}{len(data)}\n".encode() + data)
    sys.stdout.buffer.flush()


def _pass_on(kind: str, path: Path, at: int) -> int:
    try:
        with path.open("rb") as file:
            file.seek(at)
            data = file.read()
    except FileNotFoundError:
        return 0
    if data:
        write_frame(kind, data)
    return len(data)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_bytes()[-4000:].decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


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


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
