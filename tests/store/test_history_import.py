"""Runs enter the history once, all of a batch or nothing of it, whoever else writes; folders can rebuild it."""

from __future__ import annotations

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from assay.core.errors import BadInput
from assay.store.history import importing
from assay.store.history.database import POINTS, RUNS, SERIES, HistoryDatabase
from assay.store.history.importing import import_run, import_runs, rebuild_history
from assay.store.history.queries import PointFilter, load_series
from tests.store.folders import measured_again, record, softmax, trial, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from assay.store.history.database import HistoryLocation
    from tests.conftest import StartPython
    from tests.running import Assay


@pytest.fixture
def database(history_place: HistoryLocation) -> HistoryDatabase:
    return HistoryDatabase.open(history_place)


def counts(database: HistoryDatabase) -> tuple[int, int, int]:
    """Return how many runs, series and points there are."""
    with database.reading() as connection:
        runs, series, points = (
            connection.execute(select(func.count()).select_from(t)).scalar_one() for t in (RUNS, SERIES, POINTS)
        )
    return runs, series, points


def values(database: HistoryDatabase) -> list[float]:
    with database.reading() as connection:
        return [value for course in load_series(connection, PointFilter()) for value in course.value.tolist()]


def test_a_run_is_imported_once(database: HistoryDatabase, tmp_path: Path) -> None:
    for day in range(3):
        write_run(tmp_path / "runs" / f"run-{day}", (1.0, 2.0), day=day)
    (tmp_path / "runs" / "latest").symlink_to("run-2")
    first = import_runs(database, [tmp_path])
    again = import_runs(database, [tmp_path, tmp_path / "runs" / "run-0"])
    assert (first.new, first.unchanged, first.points) == (3, 0, 6)
    assert (again.new, again.replaced, again.unchanged, again.points) == (0, 0, 3, 0)
    assert counts(database) == (3, 2, 6)


def test_a_run_that_was_resumed_is_replaced_by_its_newer_state_and_never_by_an_older(
    database: HistoryDatabase, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "run")
    shutil.copytree(path, tmp_path / "copy")
    import_runs(database, [path])
    measured_again(path, 50.0)
    found = import_runs(database, [path])
    assert (found.new, found.replaced) == (0, 1)
    assert import_runs(database, [tmp_path / "copy"]).unchanged == 1
    assert values(database) == [50.0]
    rebuild_history(database, [path, tmp_path / "copy"], forget=False)
    assert values(database) == [50.0]
    assert counts(database) == (1, 1, 1)


def test_one_run_enters_by_itself(database: HistoryDatabase, history_place: HistoryLocation, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    for _ in range(2):
        import_run(path, history_place)
    assert counts(database) == (1, 1, 1)


def test_what_cannot_be_read_is_named_and_the_rest_imported(database: HistoryDatabase, tmp_path: Path) -> None:
    for day in range(4):
        write_run(tmp_path / f"run-{day}", day=day, finished=day != 3)
    (tmp_path / "run-0" / "plan.json").write_text("{")
    (tmp_path / "run-1" / "records.jsonl").write_text('{"colour": "blue"}\n')
    found = import_runs(database, [tmp_path])
    assert found.new == 1
    assert found.unfinished == [tmp_path / "run-3"]
    assert [path.name for path, _ in found.unreadable] == ["run-0", "run-1"]
    assert "plan.json" in found.unreadable[0][1]


def test_a_folder_that_is_not_there_is_bad_input(database: HistoryDatabase, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, said in (("nothing", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(BadInput, match=said):
            import_runs(database, [tmp_path / name])


def test_a_rebuilt_history_is_the_same_history(database: HistoryDatabase, tmp_path: Path) -> None:
    for day in (2, 0, 1):
        write_run(tmp_path / f"run-{day}", (1.0 + day, None, 3.0), day=day)
    import_runs(database, [tmp_path])
    with database.reading() as connection:
        before = [(c.name, c.key, c.runs, c.status.tolist()) for c in load_series(connection, PointFilter())]
    found = rebuild_history(database, [tmp_path], forget=False)
    with database.reading() as connection:
        after = [(c.name, c.key, c.runs, c.status.tolist()) for c in load_series(connection, PointFilter())]
    assert after == before
    assert (found.new, found.forgotten) == (3, 0)


def test_a_rebuild_forgets_runs_only_when_told_to(database: HistoryDatabase, tmp_path: Path) -> None:
    for day in range(3):
        write_run(tmp_path / f"run-{day}", day=day)
    import_runs(database, [tmp_path])
    with pytest.raises(BadInput, match=r"would forget 2 of 3 runs, such as .*run-1"):
        rebuild_history(database, [tmp_path / "run-0"], forget=False)
    assert counts(database)[0] == 3
    assert rebuild_history(database, [tmp_path / "run-0"], forget=True).forgotten == 2
    assert counts(database) == (1, 1, 1)


def test_many_runs_are_written_a_batch_at_a_time(
    database: HistoryDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_POINTS", 4)
    monkeypatch.setattr(importing, "MAX_NAMES_PER_QUERY", 2)
    for day in range(5):
        write_run(tmp_path / f"run-{day}", (1.0, 2.0, 3.0), day=day)
    seen: list[tuple[int, int]] = []
    found = import_runs(database, [tmp_path], lambda done, of: seen.append((done, of)))
    assert seen == [(done, 5) for done in range(5)]
    assert (found.new, found.points) == (5, 15)
    assert counts(database) == (5, 3, 15)


def test_any_text_can_be_kept(database: HistoryDatabase, tmp_path: Path) -> None:
    of = trial(softmax(workload="grep '\u2028'", impl="command"))
    write_run(tmp_path / "run\udce9", records=[(of, record(of, None, reason="it said \0 and stopped"))])
    assert import_runs(database, [tmp_path]).new == 1
    with database.reading() as connection:
        (course,) = load_series(connection, PointFilter())
    assert course.reason.tolist() == ["it said � and stopped"]
    assert course.runs[0].folder.endswith("/run\\udce9")


def test_two_processes_that_import_at_the_same_time_both_succeed(
    database: HistoryDatabase, assay: Assay, tmp_path: Path
) -> None:
    for day in range(12):
        write_run(tmp_path / "runs" / f"run-{day}", (1.0, 2.0), day=day)
    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(lambda _: assay("history", "import", tmp_path / "runs", "--json"), range(2)))
    assert [one.code for one in ran] == [0, 0], [one.err for one in ran]
    assert sum(one.data["new"] for one in ran) == 12
    assert counts(database) == (12, 2, 24)


HANGS_BEFORE_THE_END = """
import sys, time
from pathlib import Path
from assay.store.history import importing
from assay.store.history.database import HistoryDatabase

write_runs = importing.write_runs

def write_and_hang(*arguments):
    write_runs(*arguments)
    print("written", flush=True)
    time.sleep(1000)

importing.write_runs = write_and_hang
importing.import_runs(HistoryDatabase.open(), [Path(sys.argv[1])])
"""


def test_a_kill_during_an_import_leaves_nothing_of_it(
    database: HistoryDatabase, start_python: StartPython, tmp_path: Path
) -> None:
    write_run(tmp_path / "one" / "run")
    write_run(tmp_path / "two" / "run", (1.0, 2.0), day=1)
    import_runs(database, [tmp_path / "one"])
    process = start_python(HANGS_BEFORE_THE_END, tmp_path / "two")
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert counts(database) == (1, 1, 1)
    assert import_runs(database, [tmp_path]).new == 1
    assert counts(database) == (2, 2, 3)
