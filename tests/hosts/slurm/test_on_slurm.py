"""Orders that a real Slurm carries out: results come back, nothing is left, and who failed is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.hosts import run_job
from tests.guardians import kill_with_guardian
from tests.hosts.slurm.cluster import jobs_held
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.hosts.slurm.cluster import Cluster
    from tests.running import Assay

QUICK = ("--device", "cpu:0", "--isolation", "none", "--benchmark-runs", "3", "--no-monitor")
LONG = ("run", "bad.py:hangs", "--device", "cpu:0", "--isolation", "none", "--no-monitor", "--timeout", "300")
LATER = "--sbatch-arg=--begin=now+1hour"


def order_folder(workplace: Path) -> Path:
    """Return the folder of the only order."""
    (found,) = (workplace / "runs").glob("slurm-*")
    return found


def states(err: str) -> list[str]:
    """Return what was said of the job on its way, without its number."""
    lines = [line.split(" ", 3) for line in err.splitlines() if line.startswith("Slurm job ")]
    return [words[3] for words in lines]


class Sent:
    """The command line, on its way to Slurm."""

    def __init__(self, workplace: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay", *arguments],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            start_new_session=True,
        )

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it said."""
        _, err = self.process.communicate(timeout=110)
        return self.process.returncode, err


@pytest.fixture
def send(workplace: Path) -> Iterator[Callable[..., Sent]]:
    started: list[Sent] = []

    def start(*arguments: str) -> Sent:
        started.append(Sent(workplace, *arguments))
        return started[-1]

    yield start
    for sent in started:
        sent.process.kill()
        sent.process.communicate()


def test_two_nodes_measure_as_one_and_the_results_are_here(
    slurm: Cluster, assay: Assay, workplace: Path, assay_home: Path, tell: Callable[[str], None]
) -> None:
    ran = assay(
        "run", "bad.py:notes_rank", *QUICK, "--on", "slurm", "--nodes", 2, "--nproc", 1, "--time", "5m", "--json"
    )
    for state in states(ran.err):
        tell(state)
    assert ran.code == 0, ran.err
    (record,) = ran.data["records"]
    assert record["status"] == "ok"
    assert sorted(e["rank"] for e in record["evidence"]) == [0, 1]
    assert (workplace / "runs/latest/findings.json").is_file()
    assert {r.rank: (r.node, r.exit_code) for r in run_job.read_ranks(order_folder(workplace)).values()} == {
        0: ("n1", 0),
        1: ("n2", 0),
    }
    told = [(workplace / f"rank-{rank}.txt").read_text().split() for rank in range(2)]
    assert [t[:3] for t in told] == [["0", "0", "2"], ["1", "0", "2"]]
    assert "runs on n1, n2" in states(ran.err)
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


