"""A worker's continuous calls: timed for a while, or held as a load, each sample with its start."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from assay.core import copies
from assay.core.results import HowTimed
from assay.timing import continuous
from assay.timing.cuda.events import EventLane
from assay.timing.lanes import START_US, WallLane, calls_in_samples
from assay.timing.wall import MOST_SAMPLES, Timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.timing.lanes import Lane
    from assay.timing.stretch import Stretch
    from assay.worker import protocol as say
    from assay.workloads.base import Prepared

BY_EVENTS = "calls follow one another without a pause, timed by events between them; caches are as the calls leave them"
BY_WALL = "calls follow one another without a pause, each by the host's clock until its work is done"
MOST_OF_A_LOAD = 250_000
"""Samples that a load keeps of each subject."""


class Flow:
    """The subjects of a role, called in turn without a pause; how many calls make a sample is found out first.

    A GPU tells by events, but for what says itself how to wait, or reports numbers of its own.
    """

    def __init__(self, prepared: Sequence[Prepared], told: say.Prepare, device: str) -> None:
        self._prepared = tuple(prepared)
        self._device = device
        self._is_load = told.role.duty == "load"
        self._most = MOST_OF_A_LOAD if self._is_load else MOST_SAMPLES
        self._limit_s = told.timeout_s
        self._seed = told.seed
        own = any(p.reports_extras or p.waits_itself for p in prepared)
        self._by_events = device.startswith("cuda") and "torch" in sys.modules and not own
        self._lane: Lane | None = None

    def how(self) -> HowTimed:
        """Return how calls are timed."""
        return HowTimed(method="continuous", why=BY_EVENTS if self._by_events else BY_WALL, cache="warm")

    def take(self, order: say.TakeBlock) -> Stretch:
        """Time a stretch for as long as is ordered."""
        until_ns = time.perf_counter_ns() + int((order.duration_s or 0.0) * 1e9)
        for prepared in self._prepared if self._lane is None else ():
            for _ in range(order.warmup_runs or 0):
                prepared.call()
                copies.end_copy()
        return continuous.take(self._opened(), until_ns=until_ns, duty=order.duty, seed=order.seed)

    def hold(self, stop: Callable[[], bool], duty: float) -> tuple[int, Stretch]:
        """Go on until told to stop; return how many calls that were, and of a load the samples."""
        held = continuous.take(self._opened(), stop=stop, duty=duty, seed=self._seed)
        calls = sum(len(s.samples) * s.calls_per_sample for s in held.series if s.quantity == START_US)
        return calls, held if self._is_load else replace(held, series=())

    def _opened(self) -> Lane:
        if self._lane is None:
            self._lane = self._gpu() if self._by_events else self._host()
        return self._lane

    def _host(self) -> Lane:
        timed = [Timed(p.call, p.synchronize, p.reports_extras) for p in self._prepared]
        counts = iter(
            calls_in_samples(
                [(timed_call.call, timed_call.synchronize) for timed_call in timed if not timed_call.reports_extras]
            )
        )
        calls = [1 if timed_call.reports_extras else next(counts) for timed_call in timed]
        return WallLane(timed, calls, most=self._most)

    def _gpu(self) -> Lane:
        from assay.workloads.torch_device import import_torch, torch_device

        torch, where = import_torch(), torch_device(self._device)
        torch.cuda.set_device(where)
        finish = partial(torch.cuda.synchronize, where)
        calls = [prepared.call for prepared in self._prepared]
        return EventLane(
            calls,
            calls_in_samples([(call, finish) for call in calls]),
            event=partial(torch.cuda.Event, enable_timing=True),
            synchronize=finish,
            limit_s=self._limit_s,
            most=self._most,
        )
