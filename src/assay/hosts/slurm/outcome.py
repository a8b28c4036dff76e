"""How a job ended: from its state in the queue and the files that its nodes and ranks left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import EXIT_STOPPED, EndedEarly, MachineCannot
from assay.core.format import format_duration
from assay.hosts import run_job as traces
from assay.hosts.base import JobEnd
from assay.hosts.slurm import commands as queue
from assay.hosts.slurm.commands import first_failed_node, nodes_reported_failed, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Job
    from assay.hosts.run_job import RankRecord
    from assay.hosts.slurm.commands import QueueEntry


@dataclass(frozen=True)
class JobTraces:
    """Traces of a job: its nodes, which of them started and were ready to join, its ranks and their last messages."""

    nodes: tuple[str, ...] = ()
    begun: dict[str, bool] = field(default_factory=dict)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    failed_nodes: dict[str, str] = field(default_factory=dict)
    log: str = ""


def job_outcome(entry: QueueEntry | None, job_traces: JobTraces, job: Job) -> JobEnd:
    """Return the exit code and, where the remote Assay could not report it, the reason."""
    first = job_traces.ranks.get(0)
    code = None if first is None else first.exit_code
    if code == 0:
        return JobEnd(exit_code=0)
    if entry is None:
        return _job_end(EndedEarly, "Slurm no longer knows the job, and it left no result")
    if entry.state not in {"COMPLETED", "FAILED"}:
        return _job_end(EndedEarly, _ended_by_slurm_reason(entry, job_traces, job))
    if code is None:
        return _end_without_exit_code(job_traces, job)
    return JobEnd(exit_code=code, reason=_root_cause(job_traces) if code == EXIT_STOPPED else None)


def _job_end(kind: type[EndedEarly | MachineCannot], reason: str) -> JobEnd:
    return JobEnd(exit_code=kind.exit_code, reason=reason)


def _ended_by_slurm_reason(entry: QueueEntry, job_traces: JobTraces, job: Job) -> str:
    """Return why Slurm ended a job."""
    if entry.state == "TIMEOUT":
        limit = f" of {format_duration(job.limit_s)} (--time)" if job.limit_s else ""
        return f"Slurm ended the job at its time limit{limit}"
    if entry.state in {"NODE_FAIL", "BOOT_FAIL"}:
        return f"Slurm ended the job because {_failed_nodes_text(job_traces)}"
    if entry.state == "OUT_OF_MEMORY":
        return "Slurm ended the job because it used more memory than it was given"
    if entry.state == "CANCELLED":
        return "somebody else cancelled the job"
    return f"Slurm ended the job: {entry.state} ({entry.reason})"


def _failed_nodes_text(job_traces: JobTraces) -> str:
    named = [f"node {name} failed ({why})" for name, why in job_traces.failed_nodes.items()]
    named = named or [f"node {name} failed" for name in nodes_reported_failed(job_traces.log)]
    return " and ".join(named) or f"one of its nodes ({', '.join(job_traces.nodes)}) failed"


def _end_without_exit_code(job_traces: JobTraces, job: Job) -> JobEnd:
    """Return how far a job got whose first rank left no exit code."""
    last = _last_line(job_traces.log)
    suffix = f": {last}" if last else ""
    if not job_traces.begun:
        shared = f"; is {job.folder} on a file system that the nodes share?"
        return _job_end(MachineCannot, f"the job ended before anything ran on its nodes{suffix or shared}")
    if job_traces.ranks:
        return _job_end(EndedEarly, _root_cause(job_traces) or f"the ranks gave no answer{suffix}")
    absent = [node for node in job_traces.nodes if not job_traces.begun.get(node)]
    if 0 < len(absent) < len(job_traces.nodes):
        return _job_end(EndedEarly, f"{_join_nodes(absent)} never joined the others{suffix}")
    first = first_failed_node(job_traces.log)
    where = f"node {first}" if first else "the nodes"
    return _job_end(MachineCannot, f"{job.python} could not start Assay on {where}{suffix}")


def _root_cause(job_traces: JobTraces) -> str | None:
    """Return the rank that stopped the others: one that reported an error, else one that died."""
    failed = {number: rank for number, rank in job_traces.ranks.items() if rank.exit_code not in {None, 0, 4}}
    dead = {number: rank for number, rank in job_traces.ranks.items() if rank.exit_code is None}
    for number, rank in (*failed.items(), *dead.items()):
        where = f"rank {number} on node {rank.node}"
        if rank.exit_code is None:
            return f"{where} died without an answer"
        message = job_traces.words.get(number, "").removeprefix("assay: ")
        return f"{where} ended with exit code {rank.exit_code}{f': {message}' if message else ''}"
    return None


def _join_nodes(nodes: list[str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"


def _last_line(log: str) -> str:
    """Return the last line of a log that is not from Slurm itself, if there is one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    program_lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    return (program_lines or lines or [""])[-1]


SHARED_FILES_TIMEOUT_S = 5.0
"""A node's writes may take a moment to become visible on a shared file system."""


def wait_for_files(entry: QueueEntry | None, folder: Path) -> None:
    """Wait until a shared file system shows the exit code of a job that ended by itself."""
    deadline = time.monotonic() + SHARED_FILES_TIMEOUT_S
    while entry is not None and entry.state == "COMPLETED" and time.monotonic() < deadline:
        first = traces.read_ranks(folder).get(0)
        if first is not None and first.exit_code is not None:
            return
        time.sleep(0.1)


def collect_traces(folder: Path, nodes: tuple[str, ...], log: Path) -> JobTraces:
    """Return what a job's nodes and ranks left in its folder, and which of its nodes are out of order."""
    ranks = traces.read_ranks(folder)
    failed = {}
    if nodes:
        result = run_command(
            "sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", f"--format={queue.NODE_FORMAT}"
        )
        failed = queue.parse_failed_nodes(result.out)
    return JobTraces(
        nodes=nodes,
        begun=traces.read_nodes(folder),
        ranks=ranks,
        words={number: traces.last_line(folder / "ranks" / f"{number}.err") for number in ranks},
        failed_nodes=failed,
        log=traces.read_tail(log),
    )
