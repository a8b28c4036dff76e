"""The history takes many records and gives many series in as few questions as one; its benchmark says what it kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from assay.store.history.database import HistoryDatabase
from assay.store.history.queries import PointFilter, load_series
from benchmarks import history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from assay.store.history.database import HistoryLocation


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """Every question that any database is asked meanwhile."""
    words: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        words.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield words
    event.remove(Engine, "before_cursor_execute", note)


def questions(place: HistoryLocation, series: int, folder: Path, asked: list[str]) -> tuple[int, int, int]:
    """Return in how many questions two runs of so many series are imported and loaded, and their points."""
    database = HistoryDatabase.open(place)
    asked.clear()
    ((_, points, _, _),) = history.imported(database, history.Runs("six quantities", series), 2, folder)
    importing = len(asked)
    asked.clear()
    with database.reading() as connection:
        courses = load_series(connection, PointFilter())
    assert len(courses) == 6 * series
    return importing, len(asked), int(points)


def test_many_series_take_as_many_questions_as_one(
    history_place: HistoryLocation, tmp_path: Path, asked: list[str]
) -> None:
    few = questions(history_place, 1, tmp_path / "few", asked)
    many = questions(history_place, 120, tmp_path / "many", asked)
    assert (few[2], many[2]) == (12, 1440)
    assert many[:2] == few[:2]


def test_the_table_follows_from_the_samples() -> None:
    told = {
        "imports": [[10000, 60000, 2.0, 1.0], [10000, 60000, 1.0, 0.6]],
        "loads_s": [3, 1, 2],
        "series": 6000,
        "points": 120000,
    }
    row = history.table({"samples": {"SQLite | six quantities": told}}).splitlines()[-1]
    assert row == "| SQLite | six quantities | 20,000 | 6,667 | 5,000/s | 12,500/s | 40,000 | 6,000 × 20 | 2.00 |"
