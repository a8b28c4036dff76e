"""The history database: its location, transactions with a single writer, and its errors in one sentence.

It is a SQLite file in ``ASSAY_HOME``, another file, or a PostgreSQL server, as ``ASSAY_HISTORY`` says. SQLite takes its
write lock when a transaction begins, PostgreSQL an advisory lock: there is one writer at a time, and the others wait.
SQLite keeps its default journal, which works on network file systems; a kill rolls the transaction back.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import home_folder, translate_os_errors
from assay.store.history.tables import CURRENT_VERSION, migrate_one_step, schema_version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.engine.interfaces import DBAPIConnection


VARIABLE = "ASSAY_HISTORY"
OFF = "off"
FILE_NAME = "history.sqlite"
LOCK_TIMEOUT_S = 10.0
"""How long a writer waits for another writer."""

CONNECT_TIMEOUT_S = 5
"""How long a server may take to accept a connection."""

_SQLITE_DRIVERS = {"sqlite": "sqlite", "sqlite+pysqlite": "sqlite"}
_POSTGRES_DRIVERS = dict.fromkeys(("postgres", "postgresql", "postgresql+psycopg"), "postgresql+psycopg")


@dataclass(frozen=True)
class HistoryLocation:
    """The location of a database, with a display name that omits the password."""

    url: URL
    wait_s: float

    @property
    def file(self) -> Path | None:
        """The SQLite file; null for a server."""
        return Path(self.url.database or "") if self.url.drivername == "sqlite" else None

    @property
    def shown(self) -> str:
        """The file, or the server's address without password and options."""
        if self.file is not None:
            return str(self.file)
        user = f"{self.url.username}@" if self.url.username else ""
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{user}{self.url.host or ''}{port}/{self.url.database or ''}"

    def scrubbed(self, text: str) -> str:
        """Return a text with all passwords masked."""
        query = self.url.query.get("password", ())
        for secret in (self.url.password, *((query,) if isinstance(query, str) else query)):
            text = text.replace(str(secret), "***") if secret else text
        return text


def history_location() -> HistoryLocation | None:
    """Return the location of the history; null where it is switched off."""
    setting = os.environ.get(VARIABLE, "").strip()
    if setting.lower() == OFF:
        return None
    return parse_location(setting) if setting else file_location(home_folder() / FILE_NAME)


def require_history_location() -> HistoryLocation:
    """Return the location of the history; raise BadInput where it is switched off."""
    location = history_location()
    if location is None:
        raise BadInput(f"The history is switched off: {VARIABLE} is {OFF}.")
    return location


def file_location(path: Path) -> HistoryLocation:
    """Return the location of a history in a SQLite file."""
    return HistoryLocation(URL.create("sqlite", database=str(path.absolute())), LOCK_TIMEOUT_S)


def parse_location(text: str) -> HistoryLocation:
    """Return the location for a URL or a path; errors do not show the URL, as it may contain a password."""
    if "://" not in text:
        return file_location(Path(text).expanduser())
    try:
        url = make_url(text)
        url.port  # noqa: B018 - reading it checks it
    except (ArgumentError, ValueError):
        raise BadInput(f"{VARIABLE} is not a URL of a database, such as postgresql://user@host/database.") from None
    name = url.drivername
    if name in _SQLITE_DRIVERS:
        if url.database in {None, "", ":memory:"}:
            raise BadInput(f"{VARIABLE} names no file: write sqlite:////folder/history.sqlite.")
        return file_location(Path(str(url.database)).expanduser())
    if name not in _POSTGRES_DRIVERS:
        raise BadInput(f"{VARIABLE} is a URL of {name!r}; a history is kept in sqlite or postgresql.")
    if not url.database:
        raise BadInput(f"{VARIABLE} names no database: write postgresql://user@host/database.")
    return HistoryLocation(url.set(drivername=_POSTGRES_DRIVERS[name]), LOCK_TIMEOUT_S)


REBUILD_HINT = "`assay history import --rebuild RUNS` makes it anew from run folders"
LOCKED = "The history {location} is being written by another process, and stayed so for {wait:g} s; try again."
READ_ONLY = "The history {location} cannot be written: {reason}."
CLOSED = "The history {location} cannot be opened: {reason}."
DAMAGED = f"The history {{location}} is damaged ({{reason}}); {REBUILD_HINT}."
GONE = f"The history {{location}} was removed or replaced meanwhile; try again, or {REBUILD_HINT}."
FULL = "The disk is full: the history {location} could not be written."
FAILED = "The history {location} cannot be used: {reason}."

