"""The history database: its location, tables and migrations, transactions with a single writer, errors in one sentence.

assay_runs ──< assay_points >── assay_series        one point for each series that a run has measured

It is a SQLite file in ``ASSAY_HOME``, another file, or a PostgreSQL server, as ``ASSAY_HISTORY`` says. SQLite takes its
write lock when a transaction begins, PostgreSQL an advisory lock: there is one writer at a time, and the others wait.
SQLite keeps its default journal, which works on network file systems; a kill rolls the transaction back.

Migrations are small steps forward, each in its own transaction, in SQL that SQLite and PostgreSQL both accept. A
released step never changes; a change becomes another step at the end of the list.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import home_folder, translate_os_errors
from assay.core.format import unit_of
from assay.core.results import Origin, Scope, Status
from assay.core.values import Value
from assay.store.identity import SeriesKey, short_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine, RowMapping
    from sqlalchemy.engine.interfaces import DBAPIConnection


class HistoryRun(Value):
    """A run as stored in the history. Times are in seconds since 1970, UTC."""

    id: str
    experiment: str
    started_s: float
    host: str
    hostname: str | None
    host_class: str
    driver: str | None
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str | None]
    options_digest: str
    origin: Origin
    folder: str
    headline: str
    trials: int
    failed: int

    @property
    def started_at(self) -> str:
        """When the run began, ISO 8601, UTC."""
        return datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds")


class HistoryPoint(NamedTuple):
    """The result of one run for one series. Without a value, ``status`` and ``reason`` say why."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    scope: Scope | None
    status: Status
    reason: str | None
    disturbed: bool


@dataclass(frozen=True)
class RunState:
    """The progress of a run folder: its identity, its number of lines, and a hash of them."""

    id: str
    lines: int
    digest: str


@dataclass(frozen=True)
class RunHistory:
    """A run folder's contribution to the history."""

    run: HistoryRun
    state: RunState
    keys: dict[str, SeriesKey]
    points: dict[str, HistoryPoint]


METADATA = MetaData()


def _texts(*names: str, null: bool = False, unique: bool = False) -> list[Column[str]]:
    return [Column(name, Text, nullable=null, unique=unique) for name in names]


def _numbers(*names: str) -> list[Column[int]]:
    return [Column(name, Integer, nullable=False) for name in names]


VERSION = Table("assay_schema_version", METADATA, *_numbers("version"))

RUNS = Table(
    "assay_runs",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_texts("id", unique=True),
    *_texts("experiment"),
    Column("started_s", Double, nullable=False),
    *_texts("host"),
    *_texts("hostname", null=True),
    *_texts("host_class"),
    *_texts("driver", "git_commit", null=True),
    Column("git_dirty", Integer),
    *_texts("versions", "options_digest", "origin", "folder", "headline"),
    *_numbers("trials", "failed", "lines"),
    *_texts("state"),
)

SERIES = Table(
    "assay_series",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_texts("key", unique=True),
    *_texts("workload", "impl", "params", "params_digest"),
    *_texts("config", "project", null=True),
    *_texts("location"),
    *_texts("gpu", "device", null=True),
    *_texts("device_kind", "conditions", "quantity", "unit"),
    Column("method", Text, nullable=False, server_default=""),
)

POINTS = Table(
    "assay_points",
    METADATA,
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("run", Integer, primary_key=True, autoincrement=False),
    *(Column(name, Double) for name in ("value", "low", "high")),
    *_numbers("n"),
    *_texts("scope", null=True),
    *_texts("status"),
    *_texts("reason", null=True),
    Column("disturbed", Integer, nullable=False, server_default="0"),
    Index("assay_points_by_run", "run"),
)


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE assay_runs (
            number INTEGER NOT NULL PRIMARY KEY, id TEXT NOT NULL UNIQUE, experiment TEXT NOT NULL,
            started_s DOUBLE PRECISION NOT NULL, host TEXT NOT NULL, hostname TEXT, host_class TEXT NOT NULL,
            driver TEXT, git_commit TEXT, git_dirty INTEGER, versions TEXT NOT NULL, options_digest TEXT NOT NULL,
            origin TEXT NOT NULL, folder TEXT NOT NULL, headline TEXT NOT NULL, trials INTEGER NOT NULL,
            failed INTEGER NOT NULL, lines INTEGER NOT NULL, state TEXT NOT NULL)
        """,
        """
        CREATE TABLE assay_series (
            number INTEGER NOT NULL PRIMARY KEY, key TEXT NOT NULL UNIQUE, workload TEXT NOT NULL, impl TEXT NOT NULL,
            params TEXT NOT NULL, params_digest TEXT NOT NULL, config TEXT, project TEXT, location TEXT NOT NULL,
            gpu TEXT, device TEXT, device_kind TEXT NOT NULL, conditions TEXT NOT NULL, quantity TEXT NOT NULL,
            unit TEXT NOT NULL)
        """,
        """
        CREATE TABLE assay_points (
            series INTEGER NOT NULL, run INTEGER NOT NULL, value DOUBLE PRECISION, low DOUBLE PRECISION,
            high DOUBLE PRECISION, n INTEGER NOT NULL, scope TEXT, status TEXT NOT NULL, reason TEXT,
            PRIMARY KEY (series, run))
        """,
    ),
    (
        "ALTER TABLE assay_points ADD COLUMN disturbed INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX assay_points_by_run ON assay_points (run)",
    ),
    ("ALTER TABLE assay_series ADD COLUMN method TEXT NOT NULL DEFAULT ''",),
)
CURRENT_VERSION = len(MIGRATIONS)


def schema_version_of(connection: Connection, location: HistoryLocation) -> int:
    """Return the number of migration steps applied; 0 in an empty database.

    Raises:
        BadInput: The file is the database of another program.
        MachineCannot: A newer Assay has applied steps that this one does not know.
    """
    inspector = inspect(connection)
    if not inspector.has_table(VERSION.name):
        if location.file is not None and inspector.get_table_names():
            raise BadInput(f"{location.shown} is a database of something else; name another file in ASSAY_HISTORY.")
        return 0
    version = connection.execute(select(VERSION.c.version)).scalar() or 0
    if version > CURRENT_VERSION:
        raise MachineCannot(
            f"The history {location.shown} was written by a newer Assay (version {version} of its tables, "
            "known here are "
            f"{CURRENT_VERSION}); update Assay, or name another history in ASSAY_HISTORY."
        )
    return int(version)


def migrate_one_step(connection: Connection, location: HistoryLocation) -> int:
    """Apply the next migration, unless another process has already; return the resulting version."""
    version = schema_version_of(connection, location)
    if version == CURRENT_VERSION:
        return version
    if version == 0:
        VERSION.create(connection)
    for statement in MIGRATIONS[version]:
        connection.execute(text(statement))
    connection.execute(delete(VERSION))
    connection.execute(insert(VERSION).values(version=version + 1))
    return version + 1


_RUN_FIELDS = tuple(HistoryRun.model_fields)
_KEY_FIELDS = tuple(SeriesKey.model_fields)
_JSON_COLUMNS = frozenset({"params", "config", "conditions", "versions"})
"""Columns that hold JSON."""


def run_row(history: RunHistory) -> dict[str, Any]:
    """Return a run's row, without its number."""
    run = history.run
    row = {
        **{name: getattr(run, name) for name in _RUN_FIELDS},
        "lines": history.state.lines,
        "state": history.state.digest,
    }
    return _storable_row({**row, "git_dirty": None if run.git_dirty is None else int(run.git_dirty)})


