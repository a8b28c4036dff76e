"""Subjects in pairs: each pair is put in place, timed in turns and given back before the next one comes.

    pair 1  prepare ▒▒ time ▓▓▓▓▓▓  give back
    pair 2                              prepare ▒▒▒ time ▓▓▓▓▓  give back
    pair 3                                                          out of memory: left out, and told
    pair 4                                                                        prepare ▒ time ▓▓▓

Only one pair is in memory, so that the largest fits if it can fit at all, and one process sees many sizes: starting one
takes longer than timing most of them.
"""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.core import copies
from assay.core.errors import AssayError, TrialFailed
from assay.core.results import Parity, SubjectFacts
from assay.timing.stretch import Series, Stretch
from assay.worker import subjects
from assay.worker.explain import explain, out_of_memory
from assay.worker.holding import give_back, is_lost
from assay.worker.timer import Timer
from assay.workloads.parity import not_checked

if TYPE_CHECKING:
    from assay.worker import protocol as say
    from assay.workloads.base import Prepared

TIME_IS_UP = "the time was up before its turn came"


class Pairs:
    """The pairs of a role, from the first to the last."""

    def __init__(self, told: say.Prepare, device: str) -> None:
        self._told = told
        self._device = device
        self._facts = {index: SubjectFacts(subject=index) for index in range(len(told.role.subjects))}
        self._failures: list[Exception] = []
        self._current: _Pair | None = None

    def begin(self) -> tuple[SubjectFacts, ...]:
        """Put the first pair in place, and with it what all of them need."""
        self._current = self._placed(0)
        return tuple(self._facts.values())

    def take(self, order: say.TakeBlock) -> tuple[Stretch, tuple[SubjectFacts, ...]]:
        """Time one pair after another, each for its share of the time that is left; return what was found out too.

        Raises:
            Exception: What went wrong with the first, where none worked, and not for want of memory.
        """
        begin = time.perf_counter_ns()
        until_ns = begin + int((order.duration_s or 0.0) * 1e9)
        count = len(self._facts) // 2
        series: list[Series] = []
        for index in range(count):
            now = time.perf_counter_ns()
            if index and (now >= until_ns or (self._failures and is_lost(self._device))):
                self._not_reached(index, TIME_IS_UP if now >= until_ns else f"an earlier pair broke {self._device}")
                break
            series += self._one(index, order, now + (until_ns - now) // (count - index))
        if not series and self._failures and not any(map(out_of_memory, self._failures)):
            raise self._failures[0]
        return Stretch(begin, time.perf_counter_ns(), tuple(series)), tuple(self._facts.values())

    def _one(self, place: int, order: say.TakeBlock, until_ns: int) -> list[Series]:
        """Time one pair, and give it back."""
        pair = self._current if place == 0 else self._placed(place)
        self._current = None
        series: list[Series] = []
        if pair is not None:
            try:
                series = pair.take(order, until_ns)
            except Exception as error:  # noqa: BLE001 - whatever user code raises is told of this pair
                self._failed(2 * place, error)
            pair.close()
        del pair
        give_back(self._device)
        return series

    def _placed(self, place: int) -> _Pair | None:
        """Put a pair in place; null where one of the two does not work."""
        prepared: list[Prepared] = []
        for index in (2 * place, 2 * place + 1):
            subject = self._told.role.subjects[index]
            try:
                prepared.append(subjects.prepare(subject, device=self._device, seed=self._told.seed))
                self._facts[index] = subjects.facts(index, subject, prepared[-1])
                prepared[-1].call()
                prepared[-1].synchronize()
                copies.end_copy()
                if self._told.role.parity and len(prepared) == 2:
                    self._keep(index, parity=_parity(*prepared))
            except Exception as error:  # noqa: BLE001 - likewise
                self._failed(index, error)
                _close(prepared)
                return None
        timer = Timer(prepared, [self._told.role.subjects[2 * place + side].label for side in (0, 1)])
        try:
            how = timer.set_up(self._device, self._told.cache, self._told.timeout_s)
        except Exception as error:  # noqa: BLE001 - likewise
            self._failed(2 * place, error)
            _Pair(place, prepared, timer).close()
            return None
        for side in (0, 1):
            self._keep(2 * place + side, timed=how[side])
        return _Pair(place, prepared, timer)

    def _failed(self, index: int, error: Exception) -> None:
        """Leave a subject out, and say why; where it happened is printed, as to keep it would keep its memory."""
        if not isinstance(error, AssayError):
            traceback.print_exception(error)
        self._failures.append(error.with_traceback(None))
        self._keep(index, left_out=explain(error).reason)
        if isinstance(error, TrialFailed) and index % 2 and self._told.role.parity:
            self._keep(index, parity=Parity(passed=False, reason=str(error), measure="error against float64"))

    def _not_reached(self, place: int, why: str) -> None:
        for index in range(2 * place, len(self._facts)):
            self._keep(index, left_out=why, reached=False)

    def _keep(self, index: int, **found: object) -> None:
        self._facts[index] = self._facts[index].model_copy(update=found)


class _Pair:
    """Two subjects in place, and what times them."""

    def __init__(self, place: int, prepared: list[Prepared], timer: Timer) -> None:
        self._place = place
        self._prepared = prepared
        self._timer = timer

    def take(self, order: say.TakeBlock, until_ns: int) -> list[Series]:
        """Time the two in turns."""
        named = (2 * self._place, 2 * self._place + 1)
        return self._timer.take_pair(named, rounds=order.rounds or 1, until_ns=until_ns, seed=order.seed + self._place)

    def close(self) -> None:
        """Give all of it back."""
        with suppress(Exception):  # what failed was told already
            self._timer.close()
        _close(self._prepared)


def _parity(reference: Prepared, fast: Prepared) -> Parity:
    """Compare the two; where that breaks, it is not checked. What is too large to compare is too large to count."""
    try:
        return subjects.parity(reference, fast)
    except Exception as error:
        if out_of_memory(error):
            raise
        return not_checked("the output of the fast path", explain(error).reason)


def _close(prepared: list[Prepared]) -> None:
    for subject in prepared:
        with suppress(AssayError, RuntimeError):
            subject.close()
