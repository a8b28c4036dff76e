"""Slurm arrays: one task per node, bound to it before any task may start, polled with one query for all tasks.

sbatch --hold --array=0-N ──▶ scontrol update JobId=J_i ReqNodeList=node_i, for each i ──▶ scontrol release J
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import EXIT_STOPPED, MachineCannot
from assay.core.files import replace_atomically, translate_os_errors
from assay.hosts import run_job
from assay.hosts.base import Rental
from assay.hosts.fleet import WHOLE_EXIT_CODES, NodeProgress, failed_trials_text
from assay.hosts.slurm import commands
from assay.hosts.slurm.commands import run_command
from assay.hosts.slurm.host import (
    FIRST_POLL_S,
    MAX_POLL_S,
    NO_ANSWER_ERRORS,
    POLL_GROWTH,
    TICK_S,
    QueuePoll,
    cancel_job,
    collect_traces,
    create_lease,
    job_outcome,
    submit_job,
    wait_for_files,
)
from assay.hosts.slurm.script import array_log_folder, array_options, array_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.core.leases import Lease
    from assay.hosts.base import Job
    from assay.hosts.slurm.commands import CommandResult, QueueEntry


TASKS_PER_S = 100
"""Polling an array of this many tasks once a second costs the controller about as much as polling one job."""


@dataclass
class SubmittedArray:
    """A submitted array: its lease, its logs, and the nodes that Slurm refused, with the reason."""

    lease: Lease
    logs: Path
    refused: dict[str, str]


class ArrayWatch:
    """Watches one array; reports each task's end once, with its outcome, and no longer polls it."""

    def __init__(
        self,
        rental: Rental,
        jobs: Mapping[str, Job],
        submitted: SubmittedArray,
        report: Callable[[Iterable[NodeProgress]], None],
    ) -> None:
        self._number = rental.number
        self._jobs = tuple(jobs.values())
        self._logs = submitted.logs
        self._open = {index: node for index, node in enumerate(jobs) if node not in submitted.refused}
        self._report = report
        self._queue = QueuePoll(rental.name, by_task=True)
        self._last_progress = {node: self._waits(index) for index, node in self._open.items()}
        self._finished: set[int] = set()

    def wait(self) -> None:
        """Wait until every task is over."""
        least_s = max(FIRST_POLL_S, len(self._open) / TASKS_PER_S)
        pause_s, polled_at = least_s, float("-inf")
        while self._open:
            if self._new_ends():
                pause_s = least_s
            if time.monotonic() >= polled_at + pause_s:
                changed = self._poll()
                polled_at = time.monotonic()
                pause_s = least_s if changed else min(MAX_POLL_S, pause_s * POLL_GROWTH)
            time.sleep(max(TICK_S, least_s / 5))

    def _new_ends(self) -> bool:
        """Return whether another task has written its end marker."""
        waiting = self._open.keys() - self._finished
        new = {index for index in waiting if (Path(self._jobs[index].folder) / run_job.ENDED).exists()}
        self._finished |= new
        return bool(new)

    def _poll(self) -> bool:
        """Query the queue; return whether anything has changed."""
        listed = self._queue.poll()
        if listed is None:
            return False
        entries = {index: entry for entry in listed if (index := commands.task_index(entry)) is not None}
        steps: list[NodeProgress] = []
        for index, node in list(self._open.items()):
            step = self._step(index, node, entries.get(index))
            if step.state in {"done", "failed"}:
                del self._open[index]
            steps.append(step)
        steps += self._cancel_stuck(entries)
        new_steps = [step for step in steps if self._last_progress.get(step.node) != step]
        self._last_progress.update({step.node: step for step in new_steps})
        if new_steps:
            self._report(new_steps)
        return bool(new_steps)

    def _step(self, index: int, node: str, entry: QueueEntry | None) -> NodeProgress:
        if entry is None or entry.over:
            return self._task_end(index, node, entry)
        task = f"{self._number}_{index}"
        if not entry.waiting:
            return NodeProgress(node=node, state="runs", task=task)
        if entry.reason in commands.NEVER_STARTS_REASONS:
            run_command("scancel", task)
            why = f"Slurm would never start it: {commands.wait_reason(entry.reason)}"
            return NodeProgress(node=node, state="failed", task=task, reason=why)
        return self._waits(index, None if entry.reason == "None" else commands.wait_reason(entry.reason))

    def _task_end(self, index: int, node: str, entry: QueueEntry | None) -> NodeProgress:
        """Return how one node's task ended."""
        job, task = self._jobs[index], f"{self._number}_{index}"
        folder = Path(job.folder)
        wait_for_files(entry, folder)
        rank = run_job.read_ranks(folder).get(0)
        code = None if rank is None else rank.exit_code
        if code in WHOLE_EXIT_CODES:
            return NodeProgress(node=node, state="done", task=task, exit_code=code)
        job_traces = collect_traces(folder, (node,), self._logs / f"{index}.log")
        run = run_job.recorded_run(folder)
        reason = (
            job_outcome(entry, job_traces, job).reason
            or (failed_trials_text(run) if run is not None and code == EXIT_STOPPED else None)
            or job_traces.words.get(0, "").removeprefix("assay: ")
        )
        return NodeProgress(node=node, state="failed", task=task, exit_code=code, reason=reason or f"exit code {code}")

    def _waits(self, index: int, reason: str | None = None) -> NodeProgress:
        return NodeProgress(node=self._open[index], state="waits", task=f"{self._number}_{index}", reason=reason)

    def _cancel_stuck(self, entries: Mapping[int, QueueEntry]) -> list[NodeProgress]:
        """Cancel the waiting tasks if all their nodes are out of order and no other task is open."""
        waiting = [index for index in self._open if index in entries and entries[index].waiting]
        if not waiting or len(waiting) < len(self._open):
            return []
        out_of_order = commands.node_troubles(commands.nodes_by_name(self._open.values()))
        if not out_of_order or any(out_of_order.get(self._open[index], "gone") is None for index in waiting):
            return []
        steps = []
        for index in waiting:
            node, task = self._open.pop(index), f"{self._number}_{index}"
            run_command("scancel", task)
            reason = f"the node is {out_of_order.get(node) or 'no longer there'}"
            steps.append(NodeProgress(node=node, state="failed", task=task, reason=reason))
        return steps