def series_row(number: int, name: str, key: SeriesKey) -> dict[str, Any]:
    """Return a series' row."""
    row = {field: getattr(key, field) for field in _KEY_FIELDS}
    extra = {"number": number, "key": name, "params_digest": short_hash(key.params), "unit": unit_of(key.quantity)}
    return _storable_row({**row, **extra})


def point_row(series: int, run: int, point: HistoryPoint) -> tuple[Any, ...]:
    """Return a point's row, in column order."""
    reason = None if point.reason is None else clean_text(point.reason)
    return (
        series, run, point.value, point.low, point.high, point.n, point.scope, point.status, reason,
        int(point.disturbed),
    )  # fmt: skip


def run_from_row(row: RowMapping) -> HistoryRun:
    """Return the run of a row."""
    dirty = row["git_dirty"]
    values = {name: _from_json(name, row[name]) for name in _RUN_FIELDS}
    return HistoryRun.model_construct(**{**values, "git_dirty": None if dirty is None else bool(dirty)})


def key_from_row(row: RowMapping) -> SeriesKey:
    """Return the series key of a row."""
    return SeriesKey.model_construct(**{name: _from_json(name, row[name]) for name in _KEY_FIELDS})


def clean_text(text: str) -> str:
    """Return a text that every database can store: without zero bytes, and valid Unicode."""
    return text.replace("\0", "�").encode("utf-8", "backslashreplace").decode()


def _storable_row(row: dict[str, Any]) -> dict[str, Any]:
    stored = {name: _to_json(value) if name in _JSON_COLUMNS else value for name, value in row.items()}
    return {name: clean_text(value) if isinstance(value, str) else value for name, value in stored.items()}


def _to_json(content: object) -> str | None:
    return None if content is None else json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _from_json(name: str, value: Any) -> Any:
    return json.loads(value) if name in _JSON_COLUMNS and value is not None else value


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

_POSTGRES_ERRORS = {"55P03": LOCKED, "25006": READ_ONLY, "42501": READ_ONLY, "42P01": GONE, "53100": FULL}
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
        template = _error_template(driver_error, location)
        if template is None:
            raise
        kind = HistoryDamaged if template is DAMAGED else MachineCannot
        lines = [line.strip() for line in str(driver_error).splitlines() if line.strip()]
        message = (lines[0] if lines else type(driver_error).__name__).rstrip(".")
        reason = location.scrubbed(message[:1].lower() + message[1:])
        raise kind(template.format(location=location.shown, wait=location.wait_s, reason=reason)) from error


def _error_template(error: BaseException | None, location: HistoryLocation) -> str | None:
    """Return the message template for a driver's error; null for unknown errors."""
    name = getattr(error, "sqlite_errorname", None)
    if name == "SQLITE_ERROR":  # of any wrong statement: one on a table that is missing is the only one to expect
        with _create_engine(location).connect() as connection:
            return None if inspect(connection).has_table(RUNS.name) else GONE
    if name is not None:
        return next((template for start, template in _SQLITE_ERRORS.items() if name.startswith(start)), None)
    if error is None or not hasattr(error, "sqlstate"):
        return None
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return _POSTGRES_ERRORS.get(error.sqlstate or "") or (
        FAILED if kinds & {"OperationalError", "InterfaceError"} else None
    )


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
