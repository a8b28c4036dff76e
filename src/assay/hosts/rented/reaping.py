"""End what was rented and nobody looks after any more; safe to run at any time.

    listed, and over the deadline in its name       ended, whoever asked for it
    listed, and its order was released here         ended: it turned up late
    in the journal, not released, and no lease      ended: the lease was lost
    everything else                                 left: somebody looks after it, or its deadline will come

Anybody who has the account's key can do it, from any machine: names tell deadlines.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.values import Value
from assay.hosts import registry
from assay.hosts.rented import names
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.undo import check_account

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from assay.hosts.rented.book import Book, Rental
    from assay.hosts.rented.provider import Machine

SKEW = timedelta(minutes=5)
"""A stranger's deadline was reckoned by another clock: so much later it has surely passed."""


ALL = "its machines"
"""Where it is not known which."""


class ReapedMachine(Value):
    """What became of a machine, or of an order of which no machine is known."""

    provider: str
    machine: str
    outcome: Literal["released", "left", "failed"]
    reason: str
    asked: bool = Field(default=True, description="False: its account could not be asked, so nothing is known.")


def reap(hosts: Iterable[RentedHost], book: Book, now: datetime) -> list[ReapedMachine]:
    """End whatever the journal or a provider's list shows as ours and not looked after; say what became of each.

    Leases are released before this, by `core.leases.reap`; what has a lease still belongs to somebody who lives.
    """
    reports: list[ReapedMachine] = []
    for host in hosts:
        rentals = {rental.order: rental for rental in book.rentals() if rental.provider == host.name}
        held = {job for job in rentals if leases.taken(job)}
        lost = {job for job, rental in rentals.items() if rental.released_at is None and job not in held}
        try:
            owing = any(rental.released_at is None for rental in rentals.values())
            listed = host.desk.heard(host.provider.ours, within_s=None if owing else host.desk.pace.offers_within_s)
        except MachineCannot as error:
            what = [f"order {job}" for job in sorted(lost)] or [ALL]
            reports.extend(_failed(host, name, error, asked=False) for name in what)
            continue
        ours = [machine for machine in listed if names.order_of(machine.name) is not None]
        due = {job: why for machine in ours if (job := _order(machine)) and (why := _why(machine, rentals, held, now))}
        for job in sorted(lost):
            due.setdefault(job, "its lease is lost")
        reports.extend(_ended(host, job, why, ours, rentals.get(job)) for job, why in due.items())
        reports.extend(_left(host, machine) for machine in ours if _order(machine) not in due)
    return reports


def hosts_to_reap(book: Book) -> tuple[list[RentedHost], list[ReapedMachine]]:
    """Return the providers that can be asked, and a report on each that cannot but has something of ours."""
    hosts: list[RentedHost] = []
    reports: list[ReapedMachine] = []
    owing = {rental.provider for rental in book.rentals() if rental.released_at is None}
    for name in sorted({*registry.known(), *owing}):
        try:
            host = registry.load(name) if name in registry.known() else None
            missing = host.available() if host is not None else "it is not installed any more"
        except MachineCannot as error:
            host, missing = None, str(error).rstrip(".")
        if isinstance(host, RentedHost) and missing is None:
            hosts.append(host)
        elif name in owing:
            why = f"{name} cannot be asked from here: {missing}"
            reports.append(ReapedMachine(provider=name, machine=ALL, outcome="failed", reason=why, asked=False))
    return hosts, reports


def _order(machine: Machine) -> str:
    return names.order_of(machine.name) or ""


def _why(machine: Machine, rentals: dict[str, Rental], held: set[str], now: datetime) -> str | None:
    """Return why a machine is to be ended; null: it is not."""
    job, deadline_at = _order(machine), names.deadline_of(machine.name)
    if job in rentals and rentals[job].released_at is not None:
        return "it turned up after its order was over"
    if deadline_at is not None and deadline_at + (timedelta() if job in rentals else SKEW) <= now:
        return "its deadline has passed"
    return "its lease is lost" if job in rentals and job not in held else None


def _ended(host: RentedHost, order: str, why: str, ours: list[Machine], rental: Rental | None) -> ReapedMachine:
    numbers = [machine.number for machine in ours if _order(machine) == order]
    what = f"machine {', '.join(numbers)}" if numbers else f"order {order}"
    try:
        check_account(host, rental.account if rental else None)
        host.end_order(order)
    except MachineCannot as error:
        return _failed(host, what, error)
    return ReapedMachine(provider=host.name, machine=what, outcome="released", reason=why)


def _failed(host: RentedHost, what: str, error: MachineCannot, *, asked: bool = True) -> ReapedMachine:
    return ReapedMachine(provider=host.name, machine=what, outcome="failed", reason=str(error).rstrip("."), asked=asked)


def _left(host: RentedHost, machine: Machine) -> ReapedMachine:
    until = names.deadline_of(machine.name)
    why = f"its deadline is {until:%Y-%m-%d %H:%M} UTC" if until else "its name tells no deadline"
    return ReapedMachine(provider=host.name, machine=f"machine {machine.number}", outcome="left", reason=why)
