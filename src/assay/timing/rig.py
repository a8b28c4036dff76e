"""The right instruments for a call on a device: what it allows is found out, the method chosen, the reason kept."""

from __future__ import annotations

import atexit
import contextlib
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import MachineCannot
from assay.timing.batching import alike
from assay.timing.subject import blamed, first_calls
from assay.timing.wallclock import TIGHT_NS, WallClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.timing.instrument import Instrument
    from assay.timing.options import ClockReader, Options
    from assay.timing.subject import Bound, FirstCalls
    from assay.timing.values import Cache, Quantity

READY_US: dict[Cache, float] = {"cold": 60.0, "warm": 15.0}
"""What comes with each call of a batch: the cache overwritten, stamps, and its share of the references."""

FEWEST_CALLS, FEWEST_OF_LONG, MOST_CALLS = 2, 4, 32
LONG_US, VERY_LONG_US = 120.0, 1_000.0


def calls_in_a_batch(call_us: float, state: Cache, batch_us: float) -> int:
    """Return how many calls make a batch of about so many microseconds, from what one takes; of long ones, few."""
    if call_us > LONG_US:
        return FEWEST_CALLS if call_us > VERY_LONG_US else FEWEST_OF_LONG
    return min(MOST_CALLS, int(batch_us / (call_us + READY_US[state])))


@dataclass(frozen=True)
class Rigged:
    """A call with its instruments.

    Attributes:
        instrument: Gives the decisive quantity.
        error_us: How far the instrument itself may be off; null where that is not known.
        wall: Gives ``call_us`` beside it; null where the instrument does, or nobody asked.
        beside: Gives ``busy_us`` of calls of several kernels; null where the instrument does, or nobody can.
    """

    bound: Bound
    instrument: Instrument
    decisive: Quantity
    device: str
    why: str
    operations: int | None = None
    error_us: float | None = None
    wall: WallClock | None = None
    beside: Instrument | None = None
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Give back what the instruments hold."""
        self.instrument.close()


class Rig(Protocol):
    """A device that calls are timed on."""

    def first_calls(self, bound: Bound, options: Options) -> FirstCalls:
        """Make the first calls, and see how long they take."""
        ...

    def set_up(self, bound: Bound, options: Options, first: FirstCalls) -> Rigged:
        """Find out what the function allows, and return its instruments; how it is batched goes by the first calls."""
        ...

    def reader(self) -> ClockReader | None:
        """Return what reads the device's clock; null where nothing does."""
        ...


class CpuRig:
    """The host: calls are timed by its clock."""

    def first_calls(self, bound: Bound, options: Options) -> FirstCalls:
        """Make the first calls."""
        return first_calls(bound, _nothing, options.limit_s, options.setup)

    def set_up(self, bound: Bound, options: Options, first: FirstCalls) -> Rigged:
        """Return the wall clock for the function."""
        return wall_only(bound, options, first, why="on a CPU a call returns when its work is done")

    def reader(self) -> ClockReader | None:
        """A CPU's clock is not read."""
        return None


def wall_only(bound: Bound, options: Options, first: FirstCalls, *, why: str) -> Rigged:
    """Return a function with the host's clock alone."""
    wall = WallClock(bound.call, before=options.setup or _nothing, alone=options.setup is not None)
    notes = list(first.notes)
    if wall.shortest_ns < TIGHT_NS:
        notes.append(_short(wall, alone=options.setup is not None))
    if wall.shortest_ns > options.budget_s * 1e9:
        notes.append("one call takes longer than the whole budget")
    return Rigged(bound, wall, "call_us", "cpu", why, wall=None, notes=tuple(notes))


def _short(wall: WallClock, *, alone: bool) -> str:
    """Return what is to be said of calls that take no longer than it takes to time them."""
    if alone:
        return "a call takes less than 1 µs and is timed by itself, for its setup: reading the clock counts in it"
    return (
        f"a call takes less than 1 µs: {wall.calls_per_sample} are put together in a sample, "
        f"and {wall.floor_ns:.2g} ns that the loop costs are taken off each"
    )


