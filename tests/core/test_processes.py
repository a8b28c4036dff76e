"""Who is who among processes, and how marked ones die."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core import processes
from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Eventually, StartPython

TOKEN = f"test-{os.getpid()}"
MARKED = {**os.environ, **processes.mark_environment(TOKEN)}


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    processes.kill_marked(TOKEN)


def _gone(pid: int) -> bool:
    return processes.identify_process(pid) is None


def test_a_running_process_is_alive_and_an_ended_one_is_not(start_python: StartPython) -> None:
    assert processes.is_alive(processes.current_process())
    process = start_python("input()", stdin=subprocess.PIPE)
    identity = processes.identify_process(process.pid)
    assert identity is not None
    assert processes.is_alive(identity)
    process.communicate("\n")
    assert not processes.is_alive(identity)
    assert processes.identify_process(process.pid) is None


def test_a_zombie_is_not_alive(eventually: Eventually) -> None:
    process = subprocess.Popen(["sleep", "100"])
    identity = processes.identify_process(process.pid)
    assert identity is not None
    process.kill()
    eventually(lambda: not processes.is_alive(identity))
    os.kill(process.pid, 0)
    process.wait()


def test_a_process_that_got_the_number_of_another_is_another() -> None:
    me = processes.current_process()
    assert not processes.is_alive(replace(me, start_ticks=me.start_ticks + 1))


def test_nothing_survives_a_reboot() -> None:
    me = processes.current_process()
    before = replace(me, boot_id="another boot", pid_namespace=1)
    assert processes.is_visible(before)
    assert not processes.is_alive(before)


@pytest.mark.parametrize("change", [{"host": "elsewhere", "boot_id": "another boot"}, {"pid_namespace": 1}])
def test_a_process_of_another_host_or_container_counts_as_alive(change: dict[str, Any]) -> None:
    other = replace(processes.current_process(), **{**change, "pid": 2**22 + 1})
    assert not processes.is_visible(other)
    assert processes.is_alive(other)


def test_the_host_is_named_by_a_hash_and_not_by_its_name() -> None:
    me = processes.current_process()
    assert len(me.host) == 16
    assert set(me.host) <= set("0123456789abcdef")
    assert os.uname().nodename not in repr(me)


@pytest.mark.parametrize("name", ["a) Z 1 (b", "Z)", "(((", "a b c d e f", ") ) ) )"])
def test_a_name_with_spaces_and_parentheses_confuses_nobody(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "100"], env=MARKED)
    identity = processes.identify_process(process.pid)
    started = subprocess.run(["ps", "-o", "comm=", "-p", str(process.pid)], capture_output=True, text=True, check=False)
    assert started.returncode != 0 or started.stdout.strip() == name.strip()
    assert identity is not None
    assert abs(identity.start_ticks - processes.current_process().start_ticks) < 3600 * os.sysconf("SC_CLK_TCK")
    assert processes.is_alive(identity)
    assert processes.kill_marked(TOKEN) == 1
    process.wait()


def test_only_the_exact_mark_counts(eventually: Eventually) -> None:
    environments = [
        {processes.MARK: f"{TOKEN}x"},
        {processes.MARK: TOKEN[:-1]},
        {f"X_{processes.MARK}": TOKEN},
        {"OTHER": f"{processes.MARK}={TOKEN}"},
    ]
    others = [subprocess.Popen(["sleep", "100"], env={**os.environ, **extra}) for extra in environments]
    mine = subprocess.Popen(["sleep", "100"], env=MARKED)
    eventually(lambda: processes.list_marked(TOKEN) == [mine.pid])
    assert processes.kill_marked(TOKEN) == 1
    assert mine.wait() == -signal.SIGKILL
    assert [other.poll() for other in others] == [None] * 4
    for other in others:
        other.kill()
        other.wait()


def test_killing_what_is_not_there_kills_nothing() -> None:
    assert processes.list_marked(TOKEN) == []
    assert processes.kill_marked(TOKEN) == 0


@pytest.mark.parametrize("token", ["", "a\0b"])
def test_a_mark_that_could_hit_others_is_refused(token: str) -> None:
    for function in (processes.mark_environment, processes.list_marked, processes.kill_marked):
        with pytest.raises(ValueError, match="mark"):
            function(token)


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.environ.clear()
os.chdir("/")
print(os.getpid(), flush=True)
os.close(0), os.close(1), os.close(2)
time.sleep(100)
"""


