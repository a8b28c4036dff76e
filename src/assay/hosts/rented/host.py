"""A provider of rented machines as a host: the seven rules, the same for every provider.

create   offers of this moment ─▶ budget ─▶ lease, intent ─▶ key ─▶ ask, once
run      up? ─▶ its own deadline ─▶ the order there ─▶ the run folder comes back
           └ taken away, or stuck: ended, seen gone, and begun anew on another machine, within the same budget
release  whatever bears the order's name is ended, and seen gone
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from assay.core import leases
from assay.core.errors import BudgetEnded, MachineCannot, StopRequested
from assay.hosts.base import NAME_PREFIX, Loan, Progress
from assay.hosts.remote.line import LineLost
from assay.hosts.rented import affording, budget, keys, names, offering
from assay.hosts.rented.asking import ask_for
from assay.hosts.rented.book import Book
from assay.hosts.rented.clock import SystemClock
from assay.hosts.rented.desk import Desk
from assay.hosts.rented.ending import end_all, finish
from assay.hosts.rented.pace import Pace
from assay.hosts.rented.provider import NoCapacity, Wish
from assay.hosts.rented.starting import Taken, when_up

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from assay.core.leases import Lease
    from assay.hosts.base import Ended, Offer, Order, Watcher
    from assay.hosts.remote.line import Line
    from assay.hosts.rented.clock import Clock
    from assay.hosts.rented.provider import Machine, Provider


class Work(Protocol):
    """What is done over a line: `hosts.remote.work`, or a test's stand-in."""

    def run(self, line: Line, order: Order, watcher: Watcher) -> Ended:
        """Have an order run there to its end."""
        ...

    def collect(self, line: Line, order: Order) -> tuple[Path, ...]:
        """Bring its run folder here."""
        ...

    def arm(self, line: Line, deadline_at: datetime) -> None:
        """Make the machine keep its own deadline."""
        ...


@dataclass
class Held:
    """An order that has machines now."""

    order: Order
    lease: Lease
    deadline_at: datetime
    machine: Machine | None = None
    offer: Offer | None = None
    starts: int = 0
    lines: list[Line] = field(default_factory=list)
    folders: tuple[Path, ...] = ()


