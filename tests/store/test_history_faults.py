"""A history that is locked, gone, read-only, damaged or out of reach says so in one sentence, without its password."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from assay.cli.history import import_into_history
from assay.core.errors import BadInput, MachineCannot
from assay.store.history import database as module
from assay.store.history.database import (
    _WRITE_LOCK,
    POINTS,
    HistoryDamaged,
    HistoryDatabase,
    HistoryLocation,
    file_location,
    history_location,
    insert_many,
    parse_location,
)
from assay.store.history.importing import ImportResult, import_run, import_runs, read_run, write_runs
from assay.store.history.queries import PointFilter, list_runs
from assay.store.run_folder import RunFolder
from tests.store.folders import write_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.running import Assay
    from tests.store.postgres import Command, Server


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "run-1", day=1)


@pytest.fixture
def file(assay_home: Path) -> Path:
    """A history in a file, with nothing in it yet."""
    path = assay_home / "history.sqlite"
    HistoryDatabase.open(file_location(path))
    return path


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """A folder with a history in it that nobody may write, root included where root can mount."""
    folder = tmp_path / "unwritable"
    folder.mkdir()
    root = os.geteuid() == 0
    if root:
        mounting = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True, check=False)
        if mounting.returncode != 0:
            pytest.skip(f"root may write everywhere and cannot mount: {mounting.stderr.strip()}")
    database = HistoryDatabase.open(file_location(folder / "history.sqlite"))
    import_runs(database, [write_run(tmp_path / "older")])
    if root:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    else:
        (folder / "history.sqlite").chmod(0o400)
        folder.chmod(0o500)
    yield folder
    if root:
        subprocess.run(["umount", "-l", folder], check=True)
    else:
        folder.chmod(0o700)


def held(where: HistoryLocation) -> sqlite3.Connection | psycopg.Connection[tuple[object, ...]]:
    """Return a connection of another writer that holds the lock until it is closed."""
    if where.file is not None:
        writer = sqlite3.connect(where.file, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        return writer
    url = where.url.set(drivername="postgresql").render_as_string(hide_password=False)
    server = psycopg.connect(url)
    server.execute("SELECT pg_advisory_xact_lock(%s)", [_WRITE_LOCK])
    return server


def test_who_holds_the_lock_is_waited_for_and_then_said(history_place: HistoryLocation, run: Path) -> None:
    impatient = replace(history_place, wait_s=0.05)
    database = HistoryDatabase.open(impatient)
    writer = held(history_place)
    with pytest.raises(MachineCannot, match=r"is being written by another process, and stayed so for 0\.05 s"):
        import_run(run, impatient)
    with database.reading() as connection:
        assert list_runs(connection, PointFilter()) == []
    writer.close()
    import_run(run, impatient)


def test_a_run_that_cannot_be_remembered_is_a_line_on_stderr(
    file: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.05)
    writer = held(file_location(file))
    import_into_history(run)
    writer.close()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("warning: this run is not in the history: The history ")
    assert f"`assay history import {run}` tries again" in said.err


def test_a_verb_that_meets_a_lock_ends_with_3(
    file: Path, run: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.05)
    writer = held(file_location(file))
    ran = command("history", "import", run)
    writer.close()
    assert ran.code == 3
    assert ran.err.startswith("assay: The history ")


def test_a_history_that_is_removed_meanwhile_is_said(
    history_place: HistoryLocation, run: Path, postgres: Server
) -> None:
    database = HistoryDatabase.open(history_place)
    if history_place.file is not None:
        history_place.file.unlink()
    else:
        schema = str(history_place.url.query["options"]).rpartition("=")[2]
        postgres.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
    with pytest.raises(MachineCannot, match="was removed or replaced meanwhile"):
        import_runs(database, [run])
    import_run(run, history_place)


def test_a_folder_that_is_gone_is_said(tmp_path: Path, run: Path) -> None:
    with pytest.raises(MachineCannot, match=r"gone/history\.sqlite cannot be opened"):
        import_run(run, file_location(tmp_path / "gone" / "history.sqlite"))


def test_a_history_that_cannot_be_written_can_still_be_read(unwritable: Path, run: Path, tmp_path: Path) -> None:
    where = file_location(unwritable / "history.sqlite")
    with HistoryDatabase.open(where).reading() as connection:
        assert len(list_runs(connection, PointFilter())) == 1
    with pytest.raises(MachineCannot, match=r"history\.sqlite cannot be written: attempt to write a readonly database"):
        import_run(run, where)
    with pytest.raises(MachineCannot, match=r"new\.sqlite cannot be opened"):
        import_run(run, file_location(unwritable / "new.sqlite"))


def test_a_server_that_lets_nobody_write_says_so(postgres: Server, run: Path) -> None:
    url = postgres.fresh()
    HistoryDatabase.open(parse_location(url))
    where = parse_location(f"{url}%20-cdefault_transaction_read_only%3Don")
    with pytest.raises(MachineCannot, match="cannot be written: cannot execute INSERT in a read-only transaction"):
        import_run(run, where)


@pytest.mark.parametrize("content", [b"this is no database but a letter" * 40, b"SQLite format 3\0" + b"x" * 4096])
def test_a_damaged_file_is_said_and_a_rebuild_sets_it_aside(
    content: bytes, file: Path, run: Path, command: Command
) -> None:
    file.write_bytes(content)
    with pytest.raises(HistoryDamaged, match=r"is damaged \(.*\); `assay history import --rebuild RUNS` makes it anew"):
        HistoryDatabase.open(file_location(file))
    listed = command("history", "list")
    assert (listed.code, listed.out) == (3, "")
    rebuilt = command("history", "import", "--rebuild", run)
    assert rebuilt.code == 0, rebuilt.err
    assert "The damaged history is set aside as " in rebuilt.err
    (aside,) = file.parent.glob("history.sqlite.damaged-*")
    assert aside.read_bytes() == content
    assert [one["folder"] for one in command("history", "list", "--json").data["runs"]] == [str(run)]


def test_a_file_that_is_damaged_deep_inside_is_said(file: Path, run: Path, tmp_path: Path) -> None:
    database = HistoryDatabase.open(file_location(file))
    import_runs(database, [write_run(tmp_path / "many", [1.0] * 300)])
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(HistoryDamaged, match="is damaged"):
        import_runs(database, [run])


def test_a_server_that_is_down_or_refuses_is_said_without_the_password(
    postgres: Server, run: Path, tmp_path: Path
) -> None:
    wrong = postgres.url("postgres", password="hunter2")
    down = f"postgresql://me:hunter2@/history?host={tmp_path}"
    closed = "postgresql://me:hunter2@127.0.0.1:1/history"
    missing = postgres.url("no_such_database")
    for url, said in (
        (wrong, "password authentication failed"),
        (down, "No such file or directory"),
        (closed, "onnection refused"),
        (missing, "does not exist"),
    ):
        with pytest.raises(MachineCannot, match=r"^The history postgresql://.* cannot be used: ") as caught:
            import_run(run, parse_location(url))
        assert said in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_server_that_hangs_up_in_the_middle_is_said_and_keeps_nothing(postgres: Server, run: Path) -> None:
    where = parse_location(postgres.fresh())
    database = HistoryDatabase.open(where)

    def write_half(database: HistoryDatabase) -> None:
        with database.writing() as connection:
            write_runs(connection, [read_run(RunFolder.open(run))], ImportResult())
            backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            postgres.execute(f"SELECT pg_terminate_backend({backend})")
            insert_many(connection, POINTS, [(1, 2, 1.0, None, None, 1, "run", "ok", None, 0)])

    with pytest.raises(MachineCannot, match=r"^The history postgresql://.* cannot be used: "):
        write_half(database)
    with database.reading() as connection:
        assert list_runs(connection, PointFilter()) == []


@pytest.mark.full
def test_a_run_whose_server_is_down_is_measured_all_the_same(
    assay: Assay, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/history"
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--benchmark-runs", 3, "--no-monitor", ASSAY_HISTORY=url)
    assert ran.code == 0
    (line,) = [line for line in ran.err.splitlines() if line.startswith("warning: this run is not in the history")]
    assert "postgresql://me@127.0.0.1:1/history" in line
    assert "hunter2" not in ran.err + ran.out
    monkeypatch.setenv("ASSAY_HISTORY", url)
    verb = command("history", "list")
    assert verb.code == 3
    assert "hunter2" not in verb.err


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("mysql://me:hunter2@host/history", "is a URL of 'mysql'; a history is kept in sqlite or postgresql"),
        ("postgresql+asyncpg://me:hunter2@host/history", "is a URL of 'postgresql\\+asyncpg'"),
        ("postgresql://me:hunter2@host", "names no database"),
        ("postgresql://me:hunter2@host:port/history", "is not a URL of a database"),
        ("://hunter2", "is not a URL of a database"),
        ("sqlite://", "names no file"),
    ],
)
def test_a_url_that_means_nothing_is_bad_input_and_not_shown(
    said: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HISTORY", said)
    with pytest.raises(BadInput, match=sentence) as caught:
        history_location()
    assert "hunter2" not in str(caught.value)


def test_where_a_history_is(monkeypatch: pytest.MonkeyPatch, assay_home: Path, tmp_path: Path) -> None:
    def found(said: str) -> str | None:
        monkeypatch.setenv("ASSAY_HISTORY", said)
        there = history_location()
        return None if there is None else there.shown

    assert found("") == str(assay_home / "history.sqlite")
    assert found("off") is None
    assert found(f"{tmp_path}/h.db") == found(f"sqlite:///{tmp_path}/h.db") == f"{tmp_path}/h.db"
    assert found("postgres://me:secret@host:5433/db?sslmode=require&password=s2") == "postgresql://me@host:5433/db"
    secret = parse_location("postgresql://me:s1@host/db?password=s2")
    assert secret.scrubbed("s1 and s2 fail") == "*** and *** fail"


def test_without_psycopg_a_server_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MachineCannot, match=r"needs psycopg.*pip install 'gpu-assay\[postgres\]'"):
        HistoryDatabase(parse_location("postgresql://me@host/db"))
