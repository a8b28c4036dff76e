"""Ctrl-C, SIGTERM and SIGKILL at any moment: nothing survives, nothing measured is lost, the run can go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.store.run_folder import RunFolder
from tests.cli.stop_moments import stopped, undisturbed_s
from tests.guardians import kill_with_guardian
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.stop_moments import Verb
    from tests.conftest import StartPython
    from tests.running import Assay

pytestmark = pytest.mark.full

RUN = ("run", "bad.py:fine", "--device", "cpu:0", "--isolation", "none", "--benchmark-runs", "3", "--repeat", "4")
LONG = ("run", "bad.py:fine", "--device", "cpu", "--mode", "concurrent", "--duration", "60", "--restarts", "1")


def start(workplace: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "assay", *arguments],
        cwd=workplace,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        start_new_session=True,
    )


def workers_are_up(home: Path) -> bool:
    return len(list((home / "leases").glob("*.json"))) >= 2 if (home / "leases").is_dir() else False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_ends_the_run_with_everything_kept(
    sent: signal.Signals, workplace: Path, assay_home: Path
) -> None:
    process = start(workplace, *LONG)
    wait_for(lambda: workers_are_up(assay_home))
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    assert b"Stopped by " + sent.name.encode() in err
    assert b"assay resume" in err
    assert b"goes on; repeat-1, of which 0 of 1 trials were done, is measured again as a whole." in err
    assert b"Traceback" not in err
    wait_for(lambda: not survivors(assay_home))
    assert list((assay_home / "leases").iterdir()) == []


def test_impatient_signals_do_not_disturb_the_cleaning_up(workplace: Path, assay_home: Path) -> None:
    process = start(workplace, *LONG)
    wait_for(lambda: workers_are_up(assay_home))
    for _ in range(20):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4, err
    wait_for(lambda: not survivors(assay_home))


def finished_blocks(folder: RunFolder) -> dict[str, int]:
    """Return the attempt of each block that was measured whole."""
    return {d.block.name: d.attempt for d in folder.decisions() if folder.finished(d.block) is not None}


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_twenty_random_moments_nothing_survives_and_nothing_is_measured_twice(
    seed: int, workplace: Path, assay_home: Path, assay: Assay
) -> None:
    moments = random.Random(20261115 + seed)
    kills, completed, latest_s = 0, 0, 3.0
    while kills < 4 or not completed:
        arguments: tuple[str, ...] = RUN
        for _ in range(4):
            before = finished_blocks(RunFolder.open(workplace / "runs/latest")) if arguments[0] == "resume" else {}
            process = start(workplace, *arguments)
            try:
                process.wait(moments.uniform(0.1, latest_s))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
            process.communicate()
            wait_for(lambda: not survivors(assay_home))
            try:
                folder = RunFolder.open(workplace / "runs/latest")
            except BadInput:
                continue
            after = finished_blocks(folder)
            assert before.items() <= after.items()
            arguments = ("resume", str(folder.path))
        if arguments[0] != "resume":  # killed each time before there was a run, as this machine is slow
            latest_s *= 2
            continue
        resumed = assay("resume", "runs/latest", "--json")
        assert resumed.code == 0, resumed.err
        complete = finished_blocks(RunFolder.open(workplace / "runs/latest"))
        assert sorted(complete) == ["repeat-1", "repeat-2", "repeat-3", "repeat-4"]
        assert len(resumed.data["records"]) == 4
        assert "Nothing was left behind." in assay("reap").out
        (workplace / "runs/latest").unlink()
        completed += 1


def test_two_runs_at_once_in_one_folder_do_not_harm_each_other(workplace: Path, assay_home: Path) -> None:
    processes = [start(workplace, *RUN) for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    folders = [p for p in (workplace / "runs").iterdir() if not p.is_symlink()]
    assert len(folders) == 2
    for path in folders:
        assert len(finished_blocks(RunFolder.open(path))) == 4


def test_reap_ends_what_a_run_without_its_guardian_left(workplace: Path, assay_home: Path, assay: Assay) -> None:
    process = start(workplace, *LONG)
    wait_for(lambda: workers_are_up(assay_home))
    kill_with_guardian(process)
    assert assay("reap").code == 0
    assert survivors(assay_home) == []
    assert list((assay_home / "leases").iterdir()) == []


MONITOR_LOSES_A_STOP = """
import os, signal, sys
from assay.cli.entry import main
from assay.monitor.client import Recording

