"""Workers as processes of this machine: each in its own session, marked so that all its descendants can be killed.

Also here: the environment variables of a rank, and how the end of a process is described.
"""

from __future__ import annotations

import os
import re
import signal
import site
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.files import translate_os_errors
from assay.core.processes import mark_environment
from assay.core.results import Missing
from assay.isolation.binding import allotment_environment
from assay.launch.checkouts import checkout_environment, worker_command, working_folder
from assay.worker import protocol as say
from assay.workloads.command import SCRATCH_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.launch.workers import LaunchSpec


_TORCHRUN_VARIABLES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_TORCHRUN_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_", "TORCH_NCCL_ASYNC")
"""Variables of an enclosing torchrun, which must not reach Assay's own ranks."""


def find_free_port() -> int:
    """Return a TCP port that is free at the moment."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def rank_environment(
    rank: int,
    ranks: int,
    *,
    address: str = "127.0.0.1",
    port: int,
    local_rank: int | None = None,
    local_ranks: int | None = None,
) -> dict[str, str]:
    """Return the variables that torch.distributed reads; on one machine, all ranks are local."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "LOCAL_WORLD_SIZE": str(ranks if local_ranks is None else local_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


_SIGNAL_MEANINGS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error",
    signal.SIGABRT: "it aborted itself",
    signal.SIGFPE: "an arithmetic fault",
    signal.SIGILL: "an illegal instruction",
    signal.SIGKILL: "another process, or the kernel, killed it",
    signal.SIGTERM: "another process ended it",
}


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 where it does not say."""
    path = Path("/proc/vmstat")
    match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return int(match[1]) if match else 0


def describe_exit(code: int, *, process: str = "the worker", out_of_memory: bool = False) -> Missing:
    """Return how a process ended that should have replied; the code is out_of_memory or error."""
    if code >= 0:
        return Missing(code="error", detail=f"{process} ended without an answer (exit code {code})")
    cause = signal.Signals(-code)
    if cause == signal.SIGKILL and out_of_memory:
        return Missing(code="out_of_memory", detail=f"out of memory: the kernel killed {process} (SIGKILL)")
    meaning = _SIGNAL_MEANINGS.get(cause, "a signal")
    return Missing(code="error", detail=f"{process} died of {cause.name}: {meaning}")


TAIL_CHARACTERS = 2000
EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LocalStarter:
    """Starts workers on this machine, in the user's working directory; their output goes into the run folder."""

    run_folder: Path
    cwd: Path

    def __call__(self, spec: LaunchSpec) -> LocalWorker:
        """Return a local worker that waits to be prepared."""
        port, worker_id = spec.port, spec.worker_id
        ranks = {} if port is None else rank_environment(worker_id.rank, worker_id.role.ranks, port=port)
        return LocalWorker(spec, run_folder=self.run_folder, cwd=self.cwd, ranks=ranks)


class LocalWorker(say.ParentConnection):
    """One worker process of this machine."""

    def __init__(self, spec: LaunchSpec, *, run_folder: Path, cwd: Path, ranks: Mapping[str, str]) -> None:
        self.worker_id = spec.worker_id
        self.same_clock = True
        role, rank = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.worker_id.role.name), spec.worker_id.rank
        self.log: str | None = f"logs/{spec.trial}-{spec.attempt}-{role}-rank{rank}-restart{spec.worker_id.restart}.log"
        self._log = run_folder / self.log
        self._oom_kills = count_oom_kills()
        token = leases.new_lease_id()
        scratch = run_folder.absolute() / "scratch" / token
        self._lease = leases.take_lease(
            "process",
            f"worker {spec.worker_id.name} of trial {spec.trial}",
            "assay.launch.worktrees:end_worker",
            {"token": token, "scratch": str(scratch)},
        )
        try:
            parent_end, child_end = socket.socketpair()
            super().__init__(parent_end)
            with child_end, _open_log(self._log) as log:
                scratch.mkdir(parents=True)
                command, folder, environment = _launch_settings(spec, cwd, ranks)
                self.born_ns = time.perf_counter_ns()
                self._process = subprocess.Popen(
                    [*command, str(child_end.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={**environment, **mark_environment(token), SCRATCH_VARIABLE: str(scratch)},
                    pass_fds=(child_end.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            leases.release_lease(self._lease)
            raise MachineCannot(f"A worker could not be started: {error.strerror or error}.") from error
        except BaseException:
            leases.release_lease(self._lease)
            raise

    def exit_status(self, within_s: float = EXIT_TIMEOUT_S) -> Missing:
        """Return how the process ended."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return Missing(code="error", detail="it closed its connection without an answer")
        return describe_exit(code, out_of_memory=count_oom_kills() > self._oom_kills)

    def stop(self) -> None:
        """End the process and all its descendants, and release its lease."""
        self.socket.close()
        leases.release_lease(self._lease)
        self._process.wait()

    def tail(self) -> str | None:
        """Return the end of its output, or null if there was none."""
        if not self._log.exists():
            return None
        with self._log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4 * TAIL_CHARACTERS))
            text = file.read().decode("utf-8", errors="replace").strip()
        return text[-TAIL_CHARACTERS:] or None


def _open_log(log: Path) -> BinaryIO:
    """Open the log file for a worker's output; a full or missing disk becomes a readable error."""
    with translate_os_errors(log):
        log.parent.mkdir(exist_ok=True)
        return log.open("ab")


def _launch_settings(spec: LaunchSpec, cwd: Path, ranks: Mapping[str, str]) -> tuple[list[str], Path, dict[str, str]]:
    """Return the start of a worker's command line, its working directory, and its environment.

    The environment is this process's, with the worker's rank, its thread limits and its import paths.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _TORCHRUN_VARIABLES and not name.startswith(_TORCHRUN_PREFIXES)
    }
    variables = {**inherited, **allotment_environment(spec.allotment), **ranks, "PYTHONFAULTHANDLER": "1"}
    source = spec.worker_id.role.subjects[0].source
    if source is not None:
        return worker_command(source), working_folder(source), checkout_environment(source, variables)
    return [sys.executable, "-P", "-m", "assay.worker.main"], cwd, with_our_import_path(variables)


def with_our_import_path(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a process imports this Assay, then from the inherited paths."""
    source_root = str(Path(__file__).resolve().parents[2])
    paths = [str(Path(p).absolute()) for p in variables.get("PYTHONPATH", "").split(os.pathsep) if p]
    if source_root not in {*site.getsitepackages(), site.getusersitepackages()}:
        paths.insert(0, source_root)
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}
