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
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.lifecycle import terminate_all
from assay.hosts.rented.provider import deadline_of_machine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from assay.hosts.rented.journal import RentalJournal, RentalRecord
    from assay.hosts.rented.provider import RentedMachine


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


def undo_rental(provider: str, job_id: str, account: str | None = None) -> None:
    """Terminate every machine of a job and confirm that it is gone; idempotent, and safe if none was ever created.

    Raises:
        MachineCannot: A machine is still there, the provider does not answer or is no longer known, or the credentials
            are missing or not those it was rented with.
    """
    host = registry.load_host(provider) if provider in registry.known_hosts() else None
    if not isinstance(host, RentedHost):
        raise MachineCannot(f"There is no provider {provider} here any more.")
    missing = host.available()
    if missing is not None:
        raise MachineCannot(f"{provider} cannot be queried from here: {missing}.")
    _terminate_job(host, job_id, account)


def _terminate_job(host: RentedHost, job_id: str, account: str | None) -> None:
    """Terminate a job's machines, if the credentials are its account's: another account's empty list proves nothing."""
    if account is not None and account != host.provider.account():
        raise MachineCannot(f"it was rented from {host.name} with another key or at another address than are set here")
    terminate_all(host.context, job_id)


def reap_machines(hosts: Iterable[RentedHost], journal: RentalJournal, now: datetime) -> list[ReapedMachine]:
    """Terminate every abandoned machine of ours in the journal or a provider's list; report each outcome.

    `core.leases.reap` releases leases before this, so a job that still has a lease belongs to a live process.
    """
    reports: list[ReapedMachine] = []
    for host in hosts:
        rentals = {rental.job_id: rental for rental in journal.rentals() if rental.provider == host.name}
        held = {job for job in rentals if leases.lease_exists(job)}
        lost = {job for job, rental in rentals.items() if rental.released_at is None and job not in held}
        has_open = any(rental.released_at is None for rental in rentals.values())
        within_s = None if has_open else host.context.timeouts.offers_within_s
        try:
            listed = host.context.query(host.provider.list_ours, within_s=within_s)
        except MachineCannot as error:
            labels = [f"job {job}" for job in sorted(lost)] or [ALL_MACHINES]
            reports += [_failure(host.name, label, str(error), queried=False) for label in labels]
            continue
        ours = [(job, machine) for machine in listed if (job := machine.job_id) is not None]
        due = {job: why for job, machine in ours if (why := _reason_to_end(job, machine, rentals.get(job), held, now))}
        due |= dict.fromkeys(sorted(lost - due.keys()), "its lease is lost")
        for job, why in due.items():
            numbers = [machine.number for owner, machine in ours if owner == job]
            label = f"machine {', '.join(numbers)}" if numbers else f"job {job}"
            reports.append(_reap_job(host, job, label, why, rentals.get(job)))
        reports += [_still_rented(host.name, machine) for job, machine in ours if job not in due]
    return reports


def _reason_to_end(
    job: str, machine: RentedMachine, rental: RentalRecord | None, held: set[str], now: datetime
) -> str | None:
    """Return why a machine must be terminated; null: it is to be kept."""
    if rental is not None and rental.released_at is not None:
        return "it appeared after its job was over"
    deadline_at = deadline_of_machine(machine.name)
    if deadline_at is not None and deadline_at + (SKEW if rental is None else timedelta()) <= now:
        return "its deadline has passed"
    return "its lease is lost" if rental is not None and job not in held else None


def _reap_job(host: RentedHost, job: str, label: str, why: str, rental: RentalRecord | None) -> ReapedMachine:
    try:
        _terminate_job(host, job, rental.account if rental else None)
    except MachineCannot as error:
        return _failure(host.name, label, str(error))
    return ReapedMachine(provider=host.name, machine=label, outcome="released", reason=why)


def _failure(provider: str, label: str, why: str, *, queried: bool = True) -> ReapedMachine:
    return ReapedMachine(provider=provider, machine=label, outcome="failed", reason=why.rstrip("."), queried=queried)


def _still_rented(provider: str, machine: RentedMachine) -> ReapedMachine:
    until = deadline_of_machine(machine.name)
    why = f"its deadline is {until:%Y-%m-%d %H:%M} UTC" if until else "its name has no deadline"
    return ReapedMachine(provider=provider, machine=f"machine {machine.number}", outcome="left", reason=why)


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
            host, missing = None, str(error)
        if isinstance(host, RentedHost) and missing is None:
            hosts.append(host)
        elif name in with_open_rentals:
            why = f"{name} cannot be queried from here: {missing}"
            reports.append(_failure(name, ALL_MACHINES, why, queried=False))
    return hosts, reports
