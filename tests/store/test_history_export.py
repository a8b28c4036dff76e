"""What leaves the history as a file is all that it holds."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.store.history.database import HistoryDatabase
from assay.store.history.importing import import_runs
from assay.store.history.queries import PointFilter
from assay.store.history.report import csv_lines, json_lines, write_lines
from tests.store.folders import HOST, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from assay.store.history.database import HistoryLocation


@pytest.fixture
def database(history_place: HistoryLocation, tmp_path: Path) -> HistoryDatabase:
    found = HistoryDatabase.open(history_place)
    write_run(tmp_path / "a, b", (1.5, None), on=HOST.model_copy(update={"git_commit": "c0ffee", "git_dirty": True}))
    write_run(tmp_path / "fakes", (9.0,), day=1, origin="fake")
    import_runs(found, [tmp_path])
    return found


def test_every_point_is_a_row_of_a_table(database: HistoryDatabase, tmp_path: Path) -> None:
    with database.reading() as connection:
        write_lines(tmp_path / "h.csv", csv_lines(connection, PointFilter()))
    with (tmp_path / "h.csv").open(encoding="utf-8", newline="") as file:
        good, bad = csv.DictReader(file)
    assert (good["workload"], good["value"], good["unit"], good["git_commit"]) == ("softmax", "1.5", "µs", "c0ffee")
    assert (good["started_at"], good["folder"]) == ("2026-01-01T00:00:00+00:00", str(tmp_path / "a, b"))
    assert json.loads(good["params"]) == {"rows": 0}
    assert (bad["value"], bad["status"], bad["reason"], bad["n"]) == ("", "failed", "it fell over", "0")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_runs_series_and_points_are_a_document(database: HistoryDatabase) -> None:
    with database.reading() as connection:
        told = json.loads("".join(json_lines(connection, PointFilter(origins=None))))
        real = json.loads("".join(json_lines(connection, PointFilter())))
        nothing = json.loads("".join(json_lines(connection, PointFilter(workload="none"))))
    assert [run["origin"] for run in told["runs"].values()] == ["real", "fake"]
    assert [(point["value"], point["status"]) for point in told["points"]] == [
        (1.5, "ok"),
        (None, "failed"),
        (9.0, "ok"),
    ]
    for point in told["points"]:
        assert told["series"][point["key"]]["workload"] == "softmax"
        assert told["runs"][point["run"]]["host"] == HOST.host
    assert len(real["points"]) == 2
    assert nothing["points"] == []


def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left(database: HistoryDatabase, tmp_path: Path) -> None:
    with database.reading() as connection, pytest.raises(BadInput, match="does not exist"):
        write_lines(tmp_path / "no" / "such" / "h.csv", csv_lines(connection, PointFilter()))