class RentedHost:
    """Machines of one provider, by the hour: ``HOST = RentedHost(MyProvider())`` is all that its file has to add."""

    options = frozenset({"gpu_type", "image", "max_cost", "ship", "time", "remote_python"})

    def __init__(
        self,
        provider: Provider,
        *,
        clock: Clock | None = None,
        pace: Pace | None = None,
        book: Book | None = None,
        work: Work | None = None,
    ) -> None:
        """Say whose machines; the rest is handed in by tests."""
        self.provider = provider
        self.name = provider.name
        if not getattr(provider, "images", True):
            self.options = self.options - {"image"}
        self.refuses: dict[str, str] = dict(getattr(provider, "refuses", {}))
        self.desk = Desk(provider, clock or SystemClock(), pace or Pace(), book or Book())
        self._work = work
        self._held: dict[str, Held] = {}

    def available(self) -> str | None:
        """Return which credential is missing; null when none is."""
        return self.provider.missing()

    def offers(self) -> tuple[Offer, ...]:
        """Return what can be had now, with the price of this moment; a silent provider is not waited for long."""
        return self.desk.heard(self.provider.offers, within_s=self.desk.pace.offers_within_s)

    def script(self, order: Order) -> str:
        """Return what would be rented, for how much and until when; nothing is."""
        offer = offering.candidates(self.name, self.offers(), order)[0]
        seconds = affording.limit_s(self.desk, order, offer)
        price = "a price that is not told" if offer.usd_per_hour is None else f"${offer.usd_per_hour:.2f} an hour"
        most = "" if offer.usd_per_hour is None else f", at most ${budget.at_most_usd(offer.usd_per_hour, seconds):.2f}"
        why_not = affording.why_not(self.desk, order, offer, seconds)
        return (
            f"# rent {offer.gpu or offer.name} from {self.name}{f' in {offer.region}' if offer.region else ''} "
            f"for {price}{most} in {seconds / 60:.0f} min\n"
            f"# image {order.image or self.provider.default_image}\n"
            f"assay {' '.join(order.words)}\n# bring the run back, end the machine, see it gone\n"
            + (f"# not now: {why_not}\n" if why_not else "")
        )

    def create(self, order: Order) -> Loan:
        """Rent what the order needs; its lease and its intent are on disk before anything is asked for."""
        offers = offering.candidates(self.name, self.desk.heard(self.provider.offers), order)
        held = Held(order, *affording.intend(self.desk, order, offers[0]))
        try:
            self._ask(held, offers)
        except BaseException as error:
            self._give_up(held, error)
            raise
        return self._loan(held)

    def run(self, loan: Loan, order: Order, watcher: Watcher) -> Ended:
        """Have the order run there, and bring its run back; on another machine if this one is taken away."""
        held = self._held[loan.name]
        while True:
            try:
                return self._run_once(held, watcher)
            except Taken as reclaimed:
                watcher.progress(Progress(state="waits", what=f"{reclaimed}; beginning anew"))
                self._start_again(held, reclaimed)

    def collect(self, loan: Loan, order: Order) -> tuple[Path, ...]:
        """Return the run folder, which came back while the machine was known to be there."""
        return self._held[loan.name].folders

    def release(self, loan: Loan) -> None:
        """End every machine of the order, and see it gone; a signal meanwhile does not keep us from that."""
        job = names.order_of(loan.name) or loan.name.removeprefix(NAME_PREFIX)
        self._end(job, self._held.pop(loan.name, None))

    def list_ours(self) -> tuple[Loan, ...]:
        """Return every machine there that bears a name of ours, whoever asked for it."""
        rentals = {rental.order: rental for rental in self.desk.book.rentals()}
        own_rentals: list[Loan] = []
        for machine in self.desk.heard(self.provider.ours, within_s=self.desk.pace.offers_within_s):
            job = names.order_of(machine.name)
            if job is None or machine.stage == "gone":
                continue
            rental = rentals.get(job)
            price = machine.usd_per_hour if machine.usd_per_hour is not None else rental and rental.usd_per_hour
            own_rentals.append(
                Loan(
                    host=self.name,
                    name=machine.name,
                    number=machine.number,
                    state=machine.said or machine.stage,
                    gpu=rental.gpu if rental else None,
                    usd_per_hour=price,
                    since=rental.begun_at if rental else machine.since,
                    deadline_at=names.deadline_of(machine.name),
                )
            )
        return tuple(own_rentals)

    def end_order(self, order: str) -> None:
        """End every machine of an order, from whatever process, and see it gone."""
        end_all(self.desk, order)

    def _ask(self, held: Held, offers: tuple[Offer, ...]) -> None:
        """Ask for a machine, offer after offer where there is none free, and own it."""
        job = held.order
        self._held[job.name] = held
        held.starts += 1
        key = keys.make(job.id) if getattr(self.provider, "keyed", False) else None
        for offer in offers:
            affording.check(self.desk, job, offer, held.deadline_at)
            request = Wish(
                name=names.machine_name(job.id, held.starts, held.deadline_at),
                offer=offer,
                image=job.image or self.provider.default_image,
                deadline_at=held.deadline_at,
                public_key=key,
            )
            try:
                held.machine, held.offer = ask_for(self.desk, job.id, request), offer
            except NoCapacity:
                if offer is offers[-1]:
                    raise
            else:
                affording.check(self.desk, job, offer, held.deadline_at, held.machine.usd_per_hour)
                return

    def _loan(self, held: Held) -> Loan:
        machine = held.machine
        if machine is None or held.offer is None:
            raise AssertionError("asked for and answered")
        return Loan(
            host=self.name,
            name=held.order.name,
            number=machine.number,
            state=machine.said,
            gpu=held.offer.gpu,
            usd_per_hour=machine.usd_per_hour if machine.usd_per_hour is not None else held.offer.usd_per_hour,
            since=self.desk.clock.now(),
            deadline_at=held.deadline_at,
        )

    def _give_up(self, held: Held, error: BaseException) -> None:
        """End whatever came of an order that failed while it was asked for."""
        self._held.pop(held.order.name, None)
        try:
            self._end(held.order.id, held)
        except Exception as failure:
            raise failure from error

    def _run_once(self, held: Held, watcher: Watcher) -> Ended:
        """Run the order on the machine that it has now.

        Raises:
            Taken: The machine was taken away, or never came up.
        """
        job, rental = held.order, self._loan(held)
        for left in reversed(range(self.desk.pace.picked_up + 1)):
            machine, connection = when_up(self.desk, job.id, rental.number, held.deadline_at, watcher)
            held.lines.append(connection)
            self.desk.note("up", job.id, name=machine.name, number=machine.number)
            if held.offer is not None:
                affording.check(self.desk, job, held.offer, held.deadline_at, machine.usd_per_hour)
            self._tell_up(held, machine, watcher)
            try:
                if not (held.offer and held.offer.ends_itself):
                    self._worker().arm(connection, held.deadline_at)
                ended = self._worker().run(connection, job, watcher)
                held.folders = self._worker().collect(connection, job)
            except LineLost:
                if not left:
                    raise
            else:
                return ended
        raise AssertionError("the last try returns or raises")

    def _tell_up(self, held: Held, machine: Machine, watcher: Watcher) -> None:
        price = (
            "" if held.offer is None or held.offer.usd_per_hour is None else f", ${held.offer.usd_per_hour:.2f} an hour"
        )
        kind = held.offer.gpu if held.offer and held.offer.gpu else machine.said
        where = f"{self.name} machine {machine.number}"
        watcher.progress(Progress(state="runs", what=f"{where} ({kind}{price}) is up", nodes=(where,)))

    def _start_again(self, held: Held, taken: Taken) -> None:
        """Get another machine for an order from its beginning; its deadline and its budget stay what they were."""
        if held.starts >= self.desk.pace.starts:
            raise MachineCannot(f"{taken}, and so were {held.starts - 1} before; it is given up.") from taken
        end_all(self.desk, held.order.id)
        seconds = (held.deadline_at - self.desk.clock.now()).total_seconds()
        if seconds < budget.LEAST_USEFUL_S:
            raise BudgetEnded(f"{taken}, and before the deadline there is no time for another") from taken
        offers = offering.candidates(self.name, self.desk.heard(self.provider.offers), held.order)
        affording.note_intent(self.desk, held.order, offers[0], held.deadline_at)
        self._ask(held, offers)

    def _end(self, order: str, held: Held | None) -> None:
        """End an order, and its lease with it; a signal meanwhile counts only once that is done."""
        try:
            self._end_now(order, held)
        except StopRequested:
            self._end_now(order, held)
            raise

    def _end_now(self, order: str, held: Held | None) -> None:
        """End an order, see it gone, and forget its lease; a failure leaves the lease to `assay reap`."""
        rental = self.desk.book.rental(order)
        try:
            if rental is not None and rental.asked == rental.refused:
                finish(self.desk, order)
            elif rental is None or rental.released_at is None:
                end_all(self.desk, order)
        except MachineCannot as error:
            raise MachineCannot(f"{str(error).rstrip('.')}; `assay reap` tries again.") from error
        for line in held.lines if held else ():
            close = getattr(line, "close", None)
            if callable(close):
                close()
        if held is not None:
            leases.forget(held.lease)

    def _worker(self) -> Work:
        if self._work is None:
            from assay.hosts.rented.over_a_line import OverALine

            self._work = OverALine()
        return self._work
