"""Watch an array to its end: what the queue says of each task, in one look for all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts import traces
from assay.hosts.fleet.model import Step
from assay.hosts.slurm import nodes as partition
from assay.hosts.slurm import queue, watch
from assay.hosts.slurm.commands import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from assay.hosts.base import Loan
    from assay.hosts.slurm.queue import Job

TASKS_PER_S = 100
"""A look at an array of so many tasks costs the controller about as much as a look at one job each second."""


class ArrayWatch:
    """One array on its way; a task that has ended is told once, with how it ended, and not looked at again."""

    def __init__(
        self,
        loan: Loan,
        tasks: Mapping[int, str],
        folders: Mapping[int, Path],
        ended: Callable[[int, Job | None], Step],
        tell: Callable[[Iterable[Step]], None],
    ) -> None:
        self._loan = loan
        self._open = dict(tasks)
        self._folders = folders
        self._ended = ended
        self._tell = tell
        self._told = {node: self._waits(index) for index, node in tasks.items()}
        self._said_ended: set[int] = set()
        self._silent_since: float | None = None

    def to_the_end(self) -> None:
        """Wait until every task is over."""
        least_s = max(watch.FIRST_LOOKS_S, len(self._open) / TASKS_PER_S)
        pause_s, looked_at = least_s, float("-inf")
        while self._open:
            if self._new_ends():
                pause_s = least_s
            if time.monotonic() >= looked_at + pause_s:
                changed = self._look()
                looked_at = time.monotonic()
                pause_s = least_s if changed else min(watch.LONGEST_S, pause_s * watch.GROWTH)
            time.sleep(max(watch.TICK_S, least_s / 5))

    def _new_ends(self) -> bool:
        """Return whether a task has said since that nothing more will come from it."""
        new = {
            index
            for index in self._open
            if index not in self._said_ended and (self._folders[index] / traces.ENDED).exists()
        }
        self._said_ended |= new
        return bool(new)

    def _look(self) -> bool:
        """Ask the queue; return whether anything has changed."""
        entries = self._queue()
        if entries is None:
            return False
        steps: list[Step] = []
        for index, node in list(self._open.items()):
            step = self._step(index, node, entries.get(index))
            if step.state in {"done", "failed"}:
                del self._open[index]
            steps.append(step)
        steps += self._given_up(entries)
        news = [step for step in steps if self._told.get(step.node) != step]
        self._told.update({step.node: step for step in news})
        if news:
            self._tell(news)
        return bool(news)

    def _queue(self) -> dict[int, Job] | None:
        """Return the tasks that Slurm knows, by their index; null when it does not answer."""
        try:
            entries = watch.look(self._loan.name, by_task=True)
        except MachineCannot:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > watch.SILENT_AT_MOST_S:
                raise
            return None
        self._silent_since = None
        return {index: entry for entry in entries if (index := queue.task_of(entry)) is not None}

    def _step(self, index: int, node: str, job: Job | None) -> Step:
        if job is None or job.over:
            return self._ended(index, job)
        task = f"{self._loan.number}_{index}"
        if not job.waiting:
            return Step(node=node, state="runs", task=task)
        if job.reason in queue.NEVER:
            ask("scancel", task)
            why = f"Slurm would never start it: {queue.why_waiting(job.reason)}"
            return Step(node=node, state="failed", task=task, reason=why)
        return self._waits(index, None if job.reason == "None" else queue.why_waiting(job.reason))

    def _waits(self, index: int, reason: str | None = None) -> Step:
        return Step(node=self._open[index], state="waits", task=f"{self._loan.number}_{index}", reason=reason)

    def _given_up(self, found: Mapping[int, Job]) -> list[Step]:
        """Give up tasks whose nodes are out of order when no other is left to wait for."""
        waiting = [index for index in self._open if index in found and found[index].waiting]
        if not waiting or len(waiting) < len(self._open):
            return []
        out_of_order = partition.states(partition.seen_anywhere(self._open.values()))
        if not out_of_order or any(out_of_order.get(self._open[index], "gone") is None for index in waiting):
            return []
        steps = []
        for index in waiting:
            node, task = self._open.pop(index), f"{self._loan.number}_{index}"
            ask("scancel", task)
            reason = f"the node is {out_of_order.get(node) or 'no longer there'}"
            steps.append(Step(node=node, state="failed", task=task, reason=reason))
        return steps
