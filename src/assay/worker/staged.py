"""Subjects in stages: one after another is prepared, called for its own duration, and released.

    stage 0  prepare ▒▒▒▒▒▒▒ warm ░ call ▓▓▓▓▓▓▓▓▓▓▓  release
    stage 1                                            prepare ▒ warm ░ call ▓▓▓▓▓▓▓▓▓▓▓  release
    stage 2                                                                  out of memory: skipped, with the reason

The parent requests each stage separately, so that completed stages are kept even if a later one ends the process.
What the first subject needs, all need: if it cannot be prepared, there is nothing to measure.
"""

from __future__ import annotations

import time
import traceback
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.core import processes
from assay.core.errors import AssayError
from assay.core.results import NOT_REACHED, Missing, SubjectFacts, TimingMethod
from assay.timing.continuous import START_US
from assay.timing.interleaved import SampleBlock, SampleSeries
from assay.timing.wall import gc_paused
from assay.worker import subjects
from assay.worker.protocol import InvalidMessage
from assay.worker.subjects import describe_failure, is_device_lost, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Staged
    from assay.worker import protocol as say
    from assay.workloads.base import PreparedWorkload

BY_WALL = TimingMethod(
    method="stage", why="calls follow one another, each until its work is done, by the host's clock", cache="warm"
)


class StagedSubjects:
    """The stages of a role, in order."""

    def __init__(
        self, message: say.Prepare, mode: Staged, device: str, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._message = message
        self._mode = mode
        self._device = device
        self._clock = clock
        count = len(message.role.subjects)
        not_reached = Missing(code=NOT_REACHED, detail="its turn never came")
        self._facts = {n: SubjectFacts(subject=n, skipped=not_reached) for n in range(count)}
        self._first: PreparedWorkload | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Prepare the first subject, and with it what all of them need.

        Raises:
            Exception: It cannot be prepared.
        """
        self._first = self._prepare(0)
        return tuple(self._facts.values())

    def take(self, request: say.TakeStage) -> tuple[SampleBlock, tuple[SubjectFacts, ...]]:
        """Measure one stage, and release its subject; a failing one is skipped, keeping what it had measured before.

        Raises:
            Exception: It broke the device, or other ranks wait for this one.
        """
        index = request.subject
        if index not in self._facts:
            raise InvalidMessage(f"a worker was asked for stage {index}")
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
                _close(prepared)
            del prepared
            release_memory(self._device)
        return SampleBlock(begin_ns, self._clock(), calls.series()), tuple(self._facts.values())

    def _prepare(self, index: int) -> PreparedWorkload:
        """Prepare a subject, and collect its facts."""
        subject = self._message.role.subjects[index]
        prepared = subjects.prepare_subject(subject, device=self._device, seed=self._message.seed)
        try:
            facts = subjects.check_subject(index, subject, prepared)
        except BaseException:
            _close(prepared)
            raise
        self._facts[index] = facts.model_copy(update={"timed": BY_WALL})
        return prepared

    def _record_failure(self, index: int, error: Exception) -> None:
        """Record why a stage was not measured, or not to its end."""
        if not isinstance(error, AssayError):
            traceback.print_exception(error)
        failure = describe_failure(error.with_traceback(None))
        skipped = Missing(code=failure.code, detail=failure.reason)
        self._facts[index] = self._facts[index].model_copy(update={"skipped": skipped})


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
                done = end_ns >= until_ns and len(self._call_us) >= mode.min_calls
                if agree_to_stop(done):
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


def _close(prepared: PreparedWorkload) -> None:
    with suppress(AssayError, RuntimeError):
        prepared.close()
