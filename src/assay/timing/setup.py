"""Prepare a call for timing: bind its arguments, make the first calls under a time limit, and choose its instruments.

The first calls surface errors and trigger compilation. What the call allows (a CUDA graph, a queue, only the host's
clock) decides the method, and the reason is kept with the result.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import AssayError, BadInput, MachineCannot, TrialFailed
from assay.timing.conditions import ClockWatch, locked_clock
from assay.timing.sampling import group_durations
from assay.timing.wall import SHORT_CALL_NS, WallTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from assay.timing.options import ClockReader, TimingOptions
    from assay.timing.results import Cache, TimeQuantity
    from assay.timing.sampling import Call, Instrument


SHORTEST_TIMER_S = 1e-6


class _TimeLimitPassed(BaseException):
    """The limit has passed. Not an ``Exception``, so that a call which catches those cannot swallow it."""


@contextmanager
def time_limit(limit_s: float, what: str) -> Iterator[None]:
    """Raise in the middle of a block that takes longer than the limit.

    Uses an alarm, so it works in the main thread only and cannot stop a call that is stuck in native code: ``assay
    time`` runs in a separate process, which can be killed. An alarm that is already set takes precedence where it
    fires sooner; otherwise it is restored and fires when it would have.

    Raises:
        TrialFailed: The limit has passed.
    """
    left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < left_s <= limit_s:
        yield
        return

    def raise_timeout(_number: int, _frame: FrameType | None) -> None:
        raise _TimeLimitPassed

    begin = time.monotonic()
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _TimeLimitPassed:
        raise TrialFailed(f"{what} has not returned within {limit_s:g} s.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(SHORTEST_TIMER_S, left_s - (time.monotonic() - begin)), every_s)


_LAZY_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_LAZY_RESULTS = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)
FIRST_CALLS = 3
FIRST_CALLS_S = 1.0
"""At most this many first calls, and no more once they have taken this long."""
DIGEST_ELEMENTS = 4096
"""Number of elements of an argument that are compared before and after the first calls."""


@dataclass(frozen=True)
class BoundCall:
    """A function bound to its arguments, its name, and the arguments."""

    name: str
    call: Call
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class FirstCalls:
    """What the first calls showed: whether all returned the same kind of value, the shortest time, and notes."""

    steady: bool
    least_us: float
    notes: tuple[str, ...] = ()


def bind_call(
    function: Callable[..., object],
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    name: str | None = None,
) -> BoundCall:
    """Return a function bound to its arguments.

    Raises:
        BadInput: It is not callable, is a coroutine or generator function, or does not accept the arguments.
    """
    named = name or getattr(function, "__qualname__", None) or type(function).__name__
    if not callable(function):
        raise BadInput(f"{named} cannot be called: give a function, such as lambda: f(x).")
    if any(lazy(function) for lazy in _LAZY_FUNCTIONS):
        raise BadInput(_lazy_message(named))
    named_args = dict(kwargs or {})
    try:
        inspect.signature(function).bind(*args, **named_args)
    except TypeError as error:
        raise BadInput(f"{named}: {error}. Give args=(…) and kwargs={{…}}, or wrap it: lambda: f(x).") from None
    except ValueError:
        pass  # some functions written in C have no signature
    call = functools.partial(function, *args, **named_args) if args or named_args else function
    return BoundCall(named, call, (*args, *named_args.values()))


def _lazy_message(name: str) -> str:
    return f"{name} only makes a coroutine or generator when called; wrap it in a plain function."


def make_first_calls(
    bound: BoundCall, finish: Callable[[], None], limit_s: float, before_each: Call | None = None, *, at_least: int = 1
) -> FirstCalls:
    """Make the first calls, so that errors surface and compilation happens before anything is timed.

    Slow calls are made only ``at_least`` times; use two where their time counts, as the first may have compiled.

    Raises:
        TrialFailed: The function raises, or does not return within the limit.
        BadInput: It returns a coroutine or generator.
    """
    before = [_digest(argument) for argument in bound.arguments]
    kinds: list[str] = []
    start = time.perf_counter()
    took_s: list[float] = []
    while len(kinds) < FIRST_CALLS and (len(kinds) < at_least or time.perf_counter() - start < FIRST_CALLS_S):
        begin = time.perf_counter()
        kinds.append(_value_kind(_call_once(bound, finish, limit_s, before_each)))
        took_s.append(time.perf_counter() - begin)
    notes = []
    if len(set(kinds)) > 1:
        notes.append(f"its calls differ: one returned {kinds[0]}, another {next(k for k in kinds if k != kinds[0])}")
    changed = [i for i, argument in enumerate(bound.arguments) if before[i] != _digest(argument)]
    if changed:
        which = ", ".join(str(i) for i in changed)
        notes.append(f"it changes its arguments (number {which}): each call works on what the last one left")
    return FirstCalls(steady=len(set(kinds)) == 1, least_us=min(took_s) * 1e6, notes=tuple(notes))


def _call_once(bound: BoundCall, finish: Callable[[], None], limit_s: float, before_each: Call | None) -> object:
    with attribute_errors(bound.name), time_limit(limit_s, bound.name):
        if before_each is not None:
            before_each()
        result = bound.call()
        finish()
    if any(undone(result) for undone in _LAZY_RESULTS):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that it was never awaited
        raise BadInput(_lazy_message(bound.name))
    return result


@contextlib.contextmanager
def attribute_errors(name: str) -> Iterator[None]:
    """Attribute whatever is raised in a block to a function of the user.

    Raises:
        TrialFailed: Chained to the original exception.
    """
    try:
        yield
    except AssayError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        raise TrialFailed(f"{name} raised {type(error).__name__}{f': {text}' if text else ''}") from error


def _value_kind(value: Any) -> str:
    """Return the kind of a value: its type, and the shape and element type of an array."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of ({', '.join(_value_kind(part) for part in value[:16])})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{type(value).__name__} {dtype}{tuple(shape)}"
    return type(value).__name__


