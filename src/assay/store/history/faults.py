"""What a database says when it fails, in one sentence that names the history and never its password."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.store.history.place import Place

ANEW = "`assay history import --rebuild RUNS` makes it anew from run folders"
LOCKED = "The history {place} is being written by another process, and stayed so for {wait:g} s; try again."
READ_ONLY = "The history {place} cannot be written: {said}."
CLOSED = "The history {place} cannot be opened: {said}."
DAMAGED = f"The history {{place}} is damaged ({{said}}); {ANEW}."
GONE = f"The history {{place}} was removed or replaced meanwhile; try again, or {ANEW}."
FULL = "The disk is full: the history {place} could not be written."
FAILED = "The history {place} cannot be used: {said}."

_SQLITE = {
    "SQLITE_BUSY": LOCKED,
    "SQLITE_LOCKED": LOCKED,
    "SQLITE_READONLY": READ_ONLY,
    "SQLITE_PERM": READ_ONLY,
    "SQLITE_CANTOPEN": CLOSED,
    "SQLITE_NOTADB": DAMAGED,
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_FULL": FULL,
    "SQLITE_IOERR": FAILED,
}
"""By the beginning of SQLite's name of an error."""

_POSTGRES = {
    "55P03": LOCKED,
    "25006": READ_ONLY,
    "42501": READ_ONLY,
    "42P01": GONE,
    "53100": FULL,
}
"""By PostgreSQL's state of an error."""


class Damaged(MachineCannot):
    """The file is no database any more."""


@contextmanager
def in_words(place: Place) -> Iterator[None]:
    """Turn what a database says into one sentence; what nobody foresaw is left as it is.

    Raises:
        MachineCannot: It is locked, gone, read-only, damaged or out of reach.
    """
    try:
        yield
    except Exception as error:
        driver_error = error.orig if isinstance(error, DBAPIError) else error
        template = _words(driver_error)
        if template is None:
            raise
        kind = Damaged if template is DAMAGED else MachineCannot
        message = place.scrubbed(_on_one_line(driver_error))
        raise kind(template.format(place=place.shown, wait=place.wait_s, said=message)) from error


def _words(error: BaseException | None) -> str | None:
    """Return the sentence for what a driver said; null for all else."""
    name = getattr(error, "sqlite_errorname", None)
    if name is not None:
        if name == "SQLITE_ERROR" and "no such table" in str(error):
            return GONE
        return next((words for start, words in _SQLITE.items() if name.startswith(start)), None)
    if error is None or not hasattr(error, "sqlstate"):
        return None
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return _POSTGRES.get(error.sqlstate or "") or (FAILED if kinds & {"OperationalError", "InterfaceError"} else None)


def _on_one_line(error: BaseException | None) -> str:
    """Return what a driver says on one line, the first word small."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = (lines[0] if lines else type(error).__name__).rstrip(".")
    return message[:1].lower() + message[1:]
