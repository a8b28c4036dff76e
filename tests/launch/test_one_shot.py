"""The same wish in several processes: which failures end it, which are left out, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest

from assay.core.errors import AssayError, MachineCannot, StopRequested, TrialFailed, WrongResult
from assay.core.results import SubjectFacts
from assay.core.values import Subject
from assay.launch.one_shot import time_in_processes
from assay.worker.request import TimeRequest, TimeResult
from tests.timing.test_timing_processes import compared, measured

if TYPE_CHECKING:
    from assay.launch.one_shot import ProcessFailure, ProcessOutcomes, ProgressWatcher
    from assay.worker.request import PhaseStarted

SHARE_S = 2.0


def timed(call_us: float, took_s: float = 1.5) -> TimeResult:
    found = measured(call_us).model_copy(update={"took_s": took_s})
    return TimeResult(facts=(SubjectFacts(subject=0),), budget_s=SHARE_S, measurement=found)


@dataclass
class Starts:
    """Stands for processes: what each gives, or how it fails."""

    script: list[TimeResult | AssayError | StopRequested]
    wishes: list[TimeRequest] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)
    failures: list[ProcessFailure] = field(default_factory=list)
    closed: int = 0
    printed: int = 3
    tail: str = "the last words"

    def __call__(self, wish: TimeRequest) -> Any:
        self.wishes.append(wish)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def wait_for(self, _kind: type[TimeResult], _watcher: ProgressWatcher) -> TimeResult:
        came = self.script[len(self.wishes) - 1]
        if isinstance(came, AssayError | StopRequested):
            raise came
        return came

    def process(self, number: int, of: int) -> None:
        self.begun.append((number, of))

    def begins(self, begins: PhaseStarted) -> None: ...

    def tick(self) -> None: ...


def ask(processes: int) -> TimeRequest:
    return TimeRequest(
        subjects=(Subject(workload="f.py:f", impl="function"),), device="cpu", cache=None, method="auto",
        precision=0.01, budget_s=10.0,
        processes=processes, by=None, minimum_effect=0.01, limit_s=60.0, lock_mhz=None, seed=3,
    )  # fmt: skip


def ran(starts: Starts, processes: int = 5) -> ProcessOutcomes:
    return time_in_processes(ask(processes), starts, on_failure=starts.failures.append, start=starts)


def test_every_process_is_told_which_it_is_and_ends_before_the_next() -> None:
    starts = Starts([timed(100.0 + n) for n in range(5)])
    outcome = ran(starts)
    assert [wish.process for wish in starts.wishes] == [1, 2, 3, 4, 5]
    assert {wish.seed for wish in starts.wishes} == {3}
    assert starts.begun == [(n, 5) for n in range(1, 6)]
    assert starts.closed == 5
    assert outcome.printed == 15
    found = outcome.timed().measurement
    assert found is not None
    assert (found.processes, found.time.scope, found.notes) == (5, "run", ())


def test_one_process_gives_what_it_measured_and_no_more() -> None:
    only = timed(100.0)
    assert ran(Starts([only]), processes=1).timed() == only


def test_comparisons_are_put_together_too() -> None:
    answers = [
        TimeResult(facts=(SubjectFacts(subject=0),), budget_s=SHARE_S, comparison=compared(ratio))
        for ratio in (1.5, 1.6)
    ]
    found = ran(Starts(list(answers)), processes=2).timed().comparison
    assert found is not None
    assert (found.processes, found.verdict) == (2, "slower")


@pytest.mark.parametrize("error", [TrialFailed("it raised"), MachineCannot("no GPU"), WrongResult("it is wrong")])
def test_where_the_first_process_fails_nothing_else_is_started(error: AssayError) -> None:
    starts = Starts([error])
    with pytest.raises(type(error), match=str(error)):
        ran(starts)
    assert (len(starts.wishes), starts.closed) == (1, 1)


def test_a_later_process_that_fails_is_left_out_and_said() -> None:
    starts = Starts([timed(100.0), timed(101.0), TrialFailed("it died"), timed(102.0), timed(103.0)])
    outcome = ran(starts)
    assert [failure.tail for failure in starts.failures] == ["the last words"]
    found = outcome.timed().measurement
    assert found is not None
    assert found.processes == 4
    assert found.notes == ("process 3 of 5 failed: it died",)
    assert [(each.process, each.status, each.reason) for each in found.by_process][2] == (3, "failed", "it died")


def test_after_two_failures_no_more_are_started() -> None:
    starts = Starts([timed(100.0), TrialFailed("a"), timed(101.0), TrialFailed("b")])
    found = ran(starts).timed().measurement
    assert found is not None
    assert (len(starts.wishes), found.processes) == (4, 2)
    assert found.notes == ("process 2 of 5 failed: a", "process 4 of 5 failed: b")


def test_where_too_few_are_left_for_an_interval_it_has_failed() -> None:
    with pytest.raises(TrialFailed, match="a"):
        ran(Starts([timed(100.0), TrialFailed("a"), TrialFailed("b")]))


def test_a_wrong_result_in_any_process_publishes_no_time() -> None:
    with pytest.raises(WrongResult, match="it is wrong"):
        ran(Starts([timed(100.0), timed(101.0), WrongResult("it is wrong")]))


def test_long_calls_are_timed_in_fewer_processes_and_that_is_said() -> None:
    starts = Starts([timed(3e6, took_s=15.0) for _ in range(5)])
    found = ran(starts).timed().measurement
    assert found is not None
    assert (len(starts.wishes), found.processes) == (2, 2)
    assert found.notes == ("3 of 5 processes were left out: calls are long, and the budget was spent",)


def test_a_slow_machine_does_not_take_processes_away_from_short_calls() -> None:
    assert len(ran(Starts([timed(100.0, took_s=60.0) for _ in range(5)])).answers) == 5


def test_a_signal_says_how_far_it_had_come() -> None:
    with pytest.raises(StopRequested, match=r"^Stopped by SIGINT; nothing was measured\.$"):
        ran(Starts([StopRequested("Stopped by SIGINT")]))
    partly = r"^Stopped by SIGINT; 2 of 5 processes were timed, and nothing is reported\.$"
    with pytest.raises(StopRequested, match=partly):
        ran(Starts([timed(1.0), timed(1.0), StopRequested("Stopped by SIGINT")]))