def _digest(value: Any) -> object:
    """Return a digest of an array's content, sampled where it is large; null for what cannot be read."""
    if not (hasattr(value, "shape") and hasattr(value, "reshape")):
        return None
    try:
        flat = value.detach().reshape(-1) if hasattr(value, "detach") else value.reshape(-1)
        part = flat[:: max(1, len(flat) // DIGEST_ELEMENTS)]
        if hasattr(part, "cpu"):
            part = part.cpu().contiguous().view(sys.modules["torch"].uint8).numpy()
        return part.tobytes()
    except Exception:  # noqa: BLE001 - sparse or foreign arrays: the digest is best effort
        return None


PREPARE_US: dict[Cache, float] = {"cold": 60.0, "warm": 15.0}
"""Overhead of each call of a batch: overwriting the cache, the stamps, and its share of the reference kernels."""

MIN_CALLS, MIN_LONG_CALLS, MAX_CALLS = 2, 4, 32
LONG_US, VERY_LONG_US = 120.0, 1_000.0


def calls_per_batch(call_us: float, state: Cache, batch_us: float) -> int:
    """Return how many calls fill a batch of about ``batch_us``, given the time of one; few for long calls."""
    if call_us > LONG_US:
        return MIN_CALLS if call_us > VERY_LONG_US else MIN_LONG_CALLS
    return min(MAX_CALLS, int(batch_us / (call_us + PREPARE_US[state])))


@dataclass(frozen=True)
class TimedCall:
    """A bound call with its instruments.

    Attributes:
        instrument: Measures the decisive quantity.
        error_us: Error bound of the instrument itself; null where unknown.
        wall: Measures ``call_us`` as well; null where ``instrument`` does, or it was not requested.
        busy_instrument: Measures ``busy_us`` of multi-kernel calls; null where ``instrument`` does, or nothing can.
    """

    bound_call: BoundCall
    instrument: Instrument
    decisive: TimeQuantity
    device: str
    why: str
    operations: int | None = None
    error_us: float | None = None
    wall: WallTimer | None = None
    busy_instrument: Instrument | None = None
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Release what the instruments hold."""
        self.instrument.close()


class CpuTimerSetup:
    """The host: calls are timed with its clock."""

    def first_calls(self, bound: BoundCall, options: TimingOptions) -> FirstCalls:
        """Make the first calls."""
        return make_first_calls(bound, _nothing, options.limit_s, options.setup)

    def set_up(self, bound: BoundCall, options: TimingOptions, first: FirstCalls) -> TimedCall:
        """Return the wall clock for the function."""
        return set_up_wall_timer(bound, options, first, why="on a CPU a call returns when its work is done")

    def reader(self) -> ClockReader | None:
        """Return null: a CPU's clock is not read."""
        return None


def set_up_wall_timer(bound: BoundCall, options: TimingOptions, first: FirstCalls, *, why: str) -> TimedCall:
    """Return a call timed with the host's clock alone."""
    wall = WallTimer(bound.call, before=options.setup or _nothing, single_calls=options.setup is not None)
    notes = list(first.notes)
    if wall.shortest_ns < SHORT_CALL_NS:
        notes.append(_short_call_note(wall, single_calls=options.setup is not None))
    if wall.shortest_ns > options.budget_s * 1e9:
        notes.append("one call takes longer than the whole budget")
    return TimedCall(bound, wall, "call_us", "cpu", why, wall=None, notes=tuple(notes))


def _short_call_note(wall: WallTimer, *, single_calls: bool) -> str:
    """Return the note for calls so short that reading the clock matters."""
    if single_calls:
        return "a call takes less than 1 µs and is timed by itself, for its setup: reading the clock counts in it"
    return (
        f"a call takes less than 1 µs: {wall.calls_per_sample} are put together in a sample, "
        f"and {wall.floor_ns:.2g} ns that the loop costs are taken off each"
    )


class CudaTimerSetup:
    """A GPU: calls are timed with its own clocks."""

    def __init__(self, index: int) -> None:
        from assay.timing.cuda.device import ASSUMED_CALIBRATION, gpu_timing_device
        from assay.timing.cuda.timers import calibrate_device

        self._device = gpu_timing_device(index)
        if self._device.calibration is ASSUMED_CALIBRATION:
            calibrate_device(self._device)

    def first_calls(self, bound: BoundCall, options: TimingOptions) -> FirstCalls:
        """Make the first calls, at least two: their time decides how many make a batch."""
        finish = partial(self._device.finish, options.limit_s)
        return make_first_calls(bound, finish, options.limit_s, options.setup, at_least=2)

    def set_up(self, bound: BoundCall, options: TimingOptions, first: FirstCalls) -> TimedCall:
        """Find out what the function allows, and return its instruments."""
        from assay.timing.cuda import timers
        from assay.timing.cuda.timers import GpuCallBatch, GraphTimer, QueueTimer, TraceTimer

        device = self._device
        capability = timers.probe_capability(
            device, bound.call, options.setup, steady=first.steady, limit_s=options.limit_s
        )
        method, why = timers.choose_method(capability, options.method)
        if capability.operations == 0:
            return set_up_wall_timer(bound, options, first, why=why)
        if method == "wall":
            wall = self._wall(bound, options)
            return TimedCall(bound, wall, "call_us", options.device, why, capability.operations, notes=first.notes)
        work = GpuCallBatch(
            bound.call,
            options.cache,
            calls=calls_per_batch(first.least_us, options.cache, options.batch_us),
            setup=options.setup,
            limit_s=options.limit_s,
            operations=None if capability.branches else capability.operations,
            waits=capability.waits,
        )
        timed_call = TimedCall(bound, TraceTimer(device, work), "busy_us", options.device, why, capability.operations)
        timed_call = replace(
            timed_call, wall=self._wall(bound, options) if "call" in options.times else None, notes=first.notes
        )
        if method == "trace":
            return timed_call
        clock = GraphTimer(device, work) if method == "graph" else QueueTimer(device, work)
        error_us = device.calibration.error_us[method]
        if work.operations == 1:
            return replace(timed_call, instrument=clock, error_us=error_us)
        busy_instrument = timed_call.instrument if "busy" in options.times and options.method == "auto" else None
        return replace(
            timed_call, instrument=clock, decisive="span_us", error_us=error_us, busy_instrument=busy_instrument
        )

    def release_memory(self) -> None:
        """Release the memory of graphs that are no longer needed."""
        self._device.renew_pool()
        self._device.torch.cuda.empty_cache()

    def _wall(self, bound: BoundCall, options: TimingOptions) -> WallTimer:
        device = self._device

        def before() -> None:
            if options.setup is not None:
                options.setup()
            if options.cache == "cold":
                device.overwrite_cache()
            device.finish(options.limit_s)

        return WallTimer(bound.call, finish=lambda: device.finish(options.limit_s), before=before, single_calls=True)

    def reader(self) -> ClockReader | None:
        """Return an NVML reader; null where NVML does not answer or does not know the GPU."""
        return _clock_reader(self._device.uuid)


TimerSetup: TypeAlias = CpuTimerSetup | CudaTimerSetup
"""Sets up calls for timing on one device."""


@cache
def _clock_reader(uuid: str) -> ClockReader | None:
    """Return a reader for a GPU, opened once per process: opening NVML takes longer than many measurements."""
    from assay.machine.nvidia import GpuSnapshotReader

    with contextlib.suppress(MachineCannot):
        reader = GpuSnapshotReader(uuid)
        atexit.register(reader.close)
        return reader
    return None


def select_timer_setup(options: TimingOptions) -> TimerSetup:
    """Return the timer setup of a device."""
    return CudaTimerSetup(options.index) if options.on_gpu else CpuTimerSetup()


@contextmanager
def timing_session(options: TimingOptions) -> Iterator[tuple[TimerSetup, ClockWatch]]:
    """Yield the timer setup of a device, and a watch over its clock, which is locked meanwhile where requested."""
    timer_setup = select_timer_setup(options)
    watch = ClockWatch(options.reader or timer_setup.reader())
    with locked_clock(watch, options.lock_mhz):
        yield timer_setup, watch


def equalize_first_calls(firsts: Sequence[FirstCalls]) -> list[FirstCalls]:
    """Return the first calls with similar durations made equal, so that their batches are equal too."""
    least_us = group_durations([first.least_us for first in firsts])
    return [replace(first, least_us=us) for first, us in zip(firsts, least_us, strict=True)]


def set_up_interleaved(
    timer_setup: TimerSetup, bounds: Sequence[BoundCall], options: TimingOptions, stack: contextlib.ExitStack
) -> list[TimedCall]:
    """Return the instruments of functions that are interleaved, batched alike; leaving the stack closes them."""
    firsts = []
    for bound in bounds:
        with attribute_errors(bound.name):
            firsts.append(timer_setup.first_calls(bound, options))
    timed_calls = []
    for bound, first in zip(bounds, equalize_first_calls(firsts), strict=True):
        with attribute_errors(bound.name):
            timed_calls.append(timer_setup.set_up(bound, options, first))
        stack.callback(timed_calls[-1].close)
    return timed_calls


def _nothing() -> None:
    """Do nothing."""
