"""Subjects one after another in one process: in pairs that are compared, or in stages with a duration each.

    0  prepare ▒▒ time ▓▓▓▓▓▓  release
    1                              prepare ▒▒▒ time ▓▓▓▓▓  release
    2                                                          out of memory: skipped, with the reason
    3                                                                        prepare ▒ time ▓▓▓

Only one pair or stage is in memory, so that the largest fits if it can fit at all, and one process measures many sizes:
starting one takes longer than timing most of them. The parent requests each stage separately, so that completed stages
are kept even if a later one ends the process. What the first stage needs, all need: if it cannot be prepared, there is
nothing to measure.
"""

from __future__ import annotations

import time
import traceback
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.core import processes
from assay.core.errors import AssayError, TrialFailed
from assay.core.results import NOT_REACHED, Missing, Parity, SubjectFacts, TimingMethod
from assay.timing.continuous import START_US
from assay.timing.interleaved import SampleBlock, SampleSeries
from assay.timing.wall import gc_paused
from assay.worker import protocol as say
from assay.worker import subjects
from assay.worker.subjects import describe_failure, is_device_lost, is_out_of_memory, release_memory
from assay.worker.timer import SubjectTimer
from assay.workloads.parity import unchecked_parity

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Paired, Staged
    from assay.workloads.base import PreparedWorkload

TIME_IS_UP = "the time was up before its turn came"
BY_WALL = TimingMethod(
    method="stage", why="calls follow one another, each until its work is done, by the host's clock", cache="warm"
)


class _SubjectSequence:
    """The subjects of a role, and what is known about each so far."""

    def __init__(self, message: say.Prepare, device: str, skipped: Missing | None = None) -> None:
        self._message = message
        self._device = device
        self._facts = {n: SubjectFacts(subject=n, skipped=skipped) for n in range(len(message.role.subjects))}

    @property
    def facts(self) -> tuple[SubjectFacts, ...]:
        """What is known about each subject."""
        return tuple(self._facts.values())

    def _prepare(self, index: int) -> PreparedWorkload:
        """Prepare and check a subject, and collect its facts."""
        subject = self._message.role.subjects[index]
        prepared = subjects.prepare_subject(subject, device=self._device, seed=self._message.seed)
        try:
            self._facts[index] = subjects.check_subject(index, subject, prepared)
        except BaseException:
            _release(prepared)
            raise
        return prepared

    def _record_failure(self, index: int, error: Exception) -> None:
        """Skip a subject and record why; the traceback is printed, as storing it would keep the subject's memory."""
        if not isinstance(error, AssayError):
            traceback.print_exception(error)
        failure = describe_failure(error.with_traceback(None))
        self._update_facts(index, skipped=Missing(code=failure.code, detail=failure.reason))

    def _update_facts(self, index: int, **updates: object) -> None:
        self._facts[index] = self._facts[index].model_copy(update=updates)


