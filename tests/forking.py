"""Command lines without the wait for imports: a process that has imported Assay forks one for each.

What is run is the same ``main`` in a process of its own, with its own environment, folder and streams; only the second
in which Python imports is saved, and the tenth in which it takes its modules down. What it starts of Assay's own is
forked likewise (see `forked_children`). Where the environment decides how a process starts, a real one is started, and
from the second time on it is forked from one started with that environment.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.forked_children import ROOM, ROOM_BYTES, ForkingPopen, end, show_as

if TYPE_CHECKING:
    from collections.abc import Mapping

DECIDES_AT_START = ("LD_", "PYTHON", "MPL", "OMP_", "OPENBLAS_", "MKL_", "TRITON_", "MALLOC_")
MODULES = (
    "assay.cli.contention", "assay.cli.main", "assay.cli.measuring", "assay.cli.runs", "assay.cli.run",
    "assay.cli.monitor", "assay.cli.show", "assay.cli.threshold", "assay.cli.time", "assay.experiments.contention",
    "assay.experiments.matrix", "assay.experiments.run", "assay.experiments.scaling",
    "assay.experiments.threshold", "assay.hosts.registry", "assay.launch.tracing",
    "assay.launch.torchrun", "assay.machine.detect", "assay.monitor.recorder", "assay.reports.figures",
    "assay.reports.documents", "assay.reports.terminal", "assay.runner", "assay.store.history.importing",
    "assay.core.leases", "assay.monitor.recorder", "assay.worker.main", "assay.worker.one_shot",
)  # fmt: skip
"""What most commands import; a name that is no longer there is simply imported later."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Forking:
    """Processes that fork, one for each environment that decides how a process starts, as their user sees them."""

    def __init__(self) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not _decides(name)}
        self._met = {_deciding(os.environ)}
        self._forks: dict[tuple[frozenset[tuple[str, str]], tuple[str, ...]], _Forks] = {}
        self._lock = threading.Lock()  # tests run command lines at the same time

    def run(
        self,
        arguments: list[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        imported: tuple[str, ...] = (),
    ) -> Ended:
        """Run a command line to its end; its process and those that it starts have also ``imported`` these modules.

        Raises:
            subprocess.TimeoutExpired: It took too long.
        """
        deciding = _deciding(environment)
        key = (deciding, imported)
        with self._lock:
            new = deciding not in self._met
            self._met.add(deciding)
            if not new and key not in self._forks:
                self._forks[key] = _Forks({**self._environment, **dict(deciding)}, imported)
        if new:
            return _started(arguments, cwd=cwd, environment=environment, timeout_s=timeout_s)
        request = {"arguments": arguments, "cwd": str(cwd), "environment": dict(environment)}
        return self._forks[key].run(request, timeout_s)

    def close(self) -> None:
        """End the processes that fork; what they forked has ended."""
        for forks in self._forks.values():
            forks.close()


class _Forks:
    """One process that forks."""

    def __init__(self, environment: Mapping[str, str], imported: tuple[str, ...]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(theirs.fileno()), "x" * ROOM_BYTES, *imported],
                cwd=Path(__file__).parents[1],
                env={**environment, ROOM: "x" * ROOM_BYTES},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def run(self, request: dict[str, Any], timeout_s: float) -> Ended:
        ours, theirs = socket.socketpair()
        with ours, theirs, _file() as out, _file() as err, _file() as told:
            told.write(json.dumps(request).encode())
            told.seek(0)
            socket.send_fds(self._ours, [b"run"], [told.fileno(), out.fileno(), err.fileno(), theirs.fileno()])
            theirs.close()
            ours.settimeout(timeout_s)
            try:
                answer = ours.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired(request["arguments"], timeout_s) from None
            for stream in (out, err):
                stream.seek(0)
            return Ended(int(answer or b"-9"), out.read().decode(errors="replace"), err.read().decode(errors="replace"))

    def close(self) -> None:
        self._ours.close()
        self._process.wait(20)


def _decides(name: str) -> bool:
    return name.startswith(DECIDES_AT_START)


def _deciding(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in environment.items() if _decides(item[0]))


def _started(arguments: list[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command line in a process that is started."""
    done = subprocess.run(
        [sys.executable, "-m", "assay", *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile("w+b", buffering=0)


def _serve(sock: socket.socket, imported: list[str]) -> None:
    """Fork a process for each request, until nobody asks any more."""
    import importlib

    for module in (*MODULES, *imported):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    gc.freeze()  # a collector that looked through all that is imported would copy it, page by page
    while True:
        message, descriptors, *_ = socket.recv_fds(sock, 16, 4)
        if not message:
            return
        if os.fork() == 0:
            sock.close()
            _attend(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(told: int, out: int, err: int, answer: int) -> None:
    """Have a command run, and tell how it ended; who asked may be gone by then."""
    with os.fdopen(told, "rb") as file:
        request = json.load(file)
    child = os.fork()
    if child == 0:
        os.close(answer)
        _become(request, out, err)
    os.close(out)
    os.close(err)
    with socket.socket(fileno=answer) as line:
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], out: int, err: int) -> None:
    """Become a command line, in place of one that was started."""
    os.chdir(request["cwd"])
    if show_as([sys.executable, "-m", "assay", *request["arguments"]], request["environment"]):
        ForkingPopen.deciding = DECIDES_AT_START
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
    for descriptor, place in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(descriptor, place)
        os.close(descriptor)
    sys.argv[:] = ["assay", *request["arguments"]]
    from assay.cli.main import main

    end(main())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        _serve(asked, sys.argv[3:])
