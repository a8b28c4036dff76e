"""How an order ended, from what was left of it."""

from __future__ import annotations

import pytest

from assay.hosts.run_job import RankRecord
from assay.hosts.slurm.commands import QueueEntry
from assay.hosts.slurm.host import JobTraces, job_outcome
from tests.hosts.slurm.test_script import order

TWO = ("n1", "n2")


def job(state: str, reason: str = "None") -> QueueEntry:
    return QueueEntry("7", state, "assay-7", "n[1-2]", reason)


def left(*codes: int | None, log: str = "", **changes: object) -> JobTraces:
    ranks = {number: RankRecord(rank=number, node=TWO[number], exit_code=code) for number, code in enumerate(codes)}
    return JobTraces(**{"nodes": TWO, "begun": dict.fromkeys(TWO, True), "ranks": ranks, "log": log, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 70])
def test_the_exit_code_of_the_first_rank_is_ours(code: int) -> None:
    ended = job_outcome(job("COMPLETED" if code == 0 else "FAILED"), left(code, code), order())
    assert (ended.exit_code, ended.reason) == (code, None)


def test_a_result_that_is_there_counts_whatever_became_of_the_job() -> None:
    assert job_outcome(job("TIMEOUT"), left(0, 0), order()).exit_code == 0
    assert job_outcome(None, left(0, 0), order()).exit_code == 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("TIMEOUT", "Slurm ended the job at its time limit of 2 min 0 s (--time)"),
        ("CANCELLED", "somebody else cancelled the job"),
        ("OUT_OF_MEMORY", "it used more memory than it was given"),
        ("PREEMPTED", "Slurm ended the job: PREEMPTED (None)"),
    ],
)
def test_what_slurm_did_is_said(state: str, said: str) -> None:
    ended = job_outcome(job(state), left(4, 4), order(limit_s=120))
    assert ended.exit_code == 4
    assert said in (ended.reason or "")


def test_the_node_that_failed_is_named_as_far_as_it_is_known() -> None:
    known = job_outcome(job("NODE_FAIL"), left(failed_nodes={"n2": "down: unplugged"}), order())
    assert known.reason == "Slurm ended the job because node n2 failed (down: unplugged)"
    back_again = job_outcome(job("NODE_FAIL"), left(log="srun: error: Node failure on n2"), order())
    assert back_again.reason == "Slurm ended the job because node n2 failed"
    unknown = job_outcome(job("NODE_FAIL"), left(), order())
    assert unknown.reason == "Slurm ended the job because one of its nodes (n1, n2) failed"
    assert {known.exit_code, back_again.exit_code, unknown.exit_code} == {4}


def test_a_node_that_never_joined_is_named() -> None:
    log = "srun: error: something\nRendezvousTimeoutError: after 120 s\nsrun: error: n1: task 0: Exited"
    for begun in ({"n1": True}, {"n1": True, "n2": False}):
        ended = job_outcome(job("FAILED"), left(begun=begun, log=log), order())
        assert ended.exit_code == 4
        assert ended.reason == "node n2 never joined the others: RendezvousTimeoutError: after 120 s"


def test_a_folder_that_the_nodes_do_not_see_is_suspected() -> None:
    ended = job_outcome(job("FAILED"), left(begun={}), order())
    assert ended.exit_code == 3
    assert "is /shared/my work/runs/slurm-1 on a file system that the nodes share?" in (ended.reason or "")


def test_an_interpreter_that_cannot_start_is_named() -> None:
    log = "sh: 1: exec: /opt/x: not found"
    ended = job_outcome(job("FAILED"), left(begun=dict.fromkeys(TWO, False), log=log), order())
    assert ended.exit_code == 3
    assert ended.reason == f"/opt/py thon/bin/python could not start Assay on the nodes: {log}"
    log += "\nsrun: error: n2: task 1: Exited with exit code 127\nsrun: error: n1: task 0: Terminated"
    named = job_outcome(job("FAILED"), left(begun=dict.fromkeys(TWO, False), log=log), order())
    assert "could not start Assay on node n2: sh: 1: exec: /opt/x: not found" in (named.reason or "")


def test_the_rank_that_stopped_the_others_is_named() -> None:
    could_not = left(4, 3, words={1: "assay: There is no GPU 1 here."})
    ended = job_outcome(job("FAILED"), could_not, order())
    assert (ended.exit_code, ended.reason) == (4, "rank 1 on node n2 ended with exit code 3: There is no GPU 1 here.")
    assert job_outcome(job("FAILED"), left(4, None), order()).reason == "rank 1 on node n2 died without an answer"
    assert job_outcome(job("FAILED"), left(None, 4), order()).reason == "rank 0 on node n1 died without an answer"


def test_a_job_that_slurm_has_forgotten_is_said_to_be() -> None:
    ended = job_outcome(None, left(None, None), order())
    assert (ended.exit_code, ended.reason) == (4, "Slurm no longer knows the job, and it left no result")
