"""The host Slurm: an order is one batch job, named after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.durable import friendly_os_errors, replace_atomically
from assay.core.errors import MachineCannot
from assay.hosts import traces
from assay.hosts.base import NAME_PREFIX, Loan, Offer
from assay.hosts.slurm import queue
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.left import left_of, wait_for_files
from assay.hosts.slurm.script import batch_script, options
from assay.hosts.slurm.submit import lease_for, offers, submit
from assay.hosts.slurm.undo import cancel
from assay.hosts.slurm.verdict import verdict
from assay.hosts.slurm.watch import Watch, hostnames

if TYPE_CHECKING:
    from assay.core.leases import Lease
    from assay.hosts.base import Ended, Order, Watcher

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")


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
        return offers()

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
        lease = lease_for(order, "Slurm job")
        try:
            number = submit(order, options(order), script, lease)
        except BaseException:
            leases.release(lease)
            raise
        self._leases[order.name] = lease
        return Loan(host=self.name, name=order.name, number=number, state="PENDING")

    def run(self, loan: Loan, order: Order, watcher: Watcher) -> Ended:
        """Wait for the job's end, handing on what its first rank prints."""
        folder = Path(order.folder)
        watch = Watch(loan, folder, watcher)
        entry = watch.to_the_end()
        wait_for_files(entry, folder)
        watch.pass_on()
        nodes = watch.nodes or (hostnames(entry.nodes) if entry is not None else ())
        return verdict(entry, left_of(folder, nodes, folder / traces.LOG), order)

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
        result = ask("squeue", "--noheader", "--me", f"--format={queue.JOB_FORMAT}")
        if result.code != 0:
            raise MachineCannot(f"Slurm's queue cannot be read: {result.why}.")
        ours = [entry for entry in queue.jobs(result.out) if entry.name.startswith(NAME_PREFIX)]
        return tuple(Loan(host=self.name, name=entry.name, number=entry.number, state=entry.state) for entry in ours)


HOST = SlurmHost()