start = Recording.start

def stopped(options):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(options)

Recording.start = stopped
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_while_the_recorder_starts_ends_the_run(workplace: Path, assay_home: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", MONITOR_LOSES_A_STOP, *LONG], cwd=workplace, capture_output=True, text=True, check=False
    )
    assert process.returncode == 4
    assert "Stopped by SIGTERM; 0 trials kept. `assay resume runs/" in process.stderr
    assert survivors(assay_home) == []
    assert list((assay_home / "leases").glob("*")) == []


LATE = """
import os, signal, sys
from assay.cli import show
from assay.cli.entry import main
import {module}

before = {module}.{name}

def stopped(*arguments, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return before(*arguments, **named)

{module}.{name} = stopped
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("module", "name", "way_on"),
    [
        ("assay.runner", "conclude", "1 trial kept. `assay resume runs/"),
        ("assay.reports.documents", "write_report", "while the report was drawn; everything measured is kept, and"),
        ("assay.store.history.importing", "import_run", "everything measured is kept, and `assay history import runs/"),
    ],
)
def test_a_signal_when_everything_is_measured_says_what_is_kept(
    module: str, name: str, way_on: str, workplace: Path, assay_home: Path
) -> None:
    words = ("run", "bad.py:fine", "--device", "cpu:0", "--benchmark-runs", "3", "--no-monitor")
    process = subprocess.run(
        [sys.executable, "-c", LATE.format(module=module, name=name), *words],
        cwd=workplace,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 4
    assert process.stderr.splitlines()[-1].startswith("assay: Stopped by SIGTERM")
    assert way_on in process.stderr
    assert "Traceback" not in process.stderr
    assert len(RunFolder.open(workplace / "runs/latest").records()) == 1


def test_a_signal_after_the_last_word_changes_nothing(workplace: Path) -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: [os.kill(os.getpid(), s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)])\n"
        "from assay.cli.entry import main\nsys.exit(main(['--version']))\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_there_is_a_command_line_ends_it(sent: signal.Signals) -> None:
    program = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'assay.cli.main': os.kill(os.getpid(), {int(sent)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from assay.cli.entry import main\nsys.exit(main(['--version']))\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (4, "")
    assert process.stderr == f"assay: Stopped by {sent.name}; nothing was begun.\n"


def test_what_a_library_makes_of_a_request_is_still_a_request() -> None:
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'assay.cli.runs':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGTERM)\n"
        "                for _ in range(1000): pass\n"
        "            except BaseException as error:\n"
        "                raise ImportError('numpy.core.multiarray failed to import')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from assay.cli.entry import main\nsys.exit(main(['list']))\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (4, "assay: Stopped by SIGTERM.\n")


def test_the_next_command_says_what_was_left_behind(
    workplace: Path, assay_home: Path, start_python: StartPython, assay: Assay
) -> None:
    holder = start_python(
        "from assay.core import leases\n"
        "leases.take_lease('folder', 'a folder of mine', 'os:rmdir', {'path': 'made'})\nprint('taken', flush=True)\n"
        "input()\n",
        stdin=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert assay("list", "runs").err == ""
    holder.kill()
    holder.wait()
    said = "warning: a crashed run left behind: a folder of mine. `assay reap` cleans up."
    assert assay("list", "runs").err.splitlines() == [said]
    (workplace / "made").mkdir()
    reaped = assay("reap")
    assert (reaped.code, reaped.err) == (0, "")
    assert assay("list", "runs").err == ""


@pytest.mark.parametrize("verb", ["run", "scaling"])
def test_stopped_at_seeded_moments_a_command_ends_with_4_and_leaves_nothing(verb: Verb, tmp_path: Path) -> None:
    takes_s = undisturbed_s(verb, tmp_path / "undisturbed")
    chance = random.Random(f"moments of {verb}")
    found = [
        stopped(verb, sent, chance.uniform(0.05, 1.0) * takes_s, tmp_path / str(number), resume=number == 0)
        for number, sent in enumerate((signal.SIGTERM, signal.SIGINT))
    ]
    assert [stop for stop in found if not stop.good] == []
