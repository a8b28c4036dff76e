"""Loads beside what is timed: how much of one they were, where they ran, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from assay.core.values import HOST, Role, Subject
from assay.worker.timer import MAX_QUEUE_DEPTH, QUEUE_S, next_depth
from assay.workloads import registry
from tests.running import function, quickly, role, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="cores can be parted only where there are two")


def hog(name: str = "cpu_hog@python", **given: str) -> Subject:
    return registry.resolve_subject(name, device_kind="cpu", explicit=given)


def load(name: str, subject: Subject, **more: object) -> Role:
    return role(name, subject, device=HOST, duty="load").model_copy(update=more)


@pytest.mark.full
@TWO_CORES
def test_a_load_on_the_host_has_cores_of_its_own_and_tells_how_busy_it_kept_them(measure: Measure) -> None:
    outcome = measure(
        role("victim", function("fine"), isolation="cpu"), load("hog", hog(), isolation="cpu"), schedule="together"
    )
    assert outcome.status == "ok", outcome.reason
    victim, noise = sorted(outcome.evidence, key=lambda e: e.role, reverse=True)
    assert (victim.role, noise.role, noise.device) == ("victim", "hog", HOST)
    assert not set(victim.allowed_cores) & set(noise.allowed_cores)
    assert (victim.load_calls, victim.load_s, victim.load_cpu_s) == (None, None, None)
    assert noise.load_calls
    assert noise.load_s
    assert noise.load_cpu_s
    assert noise.load_cpu_s <= noise.load_s * len(noise.allowed_cores) * 1.5


@pytest.mark.full
def test_a_load_on_memory_tells_the_bytes_that_its_calls_moved(measure: Measure) -> None:
    outcome = measure(role("victim", function("fine")), load("hog", hog("memory_hog@numpy", mib="4", threads="2")))
    assert outcome.status == "ok", outcome.reason
    noise = next(e for e in outcome.evidence if e.role == "hog")
    (facts,) = noise.subjects
    assert facts.bytes_moved == 5 * 4 * 2**20
    assert facts.flop == 2 * 4 * 2**20 / 8
    assert facts.check is not None
    assert facts.check.passed
    assert noise.load_calls


@pytest.mark.full
@TWO_CORES
def test_two_workers_of_one_device_part_its_cores(measure: Measure) -> None:
    roles = [
        role(f"worker {number}", function("fine"), isolation="full").model_copy(update={"worker": number})
        for number in range(2)
    ]
    outcome = measure(*roles, schedule="together", cpu_groups=1)
    assert outcome.status == "ok", outcome.reason
    first, second = (set(e.allowed_cores) for e in outcome.evidence)
    assert not first & second


LATER = """
import os, time

def tells_who_it_is():
    if not os.path.exists("load.txt"):
        with open("load.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.replace("load.tmp", "load.txt")
    time.sleep(0.001)
"""


@pytest.mark.full
def test_a_load_that_is_killed_fails_the_trial_at_once_and_by_its_name(measure: Measure, workplace: Path) -> None:
    (workplace / "later.py").write_text(LATER)
    told = workplace / "load.txt"

    def kill() -> None:
        wait_for(told.exists)
        time.sleep(0.3)
        os.kill(int(told.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    begin = time.monotonic()
    outcome = measure(
        role("victim", function("fine")),
        role("aggressor", Subject(workload="later.py:tells_who_it_is", impl="python"), duty="load"),
        mode=quickly(duration_s=60.0, precision=1e-9),
    )
    killer.join()
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert outcome.reason.startswith("aggressor: the load ended early: the worker died of SIGKILL")
    assert time.monotonic() - begin < 55


@pytest.mark.full
def test_a_load_that_fails_says_how(measure: Measure, workplace: Path) -> None:
    (workplace / "later.py").write_text(
        "import time\nBORN = time.monotonic()\n\ndef fails_later():\n"
        "    if time.monotonic() > BORN + 0.5:\n        raise ValueError('no more')\n"
    )
    failing = role("aggressor", Subject(workload="later.py:fails_later", impl="python"), duty="load")
    outcome = measure(role("victim", function("fine")), failing, mode=quickly(duration_s=60.0, precision=1e-9))
    assert (outcome.status, outcome.reason) == ("failed", "aggressor: the load ended early: ValueError: no more")


def test_a_load_queues_a_few_milliseconds_of_work_before_it_waits() -> None:
    rounds = 1
    for _ in range(20):
        rounds = next_depth(rounds, rounds * 10e-6)
    assert QUEUE_S / 2 <= rounds * 10e-6 <= 2 * QUEUE_S
    assert next_depth(MAX_QUEUE_DEPTH, 0.0) == MAX_QUEUE_DEPTH
    assert next_depth(8, 1.0) == 4
    assert next_depth(1, 1.0) == 1
