"""The guardian cleans up after a program that cannot do it itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core import leases, processes
from assay.core.errors import MachineCannot, StopRequested
from assay.core.guardian import Guardian, GuardianLost, GuardianNotStarted
from assay.core.processes import stop_on_signals, stop_reason
from tests.guardians import guardian_of, guardians_of

if TYPE_CHECKING:
    from tests.conftest import Eventually, StartPython

PROGRAM = """
import json, os, signal, subprocess, sys, time
from assay.core import leases, processes
from assay.core.guardian import Guardian
signal.signal(signal.SIGINT, signal.SIG_IGN)
folder, *more = sys.argv[1:]
with Guardian():
    leases.take_lease("folder", "a folder", "os:rmdir", {"path": folder})
    os.mkdir(folder)
    token = leases.new_lease_id()
    leases.take_lease("worker", "a worker", "assay.core.processes:kill_marked", {"token": token}, lease_id=token)
    daemon = "import os, time; os.setsid(); print('up', flush=True); time.sleep(60)"
    worker = subprocess.Popen(
        [sys.executable, "-c", daemon], env={**os.environ, **processes.mark_environment(token)}, stdout=subprocess.PIPE
    )
    worker.stdout.readline()
    forked = 0
    if "fork" in more:
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
    print(json.dumps({"worker": worker.pid, "forked": forked}), flush=True)
    time.sleep(60)
