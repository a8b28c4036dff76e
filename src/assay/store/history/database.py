"""The database itself: opened, brought up to date, read in one glance and written by one at a time.

SQLite is asked for its write lock when a transaction begins, PostgreSQL for a lock of ours: whoever writes is alone,
and waits for that. SQLite keeps its usual journal, which network file systems bear; a kill leaves a transaction undone.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.pool import NullPool

from assay.core.durable import friendly_os_errors
from assay.core.errors import MachineCannot
from assay.store.history.faults import in_words
from assay.store.history.migrations import CURRENT, take_next_step, version_of
from assay.store.history.place import CONNECT_S, place_there

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.engine.interfaces import DBAPIConnection

    from assay.store.history.place import Place

WRITES = "assay_writes"
_LOCK = 0x61737361
"""The number of the lock that writers hold on a server: "assa"."""


class Database:
    """A history that is open."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._engine = _engine(place)

    @classmethod
    def open(cls, place: Place | None = None) -> Database:
        """Open a history, by default where the environment says, made or brought up to date where needed."""
        database = cls(place or place_there())
        with database.reading() as connection:
            version = version_of(connection, database.place)
        while version < CURRENT:
            with database.writing() as connection:
                version = take_next_step(connection, database.place)
        return database

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees the history as it is at this moment."""
        with in_words(self.place), self._engine.connect() as connection:
            if self.place.file is None:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose changes are kept all together at the end, or not at all; nobody else writes."""
        with in_words(self.place), self._engine.connect() as connection:
            connection.execution_options(**{WRITES: True})
            with connection.begin():
                if self.place.file is None:
                    connection.execute(text(f"SET LOCAL lock_timeout = {max(1, round(self.place.wait_s * 1000))}"))
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                yield connection


def insert_many(connection: Connection, table: Table, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert whole rows, in the order of the table's columns, by the quickest way that the database has."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        words = insert(table).compile(dialect=connection.dialect)
        connection.exec_driver_sql(str(words), list(rows))
        return
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(table.columns.keys())
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def set_aside(place: Place) -> Path | None:
    """Rename a damaged file, so that another can take its place; return its new name, null for a server."""
    if place.file is None:
        return None
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    aside = place.file.with_name(f"{place.file.name}.damaged-{stamp}")
    with friendly_os_errors(place.file):
        place.file.replace(aside)
        place.file.with_name(f"{place.file.name}-journal").unlink(missing_ok=True)
    return aside


def _engine(place: Place) -> Engine:
    if place.file is None:
        try:
            return create_engine(place.url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_S})
        except ModuleNotFoundError:
            raise MachineCannot(
                "A history on PostgreSQL needs psycopg, which is not installed: pip install 'gpu-assay[postgres]'."
            ) from None
    engine = create_engine(place.url, poolclass=NullPool, connect_args={"timeout": place.wait_s})
    event.listen(engine, "connect", _leave_transactions_to_us)
    event.listen(engine, "begin", _begin)
    return engine


def _leave_transactions_to_us(connection: DBAPIConnection, _record: object) -> None:
    """Keep Python's sqlite3 from beginning transactions by itself, which it does too late to wait for a lock."""
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
