"""Terminate every machine of a job, and confirm that it is gone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts.rented import identity
from assay.hosts.rented.provider import NoAnswer, RentedMachine

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.rented.context import RentalContext
    from assay.hosts.rented.journal import RentalRecord


ASKED_WITHIN_S = 1200.0
"""By this time a request for a machine has ended, however often the provider's rate limit delayed it."""


def terminate_all(context: RentalContext, job_id: str) -> None:
    """Terminate all machines of a job and return once they are confirmed gone; idempotent, from any process.

    Raises:
        MachineCannot: Something is still there, or the provider does not answer.
    """
    _Termination(context, job_id, context.journal.rental(job_id)).until_gone()
    release_job(context, job_id)


def release_job(context: RentalContext, job_id: str) -> None:
    """Remove the keys and the rest of a job whose machines are gone, and record that it is released."""
    tidy = getattr(context.provider, "tidy", None)
    if callable(tidy):
        context.heard(lambda: tidy(job_id))
    identity.remove_keys(job_id)
    context.note("released", job_id)
    record_billed(context, job_id)


def record_billed(context: RentalContext, job_id: str) -> None:
    """Record the billed cost of a job's machines, as far as the provider reports it by now."""
    rental = context.journal.rental(job_id)
    for rented in rental.machines if rental else ():
        if rented.billed_usd is None:
            machine = RentedMachine(name=rented.name or "", number=rented.number, stage="gone", since=rented.made_at)
            with suppress(MachineCannot):
                usd = context.provider.billed_usd(machine)
                if usd is not None:
                    context.note("billed", job_id, number=rented.number, usd=usd)


def _made_before(rental: RentalRecord | None, now: datetime) -> datetime:
    """Return the latest time at which a request of this rental can have created a machine.

    If the outcome of the last request is not recorded, because its process was stopped or killed meanwhile, that is
    now, or the latest time at which a request ends.
    """
    if rental is None or rental.asked_at is None:
        return now
    if rental.heard_at is not None and rental.heard_at >= rental.asked_at:
        return min(now, rental.heard_at)
    return min(now, rental.asked_at + timedelta(seconds=ASKED_WITHIN_S))


@dataclass
class _Termination:
    context: RentalContext
    job_id: str
    rental: RentalRecord | None
    numbers: set[str] = field(default_factory=set)
    """Ids of all machines that the job ever had."""

    open: set[str] = field(default_factory=set)
    """Those that are not confirmed gone yet."""

    seen_gone: set[str] = field(default_factory=set)
    """Those that the provider has listed before: once it no longer lists them, they are gone."""

    requested: dict[str, datetime] = field(default_factory=dict)
    complaint: str = ""

    def until_gone(self) -> None:
        context, rental = self.context, self.rental
        started_at = context.clock.now()
        machines = rental.machines if rental else ()
        self.numbers = {machine.number for machine in machines}
        self.open = {machine.number for machine in machines if machine.ended_at is None}
        self.seen_gone = {machine.number for machine in machines if machine.up_at is not None}
        settled_at = _made_before(rental, started_at) + timedelta(seconds=context.timeouts.appears_within_s)
        give_up_at = max(started_at, settled_at) + timedelta(seconds=context.timeouts.gone_within_s)
        announced = False
        while True:
            present = self._look()
            now = context.clock.now()
            settled = now >= settled_at
            self._note_gone(present, settled=settled)
            if not self.open and (settled or not self._unanswered()):
                if announced:
                    context.say(f"{context.provider.name}: {self._late_machines_text()}.")
                return
            if now >= give_up_at:
                raise MachineCannot(self._still_there_text(present))
            if not announced and not self.open and rental is not None:
                announced = True
                left_s = (settled_at - now).total_seconds() + context.timeouts.look_s
                context.say(
                    f"{context.provider.name} was asked for a machine, and its answer was not heard: it is looked for, "
                    f"for {left_s:.0f} s at most."
                )
            self._ask(now)
            context.clock.sleep(context.timeouts.look_s)

    def _unanswered(self) -> bool:
        """Return whether a request may have created a machine that was never listed."""
        return self.rental is None or self.rental.request_count - self.rental.refused > len(self.numbers)

    def _late_machines_text(self) -> str:
        """Return what came of a request that was never answered."""
        before = {machine.number for machine in self.rental.machines} if self.rental else set()
        late = sorted(self.numbers - before)
        return f"machine {', '.join(late)} turned up and is gone" if late else "no machine turned up"

    def _look(self) -> dict[str, RentedMachine]:
        context = self.context
        present = {machine.number: machine for machine in context.heard(lambda: context.list_machines(self.job_id))}
        for number in present.keys() - self.numbers:
            context.note_machine("made", self.job_id, present[number])
        self.numbers |= present.keys()
        self.open |= present.keys()
        for number in sorted(self.open - present.keys()):
            machine = context.heard(lambda number=number: context.look(number))  # type: ignore[misc]
            if machine is not None:
                present[number] = machine
        self.seen_gone |= present.keys()
        return present

    def _note_gone(self, present: dict[str, RentedMachine], *, settled: bool) -> None:
        for number in sorted(self.open - present.keys()):
            if number in self.seen_gone or settled:
                self.open.discard(number)
                self.context.note("ended", self.job_id, number=number)

    def _ask(self, now: datetime) -> None:
        for number in sorted(self.open):
            last = self.requested.get(number)
            if last is None or (now - last).total_seconds() >= self.context.timeouts.ask_again_s:
                self.requested[number] = now
                try:
                    self.context.provider.end(number)
                except NoAnswer:
                    pass
                except MachineCannot as error:
                    self.complaint = f"; {str(error).rstrip('.')}"

    def _still_there_text(self, present: dict[str, RentedMachine]) -> str:
        machines = ", ".join(
            f"{number} ({present[number].status_text or present[number].stage})" for number in sorted(present)
        )
        return f"{self.context.provider.name} still has {machines or 'machines that it does not show'}{self.complaint}"
