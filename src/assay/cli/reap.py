"""``assay reap``: undo whatever is left of runs that died."""

from __future__ import annotations

import json

import click

from assay.cli.params import verb


@verb("reap")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(as_json: bool) -> int:
    """Undo whatever a run that died left behind: processes, changed limits, rented machines.

    Safe to run at any time: what belongs to a run that is alive is left alone.
    """
    from assay.core.leases import reap

    reaped = reap()
    if as_json:
        click.echo(json.dumps([each.as_json() for each in reaped], indent=2, ensure_ascii=False))
    for each in [] if as_json else reaped:
        what = each.lease.what if each.lease is not None else each.file
        click.echo(f"{each.outcome}: {what} ({each.reason})")
    if not reaped and not as_json:
        click.echo("Nothing was left behind.")
    return 4 if any(each.outcome in {"failed", "broken"} for each in reaped) else 0
