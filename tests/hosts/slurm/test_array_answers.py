"""An array and a Slurm that says no, or nothing: who is not tied to a node does not run, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.hosts import run_job
from assay.hosts.slurm.array import SlurmArrays
from assay.hosts.slurm.script import array_options, array_script
from tests.hosts.slurm.test_lost_answers import StandIns, stand_ins
from tests.hosts.slurm.test_script import order

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Job
    from assay.hosts.fleet import NodeProgress

__all__ = ["stand_ins"]
NAME = "assay-0123456789abcdef"
NODES = ("n1", "n2")


@pytest.fixture
def wanted(tmp_path: Path) -> Job:
    folder = tmp_path / "fleet"
    for node in NODES:
        run_job.make_job_folder(folder / node / "array-1")
    return order(folder=str(folder), cwd=str(tmp_path), words=("run", "x"))


def said(tools: StandIns, name: str) -> list[str]:
    lines = (tools.folder / "asked").read_text().splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def orders(wanted: Job) -> dict[str, Job]:
    return {node: wanted.model_copy(update={"folder": f"{wanted.folder}/{node}/array-1"}) for node in NODES}


def test_each_task_is_tied_to_its_node_before_any_may_start(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 12")
    arrays = SlurmArrays()
    loan = arrays.create(wanted, NODES, 1, 5)
    asked = [line.split(" ")[0] for line in (stand_ins.folder / "asked").read_text().splitlines()]
    assert asked == ["sbatch", "scontrol", "scontrol", "scontrol"]
    assert {"--hold", "--array=0-1%5"} <= set(said(stand_ins, "sbatch")[0].split(" "))
    assert said(stand_ins, "scontrol") == [
        "update JobId=12_0 ReqNodeList=n1",
        "update JobId=12_1 ReqNodeList=n2",
        "release 12",
    ]
    arrays.release(loan)
    assert said(stand_ins, "scancel") == ["12"]
    assert leases.reap_leases() == []


def test_a_task_that_is_not_tied_to_its_node_does_not_run_and_the_others_do(
    stand_ins: StandIns, wanted: Job, tmp_path: Path
) -> None:
    stand_ins.say("sbatch", "echo 12")
    stand_ins.say("scontrol", 'case "$2" in *_1) echo "slurm_update error: Invalid node name" >&2; exit 1;; esac')
    stand_ins.say("squeue", f"echo '12_0|COMPLETED|{NAME}|n1|None'")
    run_job.write_rank(tmp_path / "fleet/n1/array-1", run_job.RankRecord(rank=0, node="n1", exit_code=0))
    arrays = SlurmArrays()
    loan = arrays.create(wanted, NODES, 1, None)
    assert said(stand_ins, "scancel") == ["12_1"]
    told: list[NodeProgress] = []
    arrays.watch(loan, orders(wanted), told.extend)
    assert [(step.node, step.state) for step in told] == [("n2", "failed"), ("n1", "done")]
    assert told[0].reason == "Slurm does not bind a task to it: Invalid node name"


def test_where_no_task_can_be_tied_nothing_is_left(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 12")
    stand_ins.say("scontrol", 'echo "slurm_update error: Access/permission denied" >&2; exit 1')
    with pytest.raises(MachineCannot, match="Slurm does not bind a task to it: Access/permission denied"):
        SlurmArrays().create(wanted, NODES, 1, None)
    assert not (stand_ins.folder / "job").exists()
    assert leases.reap_leases() == []


def test_an_answer_that_was_lost_is_asked_for_again(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", f"touch '{stand_ins.folder}/job'; echo 12")
    once = f"if [ ! -e '{stand_ins.folder}/twice' ]; then touch '{stand_ins.folder}/twice'"
    stand_ins.say("scontrol", f"{once}; echo 'Socket timed out' >&2; exit 1; fi")
    arrays = SlurmArrays()
    arrays.release(arrays.create(wanted, NODES, 1, None))
    assert len(said(stand_ins, "scontrol")) == 4


def test_a_folder_that_the_nodes_do_not_see_is_suspected(stand_ins: StandIns, wanted: Job) -> None:
    stand_ins.say("sbatch", "echo 12")
    stand_ins.say("squeue", f'for i in 0 1; do echo "12_$i|FAILED|{NAME}||JobLaunchFailure"; done')
    arrays = SlurmArrays()
    told: list[NodeProgress] = []
    arrays.watch(arrays.create(wanted, NODES, 1, None), orders(wanted), told.extend)
    for step in told:
        assert (step.state, step.exit_code) == ("failed", None)
        assert f"is {wanted.folder}/{step.node}/array-1 on a file system that the nodes share?" in (step.reason or "")


def test_which_nodes_is_not_said_to_sbatch() -> None:
    for argument in ("-wn1", "-x n2", "--nodelist=n1", "--exclude=n2", "--nodef=f"):
        with pytest.raises(BadInput, match="nodes are selected with --nodelist"):
            array_script(order(arguments=(argument,)), 2, 1, None)
    assert "--exclusive" in array_options(order(), 2, 1, None)
    assert "--output=/a/100%%/slurm-3/%a.log" in array_options(order(folder="/a/100%"), 2, 3, None)
