"""What must be undone is undone: by the owner, or by whoever comes after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from assay.core import files, leases, processes
from assay.core.errors import MachineCannot
from assay.core.leases import Lease, LeaseNotReleased

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, StartPython

DEAD = replace(processes.current_process(), start_ticks=0)
ELSEWHERE = replace(processes.current_process(), host="elsewhere")
LATER = timedelta(hours=1)


def _take(folder: Path, *, owner: processes.ProcessIdentity | None = None, deadline: datetime | None = None) -> Lease:
    """Take a lease on a folder that its undo removes, make the folder, and give the lease to another owner."""
    lease = leases.take_lease("folder", f"the folder {folder.name}", "os:rmdir", {"path": str(folder)}, deadline)
    folder.mkdir()
    if owner is None:
        return lease
    given = lease.model_copy(update={"owner": owner})
    files.replace_atomically(lease.path, given.model_dump_json().encode())
    return given


def _files(home: Path) -> list[Path]:
    return list((home / "leases").iterdir())


def test_a_lease_is_on_disk_before_anything_is_done(assay_home: Path) -> None:
    lease = leases.take_lease("power", "the power limit of GPU 0", "os:rmdir", {"path": "/none"})
    (file,) = _files(assay_home)
    assert file == lease.path == assay_home / "leases" / f"{lease.id}.json"
    assert Lease.model_validate(files.read_json(file)) == lease
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert lease.owner == processes.current_process()
    written = json.loads(file.read_text())
    assert written["schema_version"] == 1
    assert written["deadline_at"] is None
    assert written["created_at"].endswith("Z")


def test_leases_that_everybody_may_add_to_are_not_undone(assay_home: Path, tmp_path: Path) -> None:
    lease = _take(tmp_path / "folder", owner=DEAD)
    lease.path.parent.chmod(0o777)
    with pytest.raises(MachineCannot, match="Everybody may write into"):
        leases.reap_leases()
    assert (tmp_path / "folder").is_dir()
    (assay_home / "leases").chmod(0o700)
    assert [reaped.outcome for reaped in leases.reap_leases()] == ["released"]


def test_a_full_disk_takes_no_lease(assay_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineCannot, match="The disk is full"):
        leases.take_lease("folder", "a folder", "os:rmdir", {"path": "/none"})
    monkeypatch.undo()
    assert _files(assay_home) == []


def test_releasing_undoes_and_forgets_and_does_nothing_the_second_time(tmp_path: Path, assay_home: Path) -> None:
    folder = tmp_path / "made"
    lease = _take(folder)
    leases.release_lease(lease)
    assert not folder.exists()
    assert _files(assay_home) == []
    folder.mkdir()
    leases.release_lease(lease)
    assert folder.exists()


def test_a_lease_may_name_itself_in_its_undo(start_python: StartPython) -> None:
    token = leases.new_lease_id()
    lease = leases.take_lease(
        "worker", "a worker", "assay.core.processes:kill_marked", {"token": token}, lease_id=token
    )
    program = "import time\nprint('up', flush=True)\ntime.sleep(100)"
    worker = start_python(program, env={**os.environ, **processes.mark_environment(lease.id)})
    assert worker.stdout is not None
    worker.stdout.readline()
    leases.release_lease(lease)
    assert worker.wait() == -signal.SIGKILL


def test_a_lease_that_could_never_be_undone_is_refused(assay_home: Path) -> None:
    with pytest.raises(ValueError, match="undo"):
        leases.take_lease("a", "b", "os.rmdir", {})
    with pytest.raises(ValueError, match="undo"):
        leases.take_lease("a", "b", "os:rmdir; rm", {})
    with pytest.raises(ValueError, match="id"):
        leases.take_lease("a", "b", "os:rmdir", {}, lease_id="../../elsewhere")
    with pytest.raises(ValueError, match="timezone"):
        leases.take_lease("a", "b", "os:rmdir", {}, datetime(2026, 11, 15))
    assert not (assay_home / "leases").exists()


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    lease = _take(tmp_path / "made")
    with pytest.raises(ValueError, match="taken already"):
        leases.take_lease("a", "b", "os:rmdir", {}, lease_id=lease.id)


@pytest.mark.parametrize(
    ("undo", "args", "why"),
    [
        ("os:rmdir", {"path": "/none/such"}, "FileNotFoundError"),
        ("os:rmdir", {"wrong": 1}, "TypeError"),
        ("no.such.module:function", {}, "ModuleNotFoundError"),
        ("os:no_such_function", {}, "AttributeError"),
        ("sys:exit", {}, "SystemExit"),
    ],
)
def test_an_undo_that_fails_keeps_the_lease_with_its_error(undo: str, args: dict[str, object], why: str) -> None:
    lease = leases.take_lease("a", "the thing", undo, args)  # type: ignore[arg-type]
    for attempt in (1, 2):
        with pytest.raises(LeaseNotReleased, match=f"Could not undo the thing.*{why}") as caught:
            leases.release_lease(lease)
        assert caught.value.exit_code == 3
        assert "\n" not in str(caught.value)
        kept = Lease.model_validate(files.read_json(lease.path))
        assert kept.attempts == attempt
        assert kept.last_error is not None
        assert kept.last_error.startswith(why)


def test_held_releases_at_the_end_and_on_an_error(tmp_path: Path, assay_home: Path) -> None:
    folder = tmp_path / "made"
    with leases.hold_lease("folder", "a folder", "os:rmdir", {"path": str(folder)}) as lease:
        assert lease.path.exists()
        folder.mkdir()
    assert not folder.exists()

    def interrupted() -> None:
        with leases.hold_lease("folder", "a folder", "os:rmdir", {"path": str(folder)}):
            folder.mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not folder.exists()
    assert _files(assay_home) == []


def test_an_error_of_the_work_is_not_hidden_by_a_failed_release() -> None:
    def fails() -> None:
        with leases.hold_lease("folder", "a folder", "os:rmdir", {"path": "/none/such"}):
            raise RuntimeError("the work")

    with pytest.raises(RuntimeError, match="the work") as caught:
        fails()
    assert "Could not undo a folder" in caught.value.__notes__[0]
    with pytest.raises(LeaseNotReleased), leases.hold_lease("folder", "a folder", "os:rmdir", {"path": "/none/such"}):
        pass


OWNER = """
import sys
from assay.core import leases
leases.take_lease("folder", "a folder", "os:rmdir", {"path": sys.argv[1]})
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_lease_is_left_while_its_owner_lives_and_reaped_when_it_was_killed(
    tmp_path: Path, assay_home: Path, start_python: StartPython
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    owner = start_python(OWNER, folder, stdin=subprocess.PIPE)
    assert owner.stdout is not None
    owner.stdout.readline()
    (report,) = leases.reap_leases()
    assert (report.outcome, report.reason) == ("left", f"its owner, process {owner.pid}, is alive")
    assert folder.exists()
    owner.kill()
    owner.wait()
    (report,) = leases.reap_leases()
    assert (report.outcome, report.reason) == ("released", "its owner is dead")
    assert not folder.exists()
    assert _files(assay_home) == []
    assert leases.reap_leases() == []


def test_an_owner_whose_number_was_given_to_another_process_is_dead(tmp_path: Path) -> None:
    _take(tmp_path / "made", owner=DEAD)
    assert DEAD.pid == os.getpid()
    assert [report.outcome for report in leases.reap_leases()] == ["released"]
    assert not (tmp_path / "made").exists()


def test_a_passed_deadline_releases_even_what_a_living_owner_holds(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    _take(tmp_path / "old", deadline=now - LATER)
    _take(tmp_path / "new", deadline=(now + LATER).astimezone(timezone(timedelta(hours=5))))
    assert [(report.outcome, report.reason) for report in leases.reap_leases()] == [
        ("left", f"its owner, process {os.getpid()}, is alive"),
        ("released", "its deadline has passed"),
    ]
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "new").exists()


def test_a_lease_of_another_host_is_left_until_its_deadline(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    _take(tmp_path / "a", owner=ELSEWHERE)
    _take(tmp_path / "b", owner=ELSEWHERE, deadline=now + LATER)
    _take(tmp_path / "c", owner=ELSEWHERE, deadline=now - LATER)
    c, b, a = leases.reap_leases()
    assert (c.outcome, b.outcome, a.outcome) == ("released", "left", "left")
    assert "another host" in a.reason
    assert "without a deadline" in a.reason
    assert "before 20" in b.reason


def test_what_was_done_last_is_undone_first(tmp_path: Path) -> None:
    _take(tmp_path / "outer", owner=DEAD)
    _take(tmp_path / "outer" / "inner", owner=DEAD)
    assert [report.outcome for report in leases.reap_leases()] == ["released", "released"]
    assert not (tmp_path / "outer").exists()


def test_an_undo_that_fails_while_reaping_is_reported_and_tried_again_later(tmp_path: Path) -> None:
    full = tmp_path / "full"
    lease = _take(full, owner=DEAD)
    (full / "file").touch()
    _take(tmp_path / "fine", owner=DEAD)
    fine, failed = leases.reap_leases()
    assert (fine.outcome, failed.outcome) == ("released", "failed")
    assert "Directory not empty" in failed.reason
    assert Lease.model_validate(files.read_json(lease.path)).attempts == 1
    (full / "file").unlink()
    assert [report.outcome for report in leases.reap_leases()] == ["released"]


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0", b'{"id": "abc', b"[]", b"{}", b"\xff", b'{"schema_version": 99, "new": 1}']
)
def test_a_broken_lease_file_is_reported_and_kept_and_stops_nothing(
    tmp_path: Path, assay_home: Path, content: bytes
) -> None:
    _take(tmp_path / "made", owner=DEAD)
    broken = assay_home / "leases" / "0123456789abcdef.json"
    broken.write_bytes(content)
    reports = {report.outcome: report for report in leases.reap_leases()}
    assert set(reports) == {"broken", "released"}
    assert reports["broken"].file == str(broken)
    assert str(broken) in reports["broken"].reason
    assert broken.read_bytes() == content


def test_a_lease_under_another_name_and_a_folder_are_no_leases(tmp_path: Path, assay_home: Path) -> None:
    lease = _take(tmp_path / "made", owner=DEAD)
    lease.path.rename(lease.path.with_name("another-name.json"))
    (assay_home / "leases" / "a-folder-here.json").mkdir()
    assert [report.outcome for report in leases.reap_leases()] == ["broken", "broken"]
    assert (tmp_path / "made").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_undo_in_another_users_file_is_not_run(tmp_path: Path) -> None:
    lease = _take(tmp_path / "made", owner=DEAD)
    os.chown(lease.path, 65534, 65534)
    (report,) = leases.reap_leases()
    assert (report.outcome, report.reason) == ("left", "it belongs to another user")
    assert (tmp_path / "made").exists()


def test_all_leases_of_one_process_are_released_and_no_others(tmp_path: Path, assay_home: Path) -> None:
    _take(tmp_path / "mine")
    _take(tmp_path / "other", owner=DEAD)
    (report,) = leases.release_owned_by(processes.current_process())
    assert report.outcome == "released"
    assert not (tmp_path / "mine").exists()
    assert (tmp_path / "other").exists()


SLOW_UNDO = """
import os, time
def undo(name, started, go):
    with open(started, "a") as file:
        file.write(f"{name}\\n")
    for _ in range(4000):
        if os.path.exists(go):
            return
        time.sleep(0.005)
    raise TimeoutError("nobody said go")
"""
REAPER = """
from assay.core import leases
print(",".join(sorted(report.outcome for report in leases.reap_leases())))
"""


class SlowUndo:
    """An undo that says that it has started, and goes on when it is told to."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = tmp_path / "started"
        self.go = tmp_path / "go"
        (tmp_path / "slow_undo_of_a_test.py").write_text(SLOW_UNDO)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)

    def has_started(self) -> bool:
        return self.started.exists() and self.started.read_text().endswith("\n")

    def lease(self, name: str) -> Lease:
        args = {"name": name, "started": str(self.started), "go": str(self.go)}
        lease = leases.take_lease("a", name, "slow_undo_of_a_test:undo", dict(args))
        lease = lease.model_copy(update={"owner": DEAD})
        files.replace_atomically(lease.path, lease.model_dump_json().encode())
        return lease


@pytest.fixture
def slow_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowUndo:
    return SlowUndo(tmp_path, monkeypatch)


def test_a_second_reaper_leaves_what_the_first_is_undoing(
    slow_undo: SlowUndo, start_python: StartPython, eventually: Eventually, assay_home: Path
) -> None:
    slow_undo.lease("one")
    first = start_python(REAPER)
    eventually(slow_undo.has_started)
    (report,) = leases.reap_leases()
    assert report.outcome == "left"
    assert "another process" in report.reason
    slow_undo.go.touch()
    assert first.communicate()[0] == "released\n"
    assert slow_undo.started.read_text() == "one\n"
    assert _files(assay_home) == []


def test_reapers_at_once_undo_everything_once(slow_undo: SlowUndo, start_python: StartPython, assay_home: Path) -> None:
    slow_undo.go.touch()
    names = [f"lease-{number}" for number in range(20)]
    for name in names:
        slow_undo.lease(name)
    reapers = [start_python(REAPER) for _ in range(3)]
    for reaper in reapers:
        assert set(reaper.communicate()[0].strip().split(",")) <= {"released", "left", ""}
    assert sorted(slow_undo.started.read_text().split()) == sorted(names)
    assert _files(assay_home) == []


def test_a_reaper_killed_in_the_middle_leaves_the_lease_to_the_next(
    slow_undo: SlowUndo, start_python: StartPython, eventually: Eventually, assay_home: Path
) -> None:
    slow_undo.lease("one")
    first = start_python(REAPER)
    eventually(slow_undo.has_started)
    first.kill()
    first.wait()
    slow_undo.go.touch()
    assert [report.outcome for report in leases.reap_leases()] == ["released"]
    assert slow_undo.started.read_text() == "one\none\n"
    assert _files(assay_home) == []


def test_an_owner_that_releases_waits_for_a_reaper_that_is_at_it(
    slow_undo: SlowUndo, start_python: StartPython, eventually: Eventually
) -> None:
    lease = slow_undo.lease("one")
    reaper = start_python(REAPER)
    eventually(slow_undo.has_started)
    releasing = threading.Thread(target=leases.release_lease, args=(lease,))
    releasing.start()
    releasing.join(0.05)
    assert releasing.is_alive()
    slow_undo.go.touch()
    releasing.join(20)
    reaper.communicate()
    assert slow_undo.started.read_text() == "one\n"