_SQLITE_ERRORS = {
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
"""Error messages by the prefix of SQLite's error name."""

_POSTGRES_ERRORS = {
    "55P03": LOCKED,
    "25006": READ_ONLY,
    "42501": READ_ONLY,
    "42P01": GONE,
    "53100": FULL,
}
"""Error messages by PostgreSQL's SQLSTATE."""


class HistoryDamaged(MachineCannot):
    """The file is not a valid database any more."""


@contextmanager
def friendly_database_errors(location: HistoryLocation) -> Iterator[None]:
    """Turn known database errors into one-sentence errors; unknown ones are passed on.

    Raises:
        MachineCannot: The database is locked, gone, read-only, damaged or unreachable.
    """
    try:
        yield
    except Exception as error:
        driver_error = error.orig if isinstance(error, DBAPIError) else error
        template = _error_template(driver_error)
        if template is None:
            raise
        kind = HistoryDamaged if template is DAMAGED else MachineCannot
        message = location.scrubbed(_one_line_message(driver_error))
        raise kind(template.format(location=location.shown, wait=location.wait_s, reason=message)) from error


def _error_template(error: BaseException | None) -> str | None:
    """Return the message template for a driver's error; null for unknown errors."""
    name = getattr(error, "sqlite_errorname", None)
    if name is not None:
        if name == "SQLITE_ERROR" and "no such table" in str(error):
            return GONE
        return next((template for start, template in _SQLITE_ERRORS.items() if name.startswith(start)), None)
    if error is None or not hasattr(error, "sqlstate"):
        return None
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return _POSTGRES_ERRORS.get(error.sqlstate or "") or (
        FAILED if kinds & {"OperationalError", "InterfaceError"} else None
    )


def _one_line_message(error: BaseException | None) -> str:
    """Return the first line of a driver's error, its first letter in lower case."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = (lines[0] if lines else type(error).__name__).rstrip(".")
    return message[:1].lower() + message[1:]


WRITES = "assay_writes"
_WRITE_LOCK = 0x61737361
"""The ID of the advisory lock that writers hold on a server: "assa"."""


class HistoryDatabase:
    """An open history."""

    def __init__(self, location: HistoryLocation) -> None:
        self.location = location
        self._engine = _create_engine(location)

    @classmethod
    def open(cls, location: HistoryLocation | None = None) -> HistoryDatabase:
        """Open a history, by default the configured one; create or migrate it where needed."""
        database = cls(location or require_history_location())
        with database.reading() as connection:
            version = schema_version_of(connection, database.location)
        while version < CURRENT_VERSION:
            with database.writing() as connection:
                version = migrate_one_step(connection, database.location)
        return database

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that reads a consistent snapshot of the history."""
        with friendly_database_errors(self.location), self._engine.connect() as connection:
            if self.location.file is None:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield an exclusive write connection whose changes are committed all together at the end, or not at all."""
        with friendly_database_errors(self.location), self._engine.connect() as connection:
            connection.execution_options(**{WRITES: True})
            with connection.begin():
                if self.location.file is None:
                    connection.execute(text(f"SET LOCAL lock_timeout = {max(1, round(self.location.wait_s * 1000))}"))
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _WRITE_LOCK})
                yield connection


def insert_many(connection: Connection, table: Table, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert whole rows, in column order, by the fastest method of the database."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        statement = insert(table).compile(dialect=connection.dialect)
        connection.exec_driver_sql(str(statement), list(rows))
        return
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(table.columns.keys())
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def move_damaged_aside(location: HistoryLocation) -> Path | None:
    """Rename a damaged file, so that a new one can take its place; return its new name, null for a server."""
    if location.file is None:
        return None
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    aside = location.file.with_name(f"{location.file.name}.damaged-{stamp}")
    with translate_os_errors(location.file):
        location.file.replace(aside)
        location.file.with_name(f"{location.file.name}-journal").unlink(missing_ok=True)
    return aside


def _create_engine(location: HistoryLocation) -> Engine:
    if location.file is None:
        try:
            return create_engine(location.url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
        except ModuleNotFoundError:
            raise MachineCannot(
                "A history on PostgreSQL needs psycopg, which is not installed: pip install 'gpu-assay[postgres]'."
            ) from None
    engine = create_engine(location.url, poolclass=NullPool, connect_args={"timeout": location.wait_s})
    event.listen(engine, "connect", _disable_implicit_transactions)
    event.listen(engine, "begin", _begin)
    return engine


def _disable_implicit_transactions(connection: DBAPIConnection, _record: object) -> None:
    """Stop Python's sqlite3 from beginning transactions itself, which is too late to wait for a lock."""
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector while many rows are read: they contain no cycles, but would all be scanned."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
