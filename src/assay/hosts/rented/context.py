"""The context of a rental: one provider, one journal, one clock (replaceable in tests), and the timeouts."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from assay.hosts.rented import identity as names
from assay.hosts.rented.journal import JournalEntry, RentalJournal
from assay.hosts.rented.provider import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.rented.journal import Event
    from assay.hosts.rented.provider import Provider, RentedMachine


AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class RentalContext:
    """Where rentals of one provider are looked after."""

    provider: Provider
    clock: RentalClock
    timeouts: RentalTimeouts
    journal: RentalJournal

    def say(self, text: str) -> None:
        """Tell whoever waits what is waited for."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def note(self, event: Event, job_id: str, at: datetime | None = None, **fields: Any) -> None:
        """Write an event into the journal, durably."""
        self.journal.write(
            JournalEntry(at=at or self.clock.now(), event=event, job_id=job_id, provider=self.provider.name, **fields)
        )

    def note_machine(self, event: Event, job_id: str, machine: RentedMachine) -> None:
        """Write an event about a machine into the journal."""
        self.note(event, job_id, name=machine.name, number=machine.number, usd_per_hour=machine.usd_per_hour)

    def list_machines(self, job_id: str) -> tuple[RentedMachine, ...]:
        """Return the machines of an order that the provider lists; asked once."""
        return tuple(
            machine
            for machine in self.provider.ours()
            if names.job_of_machine(machine.name) == job_id and machine.stage != "gone"
        )

    def look(self, number: str) -> RentedMachine | None:
        """Return a machine as it is; null when it is gone."""
        machine = self.provider.look(number)
        return None if machine is None or machine.stage == "gone" else machine

    def heard(self, question: Callable[[], AnswerT], within_s: float | None = None) -> AnswerT:
        """Return the answer to a question that changes nothing, asked until it is answered, or for ``within_s``.

        Raises:
            NoAnswer: For as long as a provider may be silent.
        """
        silent_s = self.timeouts.silent_at_most_s if within_s is None else within_s
        until = self.clock.now() + timedelta(seconds=silent_s)
        while True:
            try:
                return question()
            except NoAnswer:
                if self.clock.now() >= until:
                    raise
                self.clock.sleep(self.timeouts.look_s)

    def account(self) -> str | None:
        """Return what tells the account from another; null where the provider has no word for it."""
        return account_id(self.provider)


def account_id(provider: Provider) -> str | None:
    """Return what tells a provider's account from another, if it has ``account()``; never a credential."""
    get_account = getattr(provider, "account", None)
    return str(get_account()) if callable(get_account) else None


class RentalClock(Protocol):
    """What time it is, by our own clock: a provider's times are shown and never reckoned with."""

    def now(self) -> datetime:
        """Return the time of day, with its zone."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a signal may end it with `StopRequested`."""
        ...


class SystemRentalClock:
    """This machine's clock."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, seconds))


@dataclass(frozen=True)
class RentalTimeouts:
    """Seconds, unless a name says otherwise."""

    look_s: float = 5.0
    """Between two looks at a machine, or at a list."""

    appears_within_s: float = 90.0
    """A machine whose creation was never answered may turn up in a list this long after it was asked for."""

    up_within_s: float = 900.0
    """From asking for a machine to one that answers; one that takes longer is stuck."""

    gone_within_s: float = 600.0
    """From asking for a machine's end to seeing it gone."""

    ask_again_s: float = 20.0
    """An end that was asked for and is not seen is asked for again."""

    silent_at_most_s: float = 300.0
    """A provider that answers nothing for so long is given up."""

    offers_within_s: float = 15.0
    """Who only chooses, or wants to be shown something, does not wait longer for a list."""

    launches: int = 3
    """How often a machine is asked for before an order is given up, where the answers never came."""

    starts: int = 3
    """How many machines an order may have one after the other, where they are taken away or never come up."""

    picked_up: int = 3
    """How often a lost line to a machine that is still there is taken up again."""

    limit_s: float = 3600.0
    """What an order gets that names no limit."""
