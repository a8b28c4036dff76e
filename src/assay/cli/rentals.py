"""``assay rentals``: what is rented now, since when, and what it costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.base import Loan
    from assay.hosts.rented.book import Book


@verb("rentals")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(as_json: bool) -> int:
    """Show the machines that are rented, since when and until when, and what they cost: quoted against billed.

    Every provider whose credentials are set is asked; the journal tells of this month's that are over. `assay reap`
    ends what nobody looks after.
    """
    from datetime import UTC, datetime

    from assay.cli import show
    from assay.hosts.rented import budget
    from assay.hosts.rented.book import Book
    from assay.hosts.rented.showing import page_of, rows_of
    from assay.reports.terminal import print_page

    journal, now, monthly = Book(), datetime.now(UTC), budget.monthly_usd()
    loans, notes = _asked(journal, now)
    unasked = tuple(name for name, listed in loans.items() if listed is None)
    rentals = journal.rentals()
    if journal.unreadable:
        notes.append(f"{journal.unreadable} lines of {journal.path} cannot be read")
    rows, spent = rows_of(rentals, loans, now), budget.spent_usd(rentals, now)
    if as_json:
        month = {"spent_usd": round(spent, 4), "budget_usd": monthly}
        result = {"schema": 1, "rentals": [row.as_json() for row in rows], "month": month, "notes": notes}
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    elif rows:
        print_page(page_of(rows, spent, monthly, notes, unasked), show.console(stderr=False))
    elif unasked:
        click.echo(f"Whether anything is rented is not known: {'; '.join(notes)}.")
    else:
        click.echo("Nothing is rented, and nothing was in this month.")
        for note in notes:
            click.echo(note, err=True)
    return 0


def _asked(book: Book, now: datetime) -> tuple[dict[str, tuple[Loan, ...] | None], list[str]]:
    """Return what each provider that can be asked lists, bills taken down on the way; and what cannot be known."""
    from assay.core.errors import MachineCannot
    from assay.hosts.rented.ending import note_billed
    from assay.hosts.rented.reaping import hosts_to_reap

    hosts, failed = hosts_to_reap(book)
    notes = [report.reason for report in failed]
    loans: dict[str, tuple[Loan, ...] | None] = {}
    for host in hosts:
        try:
            loans[host.name] = host.list_ours()
            for rental in book.rentals():
                recent = rental.released_at is not None and (now - rental.released_at).days < 31
                if rental.provider == host.name and recent and rental.billed_usd is None:
                    note_billed(host.desk, rental.order)
        except MachineCannot as error:
            loans[host.name] = None
            notes.append(str(error).rstrip("."))
    return loans, notes
