"""The host ssh, ``--on ssh:HOST``: any machine that accepts a login without a prompt."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_duration
from assay.hosts.base import Job, Offer, Rental
from assay.hosts.remote import remote_job
from assay.hosts.remote.connection import RemoteConnectionLost, SshConnection
from assay.hosts.run_job import JOB, recorded_run

if TYPE_CHECKING:
    from pydantic import JsonValue

    from assay.core.leases import Lease
    from assay.hosts.base import JobEnd, JobWatcher

KIND = "ssh"
UNDO = "assay.hosts.ssh:undo_job"


class SshHost:
    """Machines reachable with the system's ssh, the user's configuration and the user's keys."""

    name = "ssh"
    options = frozenset({"gpu_type", "remote_python", "ship", "time"})

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def available(self) -> str | None:
        """Return why ssh cannot be used from here; null when it is installed."""
        return None if shutil.which("ssh") else "the command ssh is not installed"

    def offers(self) -> tuple[Offer, ...]:
        """Return no offers: only the user and the ssh configuration know the machines."""
        return ()

    def script(self, job: Job) -> str:
        """Return what would be done; no machine is contacted."""
        connection_to(job.host_place)
        files = "".join(f"  {file.remote_path}  ({_size(Path(file.local_path))})\n" for file in job.files)
        limit = f" for {format_duration(job.limit_s)} at most" if job.limit_s else ""
        gpu = f", if its GPU is a {job.gpu}" if job.gpu else ""
        return (
            f"On {job.host_place}, with {job.python}{gpu}{limit}:\n  assay {join(job.words)}\n"
            + (f"These files would be uploaded:\n{files}" if files else "No file would be uploaded.\n")
            + f"The run would be downloaded to {job.output_dir}.\n"
        )

    def create(self, job: Job) -> Rental:
        """Check that the machine answers, and record in a lease what to clean up there."""
        connection_to(job.host_place).do("true")
        args: dict[str, JsonValue] = {"host_place": job.host_place, "job": job.as_json()}
        self._leases[job.name] = leases.take_lease(
            KIND, f"job {job.name} on {job.host_place}", UNDO, args, lease_id=job.id
        )
        return Rental(host=self.name, name=job.name, number=str(job.host_place), state="up", gpu=job.gpu)

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Run the job there."""
        return remote_job.run_remotely(connection_to(job.host_place), job, watcher)

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Download the run folder."""
        return remote_job.collect_run(connection_to(job.host_place), job)

    def release(self, rental: Rental) -> None:
        """Stop what still runs there, remove its files, and close the connection."""
        lease = self._leases.pop(rental.name, None)
        try:
            if lease is not None:
                leases.release_lease(lease)
        finally:
            connection = _connections.pop(rental.number, None)
            if connection is not None:
                connection.close()

    def list_ours(self) -> tuple[Rental, ...]:
        """Return the jobs on other machines according to this user's leases."""
        jobs = [(lease, lease.args.get("job")) for lease in leases.list_foreign_leases(KIND)]
        parsed = [(lease, Job.model_validate(job)) for lease, job in jobs if isinstance(job, dict)]
        return tuple(
            Rental(host=self.name, name=job.name, number=str(job.host_place), since=lease.created_at)
            for lease, job in parsed
        )


_connections: dict[str, SshConnection] = {}


def connection_to(address: str | None) -> SshConnection:
    """Return the connection to a machine given as in ``--on ssh:``: HOST, USER@HOST, HOST:PORT.

    Raises:
        BadInput: The address is missing or not valid.
    """
    if not address:
        raise BadInput("--on ssh needs a machine: write --on ssh:HOST, as you would log in to it with ssh.")
    if address not in _connections:
        match = re.fullmatch(r"([^:]+):(\d+)", address)
        name, port = (match[1], int(match[2])) if match else (address, None)
        if port is not None and not 0 < port < 2**16:
            raise BadInput(f"--on ssh:{address}: a port is a number from 1 to 65535.")
        _connections[address] = SshConnection(name, port=port, where=address)
    return _connections[address]


def undo_job(host_place: str, job: dict[str, JsonValue]) -> None:
    """Stop a job there, download its run unless that was done, and remove the rest; idempotent.

    Raises:
        MachineCannot: The machine does not answer, or something of the job is still there.
    """
    connection, undone_job = connection_to(host_place), Job.model_validate(job)
    folder = Path(undone_job.folder)
    remote_job.end_remote_job(connection, undone_job)
    if recorded_run(folder) is None:
        try:
            remote_job.collect_run(connection, undone_job)
        except RemoteConnectionLost:
            raise
        except MachineCannot:  # a broken archive is kept in the job's folder here; the remote files still go
            pass
    remote_job.remove_remote_files(connection, undone_job)
    if recorded_run(folder) is None and {path.name for path in folder.glob("*")} <= {JOB}:
        shutil.rmtree(folder, ignore_errors=True)  # it holds neither a run nor a broken archive of one


def _size(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    size = path.stat().st_size
    return f"{size} bytes" if size < 10_000 else f"{size / 1e3:.0f} kB" if size < 1e7 else f"{size / 1e6:.0f} MB"


HOST = SshHost()
