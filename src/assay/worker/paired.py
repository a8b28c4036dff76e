"""Subjects in pairs: each pair is prepared, timed in alternation and released before the next one is prepared.

    pair 1  prepare ▒▒ time ▓▓▓▓▓▓  release
    pair 2                              prepare ▒▒▒ time ▓▓▓▓▓  release
    pair 3                                                          out of memory: skipped, with the reason
    pair 4                                                                        prepare ▒ time ▓▓▓

Only one pair is in memory, so that the largest fits if it can fit at all, and one process measures many sizes:
starting one takes longer than timing most of them.
"""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.core import processes
from assay.core.errors import AssayError, TrialFailed
from assay.core.results import NOT_REACHED, Missing, Parity, SubjectFacts
from assay.timing.interleaved import SampleBlock, SampleSeries
from assay.worker import subjects
from assay.worker.subjects import describe_failure, is_device_lost, is_out_of_memory, release_memory
from assay.worker.timer import SubjectTimer
from assay.workloads.parity import unchecked_parity

if TYPE_CHECKING:
    from assay.core.values import Paired
    from assay.worker import protocol as say
    from assay.workloads.base import PreparedWorkload

TIME_IS_UP = "the time was up before its turn came"


class PairedSubjects:
    """The pairs of a role, in order."""

    def __init__(self, message: say.Prepare, mode: Paired, device: str) -> None:
        self._message = message
        self._mode = mode
        self._device = device
        self._facts = {index: SubjectFacts(subject=index) for index in range(len(message.role.subjects))}
        self._failures: list[Exception] = []
        self._current: _SubjectPair | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Prepare the first pair, and with it what all pairs need."""
        self._current = self._prepare_pair(0)
        return tuple(self._facts.values())

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
                self._skip_from(index, TIME_IS_UP if now >= until_ns else f"an earlier pair broke {self._device}")
                break
            series += self._time_pair(index, request, now + (until_ns - now) // (count - index))
        if not series and self._failures and not any(map(is_out_of_memory, self._failures)):
            raise self._failures[0]
        return SampleBlock(begin, time.perf_counter_ns(), tuple(series)), tuple(self._facts.values())

    def _time_pair(self, index: int, request: say.TakeBlock, until_ns: int) -> list[SampleSeries]:
        """Time one pair, and release it."""
        pair = self._current if index == 0 else self._prepare_pair(index)
        self._current = None
        series: list[SampleSeries] = []
        if pair is not None:
            try:
                series = pair.take(self._mode.rounds, until_ns, request.seed + index)
            except Exception as error:  # noqa: BLE001 - whatever user code raises is reported for this pair
                self._record_failure(2 * index, error)
            pair.close()
        del pair
        release_memory(self._device)
        return series

    def _prepare_pair(self, pair_index: int) -> _SubjectPair | None:
        """Prepare a pair; return null if one of the two fails."""
        prepared: list[PreparedWorkload] = []
        for index in (2 * pair_index, 2 * pair_index + 1):
            subject = self._message.role.subjects[index]
            try:
                prepared.append(subjects.prepare_subject(subject, device=self._device, seed=self._message.seed))
                self._facts[index] = subjects.check_subject(index, subject, prepared[-1])
                prepared[-1].call()
                prepared[-1].synchronize()
                processes.exit_if_forked()
                if self._mode.parity and len(prepared) == 2:
                    self._update_facts(index, parity=_check_parity(*prepared))
            except Exception as error:  # noqa: BLE001 - likewise
                self._record_failure(index, error)
                _close_all(prepared)
                return None
        timer = SubjectTimer(prepared, [self._message.role.subjects[2 * pair_index + side].label for side in (0, 1)])
        try:
            methods = timer.set_up(self._device, self._mode.cache, self._mode.timeout_s)
        except Exception as error:  # noqa: BLE001 - likewise
            self._record_failure(2 * pair_index, error)
            _SubjectPair(pair_index, prepared, timer).close()
            return None
        for side in (0, 1):
            self._update_facts(2 * pair_index + side, timed=methods[side])
        return _SubjectPair(pair_index, prepared, timer)

    def _record_failure(self, index: int, error: Exception) -> None:
        """Skip a subject and record why; the traceback is printed, as storing it would keep the subject's memory."""
        if not isinstance(error, AssayError):
            traceback.print_exception(error)
        self._failures.append(error.with_traceback(None))
        failure = describe_failure(error)
        self._update_facts(index, skipped=Missing(code=failure.code, detail=failure.reason))
        if isinstance(error, TrialFailed) and index % 2 and self._mode.parity:
            self._update_facts(index, parity=Parity(passed=False, reason=str(error), measure="error against float64"))

    def _skip_from(self, pair_index: int, reason: str) -> None:
        for index in range(2 * pair_index, len(self._facts)):
            self._update_facts(index, skipped=Missing(code=NOT_REACHED, detail=reason))

    def _update_facts(self, index: int, **updates: object) -> None:
        self._facts[index] = self._facts[index].model_copy(update=updates)


class _SubjectPair:
    """Two prepared subjects and their timer."""

    def __init__(self, index: int, prepared: list[PreparedWorkload], timer: SubjectTimer) -> None:
        self._index = index
        self._prepared = prepared
        self._timer = timer

    def take(self, rounds: int, until_ns: int, seed: int) -> list[SampleSeries]:
        """Time the two in alternation."""
        indices = (2 * self._index, 2 * self._index + 1)
        return self._timer.take_pair(indices, rounds=rounds, until_ns=until_ns, seed=seed)

    def close(self) -> None:
        """Release all resources."""
        with suppress(Exception):  # the failure was already reported
            self._timer.close()
        _close_all(self._prepared)


def _check_parity(reference: PreparedWorkload, fast: PreparedWorkload) -> Parity:
    """Compare the two outputs; an error leaves them unchecked, but running out of memory fails the pair."""
    try:
        return subjects.compare_outputs(reference, fast)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return unchecked_parity("the output of the fast path", describe_failure(error).reason)


def _close_all(prepared: list[PreparedWorkload]) -> None:
    for subject in prepared:
        with suppress(AssayError, RuntimeError):
            subject.close()
