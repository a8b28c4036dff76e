"""A provider of rented machines as a host: the seven rules, the same for every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.hosts.rented.book import Book
from assay.hosts.rented.clock import Clock, SystemClock
from assay.hosts.rented.pace import Pace

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Ended, Loan, Offer, Order, Watcher
    from assay.hosts.rented.provider import Provider


class RentedHost:
    """Machines of one provider, by the hour: ``HOST = RentedHost(MyProvider())`` is all that its file has to add."""

    options = frozenset({"gpu_type", "image", "max_cost", "ship", "time", "remote_python"})

    def __init__(
        self, provider: Provider, *, clock: Clock | None = None, pace: Pace | None = None, book: Book | None = None
    ) -> None:
        """Say whose machines; clock, pace and journal are handed in by tests."""
        self.provider = provider
        self.name = provider.name
        self.clock = clock or SystemClock()
        self.pace = pace or Pace()
        self.book = book or Book()

    def available(self) -> str | None:
        """Return which credential is missing; null when none is."""
        return self.provider.missing()

    def offers(self) -> tuple[Offer, ...]:
        """Return what can be had now, with the price of this moment."""
        return self.provider.offers()

    def script(self, order: Order) -> str:
        """Return what would be done."""
        raise NotImplementedError

    def create(self, order: Order) -> Loan:
        """Rent what the order needs."""
        raise NotImplementedError

    def run(self, loan: Loan, order: Order, watcher: Watcher) -> Ended:
        """Have the order run there."""
        raise NotImplementedError

    def collect(self, loan: Loan, order: Order) -> tuple[Path, ...]:
        """Bring the run folder here."""
        raise NotImplementedError

    def release(self, loan: Loan) -> None:
        """End every machine of the order, and see it gone."""
        raise NotImplementedError

    def list_ours(self) -> tuple[Loan, ...]:
        """Return every machine there that bears a name of ours."""
        raise NotImplementedError

    def end_order(self, order_id: str) -> None:
        """End every machine of an order, from any process, and see it gone."""
        raise NotImplementedError
