"""The same wish in several fresh processes, one after another: what ``assay time`` says holds for a start, not for one.

    process 1   start, load, check, compile │ warm up ░ sample ▓▓▓▓│ end
    process 2                                                        start, load, check │ warm up ░ sample ▓▓▓▓│ end
    …           equal shares of the budget

How many there are is fixed before the first, so that the interval over them holds; only where calls are so long that
the budget is spent, the last ones are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import AssayError, BadInput, MachineCannot, StopRequested, TrialFailed, WrongResult
from assay.launch.once import Once
from assay.timing.processes import FEWEST, merge_comparisons, merge_measurements, of_comparison, of_measurement
from assay.timing.values import ProcessTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.launch.once import Watcher
    from assay.worker.wish import Begins, Timed, Wish

MOST_FAILURES = 2
"""After so many failed processes no more are started."""

CALLS, OVERSPENT = 5, 1.5
"""Where a process's share does not hold so many calls, as it makes at least, none is started any more that would spend
the budget so many times over."""


class ProcessWatcher(Protocol):
    """Somebody who is told how far it has come, process by process."""

    def process(self, number: int, of: int) -> None:
        """One of several processes begins."""

    def begins(self, begins: Begins) -> None:
        """Something else begins."""

    def tick(self) -> None:
        """About a second has passed."""


@dataclass(frozen=True)
class Failure:
    """A process that failed: which, how, and the end of what it printed."""

    process: int
    error: AssayError
    tail: str


@dataclass
class Outcome:
    """What came out of all processes: the result over those that worked, and those that failed."""

    planned: int
    answers: list[tuple[int, Timed]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    printed: int = 0

    @property
    def by_process(self) -> tuple[ProcessTimes, ...]:
        """What each process gave, in order."""
        succeeded = [_kept(process, timed) for process, timed in self.answers]
        failed = [ProcessTimes(process=f.process, status="failed", reason=str(f.error)) for f in self.failures]
        return tuple(sorted([*succeeded, *failed], key=lambda entry: entry.process))

    def timed(self) -> Timed:
        """Return the result over the processes; that of the one there is where no more were wanted."""
        first = self.answers[0][1]
        if self.planned == 1:
            return first
        notes = self._notes()
        if first.measurement is not None:
            measured = [timed.measurement for _, timed in self.answers if timed.measurement is not None]
            one = merge_measurements(measured, self.by_process)
            return first.model_copy(update={"measurement": one.model_copy(update={"notes": (*one.notes, *notes)})})
        compared = [timed.comparison for _, timed in self.answers if timed.comparison is not None]
        both = merge_comparisons(compared, self.by_process)
        return first.model_copy(update={"comparison": both.model_copy(update={"notes": (*both.notes, *notes)})})

    def _notes(self) -> tuple[str, ...]:
        failed = tuple(f"process {f.process} of {self.planned} failed: {f.error}" for f in self.failures)
        left = self.planned - len(self.answers) - len(self.failures)
        if not left or len(self.failures) >= MOST_FAILURES:
            return failed
        return (*failed, f"{left} of {self.planned} processes were left out: calls are long, and the budget was spent")


def _kept(process: int, timed: Timed) -> ProcessTimes:
    if timed.measurement is not None:
        return of_measurement(process, timed.measurement)
    assert timed.comparison is not None  # noqa: S101 - it is one or the other
    return of_comparison(process, timed.comparison)


def time_in_processes(
    wish: Wish,
    watcher: ProcessWatcher,
    *,
    on_failure: Callable[[Failure], None],
    start: Callable[[Wish], Once] = Once,
) -> Outcome:
    """Have a wish fulfilled in as many fresh processes as it asks for, one after another.

    A process after the first may fail: the others count, and the outcome says so. ``on_failure`` hears of it at once.

    Raises:
        AssayError: The first process failed, too few worked, or a result was wrong: then no time is published.
        StopRequested: A signal came.
        Defect: Assay itself broke.
    """
    outcome = Outcome(wish.processes)
    for process in range(1, wish.processes + 1):
        if len(outcome.failures) >= MOST_FAILURES or _overspent(wish, outcome):
            break
        watcher.process(process, wish.processes)
        _one(wish.model_copy(update={"process": process}), watcher, start, outcome)
        if outcome.failures and outcome.failures[-1].process == process:
            on_failure(outcome.failures[-1])
            if process == 1:
                break
    if len(outcome.answers) < min(FEWEST, wish.processes):
        raise outcome.failures[0].error
    return outcome


def _one(wish: Wish, watcher: Watcher, start: Callable[[Wish], Once], outcome: Outcome) -> None:
    """Have one process serve the wish, and keep what came of it."""
    with start(wish) as one_shot:
        try:
            outcome.answers.append((wish.process, one_shot.wait(watcher)))
        except WrongResult:
            raise
        except (BadInput, MachineCannot, TrialFailed) as error:
            outcome.failures.append(Failure(wish.process, error, one_shot.tail))
        except StopRequested as error:
            done = len(outcome.answers)
            rest = (
                f"{done} of {wish.processes} processes were timed, and nothing is reported"
                if done
                else "nothing was measured"
            )
            raise StopRequested(f"{error}; {rest}.") from None
        finally:
            outcome.printed += one_shot.printed


def _overspent(wish: Wish, outcome: Outcome) -> bool:
    """Return whether calls are so long that one more process would overspend the budget by far, two being there."""
    if len(outcome.answers) < FEWEST:
        return False
    share_s = outcome.answers[0][1].budget_s
    done = [_kept(process, timed) for process, timed in outcome.answers]
    call_s = sum(estimate.value for estimate in done[0].times.values() if estimate.unit == "us") / 1e6
    spent_s = [entry.took_s for entry in done]
    return CALLS * call_s > share_s and sum(spent_s) + min(spent_s) > OVERSPENT * wish.processes * share_s
