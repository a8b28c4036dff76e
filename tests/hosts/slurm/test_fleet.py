"""Fleets on a real Slurm: a task for each node, what one of them loses is only its own, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.experiments.power.rows import GPUS_FILE
from assay.hosts import run_job
from assay.hosts.fleet import FleetFolder
from tests.hosts.slurm import fleeting
from tests.hosts.slurm.cluster import jobs_held
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.slurm.cluster import Cluster
    from tests.running import Assay

ROOT = Path(__file__).resolve().parents[3]
PLACES = """
import os, pathlib, time

NODE = os.environ["SLURMD_NODENAME"]

def waits_on_n2():
    while NODE == "n2" and not pathlib.Path("go").exists():
        time.sleep(0.05)
"""
QUICK = (
    "--device", "cpu:0", "--isolation", "none", "--warmup-runs", "0", "--benchmark-runs", "2", "--no-monitor",
    "--timeout", "300",
)  # fmt: skip
LATER = "--sbatch-arg=--begin=now+1hour"


class Sending:
    """Command lines that are on their way, in processes of their own."""

    def __init__(self, workplace: Path) -> None:
        self._workplace = workplace
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.slurm.fleeting", *arguments],
                cwd=self._workplace,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return self._started[-1]

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def send(workplace: Path) -> Iterator[Sending]:
    (workplace / "places.py").write_text(PLACES)
    sending = Sending(workplace)
    yield sending
    sending.end()


@pytest.fixture
def lost_nodes(slurm: Cluster) -> Iterator[Callable[[str], None]]:
    """Takes nodes out of order; they are back when the test is over."""
    lost: list[str] = []

    def lose(node: str) -> None:
        lost.append(node)
        slurm.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=unplugged")

    yield lose
    for node in lost:
        bring_back(slurm, node)


def bring_back(slurm: Cluster, node: str) -> None:
    """Put a node in order again, and wait until Slurm has heard from it."""
    slurm.ask("scontrol", "update", f"nodename={node}", "state=resume")
    wait_for(lambda: slurm.ask("sinfo", "-h", "-N", "-n", node, "-o", "%T").split()[:1] == ["idle"], within_s=60)


def the_fleet(workplace: Path) -> FleetFolder:
    """Return the only fleet."""
    (found,) = (workplace / "runs").glob("fleet-*")
    return FleetFolder.open(found)


def test_every_node_characterizes_itself_in_a_run_folder_of_its_own(
    slurm: Cluster, assay: Assay, workplace: Path, assay_home: Path, tell: Callable[[str], None]
) -> None:
    ran = assay(
        "power", "characterize", "--case", "idle", "--device", "cpu:0", "--isolation", "none", "--no-monitor",
        "--quick", "--duration", "0.3", "--on", "slurm", "--partition", "main", "--json",
    )  # fmt: skip
    for line in ran.err.splitlines():
        tell(line)
    assert ran.code == 0, ran.err
    posts = {post["node"]: post for post in ran.data["posts"]}
    assert {node: (post["state"], post["attempts"]) for node, post in posts.items()} == {
        "n1": ("done", 1),
        "n2": ("done", 1),
    }
    folder = the_fleet(workplace).path
    for node, post in posts.items():
        assert run_job.read_ranks(folder / post["files"])[0].node == node
        assert Path(post["run"]).parts[0] == node
        assert len((folder / post["run"] / GPUS_FILE).read_text().splitlines()) == 1
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


def test_a_node_that_is_lost_costs_only_its_own_task_and_resuming_measures_only_that(
    slurm: Cluster,
    send: Sending,
    lost_nodes: Callable[[str], None],
    assay: Assay,
    workplace: Path,
    assay_home: Path,
    tell: Callable[[str], None],
) -> None:
    sent = send("run", "places.py:waits_on_n2", *QUICK, "--on", "slurm")
    done = "runs/fleet-*/n1/array-1/ended"
    wait_for(lambda: list(workplace.glob(done)) and list(workplace.glob("runs/fleet-*/n2/run-*/.lock")), within_s=90)
    lost_nodes("n2")
    out, err = sent.communicate(timeout=110)
    for line in (*err.splitlines(), *out.splitlines()):
        tell(line)
    assert sent.returncode == 4, err
    assert "n2 failed: Slurm ended the job because node n2 failed (down: unplugged)" in err
    fleet = the_fleet(workplace)
    first = fleet.fleet.post("n1")
    assert {post.node: post.state for post in fleet.fleet.posts} == {"n1": "done", "n2": "failed"}
    assert "1 of 2 nodes are measured; missing: n2." in out
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []

    bring_back(slurm, "n2")
    (workplace / "go").touch()
    resumed = assay("resume", fleet.path)
    for line in (f"assay resume, exit code {resumed.code}", *resumed.err.splitlines(), *resumed.out.splitlines()):
        tell(line)
    assert resumed.code == 0, resumed.err
    after = the_fleet(workplace).fleet
    assert after.post("n1") == first
    assert (after.post("n2").state, after.post("n2").attempts) == ("done", 2)
    assert len(list((fleet.path / "n2").glob("run-*"))) == 1, "it went on with the run that was begun"
    assert assay("report", fleet.path).code == 0
    nothing = assay("resume", fleet.path)
    assert (nothing.code, "Nothing was left to measure." in nothing.err) == (0, True)


def test_the_array_of_a_command_that_was_killed_goes_from_the_queue(
    slurm: Cluster, send: Sending, assay_home: Path, tell: Callable[[str], None]
) -> None:
    sent = send("run", "places.py:waits_on_n2", *QUICK, "--on", "slurm", "--max-concurrent", "1")
    wait_for(lambda: sorted(slurm.queue()) == ["PENDING", "RUNNING"], within_s=60)
    tell(f"in the queue, one at a time: {slurm.queue()}; SIGKILL")
    sent.send_signal(signal.SIGKILL)
    slurm.until_empty()
    tell(f"in the queue: {slurm.queue()}; the guardian was there")
    wait_for(lambda: jobs_held(assay_home) == [])
    wait_for(lambda: not survivors(assay_home))


def test_a_node_that_is_out_of_order_before_its_turn_is_given_up(
    slurm: Cluster,
    lost_nodes: Callable[[str], None],
    send: Sending,
    workplace: Path,
    assay_home: Path,
    tell: Callable[[str], None],
) -> None:
    sent = send("run", "places.py:waits_on_n2", *QUICK, "--on", "slurm:side", LATER)
    wait_for(lambda: "PENDING" in slurm.ask("squeue", "-h", "-p", "side", "-o", "%T"), within_s=60)
    lost_nodes("n3")
    _, err = sent.communicate(timeout=60)
    for line in err.splitlines():
        tell(line)
    assert sent.returncode == 3, err
    assert "n3 failed: the node is down: unplugged" in err
    assert jobs_held(assay_home) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("slurm:nowhere",), 3, "Slurm has no partition nowhere. Partitions that are up: main, side."),
        (("slurm", "--nodelist", "n1,n9"), 3, "There is no node n9 in the partition main; it has n1 and n2."),
        (("slurm", "--nodes", "9"), 3, "9 nodes are asked for, and the partition main has 2."),
        (("slurm", "--nodes", "1", "--nodelist", "n1"), 2, "exclude each other"),
        (("slurm", "--nodelist", "n[1"), 2, "--nodelist n[1 is no list of nodes"),
        (("slurm", "--sbatch-arg=-wn1"), 2, "nodes are selected with --nodelist"),
        (("slurm", "--sbatch-arg=--nonsense=1"), 2, "unrecognized option"),
        (("slurm", "--time", "20h"), 3, "it asks for more time than the partition gives (PartitionTimeLimit)"),
        (("local", "--attempts", "3"), 2, "--attempts needs a remote host"),
    ],
)
def test_what_cannot_be_sent_is_said(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    slurm: Cluster,
    workplace: Path,
    assay_home: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = fleeting.main(["run", "bad.py:fine", *QUICK, "--on", *arguments])
    printed = capfd.readouterr()
    assert found == code, printed.err
    assert said in " ".join((printed.err + printed.out).split())
    assert slurm.queue() == []
    assert jobs_held(assay_home) == []


def test_nodes_that_are_out_of_order_are_told_and_left_out(
    slurm: Cluster, workplace: Path, lost_nodes: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    lost_nodes("n2")
    assert fleeting.main(["run", "bad.py:fine", "--on", "slurm", "--max-concurrent", "1", "--dry-run"]) == 0
    printed = capfd.readouterr()
    assert "#SBATCH --array=0-0%1" in printed.out
    assert "One task on each of n1: assay run bad.py:fine --name-host" in printed.err
    assert "Out of order, and left out: n2 (down: unplugged)" in printed.err
    lost_nodes("n1")
    assert fleeting.main(["run", "bad.py:fine", "--on", "slurm"]) == 3
    refusal = "No node of the partition main takes work: n1 (down: unplugged) and n2 (down: unplugged)"
    assert refusal in capfd.readouterr().err
    assert not (workplace / "runs").exists()


def test_without_slurm_there_is_no_fleet(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert fleeting.main(["run", "bad.py:fine", "--on", "slurm"]) == 3
    assert "Slurm's commands are not installed" in capfd.readouterr().err
