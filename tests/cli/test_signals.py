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
from assay.store.runs import RunFolder
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

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


@pytest.mark.timeout(400)
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
    guardians = [pid for pid in survivors(assay_home) if b"assay.core.guardian" in _command_line(pid)]
    assert len(guardians) == 1
    os.kill(guardians[0], signal.SIGKILL)
    process.kill()
    process.communicate()
    assert assay("reap").code == 0
    assert survivors(assay_home) == []
    assert list((assay_home / "leases").iterdir()) == []


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - procfs, read whole
            return file.read()
    except OSError:
        return b""
