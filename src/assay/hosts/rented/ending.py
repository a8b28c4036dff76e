"""End every machine of an order, and see it gone.

    list by name ─▶ ask each to end ─▶ look again ─▶ gone? ─▶ released is written down
         ▲                                │ no
         └────────────────────────────────┘ ask again after a while; a terminate that was not heard is no matter

What is ended is whatever bears the order's name, not what an answer once named: a launch whose answer never came, or
that was made twice, is among it. While such a machine may still turn up, an empty list proves nothing: it is looked at
again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts.rented import keys
from assay.hosts.rented.provider import Machine, Unanswered

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.rented.book import Rental
    from assay.hosts.rented.desk import Desk


ASKED_WITHIN_S = 1200.0
"""A request for a machine has ended after this long, however often the provider asked for patience."""


def end_all(desk: Desk, order: str) -> None:
    """End all of an order and return when it was seen gone; safe from any process, and any number of times.

    Raises:
        MachineCannot: Something is still there, or the provider does not answer.
    """
    _End(desk, order, desk.book.rental(order)).until_gone()
    finish(desk, order)


def finish(desk: Desk, order: str) -> None:
    """Put away what belongs to an order of which nothing is left, and write down that it is released."""
    tidy = getattr(desk.provider, "tidy", None)
    if callable(tidy):
        desk.heard(lambda: tidy(order))
    keys.remove(order)
    desk.note("released", order)
    note_billed(desk, order)


def note_billed(desk: Desk, order: str) -> None:
    """Write down what the provider says that the machines of an order have cost, where it says so by now."""
    rental = desk.book.rental(order)
    for rented in rental.machines if rental else ():
        if rented.billed_usd is None:
            machine = Machine(name=rented.name or "", number=rented.number, stage="gone", since=rented.made_at)
            with suppress(MachineCannot):
                usd = desk.provider.billed_usd(machine)
                if usd is not None:
                    desk.note("billed", order, number=rented.number, usd=usd)


def _made_by(rental: Rental | None, now: datetime) -> datetime:
    """Return by when whatever was asked for was made.

    Where it is not known how the last request ended, because whoever sent it was stopped or killed meanwhile: by now,
    or by when a request has ended at the latest.
    """
    if rental is None or rental.asked_at is None:
        return now
    if rental.heard_at is not None and rental.heard_at >= rental.asked_at:
        return min(now, rental.heard_at)
    return min(now, rental.asked_at + timedelta(seconds=ASKED_WITHIN_S))


@dataclass
class _End:
    desk: Desk
    order: str
    rental: Rental | None
    known: set[str] = field(default_factory=set)
    """Numbers of all machines that the order ever had."""

    open: set[str] = field(default_factory=set)
    """Those that were not yet seen gone."""

    seen: set[str] = field(default_factory=set)
    """Those that the provider has shown since: if it shows them no more, they are gone."""

    asked: dict[str, datetime] = field(default_factory=dict)
    complaint: str = ""

    def until_gone(self) -> None:
        context, rental = self.desk, self.rental
        begun = context.clock.now()
        machines = rental.machines if rental else ()
        self.known = {machine.number for machine in machines}
        self.open = {machine.number for machine in machines if machine.ended_at is None}
        self.seen = {machine.number for machine in machines if machine.up_at is not None}
        settled_at = _made_by(rental, begun) + timedelta(seconds=context.pace.appears_within_s)
        give_up_at = max(begun, settled_at) + timedelta(seconds=context.pace.gone_within_s)
        announced = False
        while True:
            there = self._look()
            now = context.clock.now()
            settled = now >= settled_at
            self._note_gone(there, settled=settled)
            if not self.open and (settled or not self._unanswered()):
                if announced:
                    context.say(f"{context.provider.name}: {self._became()}.")
                return
            if now >= give_up_at:
                raise MachineCannot(self._still_there(there))
            if not announced and not self.open and rental is not None:
                announced = True
                left_s = (settled_at - now).total_seconds() + context.pace.look_s
                context.say(
                    f"{context.provider.name} was asked for a machine, and its answer was not heard: it is looked for, "
                    f"for {left_s:.0f} s at most."
                )
            self._ask(now)
            context.clock.sleep(context.pace.look_s)

    def _unanswered(self) -> bool:
        """Whether a request may have made a machine that was never seen."""
        return self.rental is None or self.rental.asked - self.rental.refused > len(self.known)

    def _became(self) -> str:
        """Say what became of a request whose answer was not heard."""
        before = {machine.number for machine in self.rental.machines} if self.rental else set()
        late = sorted(self.known - before)
        return f"machine {', '.join(late)} turned up and is gone" if late else "no machine turned up"

    def _look(self) -> dict[str, Machine]:
        context = self.desk
        there = {machine.number: machine for machine in context.heard(lambda: context.mine(self.order))}
        for number in there.keys() - self.known:
            context.note_machine("made", self.order, there[number])
        self.known |= there.keys()
        self.open |= there.keys()
        for number in sorted(self.open - there.keys()):
            machine = context.heard(lambda number=number: context.look(number))  # type: ignore[misc]
            if machine is not None:
                there[number] = machine
        self.seen |= there.keys()
        return there

    def _note_gone(self, there: dict[str, Machine], *, settled: bool) -> None:
        for number in sorted(self.open - there.keys()):
            if number in self.seen or settled:
                self.open.discard(number)
                self.desk.note("ended", self.order, number=number)

    def _ask(self, now: datetime) -> None:
        for number in sorted(self.open):
            last = self.asked.get(number)
            if last is None or (now - last).total_seconds() >= self.desk.pace.ask_again_s:
                self.asked[number] = now
                try:
                    self.desk.provider.end(number)
                except Unanswered:
                    pass
                except MachineCannot as error:
                    self.complaint = f"; {str(error).rstrip('.')}"

    def _still_there(self, there: dict[str, Machine]) -> str:
        machines = ", ".join(f"{number} ({there[number].said or there[number].stage})" for number in sorted(there))
        return f"{self.desk.provider.name} still has {machines or 'machines that it does not show'}{self.complaint}"
