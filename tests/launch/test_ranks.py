"""Ranks that go in step, and what is told when one of them goes: the rank that caused it, not those that waited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.values import Counted, Role, Subject
from assay.launch.workers import WorkerFailure, all_refused, sort_by_root_cause
from tests.running import function, quickly, role, survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

pytestmark = pytest.mark.full

RANKED = """
import os, signal, time

def notes_turn(who, sleep_s=0.0):
    time.sleep(sleep_s)
    with open(f"turns-{os.environ['RANK']}.txt", "a") as file:
        file.write(who)

def meets(end, calls=[]):
    import torch
    from torch import distributed as dist

    if not calls:
        dist.init_process_group("gloo")
    calls.append(1)
    if len(calls) == 3 and os.environ["RANK"] == "1":
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    dist.all_reduce(torch.ones(4))
"""

GONE = WorkerFailure("rank 0 of ring", "RuntimeError: Connection closed by peer", "peer_lost")
ENDED = WorkerFailure("rank 3 of ring", "it was ended, as rank 0 of ring had failed", "peer_lost")
KILLED = WorkerFailure("rank 1 of ring", "the worker died of SIGKILL: another process, or the kernel, killed it")
MEMORY = WorkerFailure("rank 2 of ring", "out of memory: CUDA out of memory", "out_of_memory")
NO_GPU = WorkerFailure("rank 1 of ring", "PyTorch here sees no CUDA GPU.", code="machine_cannot")


@pytest.fixture
def ranked(workplace: Path) -> Path:
    """A folder with functions for several ranks in ``ranked.py``."""
    (workplace / "ranked.py").write_text(RANKED)
    return workplace


def turns(who: str, sleep_s: float = 0.0) -> Subject:
    return Subject(workload="ranked.py:notes_turn", impl="python", params={"who": who, "sleep_s": sleep_s})


def test_what_others_saw_of_an_end_never_stands_before_its_cause() -> None:
    assert sort_by_root_cause([GONE, ENDED, KILLED]) == [KILLED, GONE, ENDED]
    assert sort_by_root_cause([GONE, KILLED, ENDED, MEMORY]) == [MEMORY, KILLED, GONE, ENDED]
    assert sort_by_root_cause([GONE, ENDED]) == [GONE, ENDED]
    assert sort_by_root_cause([]) == []


def test_a_machine_that_cannot_refuses_though_the_other_ranks_had_to_be_ended() -> None:
    assert all_refused([NO_GPU, ENDED])
    assert not all_refused([NO_GPU, KILLED])
    assert not all_refused([GONE, ENDED])


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("memory", "rank 1 of ring: out of memory: CUDA out of memory. Tried to allocate 20.00 GiB."),
        ("killed", "rank 1 of ring: the worker died of SIGKILL: another process, or the kernel, killed it"),
    ],
)
def test_the_rank_that_went_is_named_and_the_others_are_soon_ended(
    measure: Measure, ranked: Path, assay_home: Path, end: str, reason: str
) -> None:
    pytest.importorskip("torch")
    subject = Subject(workload="ranked.py:meets", impl="python", params={"end": end})
    before = time.monotonic()
    outcome = measure(role("ring", subject, ranks=2), mode=quickly(Counted, warmup_runs=1, runs=50, timeout_s=100.0))
    assert (outcome.status, outcome.reason) == ("failed", reason)
    assert time.monotonic() - before < 60
    wait_for(lambda: not survivors(assay_home))


def test_ranks_take_their_subjects_in_one_order_and_equally_often(measure: Measure, ranked: Path) -> None:
    ring = Role(name="ring", subjects=(turns("a"), turns("b"), turns("c")), ranks=2, devices=("cpu:0",))
    outcome = measure(ring, mode=quickly(duration_s=1.0))
    assert outcome.status == "ok", outcome.reason
    told = [(ranked / f"turns-{rank}.txt").read_text() for rank in range(2)]
    assert told[0] == told[1]
    assert len({len(series.data) for series in outcome.series}) == 1


def test_samples_without_counts_fit_the_time_with_all_subjects(measure: Measure, ranked: Path) -> None:
    ring = Role(name="ring", subjects=(turns("a", 0.02), turns("b", 0.06)), ranks=2, devices=("cpu:0",))
    outcome = measure(ring, mode=quickly(duration_s=3.0))
    assert outcome.status == "ok", outcome.reason
    (samples,) = {len(np.frombuffer(series.data)) for series in outcome.series}
    assert 1 <= samples <= 3.0 / (0.02 + 0.06)  # one where a busy machine leaves no time for more


def test_what_has_no_pytorch_is_measured_and_said_not_to_be_traced(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("fine")), mode=quickly(Counted, runs=2), profile=True)
    assert outcome.status == "ok", outcome.reason
    assert "cpu:0 was not traced: PyTorch, whose profiler it is, was not loaded" in map(str, outcome.notes)
    assert outcome.traces == {}
    assert outcome.evidence[0].trace is None