def test_a_grandchild_that_left_its_session_and_parent_is_killed(start_python: StartPython) -> None:
    parent = start_python(DAEMON, env=MARKED)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    parent.wait()
    assert processes.list_marked(TOKEN) == [grandchild]
    assert processes.kill_marked(TOKEN) == 1
    assert _gone(grandchild)


RUNS_AWAY = """
import os, time
print("ready", flush=True)
for generation in range(2000):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""


def test_a_process_that_runs_away_by_forking_is_caught(
    start_python: StartPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_KILL_WITHIN_S", 120.0)  # on a busy machine who runs after it gets a core seldom
    root = start_python(RUNS_AWAY, env=MARKED)
    assert root.stdout is not None
    root.stdout.readline()
    root.wait()
    assert processes.kill_marked(TOKEN) >= 1
    assert processes.list_marked(TOKEN) == []


def test_a_stopped_process_is_killed(start_python: StartPython) -> None:
    process = start_python("import time; time.sleep(100)", env=MARKED)
    process.send_signal(signal.SIGSTOP)
    assert processes.kill_marked(TOKEN) == 1
    assert process.wait() == -signal.SIGKILL


TERMINABLE = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"tidied\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end if sys.argv[1] == "polite" else signal.SIG_IGN)
print("ready", flush=True)
time.sleep(100)
"""


def test_with_a_grace_a_process_may_end_by_itself(start_python: StartPython) -> None:
    process = start_python(TERMINABLE, "polite", env=MARKED)
    assert process.stdout is not None
    process.stdout.readline()
    assert processes.kill_marked(TOKEN, grace_s=20) == 1
    assert process.stdout.read() == "tidied\n"
    assert process.wait() == 0


def test_after_the_grace_a_deaf_process_is_killed(start_python: StartPython) -> None:
    process = start_python(TERMINABLE, "deaf", env=MARKED)
    assert process.stdout is not None
    process.stdout.readline()
    assert processes.kill_marked(TOKEN, grace_s=0.05) == 1
    assert process.wait() == -signal.SIGKILL


def test_a_marked_process_that_kills_its_mark_survives_itself(start_python: StartPython) -> None:
    program = """
import subprocess, sys
from assay.core import processes
child = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL)
print(processes.kill_marked(sys.argv[1]), child.wait())
"""
    assert start_python(program, TOKEN, env=MARKED).communicate()[0] == "1 -9\n"


def test_processes_that_cannot_be_killed_are_named(monkeypatch: pytest.MonkeyPatch, start_python: StartPython) -> None:
    process = start_python("import time; time.sleep(100)", env=MARKED)

    def forbidden(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(signal, "pidfd_send_signal", forbidden)
        patch.setattr(processes, "_KILL_WITHIN_S", 0.05)
        with pytest.raises(MachineCannot, match=f"^Could not kill process {process.pid} within"):
            processes.kill_marked(TOKEN)
    assert process.poll() is None


def test_a_kernel_without_process_handles_still_kills(
    monkeypatch: pytest.MonkeyPatch, start_python: StartPython
) -> None:
    def missing(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    process = start_python("import time; time.sleep(100)", env=MARKED)
    assert processes.kill_marked(TOKEN) == 1
    assert process.wait() == -signal.SIGKILL


def test_unreadable_and_vanishing_processes_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "100" / "environ").mkdir(parents=True)
    (tmp_path / "101").mkdir()
    (tmp_path / "102").mkdir()
    (tmp_path / "102" / "environ").write_bytes(f"A=1\0{processes.MARK}={TOKEN}\0B=2\0".encode())
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.list_marked(TOKEN) == [102]
    monkeypatch.undo()


def test_a_sandbox_that_tells_little_still_gives_an_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "stat").write_text(f"{os.getpid()} (py) S " + " ".join(map(str, range(4, 53))))
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    me = processes.current_process()
    monkeypatch.undo()
    assert (me.boot_id, me.pid_namespace, me.start_ticks) == ("btime-1700000000", 0, 22)


def test_without_proc_the_machine_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    with pytest.raises(MachineCannot, match="/proc"):
        processes.current_process()
    monkeypatch.undo()
