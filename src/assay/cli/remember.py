"""Every finished run enters the history; whatever goes wrong there is said in a line, and harms nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from assay.core.errors import AssayError

if TYPE_CHECKING:
    from pathlib import Path


def remember(folder: Path) -> None:
    """Put a finished run into the history, unless that is switched off."""
    from assay.cli import show

    try:
        from assay.store.history.importing import import_run
        from assay.store.history.place import place

        if (there := place()) is not None:
            import_run(folder, there)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the run is measured and kept, whatever this is
        said = str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
        way_on = f"`assay history import {show.short(folder)}` tries again"
        click.echo(f"warning: this run is not in the history: {one_line(said)}; {way_on}", err=True)


def one_line(text: str) -> str:
    """Return a sentence on one line, without its full stop."""
    return " ".join(text.split()).rstrip(".")
