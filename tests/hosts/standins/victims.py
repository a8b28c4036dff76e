"""Clients that are killed: real processes with an order at the stand-in, and whoever cleans up after them.

One process has imported everything and forks the others, each with a home of its own::

    {"do": "errand", "home": …, "url": …}   a client; answered with its number
    {"do": "reap", "home": …, "url": …}     ``assay reap``; answered with what it printed and its exit code
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.hosts.standins.answering import Served

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WITH_GUARDIAN = "kill -9, with its guardian"
SIGNALS = {
    "kill -9": signal.SIGKILL,
    WITH_GUARDIAN: signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
}
LASTS_S = 1.2
"""About as long as an errand takes from its first request to its end; some are killed after it."""


class Victims:
    """The process that forks, as its user sees it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(HERE / "plugged"), str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosts.standins.victims"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**_without_accounts(), "PYTHONPATH": path, "RUNPOD_API_KEY": "a-key"},
        )
        self.ask({"do": "ready"})

    def ask(self, what: dict[str, str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def _without_accounts() -> dict[str, str]:
    """Return the environment without the keys of anybody whose stand-in is not there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LAMBDA_", "MODAL_"))}


@dataclass(frozen=True)
class Killed:
    """What one kill came to."""

    after_s: float
    how: str
    """The signal; "with its guardian" where that was killed too."""

    machines: int
    running_at_kill: int
    left_before_reap: int | None
    """By a client that was asked to stop, or by the guardian of one that was killed; null: that was killed too."""
    reap_code: int
    reaped: str
    """What it said."""

    left_after_reap: int
    leases_left: int


def kill_one(victims: Victims, served: Served, home: Path, rng: random.Random, how: str) -> Killed:
    """Start a client, end it at some moment, reap; say what was left."""
    cloud = served.service.cloud
    cloud.boxes.clear()
    cloud.requests.clear()
    where = {"home": str(home), "url": served.url}
    pid = int(victims.ask({"do": "errand", **where}))
    after_s = rng.uniform(0.0, LASTS_S)
    _wait_until(lambda: len(cloud.requests) > 0 or not _lives(pid))
    time.sleep(after_s)
    guardians = _children(pid)
    for number in guardians if how == WITH_GUARDIAN else ():
        _send(number, signal.SIGKILL)
    _send(pid, SIGNALS[how])
    running = len(cloud.running())
    left = None
    _wait_until(lambda: not any(_lives(number) for number in (pid, *guardians)))
    if how != WITH_GUARDIAN:
        left = len(cloud.running())
    reaped = victims.ask({"do": "reap", **where})
    return Killed(
        after_s=round(after_s, 3),
        how=how,
        machines=len(cloud.boxes),
        running_at_kill=running,
        left_before_reap=left,
        reap_code=int(reaped["code"]),
        reaped=str(reaped["said"]).strip(),
        left_after_reap=len(cloud.running()),
        leases_left=len(list((home / "leases").glob("*.json"))),
    )


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds() and time.monotonic() < until:
        time.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _serve() -> None:
    for module in (
        "quick_provider",
        "assay.cli.main",
        "assay.cli.rentals",
        "assay.hosts.run_job",
        "assay.hosts.rented.cleanup",
    ):
        importlib.import_module(module)  # before anything is forked
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: object = "ready"
        if asked["do"] == "errand":
            answer = _forked(asked)
        if asked["do"] == "reap":
            answer = _reaped(asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _become(asked: dict[str, str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ["ASSAY_HOME"], os.environ["ASSAY_RUNPOD_URL"] = asked["home"], asked["url"]


def _forked(asked: dict[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(asked)
        with Path(asked["home"], "said").open("w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        _errand()
    finally:
        os._exit(0)


def _errand() -> None:
    from assay.hosts.base import Job
    from assay.hosts.registry import find_host
    from assay.hosts.run_job import run_job
    from tests.hosts.standins.wired import Quiet

    order = Job(
        id=os.urandom(8).hex(), words=("run",), cwd="/", folder="/f", output_dir="/o", python="python", gpu="L4"
    )
    run_job(find_host("quick"), order, Quiet())


def _reaped(asked: dict[str, str]) -> dict[str, object]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(asked)
            from assay.cli.main import main

            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                code = main(["reap"])
            os.write(write, json.dumps({"code": code, "said": printed.getvalue()}).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return dict(json.loads(pipe.read() or b'{"code": 70, "said": ""}'))


if __name__ == "__main__":
    _serve()
