"""The tables of the history, their migrations, and the conversion between rows and values.

assay_runs ──< assay_points >── assay_series        one point for each series that a run has measured

Migrations are small steps forward, each in its own transaction, in SQL that SQLite and PostgreSQL both accept. A
released step never changes; a change becomes another step at the end of the list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Double, Index, Integer, MetaData, Table, Text, delete, insert, inspect, select, text

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import unit_of
from assay.store.history.points import HistoryRun
from assay.store.identity import SeriesKey, short_hash

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from assay.store.history.database import HistoryLocation
    from assay.store.history.points import HistoryPoint, RunHistory


METADATA = MetaData()


def _text_column(name: str, *, null: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null, unique=unique)


VERSION = Table("assay_schema_version", METADATA, Column("version", Integer, nullable=False))

RUNS = Table(
    "assay_runs",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text_column("id", unique=True),
    _text_column("experiment"),
    Column("started_s", Double, nullable=False),
    _text_column("host"),
    _text_column("hostname", null=True),
    _text_column("host_class"),
    _text_column("driver", null=True),
    _text_column("git_commit", null=True),
    Column("git_dirty", Integer),
    _text_column("versions"),
    _text_column("options_digest"),
    _text_column("origin"),
    _text_column("folder"),
    _text_column("headline"),
    Column("trials", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("lines", Integer, nullable=False),
    _text_column("state"),
)

SERIES = Table(
    "assay_series",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text_column("key", unique=True),
    _text_column("workload"),
    _text_column("impl"),
    _text_column("params"),
    _text_column("params_digest"),
    _text_column("config", null=True),
    _text_column("project", null=True),
    _text_column("location"),
    _text_column("gpu", null=True),
    _text_column("device", null=True),
    _text_column("device_kind"),
    _text_column("conditions"),
    _text_column("quantity"),
    _text_column("unit"),
    Column("method", Text, nullable=False, server_default=""),
)

POINTS = Table(
    "assay_points",
    METADATA,
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("run", Integer, primary_key=True, autoincrement=False),
    Column("value", Double),
    Column("low", Double),
    Column("high", Double),
    Column("n", Integer, nullable=False),
    _text_column("scope", null=True),
    _text_column("status"),
    _text_column("reason", null=True),
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
