"""Have a fleet measured: array after array, until every node has answered or is given up.

look at the nodes ──▶ who is due? ──▶ an array, its lease written first ──▶ watch ──▶ seen gone ──▶ settle
      ▲                                                                                             │
      └────────────────── who failed, is up, and has tries left ◀───────────────────────────────────┘
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import StopRequested
from assay.core.guardian import Guardian
from assay.core.stopping import stop_on_signals
from assay.hosts.fleet import book

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.hosts.base import Loan, Order
    from assay.hosts.fleet.folder import FleetFolder
    from assay.hosts.fleet.model import Step


class Arrays(Protocol):
    """A host that sends one order to many nodes at once, a task for each."""

    def nodes(self, place: str | None) -> Mapping[str, str | None]:
        """Return the nodes of a place, and why each takes nothing now; null: it does."""
        ...

    def largest(self) -> int:
        """Return how many tasks one array may have."""
        ...

    def create(self, order: Order, nodes: tuple[str, ...], number: int, at_once: int | None) -> Loan:
        """Send the order to each of the nodes, its lease written first; ``number`` counts the fleet's arrays."""
        ...

    def watch(self, loan: Loan, orders: Mapping[str, Order], tell: Callable[[Iterable[Step]], None]) -> None:
        """Wait until every node has ended, telling what is new; ``orders`` are those of the nodes."""
        ...

    def release(self, loan: Loan) -> None:
        """Cancel what is left; return when it was seen gone."""
        ...

    def cancel(self, name: str) -> None:
        """Cancel an array that somebody has left, by its name; return when it was seen gone."""
        ...


def carry_out(folder: FleetFolder, arrays: Arrays, say: Callable[[str], None]) -> None:
    """Measure what a fleet still lacks; whatever happens, nothing of it is left in the queue.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        StopRequested: A signal came; what was measured until then is kept.
    """
    tried: Counter[str] = Counter()
    with stop_on_signals(), Guardian(), folder.held():
        if folder.fleet.open is not None:
            arrays.cancel(folder.fleet.open)
        folder.settle()
        while True:
            out_of_order = arrays.nodes(folder.fleet.order.place)
            folder.write(book.looked_at(folder.fleet, out_of_order))
            away = book.away(folder.fleet, out_of_order)
            if away:
                say(f"Out of order, and left out: {book.troubles(away)}")
            nodes = book.due(folder.fleet, out_of_order, tried, most=arrays.largest())
            if not nodes:
                return
            again = [node for node in nodes if tried[node]]
            if again:
                say(f"{book.listed(again)} {'is' if len(again) == 1 else 'are'} tried again")
            tried.update(nodes)
            _one_round(folder, arrays, nodes, say)


def _one_round(folder: FleetFolder, arrays: Arrays, nodes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Send one array and wait for its end; the book is true afterwards, however it ended."""
    job = folder.fleet.order.model_copy(update={"id": secrets.token_hex(8)})
    folder.begin(nodes, job.name)

    def tell(steps: Iterable[Step]) -> None:
        news = tuple(steps)
        folder.write(book.stepped(folder.fleet, news))
        for line in book.sentences(news):
            say(line)

    rental: Loan | None = None
    try:
        rental = arrays.create(job, nodes, folder.fleet.rounds, folder.fleet.at_once)
        say(f"{rental.host.capitalize()} array {rental.number}: {book.counted(len(nodes), 'node')}")
        arrays.watch(rental, {node: folder.order_of(node) for node in nodes}, tell)
    except BaseException as error:
        if rental is not None:
            _release_after(error, arrays, rental)
        folder.settle()
        if isinstance(error, StopRequested):
            raise StopRequested(f"{error}; the array is gone from the queue") from None
        raise
    arrays.release(rental)
    folder.settle()


def _release_after(error: BaseException, arrays: Arrays, loan: Loan) -> None:
    """Cancel an array after an error; a failure to do so replaces it, for it is what costs."""
    try:
        arrays.release(loan)
    except Exception as failure:
        raise failure from error