def test_the_exit_code_and_the_words_of_the_assay_there_are_ours(
    slurm: Cluster, assay: Assay, tell: Callable[[str], None]
) -> None:
    ran = assay("run", "softmaks", "--device", "cpu", "--on", "slurm")
    tell(f"exit code {ran.code}: {ran.err.splitlines()[-1]}")
    assert ran.code == 2, ran.err
    assert "Unknown workload 'softmaks'" in ran.err


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_ctrl_c_leaves_no_job(
    state: str, slurm: Cluster, send: Callable[..., Sent], assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send(*LONG, "--on", "slurm", *([LATER] if state == "PENDING" else []))
    slurm.until(state)
    tell(f"in the queue: {slurm.queue()}; Ctrl-C")
    sent.process.send_signal(signal.SIGINT)
    code, err = sent.ended()
    tell(f"in the queue: {slurm.queue()}; {err.splitlines()[-1]}")
    assert slurm.queue() == []
    assert code == 4, err
    assert "Stopped by SIGINT" in err
    assert "is gone" in err
    assert jobs_held(assay_home) == []
    wait_for(lambda: not survivors(assay_home))


def test_the_guardian_cancels_the_job_of_a_command_that_was_killed(
    slurm: Cluster, send: Callable[..., Sent], assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send(*LONG, "--on", "slurm")
    slurm.until("RUNNING")
    tell(f"in the queue: {slurm.queue()}; SIGKILL")
    sent.process.kill()
    slurm.until_empty()
    tell(f"in the queue: {slurm.queue()}; the guardian was there")
    wait_for(lambda: jobs_held(assay_home) == [])
    assert slurm.queue() == []


def test_reap_cancels_the_job_of_a_command_that_was_killed_with_its_guardian(
    slurm: Cluster, send: Callable[..., Sent], assay: Assay, assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send(*LONG, "--on", "slurm", LATER)
    slurm.until("PENDING")
    kill_with_guardian(sent.process)
    tell(f"in the queue: {slurm.queue()}; both killed")
    reaped = assay("reap")
    tell(f"in the queue: {slurm.queue()}; {reaped.out.strip()}")
    assert reaped.code == 0, reaped.err
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


def test_a_node_that_fails_is_named(
    slurm: Cluster, send: Callable[..., Sent], assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send("run", "bad.py:hangs", *QUICK, "--on", "slurm", "--nodes", "2")
    slurm.until("RUNNING")
    slurm.ask("scontrol", "update", "nodename=n2", "state=down", "reason=unplugged")
    try:
        code, err = sent.ended()
    finally:
        slurm.ask("scontrol", "update", "nodename=n2", "state=resume")
    tell(err.splitlines()[-1])
    assert code == 4, err
    assert "node n2 failed (down: unplugged)" in err
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("slurm:nowhere",), 3, "Slurm refuses the job: invalid partition specified: nowhere"),
        (("slurm:nowhere",), 3, "Partitions that are up: main, side."),
        (("slurm", "--nodes", "9"), 3, "9 nodes are asked for, and the largest partition has 2"),
        (("slurm", "--time", "20h"), 3, "it asks for more time than the partition gives (PartitionTimeLimit)"),
        (("slurm", "--sbatch-arg=--nonsense=1"), 2, "unrecognized option"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    slurm: Cluster,
    workplace: Path,
    assay_home: Path,
    capfd: pytest.CaptureFixture[str],
    tell: Callable[[str], None],
) -> None:
    found = main(["run", "bad.py:fine", *QUICK, "--on", *arguments])
    err = capfd.readouterr().err
    tell(f"exit code {found}: {err.splitlines()[-1]}")
    assert found == code, err
    assert said in err
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


def test_an_interpreter_that_the_nodes_do_not_have_is_named(slurm: Cluster, assay: Assay) -> None:
    ran = assay("run", "bad.py:fine", *QUICK, "--on", "slurm", "--remote-python", "/no/such/python")
    assert ran.code == 3
    assert "/no/such/python could not start Assay on node n1" in ran.err
    assert "not found" in ran.err


def test_the_time_limit_ends_it(
    slurm: Cluster, send: Callable[..., Sent], workplace: Path, assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send(*LONG, "--on", "slurm:side", "--time", "1m")
    wait_for(lambda: list((workplace / "runs").glob("slurm-*/ranks/0.json")), within_s=60)
    job = slurm.ask("squeue", "-h", "-p", "side", "-t", "RUNNING", "-o", "%i").strip()
    slurm.ask("scontrol", "update", f"jobid={job}", "EndTime=now+1")  # limits are whole minutes; this one is over
    code, err = sent.ended()
    tell(err.splitlines()[-1])
    assert code == 4, err
    assert "Slurm ended the job at its time limit of 1 min 0 s (--time)" in err
    assert jobs_held(assay_home) == []


def test_the_report_of_the_offers_and_of_what_is_ours(slurm: Cluster, send: Callable[..., Sent]) -> None:
    from assay.hosts.slurm.host import SlurmHost

    host = SlurmHost()
    assert host.available() is None
    assert {(offer.name, offer.nodes, offer.longest_s) for offer in host.offers()} == {
        ("main", 2, 600.0),
        ("side", 1, 600.0),
    }
    assert host.list_ours() == ()
    send(*LONG, "--on", "slurm", LATER)
    slurm.until("PENDING")
    (ours,) = host.list_ours()
    assert (ours.host, ours.state) == ("slurm", "PENDING")
    host.release(ours)
    assert host.list_ours() == ()
