"""``assay history import``: runs that are there into the history, or the history anew from them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.store.history.importing import Imported, Progress

EVERY_S = 5.0


@verb("import")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rebuild", is_flag=True, help="From scratch: forget what is there, and import these.")
@click.option("--yes", is_flag=True, help="With --rebuild: forget also runs whose folders are not found.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(folders: tuple[Path, ...], rebuild: bool, yes: bool, as_json: bool) -> int:
    """Put the finished runs in folders, and in those below them, into the history.

    A run that is there already is left as it is, unless it was resumed since. Folders that cannot be read are named,
    and the rest is imported; where one is damaged, the exit code is 2, and what is known of it is kept.

    \b
    assay history import runs
    assay history import --rebuild runs /data/older-runs
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if yes and not rebuild:
        raise BadInput("--yes is about what --rebuild would forget.")
    result = rebuilt(folders, forget=yes) if rebuild else imported(folders)
    for path, reason in result.unreadable:
        click.echo(f"Left out: {path}: {reason}", err=True)
    for path in result.unfinished:
        click.echo(f"Left out: {path} is not finished; `assay resume {path}` goes on.", err=True)
    if not result.read:
        problem = "can be read" if result.unreadable else "is finished" if result.unfinished else "was found"
        raise BadInput(f"No run {problem} in {', '.join(map(str, folders))}.")
    if as_json:
        click.echo(json.dumps(data(result), indent=2))
    else:
        click.echo(said(result))
    return BadInput.exit_code if result.damaged else 0


def imported(folders: tuple[Path, ...]) -> Imported:
    """Add what is new."""
    from assay.store.history.database import Database
    from assay.store.history.importing import import_runs

    return import_runs(Database.open(), folders, told_now_and_then())


def rebuilt(folders: tuple[Path, ...], *, forget: bool) -> Imported:
    """Begin anew; a file that is damaged is set aside."""
    from assay.store.history.database import Database, set_aside
    from assay.store.history.faults import Damaged
    from assay.store.history.importing import rebuild
    from assay.store.history.place import place_there

    path, progress = place_there(), told_now_and_then()
    try:
        return rebuild(Database.open(path), folders, forget=forget, progress=progress)
    except Damaged:
        click.echo(f"The damaged history is set aside as {set_aside(path)}.", err=True)
        return rebuild(Database.open(path), folders, forget=forget, progress=progress)


def told_now_and_then() -> Progress:
    """Return what prints a line every few seconds about how far an import has come."""
    last = [time.monotonic()]

    def tell(done: int, of: int) -> None:
        if time.monotonic() - last[0] >= EVERY_S:
            last[0] = time.monotonic()
            click.echo(f"{done:,} of {of:,} run folders read.", err=True)

    return tell


def data(found: Imported) -> dict[str, object]:
    """Return what came of it as plain data."""
    counts = {name: getattr(found, name) for name in ("new", "replaced", "unchanged", "forgotten", "points")}
    unreadable = [{"folder": str(path), "reason": why} for path, why in found.unreadable]
    return {"schema": 1, **counts, "unfinished": [str(path) for path in found.unfinished], "unreadable": unreadable}


def said(found: Imported) -> str:
    """Return what came of it in a sentence."""
    parts = [f"{found.new} new run{'' if found.new == 1 else 's'} with {found.points} points"]
    parts += [f"{found.replaced} replaced by their newer state"] if found.replaced else []
    parts += [f"{found.unchanged} unchanged"] if found.unchanged else []
    parts += [f"{found.forgotten} forgotten"] if found.forgotten else []
    return f"{', '.join(parts)}."
