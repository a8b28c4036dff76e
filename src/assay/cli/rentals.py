"""``assay rentals`` and ``assay reap``: what is rented now and what it costs; clean up after crashed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from assay.cli import show
from assay.cli.flags import JsonFlags, verb

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.base import Rental
    from assay.hosts.rented.cleanup import ReapedMachine
    from assay.hosts.rented.journal import RentalJournal


@verb("rentals", JsonFlags)
def show_rentals(flags: JsonFlags) -> int:
    """List rented machines, since when and until when, and their quoted and billed cost.

    Asks every provider whose credentials are set; ended rentals of this month come from the journal. `assay reap` ends
    abandoned machines.
    """
    from datetime import UTC, datetime

    from assay.hosts.rented import budget
    from assay.hosts.rented.journal import RentalJournal
    from assay.hosts.rented.rentals_page import rental_rows, rentals_page
    from assay.reports.terminal import print_page

    journal, now, monthly = RentalJournal(), datetime.now(UTC), budget.monthly_usd()
    loans, notes = _query_providers(journal, now)
    unasked = tuple(name for name, listed in loans.items() if listed is None)
    rentals = journal.rentals()
    if journal.unreadable:
        notes.append(f"{journal.unreadable} lines of {journal.path} cannot be read")
    rows, spent = rental_rows(rentals, loans, now), budget.spent_usd(rentals, now)
    if flags.as_json:
        month = {"spent_usd": round(spent, 4), "budget_usd": monthly}
        result = {"schema": 1, "rentals": [row.as_json() for row in rows], "month": month, "notes": notes}
        show.print_json(result)
    elif rows:
        print_page(rentals_page(rows, spent, monthly, notes, unasked), show.console(stderr=False))
    elif unasked:
        click.echo(f"Whether anything is rented is not known: {'; '.join(notes)}.")
    else:
        click.echo("Nothing is rented, and nothing was in this month.")
        for note in notes:
            click.echo(note, err=True)
    return 0


def _query_providers(journal: RentalJournal, now: datetime) -> tuple[dict[str, tuple[Rental, ...] | None], list[str]]:
    """Return what each provider that can be asked lists, bills taken down on the way; and what cannot be known."""
    from assay.core.errors import MachineCannot
    from assay.hosts.rented.cleanup import hosts_to_reap
    from assay.hosts.rented.lifecycle import record_billed

    hosts, failed = hosts_to_reap(journal)
    notes = [report.reason for report in failed]
    loans: dict[str, tuple[Rental, ...] | None] = {}
    for host in hosts:
        try:
            loans[host.name] = host.list_ours()
            for rental in journal.rentals():
                recent = rental.released_at is not None and (now - rental.released_at).days < 31
                if rental.provider == host.name and recent and rental.billed_usd is None:
                    record_billed(host.context, rental.job_id)
        except MachineCannot as error:
            loans[host.name] = None
            notes.append(str(error).rstrip("."))
    return loans, notes


@verb("reap", JsonFlags, warns_of_leftovers=False)
def reap_leftovers(flags: JsonFlags) -> int:
    """Clean up after crashed runs: processes, changed limits, rented machines.

    Safe at any time: running runs are left alone. Machines rented by Assay that are past their deadline are terminated,
    whoever rented them, at every provider whose credentials are set.
    """
    from assay.core.leases import reap_leases

    reaped = reap_leases()
    machines = _reap_machines()
    if flags.as_json:
        show.print_json([report.as_json() for report in (*reaped, *machines)])
    for report in [] if flags.as_json else reaped:
        what = report.lease.what if report.lease is not None else report.file
        click.echo(f"{report.outcome}: {what} ({report.reason})")
    for machine in [] if flags.as_json else machines:
        click.echo(_outcome_line(machine))
    if not reaped and not machines and not flags.as_json:
        click.echo("Nothing was left behind.")
    outcomes = {report.outcome for report in reaped} | {report.outcome for report in machines if report.queried}
    if outcomes & {"failed", "broken"}:
        click.echo("assay: Not everything could be undone; `assay reap` tries again.", err=True)
        return 4
    if not all(machine.queried for machine in machines):
        click.echo("assay: Not every account could be asked what is still rented.", err=True)
        return 3
    return 0


def _outcome_line(machine: ReapedMachine) -> str:
    """Say in a line what became of a machine, or that its account could not be asked."""
    if machine.queried:
        return f"{machine.outcome}: {machine.provider} {machine.machine} ({machine.reason})"
    return f"not known: {machine.machine.replace('its', 'the')} of {machine.provider} ({machine.reason})"


def _reap_machines() -> list[ReapedMachine]:
    """End what is rented and nobody looks after; quick where nothing is and no provider can be asked."""
    from datetime import UTC, datetime

    from assay.hosts.rented.cleanup import hosts_to_reap, reap_machines
    from assay.hosts.rented.journal import RentalJournal

    journal = RentalJournal()
    hosts, reports = hosts_to_reap(journal)
    return [*reports, *reap_machines(hosts, journal, datetime.now(UTC))]
