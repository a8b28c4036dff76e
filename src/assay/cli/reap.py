"""``assay reap``: undo whatever is left of runs that died."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb

if TYPE_CHECKING:
    from assay.hosts.rented.reaping import ReapedMachine


@verb("reap")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(as_json: bool) -> int:
    """Undo whatever a run that died left behind: processes, changed limits, rented machines.

    Safe to run at any time: what belongs to a run that is alive is left alone. Rented machines that bear a name of ours
    and are over their deadline are ended whoever asked for them, at every provider whose credentials are set.
    """
    from assay.core.leases import reap

    reaped = reap()
    machines = _machines()
    if as_json:
        click.echo(json.dumps([report.as_json() for report in (*reaped, *machines)], indent=2, ensure_ascii=False))
    for report in [] if as_json else reaped:
        what = report.lease.what if report.lease is not None else report.file
        click.echo(f"{report.outcome}: {what} ({report.reason})")
    for machine in [] if as_json else machines:
        click.echo(_told(machine))
    if not reaped and not machines and not as_json:
        click.echo("Nothing was left behind.")
    outcomes = {report.outcome for report in reaped} | {report.outcome for report in machines if report.asked}
    if outcomes & {"failed", "broken"}:
        click.echo("assay: Not everything could be undone; `assay reap` tries again.", err=True)
        return 4
    if not all(machine.asked for machine in machines):
        click.echo("assay: Not every account could be asked what is still rented.", err=True)
        return 3
    return 0


command.warns_of_leftovers = False


def _told(machine: ReapedMachine) -> str:
    """Say in a line what became of a machine, or that its account could not be asked."""
    if machine.asked:
        return f"{machine.outcome}: {machine.provider} {machine.machine} ({machine.reason})"
    return f"not known: {machine.machine.replace('its', 'the')} of {machine.provider} ({machine.reason})"


def _machines() -> list[ReapedMachine]:
    """End what is rented and nobody looks after; quick where nothing is and no provider can be asked."""
    from datetime import UTC, datetime

    from assay.hosts.rented.book import Book
    from assay.hosts.rented.reaping import hosts_to_reap, reap

    journal = Book()
    hosts, reports = hosts_to_reap(journal)
    return [*reports, *reap(hosts, journal, datetime.now(UTC))]
