"""Sweeps that are killed: started, ended with kill -9 at some moment, and what became of the GPUs and the processes.

Used by the suite for ten kills and by ``benchmarks/restore.py`` for a hundred.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from tests.fakes import fake_kernel
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    import random

    from tests.fakes.fake_nvml import FakeNvml
    from tests.forking import Forking

Variant = Literal["parent", "parent, then worker", "worker, then parent", "parent and guardian"]
VARIANTS: tuple[Variant, ...] = ("parent", "parent, then worker", "worker, then parent", "parent and guardian")
KERNEL = f"{Path(fake_kernel.__file__).resolve()}:call"
SHORT = ("--duration", "0.3", "--settle", "0", "--repeat", "50", "--no-monitor", "--isolation", "gpu")
KNOBS = (("--limits", "250,400"), ("--sm-clocks", "900,1500"))
RESTORED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Killed:
    """What a kill came to: when it came, whether a GPU was changed just then, and how long until all was restored."""

    variant: Variant
    knob: str
    at_s: float
    changed: bool
    restored: bool
    restored_s: float
    left: int
    leases: int

    @property
    def whole(self) -> bool:
        """Whether every GPU is as it was found, and neither a process nor a lease is left."""
        return self.restored and (self.left, self.leases) == (0, 0)


class Started(Protocol):
    """A command that runs."""

    def pid(self) -> int:
        """Return its process, once it can be known."""
        ...

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        ...


class Start(Protocol):
    """Starts a command line of Assay, with its home in a folder."""

    def __call__(self, words: list[str], folder: Path) -> Started: ...


class Forked:
    """A command in a process that was forked; who it is can be told once it has changed a GPU, or is about to."""

    def __init__(self, forking: Forking, words: list[str], folder: Path) -> None:
        self._home, self._code = home_in(folder), -1
        self._thread = threading.Thread(target=self._run, args=(forking, words, folder))
        self._thread.start()

    def _run(self, forking: Forking, words: list[str], folder: Path) -> None:
        environment = {**os.environ, "ASSAY_HOME": str(self._home)}
        self._code = forking.run(words, cwd=folder, environment=environment, timeout_s=100).returncode

    def pid(self) -> int:
        wait_for(lambda: owner(self._home) or not self._thread.is_alive(), within_s=60)
        assert self._thread.is_alive(), f"it ended by itself with {self._code}"
        return owner(self._home)

    def wait(self) -> int:
        self._thread.join()
        return self._code


class Spawned:
    """A command in a process of its own, from its very start."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.home = home_in(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "assay", *words],
            cwd=folder,
            env={**os.environ, "ASSAY_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        return self._process.wait()


class Changing(Spawned):
    """A command in a process of its own, from when it has changed a GPU, or is about to."""

    def pid(self) -> int:
        wait_for(lambda: owner(self.home), within_s=60)
        return super().pid()


def home_in(folder: Path) -> Path:
    """Return where a killed sweep keeps its leases."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return home


def as_found(fake: FakeNvml) -> bool:
    """Return whether no GPU is limited or locked."""
    gpus = [fake.gpu(index) for index in range(fake.gpu_count)]
    return all((gpu.power_limit_mw, gpu.sm_lock_max_mhz) == (700_000, 0) for gpu in gpus)


def killed(
    fake: FakeNvml, start: Start, folder: Path, chance: random.Random, *, variant: Variant, latest_s: float
) -> Killed:
    """Start a sweep of all GPUs, kill it at a random moment, and look what is left; it runs in the fake's environment.

    ``latest_s`` is counted from when its process is known.
    """
    home, knob = home_in(folder), chance.choice(KNOBS)
    gpus = ",".join(map(str, range(fake.gpu_count)))
    together = ("--concurrent",) if chance.random() < 0.5 else ()
    seed = str(chance.randrange(1000))
    sweep = start(
        ["power", "sweep", KERNEL, "--gpus", gpus, *knob, "--apply", *together, *SHORT, "--seed", seed], folder
    )
    parent, at_s = sweep.pid(), chance.uniform(0.0, latest_s)
    time.sleep(at_s)
    changed = not as_found(fake)
    _kill(parent, home, variant)
    began_s = time.monotonic()
    sweep.wait()
    if variant == "parent and guardian":
        assert start(["reap"], folder).wait() == 0
    with contextlib.suppress(AssertionError):
        wait_for(lambda: as_found(fake) and not _leases(home) and not survivors(home), within_s=RESTORED_WITHIN_S)
    restored_s = time.monotonic() - began_s
    left = (len(survivors(home)), len(_leases(home)))
    return Killed(variant, knob[0], round(at_s, 3), changed, as_found(fake), round(restored_s, 2), *left)


def guardians(home: Path) -> list[int]:
    """Return the guardians that run."""
    return [pid for pid in survivors(home) if b"\0assay.core.guardian\0" in _command_line(pid)]


def kill_guardian_then_parent(fake: FakeNvml, start: Start, folder: Path) -> bool:
    """Kill a sweep's guardian, then, when another is there and a GPU is changed, the sweep; return if all is restored.

    The sweep goes on in between.
    """
    home, gpus = home_in(folder), ",".join(map(str, range(fake.gpu_count)))
    sweep = start(["power", "sweep", KERNEL, "--gpus", gpus, *KNOBS[0], "--apply", *SHORT], folder)
    parent = sweep.pid()
    wait_for(lambda: not as_found(fake), within_s=60)
    (first,) = guardians(home)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: guardians(home) not in ([], [first]), within_s=60)
    wait_for(lambda: not as_found(fake), within_s=60)
    os.kill(parent, signal.SIGKILL)
    sweep.wait()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: as_found(fake) and not _leases(home) and not survivors(home), within_s=RESTORED_WITHIN_S)
    return as_found(fake) and not _leases(home) and not survivors(home)


def owner(home: Path) -> int:
    """Return the process that has changed a GPU, or is about to; 0 before there is one."""
    for path in _leases(home):
        with contextlib.suppress(OSError, ValueError, KeyError):
            lease = json.loads(path.read_text())
            if lease["kind"] in {"power limit", "locked clock"}:
                return int(lease["owner"]["pid"])
    return 0


def _leases(home: Path) -> list[Path]:
    return sorted((home / "leases").glob("*.json"))


def _kill(parent: int, home: Path, variant: Variant) -> None:
    """Kill -9 those whom a variant names, as far as they are there yet."""
    there = {pid: _command_line(pid) for pid in survivors(home)}
    workers = [pid for pid, words in there.items() if b"assay.worker" in words]
    guardians = [pid for pid, words in there.items() if b"assay.core.guardian" in words]
    order: dict[Variant, list[int]] = {
        "parent": [parent],
        "parent, then worker": [parent, *workers],
        "worker, then parent": [*workers, parent],
        "parent and guardian": [*guardians, parent],
    }
    for pid in order[variant]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
