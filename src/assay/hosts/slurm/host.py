"""The Slurm host: one batch job per job, with the job's name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import MachineCannot, StopRequested
from assay.core.files import replace_atomically, translate_os_errors
from assay.hosts import run_job
from assay.hosts.base import NAME_PREFIX, Offer, Rental
from assay.hosts.slurm import commands
from assay.hosts.slurm.batch_job import JobWatch, cancel_job, create_lease, expand_hostnames, list_offers, submit_job
from assay.hosts.slurm.commands import run_command
from assay.hosts.slurm.outcome import collect_traces, job_outcome, wait_for_files
from assay.hosts.slurm.script import batch_script, sbatch_options

if TYPE_CHECKING:
    from assay.core.leases import Lease
    from assay.hosts.base import Job, JobEnd, JobWatcher

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")


class SlurmHost:
    """A Slurm cluster whose commands are installed here."""

    name = "slurm"
    options = frozenset({"nodes", "nproc", "partition", "account", "time", "gres", "gpus_per_node", "sbatch_args"})

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def available(self) -> str | None:
        """Return why Slurm cannot be used from here; null when it can."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        return f"Slurm's commands are not installed ({', '.join(missing)})" if missing else None

    def offers(self) -> tuple[Offer, ...]:
        """Return the partitions that are up."""
        return list_offers()

    def script(self, job: Job) -> str:
        """Return the batch script."""
        return batch_script(job)

    def create(self, job: Job) -> Rental:
        """Submit the job, its lease written first."""
        missing = commands.too_many_nodes_reason(job.nodes, job.host_place, self.offers())
        if missing is not None:
            raise MachineCannot(f"Slurm would never start the job: {missing}.")
        script = Path(job.folder) / run_job.SCRIPT
        with translate_os_errors(script):
            run_job.make_job_folder(script.parent)
            replace_atomically(script, batch_script(job).encode())
        lease = create_lease(job, "Slurm job")
        try:
            number = submit_job(job, sbatch_options(job), script, lease)
        except StopRequested as stopped:  # the job may have been in the queue already
            leases.release_lease(lease)
            raise StopRequested(f"{stopped}; Slurm job {job.name} is gone") from None
        except BaseException:
            leases.release_lease(lease)
            raise
        self._leases[job.name] = lease
        return Rental(host=self.name, name=job.name, number=number, state="PENDING")

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Wait for the job's end, passing on the output of its first rank."""
        folder = Path(job.folder)
        watch = JobWatch(rental, folder, watcher)
        entry = watch.wait()
        wait_for_files(entry, folder)
        watch.forward_output()
        nodes = watch.nodes or (expand_hostnames(entry.nodes) if entry is not None else ())
        return job_outcome(entry, collect_traces(folder, nodes, folder / run_job.LOG), job)

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Return the run folder, which is here already: the nodes share our file system."""
        run = run_job.recorded_run(Path(job.folder))
        if run is None:
            return ()
        if not (run / "plan.json").is_file():
            raise MachineCannot(f"The run is in {run} on the nodes, and that is not to be seen here; is it shared?")
        return (run,)

    def release(self, rental: Rental) -> None:
        """Cancel the job if it is still there, and confirm that it is gone."""
        lease = self._leases.pop(rental.name, None)
        if lease is None:
            cancel_job(rental.name, os.environ.get("SLURM_CONF"))
        else:
            leases.release_lease(lease)

    def list_ours(self) -> tuple[Rental, ...]:
        """Return this user's jobs that have a name of ours and have not ended."""
        result = run_command("squeue", "--noheader", "--me", f"--format={commands.JOB_FORMAT}")
        if result.code != 0:
            raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
        ours = [entry for entry in commands.parse_queue(result.out) if entry.name.startswith(NAME_PREFIX)]
        return tuple(Rental(host=self.name, name=entry.name, number=entry.number, state=entry.state) for entry in ours)


HOST = SlurmHost()
