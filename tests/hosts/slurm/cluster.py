"""A real Slurm on this machine: a controller and three virtual nodes, all they keep in one folder."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from assay.core.processes import die_with_parent
from assay.launch.local import find_free_port
from tests.running import wait_for

DAEMONS = ("slurmctld", "slurmd")
NODES = ("n1", "n2", "n3")
CONFIGURATION = """
ClusterName=assay
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,bf_interval=1
ReturnToService=0
KillWait=5
SlurmdTimeout=30
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=10 State=UP
PartitionName=side Nodes=n3 MaxTime=10 State=UP
"""


def jobs_held(home: Path) -> list[Path]:
    """Return the leases of jobs that commands here have taken.

    The Assay in a job takes others, in the same folder; where Slurm kills it with its guardian they are left to reap.
    """
    held = []
    for path in (home / "leases").glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            held.append((path, json.loads(path.read_text())["kind"]))
    return [path for path, kind in held if kind == "slurm"]


def missing() -> list[str]:
    """Return the daemons that are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in DAEMONS if shutil.which(name, path=path) is None]


class Cluster:
    """Daemons that are up, and what to ask them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "state").mkdir(parents=True)
        for node in NODES:
            (folder / node).mkdir()
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={find_free_port()} CPUs={os.cpu_count()}"
            for node in NODES
        )
        text = CONFIGURATION.format(
            host=host, port=find_free_port(), user=getpass.getuser(), folder=folder, nodes=nodes
        )
        self.conf.write_text(text)

    def start(self) -> None:
        """Start the daemons and wait until every node is idle."""
        self._start("slurmctld")
        for node in NODES:
            self._start("slurmd", "-N", node)
        wait_for(lambda: self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split() == [*NODES], within_s=30)

    def _start(self, *words: str) -> None:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        parent = os.getpid()
        with (self.folder / f"{'-'.join(words)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(shutil.which(words[0], path=path)), "-D", *words[1:]],
                    env={**os.environ, "PATH": path, "SLURM_CONF": str(self.conf)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - the daemons end with the tests
                )
            )

    def ask(self, *words: str) -> str:
        """Return what one of Slurm's commands prints."""
        done = subprocess.run(
            words, env={**os.environ, "SLURM_CONF": str(self.conf)}, capture_output=True, text=True, check=False
        )
        return done.stdout

    def queue(self) -> list[str]:
        """Return the states of the jobs that have not ended."""
        return self.ask("squeue", "-h", "-p", "main", "-o", "%T").split()

    def until(self, state: str, *, within_s: float = 60) -> None:
        """Wait until a job is in a state."""
        wait_for(lambda: state in self.queue(), within_s=within_s)

    def until_empty(self) -> None:
        """Wait until no job is left."""
        wait_for(lambda: not self.queue(), within_s=60)

    def stop(self) -> None:
        """End every job, then the daemons, then whatever is left of them."""
        self.ask("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full")
        self.ask("scancel", "--user", getpass.getuser())
        deadline = time.monotonic() + 20
        while self.ask("squeue", "-h").strip() and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        for pid in self._ours():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ours(self) -> list[int]:
        """Return the processes that were started with this cluster's configuration and still run."""
        needle = f"SLURM_CONF={self.conf}".encode()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if pid != os.getpid() and needle in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