DEFAULT_MAX_ARRAY = 1000
"""Largest number of tasks per array where Slurm does not report it."""

MAX_ATTEMPTS = 3


class SlurmArrays:
    """Submits arrays to a Slurm cluster whose commands are installed here."""

    def __init__(self) -> None:
        self._submitted: dict[str, SubmittedArray] = {}

    def nodes(self, partition_name: str | None) -> Mapping[str, str | None]:
        """Return the nodes of a partition, and why each takes no work; null: it does."""
        return commands.node_troubles(commands.partition_nodes(partition_name))

    def max_tasks(self) -> int:
        """Return the largest number of tasks per array."""
        result = run_command("scontrol", "show", "config")
        sizes = [line.partition("=")[2].strip() for line in result.out.splitlines() if line.startswith("MaxArraySize")]
        return max(1, int(sizes[0]) - 1) if sizes and sizes[0].isdigit() else DEFAULT_MAX_ARRAY

    def create(self, job: Job, nodes: tuple[str, ...], number: int, at_once: int | None) -> Rental:
        """Submit the array held, its lease written first; bind each task to its node; release the array."""
        logs = Path(array_log_folder(job, number))
        script = logs / run_job.SCRIPT
        with translate_os_errors(script):
            logs.mkdir(exist_ok=True)
            replace_atomically(script, array_script(job, len(nodes), number, at_once).encode())
        lease = create_lease(job, "Slurm array")
        try:
            array = submit_job(job, array_options(job, len(nodes), number, at_once), script, lease)
            refused = _bind_tasks(array, nodes)
        except BaseException:
            leases.release_lease(lease)
            raise
        self._submitted[job.name] = SubmittedArray(lease, logs, refused)
        return Rental(host="slurm", name=job.name, number=array, state="PENDING")

    def watch(self, rental: Rental, jobs: Mapping[str, Job], report: Callable[[Iterable[NodeProgress]], None]) -> None:
        """Wait until every node has ended, and report progress."""
        submitted = self._submitted[rental.name]
        if submitted.refused:
            report([NodeProgress(node=node, state="failed", reason=why) for node, why in submitted.refused.items()])
        ArrayWatch(rental, jobs, submitted, report).wait()

    def release(self, rental: Rental) -> None:
        """Cancel what is left of the array, and confirm that it is gone."""
        submitted = self._submitted.pop(rental.name, None)
        if submitted is None:
            self.cancel(rental.name)
        else:
            leases.release_lease(submitted.lease)

    def cancel(self, name: str) -> None:
        """Cancel an array by its name, and confirm that it is gone."""
        cancel_job(name, os.environ.get("SLURM_CONF"))


def run_command_with_retries(*arguments: str) -> CommandResult:
    """Run an idempotent command, and retry it where no answer came."""
    result = run_command(*arguments)
    for _ in range(MAX_ATTEMPTS - 1):
        if result.code == 0 or not any(text in result.err for text in NO_ANSWER_ERRORS):
            break
        result = run_command(*arguments)
    return result


def _bind_tasks(array: str, nodes: tuple[str, ...]) -> dict[str, str]:
    """Bind each task to its node and release the array; cancel and return the tasks that Slurm refused, and why.

    Raises:
        MachineCannot: Slurm refused all of them, or does not release the array.
    """
    refused: dict[str, str] = {}
    for index, node in enumerate(nodes):
        result = run_command_with_retries("scontrol", "update", f"JobId={array}_{index}", f"ReqNodeList={node}")
        if result.code != 0:
            refused[node] = f"Slurm does not bind a task to it: {result.reason}"
            run_command_with_retries("scancel", f"{array}_{index}")
    if len(refused) == len(nodes):
        raise MachineCannot(f"{next(iter(refused.values()))}.")
    result = run_command_with_retries("scontrol", "release", array)
    if result.code != 0:
        raise MachineCannot(f"Slurm does not release the array {array}: {result.reason}.")
    return refused