class PairedSubjects(_SubjectSequence):
    """The pairs of a role, in order."""

    def __init__(self, message: say.Prepare, mode: Paired, device: str) -> None:
        super().__init__(message, device)
        self._mode = mode
        self._failures: list[Exception] = []
        self._current: tuple[SubjectTimer, list[PreparedWorkload]] | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Prepare the first pair, and with it what all pairs need."""
        self._current = self._prepare_pair(0)
        return self.facts

    def take(self, request: say.TakeBlock) -> tuple[SampleBlock, tuple[SubjectFacts, ...]]:
        """Time one pair after another, each for its share of the remaining time; also return the subjects' facts.

        Raises:
            Exception: The error of the first pair, if none worked and no error was for lack of memory.
        """
        begin = time.perf_counter_ns()
        until_ns = begin + int(request.duration_s * 1e9)
        count = len(self._facts) // 2
        series: list[SampleSeries] = []
        for index in range(count):
            now = time.perf_counter_ns()
            if index and (now >= until_ns or (self._failures and is_device_lost(self._device))):
                reason = TIME_IS_UP if now >= until_ns else f"an earlier pair broke {self._device}"
                for later in range(2 * index, len(self._facts)):
                    self._update_facts(later, skipped=Missing(code=NOT_REACHED, detail=reason))
                break
            series += self._time_pair(index, request, now + (until_ns - now) // (count - index))
        if not series and self._failures and not any(map(is_out_of_memory, self._failures)):
            raise self._failures[0]
        return SampleBlock(begin, time.perf_counter_ns(), tuple(series)), self.facts

    def _time_pair(self, index: int, request: say.TakeBlock, until_ns: int) -> list[SampleSeries]:
        """Time one pair in alternation, and release it."""
        pair = self._current if index == 0 else self._prepare_pair(index)
        self._current = None
        series: list[SampleSeries] = []
        if pair is not None:
            indices, seed = (2 * index, 2 * index + 1), request.seed + index
            try:
                series = pair[0].take_pair(indices, rounds=self._mode.rounds, until_ns=until_ns, seed=seed)
            except Exception as error:  # noqa: BLE001 - whatever user code raises is reported for this pair
                self._record_failure(2 * index, error)
            _release(*pair[1], timer=pair[0])
        del pair
        release_memory(self._device)
        return series

    def _prepare_pair(self, pair_index: int) -> tuple[SubjectTimer, list[PreparedWorkload]] | None:
        """Prepare a pair and its timer; return null if one of the two fails."""
        indices = (2 * pair_index, 2 * pair_index + 1)
        prepared: list[PreparedWorkload] = []
        for index in indices:
            try:
                prepared.append(self._prepare(index))
                prepared[-1].call()
                prepared[-1].synchronize()
                processes.exit_if_forked()
                if self._mode.parity and len(prepared) == 2:
                    self._update_facts(index, parity=_check_parity(*prepared))
            except Exception as error:  # noqa: BLE001 - likewise
                self._record_failure(index, error)
                _release(*prepared)
                return None
        timer = SubjectTimer(prepared, [self._message.role.subjects[index].label for index in indices])
        try:
            methods = timer.set_up(self._device, self._mode.cache, self._mode.timeout_s)
        except Exception as error:  # noqa: BLE001 - likewise
            self._record_failure(indices[0], error)
            _release(*prepared, timer=timer)
            return None
        for index, method in zip(indices, methods, strict=True):
            self._update_facts(index, timed=method)
        return timer, prepared

    def _record_failure(self, index: int, error: Exception) -> None:
        super()._record_failure(index, error)
        self._failures.append(error)
        if isinstance(error, TrialFailed) and index % 2 and self._mode.parity:
            self._update_facts(index, parity=Parity(passed=False, reason=str(error), measure="error against float64"))


def _check_parity(reference: PreparedWorkload, fast: PreparedWorkload) -> Parity:
    """Compare the two outputs; an error leaves them unchecked, but running out of memory fails the pair."""
    try:
        return subjects.compare_outputs(reference, fast)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return unchecked_parity("the output of the fast path", describe_failure(error).reason)


def _release(*prepared: PreparedWorkload, timer: SubjectTimer | None = None) -> None:
    """Release what subjects and their timer hold; failures were already reported."""
    if timer is not None:
        with suppress(Exception):
            timer.close()
    for subject in prepared:
        with suppress(AssayError, RuntimeError):
            subject.close()


class StagedSubjects(_SubjectSequence):
    """The stages of a role, in order."""

    def __init__(
        self, message: say.Prepare, mode: Staged, device: str, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        super().__init__(message, device, Missing(code=NOT_REACHED, detail="its turn never came"))
        self._mode = mode
        self._clock = clock
        self._first: PreparedWorkload | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Prepare the first subject, and with it what all of them need.

        Raises:
            Exception: It cannot be prepared.
        """
        self._first = self._prepare(0)
        return self.facts

    def take(self, request: say.TakeStage) -> tuple[SampleBlock, tuple[SubjectFacts, ...]]:
        """Measure one stage, and release its subject; a failing one is skipped, keeping what it had measured before.

        Raises:
            Exception: It broke the device, or other ranks wait for this one.
        """
        index = request.subject
        if index not in self._facts:
            raise say.InvalidMessage(f"a worker was asked for stage {index}")
        begin_ns = self._clock()
        prepared: PreparedWorkload | None = self._first if index == 0 else None
        self._first = None
        calls = _StageCalls(index, self._clock)
        try:
            prepared = prepared if prepared is not None else self._prepare(index)
            calls.make(prepared, self._mode)
        except Exception as error:
            self._record_failure(index, error)
            if self._message.role.ranks > 1 or is_device_lost(self._device):
                raise
        finally:
            if prepared is not None:
                _release(prepared)
            del prepared
            release_memory(self._device)
        return SampleBlock(begin_ns, self._clock(), calls.series()), self.facts

    def _prepare(self, index: int) -> PreparedWorkload:
        prepared = super()._prepare(index)
        self._update_facts(index, timed=BY_WALL)
        return prepared


class _StageCalls:
    """The calls of one stage, and the numbers they reported; a name may have several numbers per call."""

    def __init__(self, subject: int, clock: Callable[[], int]) -> None:
        self._subject = subject
        self._clock = clock
        self._call_us = array("d")
        self._start_us = array("d")
        self._extras: dict[str, array[float]] = {}
        self._window: tuple[int, int] | None = None

    def make(self, prepared: PreparedWorkload, mode: Staged) -> None:
        """Warm up, then call for as long and as often as requested; all ranks stop together."""
        for _ in range(mode.warmup_runs):
            prepared.call()
            prepared.synchronize()
            processes.exit_if_forked()
        agree_to_stop = prepared.agree_to_stop if prepared.agree_to_stop is not None else bool
        with gc_paused():
            start_ns = self._clock()
            until_ns = start_ns + int(mode.stage_s * 1e9)
            while True:
                end_ns = self._call_once(prepared, start_ns)
                if agree_to_stop(end_ns >= until_ns and len(self._call_us) >= mode.min_calls):
                    return

    def _call_once(self, prepared: PreparedWorkload, start_ns: int) -> int:
        """Call once, and return the time when it was done."""
        begin_ns = self._clock()
        reported = prepared.call()
        prepared.synchronize()
        end_ns = self._clock()
        processes.exit_if_forked()
        self._window = start_ns, end_ns
        self._start_us.append((begin_ns - start_ns) / 1e3)
        self._call_us.append((end_ns - begin_ns) / 1e3)
        for name, value in reported.items() if isinstance(reported, Mapping) else ():
            numbers = value if isinstance(value, Sequence) else (value,)
            self._extras.setdefault(name, array("d")).extend(float(number) for number in numbers)
        return end_ns

    def series(self) -> tuple[SampleSeries, ...]:
        """Return all series; empty if no call finished."""
        if self._window is None:
            return ()
        samples_by_name = {"call_us": self._call_us, START_US: self._start_us, **self._extras}
        return tuple(
            SampleSeries(self._subject, name, values, 1, self._window)
            for name, values in samples_by_name.items()
            if values
        )
