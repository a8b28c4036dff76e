"""The context of a rental: one provider, one journal, one clock (replaceable in tests), and the timeouts."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from assay.hosts.rented.journal import JournalEntry, RentalJournal
from assay.hosts.rented.provider import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.rented.journal import Event
    from assay.hosts.rented.provider import Provider, RentedMachine


AnswerT = TypeVar("AnswerT")


class RentalClock:
    """Our own clock; a provider's times are shown but never used in computations."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Sleep; a signal may end it with `StopRequested`."""
        time.sleep(max(0.0, seconds))


@dataclass(frozen=True)
class RentalContext:
    """What the rentals of one provider share."""

    provider: Provider
    clock: RentalClock
    timeouts: RentalTimeouts
    journal: RentalJournal

    def say(self, text: str) -> None:
        """Print a message to stderr."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def note(self, event: Event, job_id: str, machine: RentedMachine | None = None, **fields: Any) -> None:
        """Write an event of a job, or of one of its machines, to the journal, durably."""
        if machine is not None:
            fields |= {"name": machine.name, "number": machine.number, "usd_per_hour": machine.usd_per_hour}
        self.journal.write(
            JournalEntry(at=self.clock.now(), event=event, job_id=job_id, provider=self.provider.name, **fields)
        )

    def list_machines(self, job_id: str) -> dict[str, RentedMachine]:
        """Return the machines of a job that the provider lists, by id; retried until it answers."""
        listed = self.query(self.provider.list_ours)
        return {machine.number: machine for machine in listed if machine.job_id == job_id and machine.stage != "gone"}

    def find_machine(self, number: str) -> RentedMachine | None:
        """Return a machine's current state; null when it is gone; retried until the provider answers."""
        machine = self.query(lambda: self.provider.find(number))
        return None if machine is None or machine.stage == "gone" else machine

    def query(self, question: Callable[[], AnswerT], within_s: float | None = None) -> AnswerT:
        """Return the answer to a query without side effects, retried until it is answered, for ``within_s`` at most.

        Raises:
            NoAnswer: The provider did not answer in that time, or in ``silent_at_most_s`` where it is null.
        """
        timeout_s = self.timeouts.silent_at_most_s if within_s is None else within_s
        until = self.clock.now() + timedelta(seconds=timeout_s)
        while True:
            try:
                return question()
            except NoAnswer:
                if self.clock.now() >= until:
                    raise
                self.clock.sleep(self.timeouts.look_s)


@dataclass(frozen=True)
class RentalTimeouts:
    """Timeouts, intervals and numbers of attempts."""

    look_s: float = 5.0
    """Polling interval for a machine or a list."""

    appears_within_s: float = 90.0
    """A machine whose creation was never answered may still appear in a list this long after its request."""

    up_within_s: float = 900.0
    """From the request until the machine answers; one that takes longer is stuck."""

    gone_within_s: float = 600.0
    """From the termination request until the machine is confirmed gone."""

    ask_again_s: float = 20.0
    """Interval for repeating a termination request while the machine is still there."""

    silent_at_most_s: float = 300.0
    """Give up on a provider that does not answer for this long."""

    offers_within_s: float = 15.0
    """Longest wait for a list that only serves a choice or a display."""

    launches: int = 3
    """Requests for a machine before a job fails, where the answers never came."""

    starts: int = 3
    """Machines that a job may use in succession, where they are preempted or never come up."""

    picked_up: int = 3
    """Reconnections after a lost connection to a machine that is still there."""

    limit_s: float = 3600.0
    """Default time limit of a job."""
