"""Answers that never come, and a controller that is away: nothing is asked for twice, nothing is forgotten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from assay.core import leases
from assay.core.errors import MachineCannot, StopRequested
from assay.core.leases import LeaseNotReleased
from assay.hosts.slurm import host as batch_job
from assay.hosts.slurm.commands import CommandResult, command_environment, run_command
from assay.hosts.slurm.host import SlurmHost
from tests.hosts.slurm.test_script import order

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Job, JobProgress

NAME = "assay-0123456789abcdef"


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def progress(self, progress: JobProgress) -> None:
        self.told.append(progress.what)

    def out(self, data: bytes) -> None:
        self.told.append(data.decode())

    err = out


class StandIns:
    """Slurm's commands as small scripts, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.say("sinfo", 'echo "main|up|0/2/0/2|(null)|infinite"')
        self.say("scontrol", "exit 0")
        self.say("scancel", f"rm -f '{folder}/job'")
        self.say("squeue", f"if [ -e '{folder}/job' ]; then echo '12|RUNNING|{NAME}|n1|None'; fi")

    def say(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $@" >> "{self.folder}/asked"\n{text}\n')
        path.chmod(0o755)

    def asked(self, name: str) -> int:
        return [line.split(" ")[0] for line in (self.folder / "asked").read_text().splitlines()].count(name)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(batch_job, "APPEAR_TIMEOUT_S", 0.1)
    return StandIns(folder)


@pytest.fixture
def wanted(tmp_path: Path) -> Job:
    return order(folder=str(tmp_path / "orders"), cwd=str(tmp_path), words=("run", "x"))


def test_a_job_whose_answer_was_lost_is_found_by_its_name(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 'sbatch: error: Socket timed out' >&2; exit 1")
    host = SlurmHost()
    loan = host.create(wanted)
    assert loan.number == "12"
    assert stand_ins.asked("sbatch") == 1
    host.release(loan)
    assert stand_ins.asked("scancel") == 1
    assert leases.reap_leases() == []


def test_a_stop_that_comes_with_the_answer_cancels_the_job_and_says_so(
    stand_ins: StandIns, wanted: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 12")
    submit = run_command

    def stopped(*words: str, **options: Any) -> CommandResult:
        result = submit(*words, **options)
        if words[0] == "sbatch":
            raise StopRequested("Stopped by SIGINT")
        return result

    monkeypatch.setattr(batch_job, "run_command", stopped)
    with pytest.raises(StopRequested, match=f"^Stopped by SIGINT; Slurm job {NAME} is gone$"):
        SlurmHost().create(wanted)
    assert not (stand_ins.folder / "job").exists()
    assert leases.reap_leases() == []


def test_a_job_that_was_not_made_leaves_no_lease(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(MachineCannot, match="Slurm did not answer: Unable to contact slurm controller"):
        SlurmHost().create(wanted)
    assert leases.reap_leases() == []


def test_the_lease_is_there_before_the_job(stand_ins: StandIns, wanted: Job, assay_home: Path) -> None:
    stand_ins.say(
        "sbatch", f"ls '{assay_home}/leases' > '{stand_ins.folder}/then'; touch '{stand_ins.folder}/job'; echo 12"
    )
    host = SlurmHost()
    loan = host.create(wanted)
    assert (stand_ins.folder / "then").read_text().split() == ["0123456789abcdef.json"]
    host.release(loan)


def test_a_job_that_does_not_go_keeps_its_lease(
    stand_ins: StandIns, wanted: Job, monkeypatch: pytest.MonkeyPatch, assay_home: Path
) -> None:
    monkeypatch.setattr(batch_job, "GONE_TIMEOUT_S", 0.2)
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 12")
    stand_ins.say("scancel", "exit 1")
    host = SlurmHost()
    loan = host.create(wanted)
    with pytest.raises(LeaseNotReleased, match=r"Slurm's job 12 \(RUNNING\) is still there"):
        host.release(loan)
    assert len(list((assay_home / "leases").iterdir())) == 1
    monkeypatch.setattr(batch_job, "GONE_TIMEOUT_S", 60.0)
    stand_ins.say("scancel", f"rm '{stand_ins.folder}/job'")
    batch_job.cancel_job(NAME, None)
    assert not (stand_ins.folder / "job").exists()


def test_a_controller_that_is_away_for_a_while_is_waited_for(
    stand_ins: StandIns, wanted: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"if [ -e '{stand_ins.folder}/back' ]; then echo '12|COMPLETED|{NAME}|n1|None'; else touch"
    stand_ins.say(
        "squeue", f"{away} '{stand_ins.folder}/back'; echo 'slurm_load_jobs error: no controller' >&2; exit 1; fi"
    )
    stand_ins.say("sbatch", "echo 12")
    monkeypatch.setattr("assay.hosts.slurm.host.SHARED_FILES_TIMEOUT_S", 0.1)
    host = SlurmHost()
    watcher = Watcher()
    ended = host.run(host.create(wanted), wanted, watcher)
    assert watcher.told == ["Slurm job 12 cannot be queried: Slurm's queue cannot be read: no controller"]
    assert ended.exit_code == 3
    assert "before anything ran on its nodes" in (ended.reason or "")


def test_a_controller_that_stays_away_is_given_up_in_the_end(
    stand_ins: StandIns, wanted: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_job, "MAX_SILENCE_S", 0.2)
    stand_ins.say("sbatch", "echo 12")
    stand_ins.say("squeue", "echo 'slurm_load_jobs error: no controller' >&2; exit 1")
    host = SlurmHost()
    loan = host.create(wanted)
    with pytest.raises(MachineCannot, match="no controller"):
        host.run(loan, wanted, Watcher())
    with pytest.raises(LeaseNotReleased, match="no controller"):
        host.release(loan)


def test_slurms_words_are_put_on_one_line() -> None:
    said = CommandResult(
        1, "", "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed.\n"
    )
    assert said.reason == "invalid partition specified: x; Batch job submission failed"
    assert CommandResult(7, "", "").reason == "exit code 7"


def test_neither_an_allocation_around_us_nor_a_users_filters_reach_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SQUEUE_PARTITION", "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "x")
    found = command_environment()
    assert "SLURM_JOB_ID" not in found
    assert "SQUEUE_PARTITION" not in found
    assert (found["SLURM_CONF"], found["SBATCH_ACCOUNT"]) == ("x", "x")
    assert command_environment("/y")["SLURM_CONF"] == "/y"
