"""What is left of a job when it has ended: looked for on disk, and asked of Slurm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from assay.hosts import traces
from assay.hosts.slurm import queue
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.verdict import Left

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.slurm.queue import Job

SHARED_WITHIN_S = 5.0
"""What a node has written may take a moment to be seen through a shared file system."""


def wait_for_files(job: Job | None, folder: Path) -> None:
    """Give a shared file system time to show the exit code that a job which ended by itself has left."""
    deadline = time.monotonic() + SHARED_WITHIN_S
    while job is not None and job.state == "COMPLETED" and time.monotonic() < deadline:
        first = traces.ranks(folder).get(0)
        if first is not None and first.exit_code is not None:
            return
        time.sleep(0.1)


def left_of(folder: Path, nodes: tuple[str, ...], log: Path) -> Left:
    """Return what a job's nodes and ranks have left in its folder, and which of its nodes are out of order."""
    ranks = traces.ranks(folder)
    failed = {}
    if nodes:
        result = ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", f"--format={queue.NODE_FORMAT}")
        failed = queue.failed_nodes(result.out)
    return Left(
        nodes=nodes,
        begun=traces.nodes(folder),
        ranks=ranks,
        words={number: traces.last_line(folder / "ranks" / f"{number}.err") for number in ranks},
        failed_nodes=failed,
        log=traces.tail(log),
    )
