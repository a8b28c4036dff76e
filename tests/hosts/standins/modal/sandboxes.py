"""What the stand-in of Modal has: sandboxes, each a folder of this machine in which commands really run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import string
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNING, SUCCESS, TERMINATED, TIMEOUT, PREEMPTED = 0, 1, 3, 4, 6
"""As in ``GenericResult.GenericStatus``; Modal calls it an internal failure when it takes a machine away."""

_ALPHABET = string.ascii_letters + string.digits
_MARK = "STANDIN_SANDBOX"


@dataclass
class Program:
    """A command in a sandbox; what it prints goes to files, so that it can be read again from any place."""

    process: subprocess.Popen[bytes]
    files: tuple[Path, Path]
    over_at: float | None
    written: int = 0

    def code(self) -> int | None:
        if self.over_at is not None and time.monotonic() > self.over_at:
            self.kill()
        return self.process.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write what has not been written yet; a program that no longer reads is none of our business."""
        fresh = data[max(0, self.written - offset) :]
        stdin = self.process.stdin
        if stdin is None or stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            if fresh:
                stdin.write(fresh)
                stdin.flush()
            self.written += len(fresh)
            if eof:
                stdin.close()


@dataclass
class Sandbox:
    """A sandbox as its owner asked for it, and how it is."""

    id: str
    task_id: str
    name: str
    app_id: str
    tags: dict[str, str]
    environment: dict[str, str]
    gpu: str
    entrypoint: tuple[str, ...]
    image: str
    created_at: float
    timeout_s: float
    folder: Path
    scheduled: bool = True
    status: int = RUNNING
    programs: dict[str, Program] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    deaf: int = 0
    """How many times it does not hear that it is to end."""
    listed_after_s: float = 0.0
    taken_after_s: float | None = None
    mute: bool = False
    """Whether it never answers."""

    def start(self, number: str, command: tuple[str, ...], environment: dict[str, str], limit_s: int) -> None:
        files = (self.folder / f"out-{number}", self.folder / f"err-{number}")
        self.scripts.append(command[-1])
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=self.home,
                env={**self.machine_environment(), **environment},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.programs[number] = Program(process, files, time.monotonic() + limit_s if limit_s else None)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def machine_environment(self) -> dict[str, str]:
        """Nothing of the one who asked: a machine of its own, with this Python and these packages."""
        return {
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder / "tmp"),
            _MARK: str(self.folder),
            **self.environment,
        }

    def end(self, status: int) -> None:
        """End all that runs in it, also what has left its session."""
        if self.status == RUNNING:
            self.status = status
        for program in self.programs.values():
            program.kill()
        for pid in _marked(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(folder: Path) -> list[int]:
    wanted = f"{_MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Sandboxes:
    """All sandboxes of the account, by id."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.clock = clock
        self.all: dict[str, Sandbox] = {}
        self._random = random.Random(1)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{''.join(self._random.choices(_ALPHABET, k=21))}0"

    def create(self, **asked: object) -> Sandbox:
        number = self.new_id("sb")
        folder = self.folder / number
        for each in ("home", "bin", "tmp"):
            (folder / each).mkdir(parents=True)
        sandbox = Sandbox(
            id=number,
            task_id=self.new_id("ta"),
            created_at=self.clock(),
            folder=folder,
            **asked,  # type: ignore[arg-type]
        )
        self.all[number] = sandbox
        return sandbox

    def get(self, number: str) -> Sandbox | None:
        self.keep_time()
        return self.all.get(number)

    def of_task(self, task_id: str) -> Sandbox | None:
        self.keep_time()
        return next((each for each in self.all.values() if each.task_id == task_id and not each.status), None)

    def running(self) -> list[Sandbox]:
        self.keep_time()
        return [each for each in self.all.values() if not each.status]

    def keep_time(self) -> None:
        for each in self.all.values():
            there_s = self.clock() - each.created_at
            if not each.status and there_s > each.timeout_s:
                each.end(TIMEOUT)
            if not each.status and each.taken_after_s is not None and there_s > each.taken_after_s:
                each.end(PREEMPTED)

    def end_all(self) -> None:
        for each in self.all.values():
            each.end(TERMINATED)
