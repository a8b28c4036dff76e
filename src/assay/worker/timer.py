"""How a worker times the subjects of its role: in blocks of samples, or continuously.

Counted calls are timed by the wall clock, all others by the timers of ``assay.measure``. Continuous calls follow
one another without a pause; each sample has its start, and a load keeps its samples, too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from assay.core import processes as copies
from assay.core.results import TimingMethod
from assay.timing import continuous, interleaved, wall
from assay.timing.continuous import START_US, EventCallStream, WallCallStream, probe_all_calls_per_sample
from assay.timing.interleaved import SampleBlock, SampleSeries, warm_up_all
from assay.timing.options import TimingOptions
from assay.timing.setup import BoundCall, CudaTimerSetup, TimedCall, set_up_interleaved
from assay.timing.wall import MAX_KEPT_SAMPLES, TimedSubject, WallTimer
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Cache, Continuous
    from assay.timing.continuous import CallStream
    from assay.timing.options import ClockReader
    from assay.workloads.base import PreparedWorkload


WALL = "a call returns when its work is done"
WARMUP_SHARE = 0.3
"""Maximum share of a block for the warm-up before the first one."""

QUEUE_S = 0.004
"""Approximate amount of work that a load queues before it synchronizes."""

MAX_QUEUE_DEPTH = 512
"""Maximum rounds that a load queues: drivers hold about a thousand launches, and then block."""


class SubjectTimer:
    """Times the subjects of a role, block by block."""

    def __init__(self, prepared: Sequence[PreparedWorkload], labels: Sequence[str]) -> None:
        self._prepared = tuple(prepared)
        self._labels = tuple(labels)
        self._timed = tuple(_as_timed(p) for p in prepared)
        self._timed_calls: tuple[TimedCall, ...] = ()
        self._cuda: CudaTimerSetup | None = None
        self._reader: ClockReader | None = None
        self._is_timed = False
        self._warm = False
        self._calls_per_sample: tuple[int, ...] | None = None

    def set_up(self, device: str, cache: Cache | None, timeout_s: float) -> tuple[TimingMethod | None, ...]:
        """Choose the timers of the subjects; a subject that reports numbers of its own, such as a command, gets none.

        GPU timers are set up at once, and probe the capabilities of a call. The host's timer makes its first calls when
        the first block begins.
        """
        if any(p.reports_extras for p in self._prepared):
            return (None,) * len(self._prepared)
        self._is_timed = True
        if (
            device.startswith("cuda")
            and "torch" in sys.modules
            and not any(p.synchronizes_itself for p in self._prepared)
        ):
            from assay.workloads.torch_device import torch_device

            options = TimingOptions(torch_device(device), cache or "cold", limit_s=timeout_s)
            self._cuda = cuda = CudaTimerSetup(options.index)
            self._reader = cuda.reader()
            bounds = [BoundCall(label, p.call) for p, label in zip(self._prepared, self._labels, strict=True)]
            with contextlib.ExitStack() as cleanup:
                timed_calls = set_up_interleaved(cuda, bounds, options, cleanup)
                cleanup.pop_all()  # they are closed with the timer
            self._timed_calls = tuple(replace(timed_call, busy_instrument=None) for timed_call in timed_calls)
            return tuple(
                TimingMethod(
                    method=timed_call.instrument.method,
                    why=timed_call.why,
                    cache="warm" if timed_call.device == "cpu" else options.cache,
                    operations=timed_call.operations,
                    instrument_error_us=timed_call.error_us,
                )
                for timed_call in self._timed_calls
            )
        return (TimingMethod(method="wall", why=WALL, cache="warm"),) * len(self._prepared)

    def take(self, request: say.TakeBlock | say.TakeSamples) -> SampleBlock:
        """Time a block as requested: given counts exactly, otherwise until it is precise or the time is up."""
        begin_ns = time.perf_counter_ns()
        if isinstance(request, say.TakeSamples) or request.warmup_runs is not None or not self._is_timed:
            return self._take_counted(request, begin_ns)
        self._warm_up(request.duration_s)
        until_ns = begin_ns + int(request.duration_s * 1e9)
        return interleaved.sample_interleaved(
            self._timed_calls, until_ns=until_ns, precision=request.precision, seed=request.seed, reader=self._reader
        )

    def take_pair(self, subjects: tuple[int, int], *, rounds: int, until_ns: int, seed: int) -> list[SampleSeries]:
        """Time the two prepared subjects in rounds until about ``until_ns``; number them by ``subjects``."""
        self._warm_up(max(0.0, (until_ns - time.perf_counter_ns()) / 1e9))
        first, second = self._timed_calls
        return interleaved.sample_pair(
            (first, second), subjects, rounds=rounds, until_ns=until_ns, seed=seed, reader=self._reader
        )

    def close(self) -> None:
        """Release what the timers hold on a device, so that others fit in."""
        for timed_call in self._timed_calls:
            timed_call.close()
        if self._cuda is not None:
            self._cuda.release_memory()

    def _warm_up(self, share_s: float) -> None:
        """Warm all up before they are timed for the first time."""
        if not self._timed_calls:
            self._timed_calls = tuple(
                TimedCall(BoundCall(label, p.call), WallTimer(p.call, finish=p.synchronize), "call_us", "cpu", WALL)
                for p, label in zip(self._prepared, self._labels, strict=True)
            )
        if not self._warm:
            warm_up_all([timed_call.instrument for timed_call in self._timed_calls], share_s * WARMUP_SHARE)
            self._warm = True

    def _take_counted(self, request: say.TakeBlock | say.TakeSamples, begin_ns: int) -> SampleBlock:
        samples, duration_s = (
            (request.samples, None) if isinstance(request, say.TakeSamples) else (None, request.duration_s)
        )
        if self._calls_per_sample is None:
            self._calls_per_sample = wall.warm_up_subjects(
                self._timed, runs=request.warmup_runs, share_s=duration_s or 0.0
            )
        block = wall.time_rounds(
            self._timed,
            self._calls_per_sample if samples is None else (1,) * len(self._timed),
            samples=samples,
            until_ns=None if duration_s is None else begin_ns + int(duration_s * 1e9),
            seed=request.seed,
        )
        series = tuple(
            SampleSeries(subject, quantity, samples, measured.calls_per_sample)
            for subject, measured in enumerate(block.samples)
            for quantity, samples in {"call_us": measured.call_us, **measured.extras}.items()
        )
        return SampleBlock(block.start_ns, block.end_ns, series)

    def hold(self, stop: Callable[[], bool]) -> tuple[int, SampleBlock]:
        """Call every subject untimed, keeping some calls queued, until stopped; return the number of calls."""
        start = time.perf_counter_ns()
        calls, depth = 0, 1
        while True:
            begin = time.perf_counter()
            calls += self._run(depth)
            if stop():
                return calls, SampleBlock(start, time.perf_counter_ns(), ())
            depth = next_depth(depth, time.perf_counter() - begin)

    def _run(self, rounds: int) -> int:
        """Call every subject ``rounds`` times, untimed, then synchronize; return the number of calls."""
        for _ in range(rounds):
            for subject in self._timed:
                subject.call()
            copies.exit_if_forked()
        for subject in self._timed:
            subject.synchronize()
        return rounds * len(self._timed)


def next_depth(rounds: int, took_s: float) -> int:
    """Return how many rounds to run before the next synchronization, from the duration of the last ones.

    A GPU that is synchronized after each call is idle while the next one is launched; a few milliseconds of work in its
    queue keep it busy.
    """
    if took_s < QUEUE_S / 2:
        return min(2 * rounds, MAX_QUEUE_DEPTH)
    return max(1, rounds // 2) if took_s > 2 * QUEUE_S else rounds


def _as_timed(prepared: PreparedWorkload) -> wall.TimedSubject:
    timed = wall.TimedSubject(prepared.call, prepared.synchronize, prepared.reports_extras)
    return timed if prepared.align is None else replace(timed, before=prepared.align)


EVENTS = "calls follow one another without a pause, timed by events between them; caches are as the calls leave them"
CONTINUOUS_WALL = "calls follow one another without a pause, each by the host's clock until its work is done"
MAX_LOAD_SAMPLES = 250_000
"""Samples that a load keeps of each subject."""


class ContinuousTimer:
    """The subjects of a role, called in turn without a pause; the number of calls per sample is determined first.

    GPU calls are timed by events, except those that synchronize themselves or report numbers of their own.
    """

    def __init__(
        self, prepared: Sequence[PreparedWorkload], message: say.Prepare, mode: Continuous, device: str
    ) -> None:
        self._prepared = tuple(prepared)
        self._device = device
        self._is_load = message.role.duty == "load"
        self._duty = 1.0 if self._is_load else mode.duty
        self._max_samples = MAX_LOAD_SAMPLES if self._is_load else MAX_KEPT_SAMPLES
        self._limit_s = mode.timeout_s
        self._seed = message.seed
        self_timed = any(p.reports_extras or p.synchronizes_itself for p in prepared)
        self._by_events = device.startswith("cuda") and "torch" in sys.modules and not self_timed
        self._stream: CallStream | None = None

    def describe_timing(self) -> TimingMethod:
        """Return how calls are timed."""
        return TimingMethod(method="continuous", why=EVENTS if self._by_events else CONTINUOUS_WALL, cache="warm")

    def take(self, request: say.TakeBlock) -> SampleBlock:
        """Time a block for the requested duration."""
        until_ns = time.perf_counter_ns() + int(request.duration_s * 1e9)
        for prepared in self._prepared if self._stream is None else ():
            for _ in range(request.warmup_runs or 0):
                prepared.call()
                copies.exit_if_forked()
        return continuous.run_continuously(self._open_stream(), until_ns=until_ns, duty=self._duty, seed=request.seed)

    def hold(self, stop: Callable[[], bool]) -> tuple[int, SampleBlock]:
        """Continue until stopped; return the number of calls, and for a load the samples."""
        block = continuous.run_continuously(self._open_stream(), stop=stop, duty=self._duty, seed=self._seed)
        calls = sum(len(s.samples) * s.calls_per_sample for s in block.series if s.quantity == START_US)
        return calls, block if self._is_load else replace(block, series=())

    def _open_stream(self) -> CallStream:
        if self._stream is None:
            self._stream = self._event_stream() if self._by_events else self._host_stream()
        return self._stream

    def _host_stream(self) -> CallStream:
        timed = [TimedSubject(p.call, p.synchronize, p.reports_extras) for p in self._prepared]
        counts = iter(
            probe_all_calls_per_sample(
                [(timed_call.call, timed_call.synchronize) for timed_call in timed if not timed_call.reports_extras]
            )
        )
        calls = [1 if timed_call.reports_extras else next(counts) for timed_call in timed]
        return WallCallStream(timed, calls, most=self._max_samples)

    def _event_stream(self) -> CallStream:
        from assay.workloads.torch_device import import_torch, torch_device

        torch, where = import_torch(), torch_device(self._device)
        torch.cuda.set_device(where)
        finish = partial(torch.cuda.synchronize, where)
        calls = [prepared.call for prepared in self._prepared]
        return EventCallStream(
            calls,
            probe_all_calls_per_sample([(call, finish) for call in calls]),
            event=partial(torch.cuda.Event, enable_timing=True),
            synchronize=finish,
            limit_s=self._limit_s,
            most=self._max_samples,
        )
