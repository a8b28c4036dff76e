"""A trial becomes processes: schedules, loads, restarts and ranks, with real workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.values import Counted, Role
from assay.launch.trial import split_duration
from tests.running import function, quickly, role

if TYPE_CHECKING:
    from pathlib import Path

    from assay.launch.workers import RawSeries, TrialOutcome
    from tests.running import Measure


def only(outcome: TrialOutcome, **wanted: object) -> RawSeries:
    found = [s for s in outcome.series if all(getattr(s, k) == v for k, v in wanted.items())]
    assert len(found) == 1
    return found[0]


def test_a_function_is_timed_and_every_sample_kept(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("fine")))
    assert outcome.status == "ok", outcome.reason
    samples = np.frombuffer(only(outcome, quantity="call_us").data)
    assert len(samples) > 10
    assert (samples > 0).all()


@pytest.mark.full
def test_each_restart_is_a_process_of_its_own(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("fine")), restarts=3, mode=quickly(Counted, runs=20))
    assert outcome.status == "ok", outcome.reason
    assert len({e.pid for e in outcome.evidence}) == 3
    assert sorted(s.restart for s in outcome.series) == [0, 1, 2]


def test_restarts_that_do_not_fit_the_duration_are_left_out_and_said(measure: Measure) -> None:
    outcome = measure(role("cpu:0", function("fine")), restarts=50, mode=quickly(duration_s=0.3))
    assert outcome.status == "ok", outcome.reason
    assert len(outcome.evidence) < 50
    (note,) = [note for note in outcome.notes if note.code == "restarts_cut"]
    assert note.params == {"restarts": len(outcome.evidence), "requested": 50}


def test_given_counts_of_runs_are_obeyed_exactly(measure: Measure, workplace: Path) -> None:
    method = quickly(Counted, warmup_runs=2, runs=5)
    outcome = measure(role("cpu:0", function("notes_who", who="x")), mode=method)
    assert len(np.frombuffer(only(outcome, quantity="call_us").data)) == 5
    assert (workplace / "order.txt").read_text() == "x" * 7


def test_a_worker_starts_and_looks_at_its_samples_without_scipy(measure: Measure, workplace: Path) -> None:
    """To import it takes almost as long as all else that a worker imports."""
    outcome = measure(role("cpu:0", function("notes_scipy")), mode=quickly(precision=0.01))
    assert outcome.status == "ok", outcome.reason
    assert set((workplace / "scipy.txt").read_text()) == {"n"}


@pytest.mark.full
def test_roles_alone_never_overlap(measure: Measure) -> None:
    outcome = measure(role("a", function("fine")), role("b", function("fine"), device="cpu:0"))
    first, second = only(outcome, role="a"), only(outcome, role="b")
    assert first.end_ns <= second.start_ns


@pytest.mark.full
def test_roles_together_start_at_one_moment_and_keep_each_other_company(measure: Measure) -> None:
    outcome = measure(
        role("a", function("fine")),
        role("b", function("fine")),
        schedule="together",
        mode=quickly(duration_s=1.5, precision=None),
    )
    assert outcome.status == "ok", outcome.reason
    first, second = only(outcome, role="a"), only(outcome, role="b")
    overlap = min(first.end_ns, second.end_ns) - max(first.start_ns, second.start_ns)
    assert overlap > 0.5 * min(first.end_ns - first.start_ns, second.end_ns - second.start_ns)
    assert all(e.load_calls is not None and e.load_calls > 0 for e in outcome.evidence)


@pytest.mark.full
def test_a_load_is_up_before_and_down_after_what_is_timed(measure: Measure) -> None:
    outcome = measure(role("victim", function("fine")), role("noise", function("fine"), duty="load"))
    assert outcome.status == "ok", outcome.reason
    assert {s.role for s in outcome.series} == {"victim"}
    calls = {e.role: e.load_calls for e in outcome.evidence}
    assert calls["victim"] is None
    assert calls["noise"] is not None
    assert calls["noise"] > 1


@pytest.mark.full
def test_turns_alternate_strictly(measure: Measure, workplace: Path) -> None:
    method = quickly(Counted, warmup_runs=0, runs=4)
    outcome = measure(
        role("a", function("notes_who", who="a")),
        role("b", function("notes_who", who="b")),
        schedule="turns",
        mode=method,
    )
    assert outcome.status == "ok", outcome.reason
    assert (workplace / "order.txt").read_text() == "abababab"
    assert len(np.frombuffer(only(outcome, role="a").data)) == 4


def test_two_subjects_of_one_role_are_interleaved_in_one_process(measure: Measure, workplace: Path) -> None:
    both = Role(
        name="pair",
        subjects=(function("notes_who", who="a"), function("notes_who", who="b")),
        devices=("cpu:0",),
    )
    outcome = measure(both, mode=quickly(Counted, warmup_runs=0, runs=20))
    assert outcome.status == "ok", outcome.reason
    order = (workplace / "order.txt").read_text()
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert set(pairs) == {"ab", "ba"}
    assert {s.subject for s in outcome.series} == {0, 1}


@pytest.mark.full
def test_ranks_are_told_who_they_are_and_take_equally_many_samples(measure: Measure, workplace: Path) -> None:
    outcome = measure(role("ring", function("notes_rank"), ranks=3), mode=quickly(duration_s=1.5))
    assert outcome.status == "ok", outcome.reason
    told = [(workplace / f"rank-{rank}.txt").read_text().split() for rank in range(3)]
    assert [t[:3] for t in told] == [["0", "0", "3"], ["1", "1", "3"], ["2", "2", "3"]]
    assert len({(t[3], t[4]) for t in told}) == 1
    assert len({len(s.data) for s in outcome.series}) == 1


@pytest.mark.full
def test_when_a_rank_dies_the_others_do_not_wait_for_it(measure: Measure) -> None:
    outcome = measure(role("ring", function("second_rank_dies"), ranks=2), mode=quickly(timeout_s=100))
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert "rank 1 of ring: the worker ended without an answer (exit code 7)" in outcome.reason


@pytest.mark.full
def test_full_isolation_pins_to_disjoint_cores_and_none_does_not(measure: Measure, workplace: Path) -> None:
    devices = ("cpu:0", "cpu:1")
    roles = [role(d, function("tells_threads"), device=d, isolation="full") for d in devices]
    outcome = measure(*roles, schedule="together", mode=quickly(duration_s=1.0))
    cores = [set(e.allowed_cores) for e in outcome.evidence]
    assert len(cores) == 2
    assert not cores[0] & cores[1]
    assert (workplace / "threads.txt").read_text() == "1"
    free = measure(role("cpu:0", function("tells_threads")))
    assert set(free.evidence[0].allowed_cores) == cores[0] | cores[1]
    assert free.evidence[0].thread_limit is None


def test_the_parent_stays_on_the_core_that_is_left_for_it(measure: Measure, workplace: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("a core can be left only where there are two")
    outcome = measure(role("cpu:0", function("tells_where_its_parent_may_run"), isolation="full"), cpu_groups=1)
    assert outcome.status == "ok", outcome.reason
    parent = set(map(int, (workplace / "parent.txt").read_text().split()))
    assert parent == before - set(outcome.evidence[0].allowed_cores)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("duration_s", "restarts", "setup_s", "expected"),
    [(10, 5, 0.2, (5, 1.8)), (10, 5, 3.0, (1, 7.0)), (1, 5, 4.0, (1, 0.25)), (4, 2, 0.0, (2, 2.0))],
)
def test_the_duration_is_shared_out_over_restarts(
    duration_s: float, restarts: int, setup_s: float, expected: tuple[int, float]
) -> None:
    shares = split_duration(duration_s, restarts, setup_s)
    assert (shares.restarts, shares.share_s) == pytest.approx(expected)
