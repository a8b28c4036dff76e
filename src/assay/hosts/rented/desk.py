"""One provider, one journal, one clock: what everything about a rental needs at hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from assay.hosts.rented import names
from assay.hosts.rented.book import Book, Entry
from assay.hosts.rented.provider import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from assay.hosts.rented.book import Event
    from assay.hosts.rented.clock import Clock
    from assay.hosts.rented.pace import Pace
    from assay.hosts.rented.provider import Machine, Provider

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Desk:
    """Where rentals of one provider are looked after."""

    provider: Provider
    clock: Clock
    pace: Pace
    book: Book

    def say(self, text: str) -> None:
        """Tell whoever waits what is waited for."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def note(self, event: Event, order: str, at: datetime | None = None, **told: Any) -> None:
        """Write an event into the journal, durably."""
        self.book.write(Entry(at=at or self.clock.now(), event=event, order=order, provider=self.provider.name, **told))

    def note_machine(self, event: Event, order: str, machine: Machine) -> None:
        """Write an event about a machine into the journal."""
        self.note(event, order, name=machine.name, number=machine.number, usd_per_hour=machine.usd_per_hour)

    def mine(self, order: str) -> tuple[Machine, ...]:
        """Return the machines of an order that the provider lists; asked once."""
        return tuple(
            machine
            for machine in self.provider.ours()
            if names.order_of(machine.name) == order and machine.stage != "gone"
        )

    def look(self, number: str) -> Machine | None:
        """Return a machine as it is; null when it is gone."""
        machine = self.provider.look(number)
        return None if machine is None or machine.stage == "gone" else machine

    def heard(self, question: Callable[[], FoundT], within_s: float | None = None) -> FoundT:
        """Return the answer to a question that changes nothing, asked until it is answered, or for ``within_s``.

        Raises:
            Unanswered: For as long as a provider may be silent.
        """
        silent_s = self.pace.silent_at_most_s if within_s is None else within_s
        until = self.clock.now() + timedelta(seconds=silent_s)
        while True:
            try:
                return question()
            except Unanswered:
                if self.clock.now() >= until:
                    raise
                self.clock.sleep(self.pace.look_s)

    def account(self) -> str | None:
        """Return what tells the account from another; null where the provider has no word for it."""
        return account_of(self.provider)


def account_of(provider: Provider) -> str | None:
    """Return what tells a provider's account from another, if it has ``account()``; never a credential."""
    get_account = getattr(provider, "account", None)
    return str(get_account()) if callable(get_account) else None
