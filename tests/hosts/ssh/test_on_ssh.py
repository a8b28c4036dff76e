"""``--on ssh:HOST`` with a real sshd: results come back, are used here, and nothing is left there, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.core.errors import MachineCannot
from assay.hosts.remote import remote_job
from assay.hosts.remote.agent.folder import processes_of, supervisor_of
from assay.hosts.remote.transfer import FrameReader
from assay.store.run_folder import RunFolder
from tests.cli.test_threshold_run import CONFIG, SPINS, THRESHOLDS
from tests.hosts.ssh.ordering import QUICK, HereLine, Listener, order_for
from tests.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.hosts.ssh.server import Server
    from tests.running import Assay
    from tests.telling import Telling

ON = ("--on", "ssh:gpu1", "--remote-python", sys.executable)
WAITS = """
import pathlib, time

def waits():
    while not pathlib.Path({flag!r}).exists():
        time.sleep(0.05)
"""
LONG = ("run", "bad.py:fine", "waits.py:waits", "--device", "cpu:0", "--isolation", "none", "--benchmark-runs", "3",
        "--no-monitor", "--timeout", "300", "--seed", "1", *ON)  # fmt: skip


def orders(server: Server) -> list[Path]:
    """Return what is there of orders."""
    return list((server.cache / "jobs").glob("*"))


def leases(home: Path) -> list[Path]:
    """Return what has still to be undone."""
    return list((home / "leases").glob("*"))


@pytest.fixture
def send(workplace: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command line as a process of its own, in a folder with a function that waits for a file."""
    (workplace / "waits.py").write_text(WAITS.format(flag=str(workplace / "flag")))
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", *arguments],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def measuring(process: subprocess.Popen[str]) -> str:
    """Wait until the second workload, which hangs, is being measured there; return what was said."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if re.search(r"waits.py:waits .*…", line):
            return said
    raise AssertionError(said)


def test_thresholds_found_there_are_written_here_and_nothing_is_left(
    gpu1: Server, assay: Assay, workplace: Path, assay_home: Path, telling: Telling
) -> None:
    (workplace / "spins.py").write_text(SPINS)
    (workplace / "config.yaml").write_text(CONFIG)
    (workplace / "t.yaml").write_text(THRESHOLDS.format(fast="from_two_on"))
    ran = assay(
        "threshold", "run", "t.yaml", "--device", "cpu", "--quick", "--no-monitor", "--isolation", "none", *ON,
        "--update-config", "--config", "config.yaml", "--output", "results.json", "--report", "report.md",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "min_len: 2  #" in (workplace / "config.yaml").read_text()
    assert "config.yaml is written." in ran.err
    (workplace / "config.yaml").write_text(CONFIG)
    words = ("results.json", "--config", "config.yaml", "--thresholds", "t.yaml", "--dry-run")
    body = assay("github", "pull-request", *words).out
    assert "| `1` | **`2`** |" in body
    for line in body.splitlines():
        telling("the pull request that a run over ssh would open", line)
    run = (workplace / "runs/latest").resolve()
    folder = RunFolder.open(run)
    assert folder.plan.cwd == str(workplace)
    assert {record.origin for record in folder.records()} == {"real"}
    assert f"Report: runs/{run.name}/report.html" in ran.err
    assert run.name in assay("history", "list", "--json").out
    assert (orders(gpu1), leases(assay_home), list((gpu1.home / "leases").glob("*"))) == ([], [], [])


def test_a_line_that_is_cut_is_taken_up_again_and_ctrl_c_brings_back_what_was_measured(
    gpu1: Server, send: Callable[..., subprocess.Popen[str]], workplace: Path, assay: Assay, assay_home: Path
) -> None:
    process = send(*LONG)
    measuring(process)
    assert gpu1.cut() > 0
    assert process.stderr is not None
    assert "the connection to gpu1 was lost; the job goes on there" in process.stderr.readline()
    wait_for(gpu1.sessions)
    (there,) = orders(gpu1)
    assert processes_of(there)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    run = (workplace / "runs/latest").resolve()
    assert f"`assay resume runs/{run.name} --on ssh:gpu1` goes on" in err
    assert [record.status for record in RunFolder.open(run).records()] == ["ok"]
    assert (processes_of(there), orders(gpu1), leases(assay_home)) == ([], [], [])
    (workplace / "flag").touch()
    went_on = assay("resume", f"runs/{run.name}", *ON, "--no-history")
    assert went_on.code == 0, went_on.err
    assert [record.status for record in RunFolder.open(run).records()] == ["ok", "ok"]


def test_a_client_that_is_killed_leaves_nothing_there_and_what_was_measured_comes_back(
    gpu1: Server, send: Callable[..., subprocess.Popen[str]], workplace: Path, assay_home: Path
) -> None:
    process = send(*LONG)
    measuring(process)
    (there,) = orders(gpu1)
    process.kill()
    wait_for(lambda: not leases(assay_home), within_s=60)
    assert (processes_of(there), orders(gpu1)) == ([], [])
    (record,) = RunFolder.open(workplace / "runs/latest").records()
    assert record.status == "ok"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--on", "ssh"), 2, "write --on ssh:HOST"),
        (("--on", "ssh:-oProxyCommand=x"), 2, "no name of a machine"),
        (("--on", "ssh:down"), 3, "down cannot be reached: it does not answer"),
        (("--on", "ssh:gpu1", "--partition", "x"), 2, "--partition is not supported with --on ssh"),
        (("--on", "ssh:gpu1", "--gpu-type", "L44"), 2, "Did you mean L4"),
        (("--on", "ssh:gpu1", "--gpu-type", "L4,T4"), 2, "names several GPU models"),
        (("--on", "ssh:gpu1", "--ship", "nope"), 2, "--ship nope: there is no such file"),
        ((*ON, "--gpu-type", "L4"), 3, "--gpu-type L4 was requested, and on gpu1 there is no GPU"),
        ((*ON, "--device", "cpu:99"), 3, "There is no device cpu:99"),
    ],
)
def test_what_cannot_be_sent_or_run_there_is_said_and_leaves_nothing(
    words: tuple[str, ...],
    code: int,
    said: str,
    gpu1: Server,
    workplace: Path,
    assay_home: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert main(["run", "bad.py:fine", "--device", "cpu:0", *words]) == code
    assert said in capfdbinary.readouterr().err.decode()
    assert (orders(gpu1), leases(assay_home)) == ([], [])
    assert not list((workplace / "runs").glob("*"))


class Killer(Listener):
    """Kills the keeper of an order as soon as the work has begun."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def err(self, data: bytes) -> None:
        """Kill it."""
        super().err(data)
        if (keeper := supervisor_of(self._folder)) is not None and "…".encode() in self.said:
            os.kill(keeper, signal.SIGKILL)


@pytest.mark.parametrize(("limit_s", "said"), [(2.5, "at its time limit"), (None, "its supervisor")])
def test_an_order_ends_at_its_limit_or_when_its_keeper_is_killed_and_says_so(
    limit_s: float | None, said: str, gpu1: Server, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(gpu1.cache.parent))
    monkeypatch.setenv("ASSAY_HOME", str(gpu1.home))
    line = HereLine()
    order = order_for(workplace, "run", *QUICK, "--", "sleep", "3600", limit_s=limit_s)
    there = gpu1.cache / "jobs" / order.id
    listener = Listener() if limit_s else Killer(there)
    ended = remote_job.run_remotely(line, order, listener)
    assert (ended.exit_code, said in str(ended.reason)) == (4, True), ended
    assert processes_of(there) == []
    remote_job.remove_remote_files(line, order)
    with pytest.raises(MachineCannot, match="no longer on gpu7"):
        remote_job._reconnect(line, order, listener, FrameReader(order, listener))
