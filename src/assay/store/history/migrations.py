"""How the tables came to be what they are: small steps forward, each in a transaction of its own, none ever changed.

The words are understood by SQLite and PostgreSQL alike. A step that was released stays as it is; what is to change
becomes another step at the end of the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, inspect, select, text

from assay.core.errors import BadInput, MachineCannot
from assay.store.history.tables import VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from assay.store.history.place import Place

STEPS: tuple[tuple[str, ...], ...] = (
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
            params TEXT NOT NULL, params_digest TEXT NOT NULL, config TEXT, project TEXT, place TEXT NOT NULL,
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
CURRENT = len(STEPS)


def version_of(connection: Connection, place: Place) -> int:
    """Return how many steps were taken there; 0 in an empty database.

    Raises:
        BadInput: It is a file of something else.
        MachineCannot: A newer Assay has taken steps that this one does not know.
    """
    inspector = inspect(connection)
    if not inspector.has_table(VERSION.name):
        if place.file is not None and inspector.get_table_names():
            raise BadInput(f"{place.shown} is a database of something else; name another file in ASSAY_HISTORY.")
        return 0
    version = connection.execute(select(VERSION.c.version)).scalar() or 0
    if version > CURRENT:
        raise MachineCannot(
            f"The history {place.shown} was written by a newer Assay (version {version} of its tables, known here are "
            f"{CURRENT}); update Assay, or name another history in ASSAY_HISTORY."
        )
    return int(version)


def take_next_step(connection: Connection, place: Place) -> int:
    """Take the next step, if another process has not taken all of them; return how many are taken then."""
    version = version_of(connection, place)
    if version == CURRENT:
        return version
    if version == 0:
        VERSION.create(connection)
    for statement in STEPS[version]:
        connection.execute(text(statement))
    connection.execute(delete(VERSION))
    connection.execute(insert(VERSION).values(version=version + 1))
    return version + 1
