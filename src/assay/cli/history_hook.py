"""Import every finished run into the history; a failure there prints one line and does not affect the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from assay.core.errors import AssayError, StopRequested

if TYPE_CHECKING:
    from pathlib import Path


def import_into_history(folder: Path) -> None:
    """Put a finished run into the history, unless that is switched off.

    Raises:
        StopRequested: A signal came meanwhile; how to put it there later is part of the sentence.
    """
    from assay.cli import show

    try:
        from assay.store.history.database import history_location
        from assay.store.history.importing import import_run

        if (there := history_location()) is not None:
            import_run(folder, there)
    except StopRequested as stopped:
        way_on = f"`assay history import {show.short_path(folder)}` enters it into the history"
        raise StopRequested(f"{stopped}; everything measured is kept, and {way_on}.") from None
    except Exception as error:  # noqa: BLE001 - the run is measured and kept, whatever this is
        message = str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
        way_on = f"`assay history import {show.short_path(folder)}` tries again"
        click.echo(f"warning: this run is not in the history: {first_line(message)}; {way_on}", err=True)


def first_line(text: str) -> str:
    """Return a sentence on one line, without its full stop."""
    return " ".join(text.split()).rstrip(".")
