"""The host Slurm: an order is one batch job, named after it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.durable import friendly_os_errors, replace_atomically
from assay.core.errors import BadInput, MachineCannot
from assay.hosts import traces
from assay.hosts.base import NAME_PREFIX, Loan, Offer
from assay.hosts.slurm import queue
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.script import batch_script, options
from assay.hosts.slurm.undo import cancel
from assay.hosts.slurm.verdict import Left, verdict
from assay.hosts.slurm.watch import Watch, hostnames, look

if TYPE_CHECKING:
    from assay.core.leases import Lease
    from assay.hosts.base import Ended, Order, Watcher
    from assay.hosts.slurm.queue import Job

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
SHARED_WITHIN_S = 5.0
"""What a node has written may take a moment to be seen through a shared file system."""

_UNANSWERED = ("timed out", "Unable to contact", "Zero Bytes", "no answer")
_BAD_OPTIONS = ("unrecognized option", "invalid option", "ambiguous", "Invalid --", "requires an argument")


class SlurmHost:
    """A Slurm cluster whose commands are here."""

    name = "slurm"
    options = frozenset({"nodes", "nproc", "partition", "account", "time", "gres", "gpus_per_node", "sbatch_args"})

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def available(self) -> str | None:
        """Return why there is no Slurm to ask; null when there is."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        return f"Slurm's commands are not installed ({', '.join(missing)})" if missing else None

    def offers(self) -> tuple[Offer, ...]:
        """Return the partitions that are up."""
        said = ask("sinfo", "--noheader", f"--format={queue.PARTITION_FORMAT}")
        if said.code != 0:
            raise MachineCannot(f"Slurm does not answer: {said.why}.")
        return queue.offers(said.out)

    def script(self, order: Order) -> str:
        """Return the batch script."""
        return batch_script(order)

    def create(self, order: Order) -> Loan:
        """Submit the job, its lease written first."""
        missing = queue.too_many(order.nodes, order.place, self.offers())
        if missing is not None:
            raise MachineCannot(f"Slurm would never start the job: {missing}.")
        script = Path(order.folder) / traces.SCRIPT
        with friendly_os_errors(script):
            traces.make(script.parent)
            replace_atomically(script, batch_script(order).encode())
        lease = leases.take(
            "slurm",
            f"Slurm job {order.name}",
            "assay.hosts.slurm.undo:cancel",
            {"name": order.name, "conf": os.environ.get("SLURM_CONF")},
            lease_id=order.id,
        )
        try:
            number = self._submit(order, script, lease)
        except BaseException:
            leases.release(lease)
            raise
        self._leases[order.name] = lease
        return Loan(host=self.name, name=order.name, number=number, state="PENDING")

    def _submit(self, order: Order, script: Path, lease: Lease) -> str:
        """Return the job's number; where the answer never came, that of the job that is there all the same."""
        said = ask("sbatch", "--parsable", *options(order), str(script))
        if said.code == 0:
            return said.out.strip().partition(";")[0]
        if any(word in said.err for word in _UNANSWERED):
            found = look(order.name)
            if found:
                return found[0].number
            raise MachineCannot(f"Slurm did not answer: {said.why}.")
        leases.forget(lease)
        if any(word in said.err for word in _BAD_OPTIONS):
            raise BadInput(f"sbatch cannot read its options: {said.why}.")
        raise MachineCannot(f"Slurm refuses the job: {said.why}.{self._partitions()}")

    def _partitions(self) -> str:
        try:
            names = dict.fromkeys(offer.name for offer in self.offers())
        except MachineCannot:
            return ""
        return f" Partitions that are up: {', '.join(names)}." if names else ""

    def run(self, loan: Loan, order: Order, watcher: Watcher) -> Ended:
        """Wait for the job's end, handing on what its first rank prints."""
        folder = Path(order.folder)
        watch = Watch(loan, folder, watcher)
        job = watch.to_the_end()
        self._wait_for_files(job, folder)
        watch.pass_on()
        nodes = watch.nodes or (hostnames(job.nodes) if job is not None else ())
        return verdict(job, _left(folder, nodes), order)

    def _wait_for_files(self, job: Job | None, folder: Path) -> None:
        """Give a shared file system time to show the exit code that a job which ended by itself has left."""
        deadline = time.monotonic() + SHARED_WITHIN_S
        while job is not None and job.state == "COMPLETED" and time.monotonic() < deadline:
            first = traces.ranks(folder).get(0)
            if first is not None and first.exit_code is not None:
                return
            time.sleep(0.1)

    def collect(self, loan: Loan, order: Order) -> tuple[Path, ...]:
        """Return the run folder, which is here already: nodes and we share a file system."""
        run = traces.run_of(Path(order.folder))
        if run is None:
            return ()
        if not (run / "plan.json").is_file():
            raise MachineCannot(f"The run is in {run} on the nodes, and that is not to be seen here; is it shared?")
        return (run,)

    def release(self, loan: Loan) -> None:
        """Cancel the job if it is still there, and see it gone."""
        lease = self._leases.pop(loan.name, None)
        if lease is None:
            cancel(loan.name, os.environ.get("SLURM_CONF"))
        else:
            leases.release(lease)

    def list_ours(self) -> tuple[Loan, ...]:
        """Return the jobs of this user that bear a name of ours and have not ended."""
        said = ask("squeue", "--noheader", "--me", f"--format={queue.JOB_FORMAT}")
        if said.code != 0:
            raise MachineCannot(f"Slurm's queue cannot be read: {said.why}.")
        ours = [job for job in queue.jobs(said.out) if job.name.startswith(NAME_PREFIX)]
        return tuple(Loan(host=self.name, name=job.name, number=job.number, state=job.state) for job in ours)


def _left(folder: Path, nodes: tuple[str, ...]) -> Left:
    ranks = traces.ranks(folder)
    failed = {}
    if nodes:
        said = ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", f"--format={queue.NODE_FORMAT}")
        failed = queue.failed_nodes(said.out)
    return Left(
        nodes=nodes,
        begun=traces.nodes(folder),
        ranks=ranks,
        words={number: traces.last_line(folder / "ranks" / f"{number}.err") for number in ranks},
        failed_nodes=failed,
        log=traces.tail(folder / traces.LOG),
    )


HOST = SlurmHost()