class CudaRig:
    """A GPU: calls are timed by its own clocks."""

    def __init__(self, index: int) -> None:
        from assay.timing.cuda.bench import bench
        from assay.timing.cuda.calibrate import calibrate
        from assay.timing.cuda.known import ASSUMED

        self._bench = bench(index)
        if self._bench.known is ASSUMED:
            calibrate(self._bench)

    def first_calls(self, bound: Bound, options: Options) -> FirstCalls:
        """Make the first calls, two at least: what they take decides how many make a batch."""
        finish = partial(self._bench.finish, options.limit_s)
        return first_calls(bound, finish, options.limit_s, options.setup, at_least=2)

    def set_up(self, bound: Bound, options: Options, first: FirstCalls) -> Rigged:
        """Find out what the function allows, and return its instruments."""
        from assay.timing.cuda import allows as found
        from assay.timing.cuda.stamped import GraphClock, QueueClock
        from assay.timing.cuda.trace import TraceClock
        from assay.timing.cuda.work import Work

        device = self._bench
        capability = found.find_out(device, bound.call, options.setup, steady=first.steady, limit_s=options.limit_s)
        method, why = found.choose(capability, options.method)
        if capability.operations == 0:
            return wall_only(bound, options, first, why=why)
        if method == "wall":
            wall = self._wall(bound, options)
            return Rigged(bound, wall, "call_us", options.device, why, capability.operations, notes=first.notes)
        work = Work(
            bound.call,
            options.cache,
            calls=calls_in_a_batch(first.least_us, options.cache, options.batch_us),
            setup=options.setup,
            limit_s=options.limit_s,
            operations=None if capability.branches else capability.operations,
            waits=capability.waits,
        )
        timed_call = Rigged(bound, TraceClock(device, work), "busy_us", options.device, why, capability.operations)
        timed_call = replace(
            timed_call, wall=self._wall(bound, options) if "call" in options.times else None, notes=first.notes
        )
        if method == "trace":
            return timed_call
        clock = GraphClock(device, work) if method == "graph" else QueueClock(device, work)
        error_us = device.known.error_us[method]
        if work.operations == 1:
            return replace(timed_call, instrument=clock, error_us=error_us)
        busy_instrument = timed_call.instrument if "busy" in options.times and options.method == "auto" else None
        return replace(timed_call, instrument=clock, decisive="span_us", error_us=error_us, beside=busy_instrument)

    def forget(self) -> None:
        """Give back the memory of graphs that are not needed any more."""
        self._bench.renew_pool()
        self._bench.torch.cuda.empty_cache()

    def _wall(self, bound: Bound, options: Options) -> WallClock:
        device = self._bench

        def before() -> None:
            if options.setup is not None:
                options.setup()
            if options.cache == "cold":
                device.overwrite_cache()
            device.finish(options.limit_s)

        return WallClock(bound.call, finish=lambda: device.finish(options.limit_s), before=before, alone=True)

    def reader(self) -> ClockReader | None:
        """Return a reader of NVML; null where NVML does not answer or does not know the GPU."""
        return _glance(self._bench.uuid)


@cache
def _glance(uuid: str) -> ClockReader | None:
    """Return a reader of a GPU, opened once in a process: to open NVML takes longer than many measurements."""
    from assay.machine.glance import Glance

    with contextlib.suppress(MachineCannot):
        glance = Glance(uuid)
        atexit.register(glance.close)
        return glance
    return None


def rig(options: Options) -> Rig:
    """Return the rig of a device."""
    return CudaRig(options.index) if options.on_gpu else CpuRig()


def set_up(on: Rig, bound: Bound, options: Options) -> Rigged:
    """Make the first calls of a function that is timed by itself, and return its instruments."""
    return on.set_up(bound, options, on.first_calls(bound, options))


def batched_alike(firsts: Sequence[FirstCalls]) -> list[FirstCalls]:
    """Return what the first calls showed; those that took about as long now say the same, so that their batches are."""
    least_us = alike([first.least_us for first in firsts])
    return [replace(first, least_us=us) for first, us in zip(firsts, least_us, strict=True)]


def set_up_together(on: Rig, bounds: Sequence[Bound], options: Options, stack: contextlib.ExitStack) -> list[Rigged]:
    """Return the instruments of functions that take turns, batched alike; leaving the stack closes them."""
    firsts = []
    for bound in bounds:
        with blamed(bound.name):
            firsts.append(on.first_calls(bound, options))
    timed_calls = []
    for bound, first in zip(bounds, batched_alike(firsts), strict=True):
        with blamed(bound.name):
            timed_calls.append(on.set_up(bound, options, first))
        stack.callback(timed_calls[-1].close)
    return timed_calls


def _nothing() -> None:
    """Do nothing."""