"""


def _said(program: subprocess.Popen[str]) -> dict[str, int]:
    assert program.stdout is not None
    said: dict[str, int] = json.loads(program.stdout.readline())
    return said


def _gone(pid: int) -> bool:
    return processes.identify_process(pid) is None


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _no_leases(home: Path) -> bool:
    return not list((home / "leases").iterdir())


def test_a_killed_program_leaves_nothing_behind(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    folder = tmp_path / "made"
    program = start_python(PROGRAM, folder)
    worker = _said(program)["worker"]
    guardian = guardian_of(program.pid)
    assert folder.exists()
    program.kill()
    eventually(lambda: _no_leases(assay_home))
    assert not folder.exists()
    assert _gone(worker)
    eventually(lambda: _gone(guardian))
    assert not (assay_home / "guardian.log").exists()


def test_the_guardian_outlives_ctrl_c_and_polite_signals(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    folder = tmp_path / "made"
    program = start_python(PROGRAM, folder, start_new_session=True)
    _said(program)
    guardian = guardian_of(program.pid)
    assert os.getsid(guardian) == guardian
    os.killpg(program.pid, signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    os.killpg(program.pid, signal.SIGKILL)
    eventually(lambda: _no_leases(assay_home))
    assert not folder.exists()


def test_a_forked_child_that_keeps_the_pipe_open_deceives_nobody(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    program = start_python(PROGRAM, tmp_path / "made", "fork")
    forked = os.pidfd_open(_said(program)["forked"])
    program.kill()
    program.wait()
    try:
        eventually(lambda: _no_leases(assay_home))
        assert not (tmp_path / "made").exists()
        signal.pidfd_send_signal(forked, signal.SIGKILL)
    finally:
        os.close(forked)


def test_killing_a_mark_kills_the_program_and_not_its_guardian(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    token = leases.new_lease_id()
    program = start_python(PROGRAM, tmp_path / "made", env={**os.environ, **processes.mark_environment(token)})
    _said(program)
    guardian = guardian_of(program.pid)
    assert guardian not in processes.list_marked(token)
    processes.kill_marked(token)
    assert program.wait() == -signal.SIGKILL
    eventually(lambda: _no_leases(assay_home))


def test_a_program_that_ends_well_takes_its_guardian_with_it(assay_home: Path) -> None:
    descriptors = _open_files()
    with Guardian():
        guardian = guardian_of(os.getpid())
        assert not _gone(guardian)
        assert _open_files() == descriptors + 1
    assert _gone(guardian)
    assert _open_files() == descriptors
    assert not (assay_home / "guardian.log").exists()


def test_what_the_program_starts_does_not_inherit_the_pipe() -> None:
    with Guardian():
        pipe = str(Path(f"/proc/{guardian_of(os.getpid())}/fd/0").readlink())
        assert pipe.startswith("pipe:")
        inherited = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True)
        unclosed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
        )
    assert pipe not in inherited.stdout + unclosed.stdout


def test_a_guardian_has_loaded_all_it_needs_before_something_is_begun_that_must_not_be_left(
    eventually: Eventually,
) -> None:
    def loaded(pid: int) -> bool:
        return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()

    with Guardian():
        first = guardian_of(os.getpid())
        assert not loaded(first)
        Guardian.require()
        eventually(lambda: loaded(first))
        os.kill(first, signal.SIGKILL)
        eventually(lambda: [pid for pid in guardians_of(os.getpid()) if pid != first and loaded(pid)])


def test_a_lease_still_held_when_the_program_leaves_is_released(tmp_path: Path, assay_home: Path) -> None:
    with Guardian():
        leases.take_lease("folder", "a folder", "os:rmdir", {"path": str(tmp_path / "made")})
        (tmp_path / "made").mkdir()
    assert not (tmp_path / "made").exists()
    assert _no_leases(assay_home)


def test_an_undo_that_fails_is_logged_and_the_lease_kept(assay_home: Path) -> None:
    with Guardian():
        lease = leases.take_lease("folder", "the folder", "os:rmdir", {"path": "/none/such"})
    assert lease.path.exists()
    (line,) = (assay_home / "guardian.log").read_text().splitlines()
    assert "Could not undo the folder (FileNotFoundError" in line


def test_guardians_within_guardians_are_one(tmp_path: Path) -> None:
    with Guardian():
        first = guardian_of(os.getpid())
        with Guardian():
            assert guardian_of(os.getpid()) == first
            leases.take_lease("folder", "a folder", "os:rmdir", {"path": str(tmp_path / "made")})
            (tmp_path / "made").mkdir()
        assert guardian_of(os.getpid()) == first
        assert (tmp_path / "made").exists()
    assert _gone(first)
    assert not (tmp_path / "made").exists()


def test_guardians_of_threads_are_one_until_the_last_has_left() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with Guardian():
            entered.set()
            leave.wait(20)

    other = threading.Thread(target=work)
    with Guardian():
        guardian = guardian_of(os.getpid())
        other.start()
        entered.wait(20)
    assert not _gone(guardian)
    leave.set()
    other.join(20)
    assert _gone(guardian)


def test_a_forked_child_that_leaves_the_block_releases_nothing_of_its_parent(tmp_path: Path) -> None:
    with contextlib.ExitStack() as block:
        block.enter_context(Guardian())
        block.enter_context(leases.hold_lease("folder", "a folder", "os:rmdir", {"path": str(tmp_path / "made")}))
        (tmp_path / "made").mkdir()
        child = os.fork()
        if child == 0:
            Guardian().__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert not _gone(guardian_of(os.getpid()))
        assert (tmp_path / "made").exists()


def test_a_guardian_that_was_killed_is_started_again_and_takes_over_all_leases(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    folder = tmp_path / "made"
    program = start_python(PROGRAM, folder)
    worker = _said(program)["worker"]
    for times in (1, 2):
        os.kill(guardian_of(program.pid), signal.SIGKILL)
        eventually(partial(_has_logged, assay_home, times))
    program.kill()
    eventually(lambda: _no_leases(assay_home))
    assert not folder.exists()
    assert _gone(worker)
    assert all(f"The guardian of process {program.pid} was killed by SIGKILL" in line for line in _log(assay_home))


def test_a_program_that_is_killed_while_its_guardian_is_started_again_leaves_nothing(
    tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    program = start_python(PROGRAM, tmp_path / "made")
    _said(program)
    killed = guardian_of(program.pid)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: guardians_of(program.pid) not in ([], [killed]))
    program.kill()
    eventually(lambda: _no_leases(assay_home))
    assert not (tmp_path / "made").exists()


def _has_logged(home: Path, times: int) -> bool:
    return len(_log(home)) == times


def _log(home: Path) -> list[str]:
    path = home / "guardian.log"
    return path.read_text().splitlines() if path.exists() else []


def _kill_guardian(eventually: Eventually) -> int:
    """Kill the guardian of this process, and return which it was once it is dead."""
    guardian = guardian_of(os.getpid())
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: _gone(guardian))
    return guardian


def test_a_dead_guardian_is_replaced_before_anything_that_needs_one_is_begun(eventually: Eventually) -> None:
    with Guardian():
        killed = _kill_guardian(eventually)
        Guardian.require()
        assert guardian_of(os.getpid()) != killed


def test_the_end_of_a_guardian_that_has_just_replaced_another_is_waited_for(eventually: Eventually) -> None:
    with Guardian():
        watch = Guardian._shared
        assert watch is not None
        with watch._starting:
            _kill_guardian(eventually)
            watch._start_again()
            watch._ended = True
    assert watch._process.returncode == 0


def test_what_needs_a_guardian_is_not_begun_outside_of_one() -> None:
    with pytest.raises(RuntimeError, match="with Guardian"):
        Guardian.require()


def _cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stdin: int) -> None:
        raise GuardianNotStarted("there are too many processes")

    monkeypatch.setattr("assay.core.guardian._spawn", refuse)


def test_where_none_can_be_started_what_needs_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    with Guardian():
        _cannot_start(monkeypatch)
        _kill_guardian(eventually)
        with pytest.raises(GuardianLost, match=r"was killed by SIGKILL, and no other could be started: there are too"):
            Guardian.require()


def test_what_was_begun_is_undone_where_the_guardian_dies_and_none_can_be_started(
    tmp_path: Path, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[bool] = []

    def held_until_stopped() -> None:
        with stop_on_signals(), Guardian():
            Guardian.require()
            leases.take_lease("folder", "a folder", "os:rmdir", {"path": str(tmp_path / "not given back")})
            (tmp_path / "not given back").mkdir()
            with leases.hold_lease("folder", "a folder", "os:rmdir", {"path": str(tmp_path / "made")}):
                (tmp_path / "made").mkdir()
                _cannot_start(monkeypatch)
                os.kill(guardian_of(os.getpid()), signal.SIGKILL)
                try:
                    time.sleep(60)
                finally:
                    undone.append((tmp_path / "made").exists())

    with pytest.raises(StopRequested, match="Stopped, as a kill would leave what was changed: The guardian"):
        held_until_stopped()
    assert undone == [True]
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "not given back").exists()
    assert _no_leases(assay_home)


def test_a_run_that_needs_no_guardian_goes_on_where_none_can_be_started(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    with stop_on_signals(), Guardian():
        _cannot_start(monkeypatch)
        _kill_guardian(eventually)
        eventually(lambda: not any(thread.name == "guardian" for thread in threading.enumerate()))
        assert stop_reason() is None


def test_an_undo_finds_the_modules_of_the_program_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "undo_of_a_test.py").write_text(
        "import os, pathlib\n"
        "def undo(path):\n"
        "    print('heard by nobody')\n"
        "    pathlib.Path(path).write_text(repr((os.getcwd(), os.environ.get('PYTHONPATH'))))\n"
    )
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json you want')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    with Guardian():
        leases.take_lease("a", "b", "undo_of_a_test:undo", {"path": str(tmp_path / "proof")})
    assert (tmp_path / "proof").read_text() == "('/', None)"


@pytest.mark.parametrize("interpreter", ["/bin/false", "/none/such/python", "/bin/echo"])
def test_a_guardian_that_does_not_start_is_said_at_once(monkeypatch: pytest.MonkeyPatch, interpreter: str) -> None:
    descriptors = _open_files()
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(MachineCannot, match="Could not start the guardian"), Guardian():
        pytest.fail("there is no guardian")
    assert _open_files() == descriptors
    monkeypatch.undo()


def test_a_guardian_that_was_killed_is_not_missed_at_the_end() -> None:
    with Guardian():
        guardian = guardian_of(os.getpid())
        os.kill(guardian, signal.SIGKILL)
    assert not Path(f"/proc/{guardian}").exists()
