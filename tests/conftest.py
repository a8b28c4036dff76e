"""What every test gets: a home of its own, and real processes that end with it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "assay",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI") or os.environ.get("ASSAY_CI")),
)
settings.load_profile("assay")
"""No limit on time: a busy machine takes as long as it takes. In continuous integration the examples are fixed."""

signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""Under ``nohup`` hang-ups are ignored, in every process that is started here too: tests send them."""

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of PyTorch that wait for each other sleep: spinning, two ranks on two busy cores take four times as long."""

os.environ.setdefault("HF_HUB_OFFLINE", "1")
"""No test asks a hub for anything: models are made on the spot."""

os.environ.pop("PYTHONUNBUFFERED", None)
"""What a process printed before it was killed must be heard without it."""

for _account in (
    "RUNPOD_API_KEY",
    "LAMBDA_API_KEY",
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
    "ASSAY_MONTHLY_BUDGET_USD",
):
    os.environ.pop(_account, None)
"""Whose accounts these are does not matter: tests rent from stand-ins."""

pytest_plugins = [
    "tests.fakes.plugin",
    "tests.running",
    "tests.telling",
    "tests.hosts.slurm.plugin",
    "tests.hosts.standins.modal.plugin",
    "tests.hosts.ssh.plugin",
    "tests.store.postgres",
]

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path


HOMES = itertools.count()

REAL_SERVERS = frozenset({"gpu1", "postgres", "slurm", "slurm_daemons", "ssh_daemon"})
"""Fixtures that start a program of somebody else's; tests with one of them are of the full tier."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while everything is imported, nor later in what was: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and (REAL_SERVERS & set(item.fixturenames) or _on_postgresql(item)):
            item.add_marker(pytest.mark.full)


def _on_postgresql(item: pytest.Function) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("history_place") == "postgresql"


class Eventually(Protocol):
    """Waits until something is true, by asking again and again."""

    def __call__(self, holds: Callable[[], object], *, within_s: float = 20.0) -> None: ...


class StartPython(Protocol):
    """Starts a program given as text; its arguments are in ``sys.argv[1:]``, its output is read by lines."""

    def __call__(self, program: str, *arguments: object, **options: object) -> subprocess.Popen[str]: ...


@pytest.fixture(autouse=True)
def environment_as_found() -> Iterator[None]:
    """Put this process's environment back after each test: all that is started later would inherit what is set there.

    Libraries set variables when they are imported, and a process that opens a GPU numbers GPUs by their address.
    """
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(autouse=True)
def assay_home(
    environment_as_found: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Give each test its own ``ASSAY_HOME``, and fail the one that falls back to the user's data folder."""
    own = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))  # mktemp would look through all there are
    users_data, home = own / "users-data", own / "assay-home"
    for folder in (users_data, home):
        folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(users_data))
    monkeypatch.setenv("ASSAY_HOME", str(home))
    yield home
    assert not (users_data / "assay").exists(), "the test touched the user's own Assay home"


@pytest.fixture
def eventually() -> Eventually:
    def wait(holds: Callable[[], object], *, within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"still not so after {within_s:g} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def start_python() -> Iterator[StartPython]:
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
