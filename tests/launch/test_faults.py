"""Workers that misbehave: the outcome says how, nothing hangs, nothing survives."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from assay.core import processes
from assay.core.values import Command, Continuous, Counted, Mode, Subject
from assay.workloads import registry
from tests.running import function, quickly, role, survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("segfault", "the worker died of SIGSEGV: a segmentation fault"),
        ("killed", "the worker died of SIGKILL"),
        ("eats_memory", "out of memory: cannot allocate 1 TiB"),
        ("raises", "ValueError: the moon is in the wrong phase"),
        ("leaves", "the worker ended without an answer (exit code 7)"),
        ("asks_to_leave", "SystemExit: 3"),
        ("needs_an_argument", "cannot be called with no arguments: missing a required argument: 'n'"),
        ("never_awaited", "only makes a coroutine"),
        ("not_there", "is not a function"),
    ],
)
def test_a_worker_that_fails_says_how(measure: Measure, name: str, reason: str) -> None:
    outcome = measure(role("cpu:0", function(name)))
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert outcome.reason.startswith("cpu:0: ")


@pytest.mark.parametrize("mode", [quickly(), quickly(Counted, runs=3), quickly(warmup_runs=3), quickly(Continuous)])
def test_copies_of_a_worker_do_not_go_on_with_its_work(measure: Measure, assay_home: Path, mode: Mode) -> None:
    outcome = measure(role("cpu:0", function("forks_and_returns")), mode=mode)
    assert outcome.reason == f"cpu:0: {processes.FORKED_COPY_REASON}"
    assert survivors(assay_home) == []


@pytest.mark.full
def test_the_end_of_what_a_failed_worker_printed_is_kept(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("raises")))
    assert outcome.stderr_tail is not None
    assert outcome.stderr_tail.endswith("ValueError: the moon is in the wrong phase")
    assert measure(role("cpu:0", function("segfault"))).stderr_tail is not None


def test_a_worker_that_hangs_is_ended_when_its_time_is_over(measure: Measure, assay_home: Path) -> None:
    outcome = measure(role("cpu:0", function("hangs")), mode=quickly(duration_s=0.2, timeout_s=6.0))
    assert outcome.status == "failed"
    assert outcome.reason == "cpu:0: no answer within 6 s while being timed; it was ended"
    wait_for(lambda: not survivors(assay_home))


def test_garbage_on_standard_output_harms_nothing(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("prints_garbage")), mode=quickly(Counted, runs=3))
    assert outcome.status == "ok", outcome.reason


def test_a_child_that_a_worker_forgot_does_not_survive_it(measure: Measure, assay_home: Path) -> None:
    outcome = measure(role("cpu:0", function("forgets_a_child")))
    assert outcome.status == "ok", outcome.reason
    assert survivors(assay_home) == []


def test_a_child_without_our_mark_does_not_survive_either(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("forgets_a_nameless_child")))
    assert outcome.status == "ok", outcome.reason
    running = subprocess.run(["pgrep", "-f", "^sleep 1003$"], capture_output=True, check=False)
    assert running.stdout == b""


def test_work_that_moves_itself_to_other_cores_was_not_isolated(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("moves_to_other_cores"), isolation="full"))
    (evidence,) = outcome.evidence
    assert (evidence.isolation_asked, evidence.isolation_held) == ("full", "none")
    assert [limit.code for limit in evidence.isolation_limits] == ["cpus_changed"]
    assert "the work itself moved from cores" in evidence.isolation_limits[0].message


@pytest.mark.full
def test_a_function_that_changed_since_it_was_planned_is_refused(measure: Measure, workplace: Path) -> None:
    subject = registry.resolve_subject("bad.py:fine", device_kind="cpu")
    assert measure(role("cpu:0", subject)).status == "ok"
    (workplace / "bad.py").write_text("def fine():\n    return 2\n")
    outcome = measure(role("cpu:0", subject))
    assert outcome.status == "refused"
    assert outcome.reason == "cpu:0: bad.py:fine has changed since this run was planned; start a new run for it"


def test_nothing_temporary_is_left_behind(measure: Measure, workplace: Path) -> None:
    command = Subject(workload="true", impl="command", command=Command(argv=("true",)))
    assert measure(role("cpu:0", command)).status == "ok"
    assert list((workplace / "scratch").iterdir()) == []


def test_the_others_go_on_when_one_of_several_dies(measure: Measure) -> None:
    outcome = measure(role("good", function("fine")), role("bad", function("segfault")), schedule="together")
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert outcome.reason.startswith("bad: ")
    assert [s.role for s in outcome.series] == ["good"]


def test_no_lease_is_left_after_a_trial(measure: Measure, assay_home: Path) -> None:
    measure(role("cpu:0", function("segfault")))
    measure(role("cpu:0", function("fine")))
    assert list((assay_home / "leases").iterdir()) == []


def test_a_wrong_result_publishes_no_time(measure: Measure, workplace: Path) -> None:
    from assay.workloads.ops.rows import SOFTMAX_NUMPY

    params = SOFTMAX_NUMPY.defaults() | {"distribution": "no such thing"}
    outcome = measure(role("cpu:0", Subject(workload="softmax", impl="numpy", params=params)))
    assert outcome.status == "failed"
    assert outcome.series == []
