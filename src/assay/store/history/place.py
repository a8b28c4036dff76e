"""Where the history is: a file in ``ASSAY_HOME``, another file, or a PostgreSQL server, as ``ASSAY_HISTORY`` says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from assay.core.errors import BadInput
from assay.core.home import home

VARIABLE = "ASSAY_HISTORY"
OFF = "off"
FILE = "history.sqlite"
WAIT_S = 10.0
"""How long a writer waits for another one."""

CONNECT_S = 5
"""How long a server may take to answer."""

_SQLITE = {"sqlite": "sqlite", "sqlite+pysqlite": "sqlite"}
_POSTGRES = dict.fromkeys(("postgres", "postgresql", "postgresql+psycopg"), "postgresql+psycopg")


@dataclass(frozen=True)
class Place:
    """A database, and how to name it without its password."""

    url: URL
    wait_s: float

    @property
    def file(self) -> Path | None:
        """The file that it is; null for a server."""
        return Path(self.url.database or "") if self.url.drivername == "sqlite" else None

    @property
    def shown(self) -> str:
        """The file, or the server's address with neither password nor options."""
        if self.file is not None:
            return str(self.file)
        user = f"{self.url.username}@" if self.url.username else ""
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{user}{self.url.host or ''}{port}/{self.url.database or ''}"

    def scrubbed(self, text: str) -> str:
        """Return a text in which no password stands."""
        query = self.url.query.get("password", ())
        for secret in (self.url.password, *((query,) if isinstance(query, str) else query)):
            text = text.replace(str(secret), "***") if secret else text
        return text


def place() -> Place | None:
    """Return where the history is; null where it is switched off."""
    setting = os.environ.get(VARIABLE, "").strip()
    if setting.lower() == OFF:
        return None
    return read(setting) if setting else file_place(home() / FILE)


def place_there() -> Place:
    """Return where the history is, for who cannot do without."""
    location = place()
    if location is None:
        raise BadInput(f"The history is switched off: {VARIABLE} is {OFF}.")
    return location


def file_place(path: Path) -> Place:
    """Return a history in a file."""
    return Place(URL.create("sqlite", database=str(path.absolute())), WAIT_S)


def read(text: str) -> Place:
    """Return the place that a URL or a path names. What is wrong with a URL is said without showing it."""
    if "://" not in text:
        return file_place(Path(text).expanduser())
    try:
        url = make_url(text)
        url.port  # noqa: B018 - reading it checks it
    except (ArgumentError, ValueError):
        raise BadInput(f"{VARIABLE} is not a URL of a database, such as postgresql://user@host/database.") from None
    name = url.drivername
    if name in _SQLITE:
        if url.database in {None, "", ":memory:"}:
            raise BadInput(f"{VARIABLE} names no file: write sqlite:////folder/history.sqlite.")
        return file_place(Path(str(url.database)).expanduser())
    if name not in _POSTGRES:
        raise BadInput(f"{VARIABLE} is a URL of {name!r}; a history is kept in sqlite or postgresql.")
    if not url.database:
        raise BadInput(f"{VARIABLE} names no database: write postgresql://user@host/database.")
    return Place(url.set(drivername=_POSTGRES[name]), WAIT_S)
