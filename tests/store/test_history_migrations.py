"""A history of an older Assay is brought up to date step by step; one of a newer Assay is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, update

from assay.core.errors import BadInput, MachineCannot
from assay.stats.intervals import expected_method
from assay.store.history import database as tables
from assay.store.history.database import METADATA, VERSION, HistoryDatabase, file_location
from assay.store.history.importing import import_runs
from assay.store.history.queries import PointFilter, load_series
from tests.store.folders import write_run

if TYPE_CHECKING:
    from assay.store.history.database import HistoryLocation

FIRST_VERSION = (Path(__file__).parent / "history_1.sql").read_text(encoding="utf-8")
"""A history as the first version of the tables had it, with a run, a series and a point."""


@pytest.fixture
def older(history_place: HistoryLocation) -> HistoryLocation:
    with HistoryDatabase(history_place).writing() as connection:
        for words in FIRST_VERSION.split(";"):
            if words.strip():
                connection.exec_driver_sql(words)
    return history_place


def columns(database: HistoryDatabase) -> dict[str, list[str]]:
    """Return the names of the columns of our tables, and of those that may not be null, by table."""
    with database.reading() as connection:
        found = inspect(connection)
        return {
            name: sorted(f"{c['name']} {'null' if c['nullable'] else 'not null'}" for c in found.get_columns(name))
            for name in found.get_table_names()
        }


def test_a_history_of_an_older_assay_is_brought_up_to_date_and_keeps_what_it_has(
    older: HistoryLocation, tmp_path: Path
) -> None:
    database = HistoryDatabase.open(older)
    write_run(tmp_path / "run", (12.0,), day=1)
    import_runs(database, [tmp_path])
    with database.reading() as connection:
        assert tables.schema_version_of(connection, older) == tables.CURRENT_VERSION
        before, after = load_series(connection, PointFilter())
    assert (before.value.tolist(), before.key.method) == ([10.0], "")
    assert (after.value.tolist(), after.key.method) == ([12.0], expected_method(1))
    assert before.disturbed.tolist() == [False]
    assert before.runs[0].id == "5d32e1d53762"


def test_the_steps_lead_to_the_tables_as_they_are_now(history_place: HistoryLocation, older: HistoryLocation) -> None:
    expected = {
        table.name: sorted(f"{c.name} {'null' if c.nullable else 'not null'}" for c in table.columns)
        for table in METADATA.tables.values()
    }
    assert columns(HistoryDatabase.open(older)) == expected
    with HistoryDatabase(history_place).reading() as connection:
        indexes = {index["name"] for index in inspect(connection).get_indexes("assay_points")}
    assert "assay_points_by_run" in indexes


def test_a_step_that_fails_leaves_the_history_as_it_was(
    older: HistoryLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (tables.MIGRATIONS[0], (*tables.MIGRATIONS[1], "CREATE TABLE assay_points (oops INTEGER)"))
    before = columns(HistoryDatabase(older))
    with monkeypatch.context() as patch:
        patch.setattr(tables, "MIGRATIONS", broken)
        with pytest.raises(Exception, match="assay_points"):
            HistoryDatabase.open(older)
    assert columns(HistoryDatabase(older)) == before
    HistoryDatabase.open(older)


def test_a_history_written_by_a_newer_assay_is_refused(history_place: HistoryLocation) -> None:
    database = HistoryDatabase.open(history_place)
    with database.writing() as connection:
        connection.execute(update(VERSION).values(version=tables.CURRENT_VERSION + 1))
    with pytest.raises(MachineCannot, match="was written by a newer Assay"):
        HistoryDatabase.open(history_place)


def test_a_file_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    songs = file_location(tmp_path / "songs.sqlite")
    with HistoryDatabase(songs).writing() as connection:
        connection.exec_driver_sql("CREATE TABLE songs (title TEXT)")
    with pytest.raises(BadInput, match="is a database of something else"):
        HistoryDatabase.open(songs)
