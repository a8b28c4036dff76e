"""Terminate abandoned rented machines.

Called by the guardian or by `assay reap`; safe at any time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.values import Value
from assay.hosts import registry
from assay.hosts.rented import provider as names
from assay.hosts.rented.context import account_id
from assay.hosts.rented.host import RentedHost

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from assay.hosts.rented.journal import RentalJournal, RentalRecord
    from assay.hosts.rented.provider import RentedMachine


def undo_rental(provider: str, job_id: str, account: str | None = None) -> None:
    """Terminate every machine of a job and confirm that it is gone; idempotent, and safe if none was ever created.

    Raises:
        MachineCannot: A machine is still there, the provider does not answer, or the credentials are not those it
            was rented with.
    """
    host = renting_host(provider)
    check_account(host, account)
    host.end_order(job_id)


def renting_host(provider: str) -> RentedHost:
    """Return a provider's host, if it can be used from here.

    Raises:
        MachineCannot: The provider is no longer known, or its credentials are missing.
    """
    host = registry.load_host(provider) if provider in registry.known_hosts() else None
    if not isinstance(host, RentedHost):
        raise MachineCannot(f"There is no provider {provider} here any more.")
    missing = host.available()
    if missing is not None:
        raise MachineCannot(f"{provider} cannot be asked from here: {missing}.")
    return host


def check_account(host: RentedHost, account: str | None) -> None:
    """Check that the credentials belong to a rental's account: an empty list of another account proves nothing.

    Raises:
        MachineCannot: The credentials or the address are those of another account.
    """
    if account is not None and account != account_id(host.provider):
        raise MachineCannot(f"it was rented from {host.name} with another key or at another address than are set here")


SKEW = timedelta(minutes=5)
"""Tolerance for deadlines computed on another machine's clock: this much later, one has certainly passed."""


ALL_MACHINES = "its machines"
"""Used in reports where the machines are not known."""


class ReapedMachine(Value):
    """The outcome for a machine, or for a job without known machines."""

    provider: str
    machine: str
    outcome: Literal["released", "left", "failed"]
    reason: str
    queried: bool = Field(default=True, description="False: its account could not be queried, so nothing is known.")


def reap_machines(hosts: Iterable[RentedHost], journal: RentalJournal, now: datetime) -> list[ReapedMachine]:
    """Terminate every abandoned machine of ours in the journal or a provider's list; report each outcome.

    `core.leases.reap` releases leases before this, so a job that still has a lease belongs to a live process.
    """
    reports: list[ReapedMachine] = []
    for host in hosts:
        rentals = {rental.job_id: rental for rental in journal.rentals() if rental.provider == host.name}
        held = {job for job in rentals if leases.lease_exists(job)}
        lost = {job for job, rental in rentals.items() if rental.released_at is None and job not in held}
        try:
            has_open = any(rental.released_at is None for rental in rentals.values())
            listed = host.context.heard(
                host.provider.ours, within_s=None if has_open else host.context.timeouts.offers_within_s
            )
        except MachineCannot as error:
            labels = [f"order {job}" for job in sorted(lost)] or [ALL_MACHINES]
            reports.extend(_failure(host, label, error, queried=False) for label in labels)
            continue
        ours = [machine for machine in listed if names.job_of_machine(machine.name) is not None]
        due = {
            job: why
            for machine in ours
            if (job := _reap_job(machine)) and (why := _reason_to_end(machine, rentals, held, now))
        }
        for job in sorted(lost):
            due.setdefault(job, "its lease is lost")
        reports.extend(_reap_machine(host, job, why, ours, rentals.get(job)) for job, why in due.items())
        reports.extend(_still_rented(host, machine) for machine in ours if _reap_job(machine) not in due)
    return reports


def hosts_to_reap(journal: RentalJournal) -> tuple[list[RentedHost], list[ReapedMachine]]:
    """Return the providers that can be queried, and a report on each that cannot but has open rentals of ours."""
    hosts: list[RentedHost] = []
    reports: list[ReapedMachine] = []
    with_open_rentals = {rental.provider for rental in journal.rentals() if rental.released_at is None}
    for name in sorted({*registry.known_hosts(), *with_open_rentals}):
        try:
            host = registry.load_host(name) if name in registry.known_hosts() else None
            missing = host.available() if host is not None else "it is not installed any more"
        except MachineCannot as error:
            host, missing = None, str(error).rstrip(".")
        if isinstance(host, RentedHost) and missing is None:
            hosts.append(host)
        elif name in with_open_rentals:
            why = f"{name} cannot be asked from here: {missing}"
            reports.append(
                ReapedMachine(provider=name, machine=ALL_MACHINES, outcome="failed", reason=why, queried=False)
            )
    return hosts, reports


def _reap_job(machine: RentedMachine) -> str:
    return names.job_of_machine(machine.name) or ""


def _reason_to_end(
    machine: RentedMachine, rentals: dict[str, RentalRecord], held: set[str], now: datetime
) -> str | None:
    """Return why a machine must be terminated; null: it is to be kept."""
    job, deadline_at = _reap_job(machine), names.deadline_of_machine(machine.name)
    if job in rentals and rentals[job].released_at is not None:
        return "it turned up after its order was over"
    if deadline_at is not None and deadline_at + (timedelta() if job in rentals else SKEW) <= now:
        return "its deadline has passed"
    return "its lease is lost" if job in rentals and job not in held else None


def _reap_machine(
    host: RentedHost, job_id: str, why: str, ours: list[RentedMachine], rental: RentalRecord | None
) -> ReapedMachine:
    numbers = [machine.number for machine in ours if _reap_job(machine) == job_id]
    label = f"machine {', '.join(numbers)}" if numbers else f"order {job_id}"
    try:
        check_account(host, rental.account if rental else None)
        host.end_order(job_id)
    except MachineCannot as error:
        return _failure(host, label, error)
    return ReapedMachine(provider=host.name, machine=label, outcome="released", reason=why)


def _failure(host: RentedHost, label: str, error: MachineCannot, *, queried: bool = True) -> ReapedMachine:
    return ReapedMachine(
        provider=host.name, machine=label, outcome="failed", reason=str(error).rstrip("."), queried=queried
    )


def _still_rented(host: RentedHost, machine: RentedMachine) -> ReapedMachine:
    until = names.deadline_of_machine(machine.name)
    why = f"its deadline is {until:%Y-%m-%d %H:%M} UTC" if until else "its name tells no deadline"
    return ReapedMachine(provider=host.name, machine=f"machine {machine.number}", outcome="left", reason=why)
