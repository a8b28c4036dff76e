"""Workers as processes of this machine, each in its own session, marked so that nothing of it survives."""

from __future__ import annotations

import contextlib
import os
import re
import site
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from assay.core import leases
from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot
from assay.core.processes import marks
from assay.isolation.bind import environment
from assay.launch import sources
from assay.launch.fate import describe_end, oom_kills
from assay.launch.ranks import is_torchrun_variable, rank_environment
from assay.worker import protocol as say
from assay.workloads.command import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.launch.crew import Errand

TAIL_CHARACTERS = 2000
END_WITHIN_S = 5.0


@dataclass(frozen=True)
class LocalStarter:
    """Starts workers here, in the folder the user works in; what they print goes into the run folder."""

    run_folder: Path
    cwd: Path

    def __call__(self, errand: Errand) -> LocalWorker:
        """Return a worker of this machine that waits to be prepared."""
        port, worker_id = errand.port, errand.seat
        ranks = {} if port is None else rank_environment(worker_id.rank, worker_id.role.ranks, port=port)
        return LocalWorker(errand, run_folder=self.run_folder, cwd=self.cwd, ranks=ranks)


class LocalWorker:
    """One worker process of this machine."""

    def __init__(self, errand: Errand, *, run_folder: Path, cwd: Path, ranks: Mapping[str, str]) -> None:
        self.seat = errand.seat
        self.same_clock = True
        self.log: str | None = f"logs/{log_name(errand)}"
        self._log = run_folder / f"logs/{log_name(errand)}"
        self._decoder = say.Decoder()
        self._oom_kills = oom_kills()
        token = leases.new_id()
        scratch = run_folder.absolute() / "scratch" / token
        self._lease = leases.take(
            "process",
            f"worker {errand.seat.name} of trial {errand.trial}",
            "assay.launch.undo:end_worker",
            {"token": token, "scratch": str(scratch)},
        )
        try:
            self.socket, theirs = socket.socketpair()
            with theirs, _opened(self._log) as log:
                scratch.mkdir(parents=True)
                self.born_ns = time.perf_counter_ns()
                self._process = subprocess.Popen(
                    [*_program(errand), str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=_workplace(errand, cwd),
                    env={**_environment(errand, ranks), **marks(token), SCRATCH: str(scratch)},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            leases.release(self._lease)
            raise MachineCannot(f"A worker could not be started: {error.strerror or error}.") from error
        except BaseException:
            leases.release(self._lease)
            raise

    def fileno(self) -> int:
        """Return the socket to wait on."""
        return self.socket.fileno()

    def send(self, message: say.Message) -> None:
        """Say something; a broken line is found out when the answer is waited for."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(say.encode(message))

    def read(self) -> say.Frame | None:
        """Return the next whole frame that has come, or null."""
        return say.read_frame(self.socket, self._decoder)

    def fate(self, within_s: float = END_WITHIN_S) -> str:
        """Return in words how the process ended."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return "it closed its line without an answer"
        return describe_end(code, out_of_memory=oom_kills() > self._oom_kills)

    def stop(self) -> None:
        """End the process and all it started, and give its lease back."""
        self.socket.close()
        leases.release(self._lease)
        self._process.wait()

    def tail(self) -> str | None:
        """Return the end of what it printed, or null when it printed nothing."""
        if not self._log.exists():
            return None
        with self._log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4 * TAIL_CHARACTERS))
            text = file.read().decode("utf-8", errors="replace").strip()
        return text[-TAIL_CHARACTERS:] or None


def _opened(log: Path) -> BinaryIO:
    """Open the file that takes what a worker prints; a disk that is full or gone is said in words."""
    with friendly_os_errors(log):
        log.parent.mkdir(exist_ok=True)
        return log.open("ab")


def log_name(errand: Errand) -> str:
    """Return a file name for what a worker prints."""
    worker_id = errand.seat
    role = re.sub(r"[^A-Za-z0-9_.-]+", "-", worker_id.role.name)
    return f"{errand.trial}-{errand.attempt}-{role}-rank{worker_id.rank}-restart{worker_id.restart}.log"


def _program(errand: Errand) -> list[str]:
    """Return the beginning of a worker's command line."""
    source = errand.seat.role.subjects[0].source
    return [sys.executable, "-P", "-m", "assay.worker.main"] if source is None else sources.words(source)


def _workplace(errand: Errand, cwd: Path) -> Path:
    """Return the folder that a worker works in."""
    source = errand.seat.role.subjects[0].source
    return cwd if source is None else sources.workplace(source)


def _environment(errand: Errand, ranks: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment: ours, with its rank, its thread limits and where to import from."""
    inherited = {name: value for name, value in os.environ.items() if not is_torchrun_variable(name)}
    variables = {**inherited, **environment(errand.allotment), **ranks}
    variables["PYTHONFAULTHANDLER"] = "1"
    source = errand.seat.role.subjects[0].source
    if source is not None:
        return sources.surroundings(source, variables)
    variables["PYTHONPATH"] = os.pathsep.join(_import_paths(variables.get("PYTHONPATH", "")))
    return variables


def _import_paths(inherited: str) -> list[str]:
    """Return where the worker imports from: this very Assay, then as inherited."""
    ours = Path(__file__).resolve().parents[2]
    installed = str(ours) in {*site.getsitepackages(), site.getusersitepackages()}
    return [*([] if installed else [str(ours)]), *(str(Path(p).absolute()) for p in inherited.split(os.pathsep) if p)]
