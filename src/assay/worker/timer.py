"""The worker's timer: counted calls by the plain clock, all else by the same instruments as ``assay.measure``."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.core import copies
from assay.core.results import HowTimed
from assay.timing import pairs, stretch, wall
from assay.timing.options import Options
from assay.timing.rig import CudaRig, Rigged, set_up_together
from assay.timing.stretch import Series, Stretch
from assay.timing.subject import Bound
from assay.timing.turns import warm_all
from assay.timing.wallclock import WallClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.plan import Cache
    from assay.timing.options import ClockReader
    from assay.worker import protocol as say
    from assay.workloads.base import Prepared

WALL = "a call returns when its work is done"
WARMUP_SHARE = 0.3
"""Of a stretch at most, for the warm-up before the first one."""

QUEUED_S = 0.004
"""About how much work a load has in its queue before it waits for it."""

DEEPEST = 512
"""Rounds that a load queues at most: drivers hold a thousand launches or so, and then wait."""


class Timer:
    """Times the subjects of a role, stretch by stretch."""

    def __init__(self, prepared: Sequence[Prepared], labels: Sequence[str]) -> None:
        self._prepared = tuple(prepared)
        self._labels = tuple(labels)
        self._timed = tuple(_timed(p) for p in prepared)
        self._rigged: tuple[Rigged, ...] = ()
        self._rig: CudaRig | None = None
        self._reader: ClockReader | None = None
        self._wanted = False
        self._warm = False
        self._calls_per_sample: tuple[int, ...] | None = None

    def set_up(self, device: str, cache: Cache | None, timeout_s: float) -> tuple[HowTimed | None, ...]:
        """Choose the instruments of the subjects; what reports numbers of its own, as a command, is timed plainly.

        Those of a GPU are set at once, and try out what a call allows. The host's clock makes its first calls when
        the first stretch begins.
        """
        if any(p.reports_extras for p in self._prepared):
            return (None,) * len(self._prepared)
        self._wanted = True
        if device.startswith("cuda") and "torch" in sys.modules and not any(p.waits_itself for p in self._prepared):
            options = _options(device, cache, timeout_s)
            self._rig = cuda = CudaRig(options.index)
            self._reader = cuda.reader()
            bounds = [Bound(label, p.call) for p, label in zip(self._prepared, self._labels, strict=True)]
            with contextlib.ExitStack() as cleanup:
                timed_calls = set_up_together(cuda, bounds, options, cleanup)
                cleanup.pop_all()  # they are closed with the timer
            self._rigged = tuple(replace(timed_call, beside=None) for timed_call in timed_calls)
            return tuple(_how(timed_call, options.cache) for timed_call in self._rigged)
        return (HowTimed(method="wall", why=WALL, cache="warm"),) * len(self._prepared)

    def take(self, order: say.TakeBlock) -> Stretch:
        """Time a stretch as it is ordered: given counts exactly, otherwise until precise or the time is up."""
        begin_ns = time.perf_counter_ns()
        share_s = order.duration_s or 0.0
        if order.samples is not None or order.warmup_runs is not None or not self._wanted:
            return self._plainly(order, begin_ns, share_s)
        self._warm_up(share_s)
        until_ns = begin_ns + int(share_s * 1e9)
        return stretch.take(
            self._rigged, until_ns=until_ns, precision=order.precision, seed=order.seed, reader=self._reader
        )

    def take_pair(self, subjects: tuple[int, int], *, rounds: int, until_ns: int, seed: int) -> list[Series]:
        """Time the two subjects there are in rounds, until a moment at about the latest; name them as told."""
        self._warm_up(max(0.0, (until_ns - time.perf_counter_ns()) / 1e9))
        first, second = self._rigged
        return pairs.take((first, second), subjects, rounds=rounds, until_ns=until_ns, seed=seed, reader=self._reader)

    def close(self) -> None:
        """Give back what the instruments hold on a device, so that others fit in."""
        for timed_call in self._rigged:
            timed_call.close()
        if self._rig is not None:
            self._rig.forget()

    def _warm_up(self, share_s: float) -> None:
        """Warm all up before they are timed for the first time."""
        if not self._rigged:
            named = zip(self._prepared, self._labels, strict=True)
            self._rigged = tuple(_by_wall(p, label) for p, label in named)
        if not self._warm:
            warm_all([timed_call.instrument for timed_call in self._rigged], share_s * WARMUP_SHARE)
            self._warm = True

    def _plainly(self, order: say.TakeBlock, begin_ns: int, share_s: float) -> Stretch:
        if self._calls_per_sample is None:
            self._calls_per_sample = wall.warm_up(self._timed, runs=order.warmup_runs, share_s=share_s)
        block = wall.take(
            self._timed,
            self._calls_per_sample if order.samples is None else (1,) * len(self._timed),
            samples=order.samples,
            until_ns=None if order.duration_s is None else begin_ns + int(share_s * 1e9),
            seed=order.seed,
        )
        series = tuple(
            Series(subject, quantity, samples, measured.calls_per_sample)
            for subject, measured in enumerate(block.taken)
            for quantity, samples in {"call_us": measured.call_us, **measured.extras}.items()
        )
        return Stretch(block.start_ns, block.end_ns, series)

    def hold(self, stop: Callable[[], bool]) -> tuple[int, Stretch]:
        """Call every subject untimed, some calls ahead of what is finished, until told to stop; return how often."""
        start = time.perf_counter_ns()
        calls, depth = 0, 1
        while True:
            begin = time.perf_counter()
            calls += self._run(depth)
            if stop():
                return calls, Stretch(start, time.perf_counter_ns(), ())
            depth = deeper(depth, time.perf_counter() - begin)

    def _run(self, rounds: int) -> int:
        """Call every subject so many times, untimed, then wait for all of it; return how many calls that were."""
        for _ in range(rounds):
            for subject in self._timed:
                subject.call()
            copies.end_copy()
        for subject in self._timed:
            subject.synchronize()
        return rounds * len(self._timed)


def deeper(rounds: int, took_s: float) -> int:
    """Return how many rounds to run before the next wait, from how long the last ones took.

    A GPU that is waited for after each call is idle while the next one is launched; a few milliseconds of work in its
    queue keep it busy.
    """
    if took_s < QUEUED_S / 2:
        return min(2 * rounds, DEEPEST)
    return max(1, rounds // 2) if took_s > 2 * QUEUED_S else rounds


def _timed(prepared: Prepared) -> wall.Timed:
    timed = wall.Timed(prepared.call, prepared.synchronize, prepared.reports_extras)
    return timed if prepared.align is None else replace(timed, before=prepared.align)


def _options(device: str, cache: Cache | None, timeout_s: float) -> Options:
    from assay.workloads.torch_device import torch_device

    return Options(torch_device(device), cache or "cold", limit_s=timeout_s)


def _by_wall(prepared: Prepared, label: str) -> Rigged:
    clock = WallClock(prepared.call, finish=prepared.synchronize)
    return Rigged(Bound(label, prepared.call), clock, "call_us", "cpu", WALL)


def _how(rigged: Rigged, cache: Cache) -> HowTimed:
    return HowTimed(
        method=rigged.instrument.method,
        why=rigged.why,
        cache="warm" if rigged.device == "cpu" else cache,
        operations=rigged.operations,
        instrument_error_us=rigged.error_us,
    )
