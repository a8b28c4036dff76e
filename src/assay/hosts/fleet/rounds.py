"""Measure a fleet: array after array, until every node has a result or has no tries left.

list the nodes ──▶ select those due ──▶ submit an array, lease first ──▶ watch ──▶ confirm gone ──▶ update the state
      ▲                                                                                                      │
      └─────────────────────── nodes that failed, are up, and have tries left ◀──────────────────────────────┘
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import StopRequested
from assay.core.format import format_count
from assay.core.guardian import Guardian
from assay.core.processes import stop_on_signals
from assay.hosts.fleet import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.hosts.base import Job, Rental
    from assay.hosts.fleet.folder import FleetFolder
    from assay.hosts.fleet.state import NodeProgress


class ArrayHost(Protocol):
    """A host that submits one job to many nodes at once, with a task for each."""

    def nodes(self, partition_name: str | None) -> Mapping[str, str | None]:
        """Return the nodes of a partition, and why each takes no work now; null: it does."""
        ...

    def max_tasks(self) -> int:
        """Return how many tasks one array may have."""
        ...

    def create(self, job: Job, nodes: tuple[str, ...], number: int, at_once: int | None) -> Rental:
        """Submit the job to each of the nodes, its lease written first; ``number`` counts the fleet's arrays."""
        ...

    def watch(self, rental: Rental, jobs: Mapping[str, Job], report: Callable[[Iterable[NodeProgress]], None]) -> None:
        """Wait until every node has ended, and report progress; ``jobs`` maps each node to its job."""
        ...

    def release(self, rental: Rental) -> None:
        """Cancel what is left, and return once it is confirmed gone."""
        ...

    def cancel(self, name: str) -> None:
        """Cancel an abandoned array by its name, and return once it is confirmed gone."""
        ...


def measure_fleet(folder: FleetFolder, arrays: ArrayHost, say: Callable[[str], None]) -> None:
    """Measure the nodes of a fleet that have no result yet; whatever happens, nothing is left in the queue.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        StopRequested: A signal came; what was measured until then is kept.
    """
    tried: Counter[str] = Counter()
    with stop_on_signals(), Guardian(), folder.lock():
        if folder.fleet.open is not None:
            arrays.cancel(folder.fleet.open)
        folder.update_state()
        while True:
            out_of_order = arrays.nodes(folder.fleet.job.host_place)
            folder.write(state.update_availability(folder.fleet, out_of_order))
            unavailable = state.unavailable_nodes(folder.fleet, out_of_order)
            if unavailable:
                say(f"Out of order, and left out: {state.unavailable_text(unavailable)}")
            nodes = state.due_nodes(folder.fleet, out_of_order, tried, most=arrays.max_tasks())
            if not nodes:
                return
            retried = [node for node in nodes if tried[node]]
            if retried:
                say(f"{state.join_nodes(retried)} {'is' if len(retried) == 1 else 'are'} tried again")
            tried.update(nodes)
            _run_array(folder, arrays, nodes, say)


def _run_array(folder: FleetFolder, arrays: ArrayHost, nodes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Submit one array and wait for its end; the state is up to date afterwards, however it ended."""
    job = folder.fleet.job.model_copy(update={"id": secrets.token_hex(8)})
    folder.start_round(nodes, job.name)

    def report(steps: Iterable[NodeProgress]) -> None:
        new_steps = tuple(steps)
        folder.write(state.apply_progress(folder.fleet, new_steps))
        for line in state.progress_lines(new_steps):
            say(line)

    rental: Rental | None = None
    try:
        rental = arrays.create(job, nodes, folder.fleet.rounds, folder.fleet.at_once)
        say(f"{rental.host.capitalize()} array {rental.number}: {format_count(len(nodes), 'node')}")
        arrays.watch(rental, {node: folder.job_of(node) for node in nodes}, report)
    except BaseException as error:
        if rental is not None:
            _release_after_error(error, arrays, rental)
        folder.update_state()
        if isinstance(error, StopRequested):
            raise StopRequested(f"{error}; the array is gone from the queue") from None
        raise
    arrays.release(rental)
    folder.update_state()


def _release_after_error(error: BaseException, arrays: ArrayHost, rental: Rental) -> None:
    """Cancel an array after an error; if that fails, raise the failure instead, as it is what costs."""
    try:
        arrays.release(rental)
    except Exception as failure:
        raise failure from error
