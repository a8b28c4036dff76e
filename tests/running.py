"""Fixtures for tests that run the real command line, and functions that misbehave in every way a worker can."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from assay.core.files import file_lock
from assay.core.values import Adaptive, Continuous, Counted, Mode, Paired, Role, Staged, Subject, Trial
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.detect import detect
from assay.store.run_folder import RunFolder
from tests.forking import Forking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.core.values import Duty, Isolation
    from assay.launch.workers import TrialOutcome

HUSHED = "hunter2"
"""In the environment of the run that is `finished`, as ``MY_API_TOKEN``."""

MISBEHAVING = """
import ctypes, os, signal, subprocess, sys, time

def fine():
    return sum(range(1000))

def tiny():
    pass

def segfault():
    ctypes.string_at(0)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hangs():
    while True:
        time.sleep(3600)

def eats_memory():
    raise MemoryError("cannot allocate 1 TiB")

def raises():
    raise ValueError("the moon is in the wrong phase")

def leaves():
    os._exit(7)

def asks_to_leave():
    sys.exit(3)

def prints_garbage():
    os.write(1, bytes(range(256)) * 64)
    os.write(2, b"\\x00\\xff" * 1000)

def needs_an_argument(n):
    return n

def forgets_a_child(done=[]):
    if not done:
        done.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))

def forgets_a_nameless_child(done=[]):
    if not done:
        done.append(subprocess.Popen(["setsid", "sleep", "1003"], env={"PATH": os.environ["PATH"]}))

def forks_and_returns():
    os.fork()

def moves_to_other_cores():
    os.sched_setaffinity(0, range(os.cpu_count()))

async def never_awaited():
    return 1

def notes_who(who, path="order.txt"):
    with open(path, "a") as file:
        file.write(who)

def notes_scipy():
    with open("scipy.txt", "a") as file:
        file.write("y" if "scipy.special" in sys.modules else "n")

def notes_rank():
    with open(f"rank-{os.environ['RANK']}.txt", "w") as file:
        file.write(" ".join(os.environ[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")))

def second_rank_dies():
    if os.environ["RANK"] == "1":
        os._exit(7)
    time.sleep(3600)

def tells_where_its_parent_may_run():
    with open("parent.txt", "w") as file:
        file.write(" ".join(map(str, sorted(os.sched_getaffinity(os.getppid())))))

def tells_threads():
    with open("threads.txt", "w") as file:
        file.write(os.environ.get("OMP_NUM_THREADS", "unset"))
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with functions that misbehave in ``bad.py``."""
    (tmp_path / "bad.py").write_text(MISBEHAVING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def function(name: str, **params: str | int) -> Subject:
    """Return one of the misbehaving functions as a subject."""
    return Subject(workload=f"bad.py:{name}", impl="python", params=dict(params))


def role(
    name: str,
    subject: Subject,
    *,
    device: str = "cpu:0",
    duty: Duty = "timed",
    isolation: Isolation = "none",
    ranks: int = 1,
) -> Role:
    """Return a role on one device."""
    return Role(name=name, subjects=(subject,), devices=(device,), duty=duty, isolation=isolation, ranks=ranks)


ModeT = TypeVar("ModeT", Adaptive, Counted, Continuous, Paired, Staged)


def quickly(kind: type[ModeT] = Adaptive, **changes: Any) -> ModeT:  # type: ignore[assignment]
    """Return a mode that takes little time."""
    return kind(**{"duration_s": 0.4, "timeout_s": 30.0, **changes})


class Measure(Protocol):
    """Measures roles in one trial, with real processes."""

    def __call__(self, *roles: Role, mode: Mode | None = None, **trial: Any) -> TrialOutcome: ...


@pytest.fixture
def measure(workplace: Path) -> Measure:
    launcher = Launcher(detect(), LocalStarter(workplace, workplace))

    def measure_once(*roles: Role, mode: Mode | None = None, **trial: Any) -> TrialOutcome:
        return launcher.measure(Trial(block="b", roles=roles, mode=mode or quickly(), **trial))

    return measure_once


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed as JSON."""
        return json.loads(self.out)


class Assay(Protocol):
    """Runs the real command line to its end."""

    def __call__(self, *arguments: object, **environment: str) -> Ran: ...


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """Processes that fork command lines."""
    found = Forking()
    yield found
    found.close()


@pytest.fixture
def torch_imported() -> None:
    """Have command lines and their workers forked from a process that has imported PyTorch too: they all take it."""


@pytest.fixture
def transformers_imported() -> None:
    """Likewise with Transformers."""


@pytest.fixture
def assay(workplace: Path, forking: Forking, request: pytest.FixtureRequest) -> Assay:
    libraries = {"torch_imported": ("torch",), "transformers_imported": ("torch", "transformers")}
    imported = next((libraries[name] for name in libraries if name in request.fixturenames), ())

    def run(*arguments: object, **environment: str) -> Ran:
        ended = forking.run(
            [*map(str, arguments)],
            cwd=workplace,
            environment={**os.environ, **environment},
            timeout_s=900,
            imported=imported,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that is filled once for all processes that test, to be read or copied."""
    mine = tmp_path_factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("wb") as lock, file_lock(lock.fileno(), wait=True):
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture
def finished(workplace: Path, forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What a finished run of ``bad.py:fine`` printed as JSON; the test has the run's folder for its own.

    It is measured once, with a secret in its environment, and copied for each test as if it was measured there.
    """
    words = ["run", "bad.py:fine", "--device", "cpu:0", "--duration", "0.5", "--restarts", "1", "--json"]

    def make(place: Path) -> None:
        (place / "bad.py").write_text(MISBEHAVING)
        environment = {**os.environ, "MY_API_TOKEN": f"{HUSHED}-{HUSHED}"}
        ended = forking.run(words, cwd=place, environment=environment, timeout_s=900)
        assert ended.returncode == 0, ended.stderr
        (place / "ended.json").write_text(json.dumps([ended.returncode, ended.stdout, ended.stderr]))

    place = made_once(tmp_path_factory, "finished-run", make)
    shutil.copytree(place / "runs", workplace / "runs", symlinks=True)
    folder = RunFolder.open(workplace / "runs/latest")
    folder.start_in(folder.plan.cwd.replace(str(place), str(workplace)))
    code, out, err = json.loads((place / "ended.json").read_text())
    return Ran(code, out.replace(str(place), str(workplace)), err)


def survivors(home: Path) -> list[int]:
    """Return the processes that were started with this ``ASSAY_HOME`` and still run; zombies do not."""
    found: list[int] = []
    needle = f"ASSAY_HOME={home}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            entries = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in entries:
            found.append(int(entry.name))
    return found


def wait_for(holds: Callable[[], object], *, within_s: float = 20.0) -> None:
    """Ask again and again until something is so."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {within_s:g} s"
        time.sleep(0.01)
