"""How an order ended, from what Slurm says of its job and what its ranks left; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import EXIT_STOPPED, EndedEarly, MachineCannot
from assay.core.units import format_span
from assay.hosts.base import Ended
from assay.hosts.slurm.queue import first_to_exit, nodes_named_failed

if TYPE_CHECKING:
    from assay.hosts.base import Order
    from assay.hosts.slurm.queue import Job
    from assay.hosts.traces import Rank


@dataclass(frozen=True)
class Left:
    """What is left of a job: its nodes, which of them began and were ready to join, its ranks and their last words."""

    nodes: tuple[str, ...] = ()
    begun: dict[str, bool] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    failed_nodes: dict[str, str] = field(default_factory=dict)
    log: str = ""


def verdict(job: Job | None, left: Left, order: Order) -> Ended:
    """Return the exit code and, where the Assay over there could not tell itself, why."""
    first = left.ranks.get(0)
    code = None if first is None else first.exit_code
    if code == 0:
        return Ended(exit_code=0)
    if job is None:
        return _ended(EndedEarly, "Slurm no longer knows the job, and it left no result")
    if job.state not in {"COMPLETED", "FAILED"}:
        return _ended(EndedEarly, _by_slurm(job, left, order))
    if code is None:
        return _without_an_answer(left, order)
    return Ended(exit_code=code, reason=_cause(left) if code == EXIT_STOPPED else None)


def _ended(kind: type[EndedEarly | MachineCannot], reason: str) -> Ended:
    return Ended(exit_code=kind.exit_code, reason=reason)


def _by_slurm(job: Job, left: Left, order: Order) -> str:
    """Say why Slurm ended a job."""
    if job.state == "TIMEOUT":
        limit = f" of {format_span(order.limit_s)} (--time)" if order.limit_s else ""
        return f"Slurm ended the job at its time limit{limit}"
    if job.state in {"NODE_FAIL", "BOOT_FAIL"}:
        return f"Slurm ended the job because {_failed_nodes(left)}"
    if job.state == "OUT_OF_MEMORY":
        return "Slurm ended the job because it used more memory than it was given"
    if job.state == "CANCELLED":
        return "somebody else cancelled the job"
    return f"Slurm ended the job: {job.state} ({job.reason})"


def _failed_nodes(left: Left) -> str:
    named = [f"node {name} failed ({why})" for name, why in left.failed_nodes.items()]
    named = named or [f"node {name} failed" for name in nodes_named_failed(left.log)]
    return " and ".join(named) or f"one of its nodes ({', '.join(left.nodes)}) failed"


def _without_an_answer(left: Left, order: Order) -> Ended:
    """Say how far a job came whose first rank gave no exit code."""
    last = _last(left.log)
    suffix = f": {last}" if last else ""
    if not left.begun:
        shared = f"; is {order.folder} on a file system that the nodes share?"
        return _ended(MachineCannot, f"the job ended before anything ran on its nodes{suffix or shared}")
    if left.ranks:
        return _ended(EndedEarly, _cause(left) or f"the ranks gave no answer{suffix}")
    absent = [node for node in left.nodes if not left.begun.get(node)]
    if 0 < len(absent) < len(left.nodes):
        return _ended(EndedEarly, f"{_listed(absent)} never joined the others{suffix}")
    first = first_to_exit(left.log)
    where = f"node {first}" if first else "the nodes"
    return _ended(MachineCannot, f"{order.python} could not start Assay on {where}{suffix}")


def _cause(left: Left) -> str | None:
    """Name the rank that stopped the others: one that could not go on by its own account, else one that died."""
    reasons = {number: rank for number, rank in left.ranks.items() if rank.exit_code not in {None, 0, 4}}
    dead = {number: rank for number, rank in left.ranks.items() if rank.exit_code is None}
    for number, rank in (*reasons.items(), *dead.items()):
        where = f"rank {number} on node {rank.node}"
        if rank.exit_code is None:
            return f"{where} died without an answer"
        last_words = left.words.get(number, "").removeprefix("assay: ")
        return f"{where} ended with exit code {rank.exit_code}{f': {last_words}' if last_words else ''}"
    return None


def _listed(nodes: list[str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"


def _last(log: str) -> str:
    """Return the last line of a log that tells more than that all was ended."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    return (telling or lines or [""])[-1]
