"""Arrays on Slurm: a task for each node, tied to it before any of them may start.

sbatch --hold --array=0-N ──▶ scontrol update JobId=J_i ReqNodeList=node_i, for each i ──▶ scontrol release J
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.durable import friendly_os_errors, replace_atomically
from assay.core.errors import EXIT_STOPPED, MachineCannot
from assay.hosts import traces
from assay.hosts.base import Loan
from assay.hosts.fleet.book import WHOLE
from assay.hosts.fleet.gather import failures
from assay.hosts.fleet.model import Step
from assay.hosts.slurm import nodes as partition
from assay.hosts.slurm.array_script import array_options, array_script, logs
from assay.hosts.slurm.array_watch import ArrayWatch
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.left import left_of, wait_for_files
from assay.hosts.slurm.submit import UNANSWERED, lease_for, submit
from assay.hosts.slurm.undo import cancel
from assay.hosts.slurm.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.core.leases import Lease
    from assay.hosts.base import Order
    from assay.hosts.slurm.commands import Said
    from assay.hosts.slurm.queue import Job

USUAL_ARRAY = 1000
"""Tasks that an array may have where Slurm does not say."""

ASKED_AT_MOST = 3


@dataclass
class Sent:
    """An array on its way: its lease, its logs, and the nodes that Slurm did not take."""

    lease: Lease
    logs: Path
    refused: dict[str, str] = field(default_factory=dict)


class SlurmArrays:
    """Sends arrays to a Slurm whose commands are here."""

    def __init__(self) -> None:
        self._sent: dict[str, Sent] = {}

    def nodes(self, place: str | None) -> Mapping[str, str | None]:
        """Return the nodes of a partition, and why each takes no work; null: it does."""
        return partition.states(partition.seen(place))

    def largest(self) -> int:
        """Return how many tasks an array may have."""
        result = ask("scontrol", "show", "config")
        sizes = [line.partition("=")[2].strip() for line in result.out.splitlines() if line.startswith("MaxArraySize")]
        return max(1, int(sizes[0]) - 1) if sizes and sizes[0].isdigit() else USUAL_ARRAY

    def create(self, order: Order, nodes: tuple[str, ...], number: int, at_once: int | None) -> Loan:
        """Submit the array held, its lease written first; tie each task to its node; let them go."""
        script = Path(logs(order, number)) / traces.SCRIPT
        with friendly_os_errors(script):
            script.parent.mkdir(exist_ok=True)
            replace_atomically(script, array_script(order, len(nodes), number, at_once).encode())
        sent = Sent(lease_for(order, "Slurm array"), script.parent)
        try:
            array = submit(order, array_options(order, len(nodes), number, at_once), script, sent.lease)
            sent.refused = _tied(array, nodes)
            _let_go(array)
        except BaseException:
            leases.release(sent.lease)
            raise
        self._sent[order.name] = sent
        return Loan(host="slurm", name=order.name, number=array, state="PENDING")

    def watch(self, loan: Loan, orders: Mapping[str, Order], tell: Callable[[Iterable[Step]], None]) -> None:
        """Wait until every node has ended, telling what is new."""
        sent = self._sent[loan.name]
        if sent.refused:
            tell([Step(node=node, state="failed", reason=why) for node, why in sent.refused.items()])
        nodes = tuple(orders)

        def ended(index: int, job: Job | None) -> Step:
            return _ended(f"{loan.number}_{index}", nodes[index], orders[nodes[index]], sent.logs / f"{index}.log", job)

        tasks = {index: node for index, node in enumerate(nodes) if node not in sent.refused}
        folders = {index: Path(orders[node].folder) for index, node in tasks.items()}
        ArrayWatch(loan, tasks, folders, ended, tell).to_the_end()

    def release(self, loan: Loan) -> None:
        """Cancel what is left of the array, and see it gone."""
        sent = self._sent.pop(loan.name, None)
        if sent is None:
            self.cancel(loan.name)
        else:
            leases.release(sent.lease)

    def cancel(self, name: str) -> None:
        """Cancel an array by its name, and see it gone."""
        cancel(name, os.environ.get("SLURM_CONF"))


def insist(*words: str) -> Said:
    """Ask for something that may be asked for twice, again where no answer came."""
    result = ask(*words)
    for _ in range(ASKED_AT_MOST - 1):
        if result.code == 0 or not any(word in result.err for word in UNANSWERED):
            break
        result = ask(*words)
    return result


def _tied(array: str, nodes: tuple[str, ...]) -> dict[str, str]:
    """Tie each task to its node; return those that Slurm refused, and why: they are cancelled.

    Raises:
        MachineCannot: It refused all of them.
    """
    refused: dict[str, str] = {}
    for index, node in enumerate(nodes):
        result = insist("scontrol", "update", f"JobId={array}_{index}", f"ReqNodeList={node}")
        if result.code != 0:
            refused[node] = f"Slurm does not tie a task to it: {result.why}"
            insist("scancel", f"{array}_{index}")
    if len(refused) == len(nodes):
        raise MachineCannot(f"{next(iter(refused.values()))}.")
    return refused


def _let_go(array: str) -> None:
    result = insist("scontrol", "release", array)
    if result.code != 0:
        raise MachineCannot(f"Slurm does not let the array {array} go: {result.why}.")


def _ended(task: str, node: str, order: Order, log: Path, job: Job | None) -> Step:
    """Say how one node's task ended."""
    folder = Path(order.folder)
    wait_for_files(job, folder)
    rank = traces.ranks(folder).get(0)
    code = None if rank is None else rank.exit_code
    if code in WHOLE:
        return Step(node=node, state="done", task=task, exit_code=code)
    left = left_of(folder, (node,), log)
    run = traces.run_of(folder)
    reason = (
        verdict(job, left, order).reason
        or (failures(run) if run is not None and code == EXIT_STOPPED else None)
        or left.words.get(0, "").removeprefix("assay: ")
    )
    return Step(node=node, state="failed", task=task, exit_code=code, reason=reason or f"exit code {code}")
