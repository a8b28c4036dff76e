"""Series as arrays in time order, and the names by which runs and series are found."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.errors import BadInput
from assay.store.history import queries as module
from assay.store.history.database import HistoryDatabase
from assay.store.history.importing import import_runs
from assay.store.history.queries import (
    PointFilter,
    SeriesHistory,
    find_run,
    find_series,
    list_run,
    list_runs,
    load_named_series,
    load_series,
)
from assay.store.history.report import run_page, runs_page, series_list_page, series_page
from tests.machines import machine
from tests.store.folders import FIRST, HOST, record, softmax, trial, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from assay.store.history.database import HistoryLocation

GPU = machine(gpus=(0,), driver="580", host="another")


@pytest.fixture
def database(history_place: HistoryLocation, tmp_path: Path) -> HistoryDatabase:
    """Four days of softmax with 0 and 1 rows, one of them a failure, one on fakes, and a day on a GPU."""
    found = HistoryDatabase.open(history_place)
    for day, values in enumerate([(10.0, 1.0), (11.0, None), (12.0, 3.0)]):
        host = HOST.model_copy(update={"git_commit": f"c{day}"})
        write_run(tmp_path / f"run-{day}", values, day=day, on=host)
    write_run(tmp_path / "fakes", (99.0, 99.0), day=3, origin="fake")
    on_gpu = trial(softmax(impl="torch"), device="cuda:0")
    write_run(tmp_path / "gpu", day=1.5, on=GPU, records=[(on_gpu, record(on_gpu, 5.0))])
    import_runs(found, sorted(tmp_path.iterdir(), reverse=True))
    return found


def loaded(database: HistoryDatabase, wanted: PointFilter | None = None) -> dict[str, SeriesHistory]:
    """Return series by their implementation and rows."""
    with database.reading() as connection:
        found = load_series(connection, wanted or PointFilter())
    return {f"{course.key.impl} {course.key.params['rows']}": course for course in found}


def test_a_series_is_all_points_of_a_key_in_time_order(database: HistoryDatabase) -> None:
    found = loaded(database)
    assert sorted(found) == ["numpy 0", "numpy 1", "torch 0"]
    full, gap = found["numpy 0"], found["numpy 1"]
    assert full.value.tolist() == [10.0, 11.0, 12.0]
    assert full.low.tolist() == pytest.approx([9.9, 10.89, 11.88])
    assert ((full.started_s - FIRST.timestamp()) / 86400).tolist() == [0, 1, 2]
    assert [run.git_commit for run in full.runs] == ["c0", "c1", "c2"]
    assert (full.unit, full.key.device_kind, len(full)) == ("µs", "cpu", 3)
    assert np.isnan(gap.value).tolist() == [False, True, False]
    assert gap.status.tolist() == ["ok", "failed", "ok"]
    assert gap.reason.tolist() == [None, "it fell over", None]
    assert gap.n.tolist() == [10, 0, 10]


def test_numbers_that_are_not_real_are_left_out_unless_they_are_asked_for(database: HistoryDatabase) -> None:
    assert loaded(database, PointFilter(origins=("fake",)))["numpy 0"].value.tolist() == [99.0]
    everything = loaded(database, PointFilter(origins=None))["numpy 0"]
    assert [run.origin for run in everything.runs] == ["real", "real", "real", "fake"]


FILTERS = [
    (PointFilter(workload="softmax"), {"numpy 0": 3, "numpy 1": 3, "torch 0": 1}),
    (PointFilter(workload="softmax@torch"), {"torch 0": 1}),
    (PointFilter(gpu="exam"), {"torch 0": 1}),
    (PointFilter(gpu="gpu-0"), {"torch 0": 1}),
    (PointFilter(gpu="100%"), {}),
    (PointFilter(quantity="busy_us"), {}),
    (PointFilter(since_s=FIRST.timestamp() + 86400), {"numpy 0": 2, "numpy 1": 2, "torch 0": 1}),
    (PointFilter(since_s=FIRST.timestamp() + 86400, workload="softmax@numpy"), {"numpy 0": 2, "numpy 1": 2}),
]


def test_filters_choose_series_and_runs_by_whichever_way_points_are_read(
    database: HistoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for few, (wanted, expected) in itertools.product((0, 4, 500), FILTERS):
        monkeypatch.setattr(module, "MAX_NUMBERS_PER_QUERY", few)
        assert {name: len(course) for name, course in loaded(database, wanted).items()} == expected, wanted


def test_an_empty_history_has_no_series(history_place: HistoryLocation) -> None:
    assert loaded(HistoryDatabase.open(history_place)) == {}


def test_runs_are_listed_the_newest_first(database: HistoryDatabase) -> None:
    with database.reading() as connection:
        found = list_runs(connection, PointFilter(origins=None))
        assert [(one.run.started_at[8:10], one.workloads, one.points) for one in found] == [
            ("04", ("softmax@numpy",), 2),
            ("03", ("softmax@numpy",), 2),
            ("02", ("softmax@torch",), 1),
            ("02", ("softmax@numpy",), 2),
            ("01", ("softmax@numpy",), 2),
        ]
        assert len(list_runs(connection, PointFilter(origins=None), limit=2)) == 2
        assert [one.run.driver for one in list_runs(connection, PointFilter(gpu="Example"))] == ["580"]
        for wanted, said in (
            (PointFilter(workload="sofmax"), "Did you mean softmax"),
            (PointFilter(gpu="GPU-9"), "GPU-0"),
        ):
            with pytest.raises(BadInput, match=said):
                list_runs(connection, wanted)


def test_a_run_is_found_by_its_id_its_folder_or_as_the_latest(database: HistoryDatabase, tmp_path: Path) -> None:
    with database.reading() as connection:
        run = find_run(connection, str(tmp_path / "run-1"))
        assert run is not None
        for name in (run.id, run.id[:6], "run-1"):
            assert find_run(connection, name) == run
        latest = find_run(connection, "latest")
        assert latest is not None
        assert latest.folder == str(tmp_path / "fakes")
        assert find_run(connection, "run-9") is None


def test_a_series_is_found_by_its_key_or_by_words_that_fit_no_other(database: HistoryDatabase) -> None:
    names = {name: course.name for name, course in loaded(database).items()}
    with database.reading() as connection:
        assert find_series(connection, names["numpy 1"][:5]) == names["numpy 1"]
        assert find_series(connection, "softmax@numpy rows=1") == names["numpy 1"]
        assert find_series(connection, "Torch") == names["torch 0"]
        with pytest.raises(BadInput, match=r"'numpy' is 2 series; name one by its key: [0-9a-f]{12} \(softmax@numpy"):
            find_series(connection, "numpy")
        with pytest.raises(BadInput, match=r"no run or series 'sofmax' in the history. Did you mean softmax"):
            find_series(connection, "sofmax")
        with pytest.raises(BadInput, match="has no simulated numbers"):
            load_named_series(connection, "torch", ("simulated",))


def test_in_an_empty_history_nothing_is_found(history_place: HistoryLocation) -> None:
    with (
        HistoryDatabase.open(history_place).reading() as connection,
        pytest.raises(BadInput, match="the history is empty"),
    ):
        find_series(connection, "softmax")


def test_pages_say_what_is_known_and_what_is_not(database: HistoryDatabase) -> None:
    found = loaded(database)
    with database.reading() as connection:
        every = list_runs(connection, PointFilter(origins=None))
        one = run_page(
            list_run(connection, every[0].run), load_series(connection, PointFilter(run=every[0].run.id, origins=None))
        )
    gap = series_page(found["numpy 1"])
    assert "3 runs from 2026-01-01 00:00 to 2026-01-03 00:00 (UTC), 1 without a value" in gap.lead
    assert "the last value is 3.000 µs" in gap.lead
    (line,) = gap.figures[0].lines  # type: ignore[union-attr]
    assert (line.x, line.y) == ((0, 1, 2), (1.0, None, 3.0))
    table = gap.sections[1].elements[0]
    assert [row[-1] for row in table.rows] == ["ok", "failed: it fell over", "ok"]  # type: ignore[union-attr]
    assert one.origin == "fake"
    assert "fake numbers" in str(runs_page(every, more=True))
    assert "3 series" in series_list_page(list(found.values())).lead
