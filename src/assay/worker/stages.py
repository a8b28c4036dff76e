"""Subjects in stages: one after another is put in place, called for its own while, and given back.

    stage 0  prepare ▒▒▒▒▒▒▒ warm ░ call ▓▓▓▓▓▓▓▓▓▓▓  give back
    stage 1                                            prepare ▒ warm ░ call ▓▓▓▓▓▓▓▓▓▓▓  give back
    stage 2                                                                  out of memory: left out, and told

The parent asks for each stage by itself, so that what is measured is kept though a later one should end the process.
What the first subject needs, all need: where it cannot be put in place there is nothing to measure.
"""

from __future__ import annotations

import time
import traceback
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.core import copies
from assay.core.errors import AssayError
from assay.core.results import HowTimed, SubjectFacts
from assay.timing.lanes import START_US
from assay.timing.stretch import Series, Stretch
from assay.timing.wall import quiet_collector
from assay.worker import subjects
from assay.worker.explain import explain
from assay.worker.holding import give_back, is_lost
from assay.worker.protocol import Garbled

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.worker import protocol as say
    from assay.workloads.base import Prepared

NOT_REACHED = "its turn never came"
BY_WALL = HowTimed(
    method="stage", why="calls follow one another, each until its work is done, by the host's clock", cache="warm"
)
WARM_UP_CALLS = 1


class Stages:
    """The stages of a role, from the first to the last."""

    def __init__(self, told: say.Prepare, device: str, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._told = told
        self._device = device
        self._clock = clock
        count = len(told.role.subjects)
        self._facts = {n: SubjectFacts(subject=n, left_out=NOT_REACHED, reached=False) for n in range(count)}
        self._first: Prepared | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Put the first subject in place, and with it what all of them need.

        Raises:
            Exception: It cannot be put in place.
        """
        self._first = self._placed(0)
        return tuple(self._facts.values())

    def take(self, order: say.TakeBlock) -> tuple[Stretch, tuple[SubjectFacts, ...]]:
        """Measure one stage, and give its subject back; one that does not work is left out, with what it did before.

        Raises:
            Exception: It broke the device, or ranks that wait for this one.
        """
        index = order.stage
        if index is None or index not in self._facts:
            raise Garbled(f"a worker was asked for stage {index}")
        begin_ns = self._clock()
        prepared: Prepared | None = self._first if index == 0 else None
        self._first = None
        calls = _Calls(index, self._clock)
        try:
            prepared = prepared if prepared is not None else self._placed(index)
            calls.make(prepared, order)
        except Exception as error:
            self._left_out(index, error)
            if self._told.role.ranks > 1 or is_lost(self._device):
                raise
        finally:
            if prepared is not None:
                _close(prepared)
            del prepared
            give_back(self._device)
        return Stretch(begin_ns, self._clock(), calls.series()), tuple(self._facts.values())

    def _placed(self, index: int) -> Prepared:
        """Put a subject in place, and find out about it."""
        subject = self._told.role.subjects[index]
        prepared = subjects.prepare(subject, device=self._device, seed=self._told.seed)
        try:
            facts = subjects.facts(index, subject, prepared)
        except BaseException:
            _close(prepared)
            raise
        self._facts[index] = facts.model_copy(update={"timed": BY_WALL})
        return prepared

    def _left_out(self, index: int, error: Exception) -> None:
        """Keep why a stage was not measured, or not to its end."""
        if not isinstance(error, AssayError):
            traceback.print_exception(error)
        failure = explain(error.with_traceback(None))
        update = {
            "left_out": failure.reason,
            "refused": failure.refused,
            "senseless": failure.senseless,
            "reached": True,
        }
        self._facts[index] = self._facts[index].model_copy(update=update)


class _Calls:
    """The calls of one stage, and what they reported; a name may have several numbers a call."""

    def __init__(self, subject: int, clock: Callable[[], int]) -> None:
        self._subject = subject
        self._clock = clock
        self._call_us = array("d")
        self._start_us = array("d")
        self._extras: dict[str, array[float]] = {}
        self._window: tuple[int, int] | None = None

    def make(self, prepared: Prepared, order: say.TakeBlock) -> None:
        """Warm up, then call for as long and as often as is ordered; ranks end together."""
        for _ in range(WARM_UP_CALLS if order.warmup_runs is None else order.warmup_runs):
            prepared.call()
            prepared.synchronize()
            copies.end_copy()
        agree = prepared.agree if prepared.agree is not None else bool
        with quiet_collector():
            start_ns = self._clock()
            until_ns = start_ns + int((order.duration_s or 0.0) * 1e9)
            while True:
                end_ns = self._one(prepared, start_ns)
                done = end_ns >= until_ns and len(self._call_us) >= order.stage_calls
                if agree(done):
                    return

    def _one(self, prepared: Prepared, start_ns: int) -> int:
        """Call once, and return when that was done."""
        begin_ns = self._clock()
        reported = prepared.call()
        prepared.synchronize()
        end_ns = self._clock()
        copies.end_copy()
        self._window = start_ns, end_ns
        self._start_us.append((begin_ns - start_ns) / 1e3)
        self._call_us.append((end_ns - begin_ns) / 1e3)
        for name, value in reported.items() if isinstance(reported, Mapping) else ():
            numbers = value if isinstance(value, Sequence) else (value,)
            self._extras.setdefault(name, array("d")).extend(float(number) for number in numbers)
        return end_ns

    def series(self) -> tuple[Series, ...]:
        """Return all that is kept; nothing where no call came to its end."""
        if self._window is None:
            return ()
        named = {"call_us": self._call_us, START_US: self._start_us, **self._extras}
        return tuple(Series(self._subject, name, values, 1, self._window) for name, values in named.items() if values)


def _close(prepared: Prepared) -> None:
    with suppress(AssayError, RuntimeError):
        prepared.close()
