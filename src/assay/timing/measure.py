"""``assay.measure``: how long does a call take, and how sure is that?"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import NO_INTERVAL, Estimate
from assay.stats.anytime import Look
from assay.stats.intervals import refusal_of, torn_between
from assay.stats.shape import shape_of, unsteady
from assay.stats.summary import estimate, why_none
from assay.timing.adaptive import collect, interval, warm_up
from assay.timing.clocks import ClockWatch, locked
from assay.timing.company import Company
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, TIMES, options
from assay.timing.rig import rig, set_up
from assay.timing.subject import bind, blamed
from assay.timing.values import Measurement
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.timing.adaptive import Collected, WarmUp
    from assay.timing.instrument import Call, Samples
    from assay.timing.options import ClockReader, Options, Time, Wanted
    from assay.timing.rig import Rigged
    from assay.timing.values import Cache

AT_EVERY_LOOK = "median of the window, interval valid at every look, widened where it wanders"
CALL_SHARE = 0.2
"""Of the budget at most, for ``call_us`` beside the decisive time."""
MOST_CALLS = 200
BESIDE_CALLS = 24


def measure(
    function: Callable[..., object],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: Wanted = "auto",
    precision: float = PRECISION,
    budget_s: float = BUDGET_S,
    times: tuple[Time, ...] = TIMES,
    limit_s: float = LIMIT_S,
    lock_mhz: int | None = None,
    name: str | None = None,
    reader: ClockReader | None = None,
) -> Measurement:
    """Return how long one call of a function takes.

    >>> import assay
    >>> result = assay.measure(lambda: sum(range(1000)), budget_s=0.2)
    >>> result.call_us.unit
    'us'

    Args:
        function: What to call. It is called again and again, with the same arguments.
        args: Its arguments by place; ``kwargs`` those by name.
        kwargs: Its arguments by name.
        setup: Called before each call, untimed: to undo what a call changed.
        device: ``cpu``, ``cuda`` or ``cuda:1``; without it the current GPU where PyTorch is loaded and sees one.
        cache: ``cold`` (the GPU's L2 overwritten before each call; the default there) or ``warm``.
        method: ``graph``, ``queue``, ``trace`` or ``wall`` instead of what the function allows best.
        precision: Wanted half-width of the 95 % interval, as a share: 0.01 is ±1 %.
        budget_s: At most about this long, compiling and first calls not counted.
        times: Which of busy, span and call to take.
        limit_s: A single call may take this long before it is given up.
        lock_mhz: Lock the GPU's SM clock meanwhile, under a lease. Needs rights.
        name: What to call it in the result.
        reader: Reads the GPU's clock, temperature and throttle reasons; NVML without it.

    Raises:
        BadInput: The function or an option makes no sense.
        TrialFailed: The function raises, or does not return.
        MachineCannot: There is no such device, or it may not be set so.
    """
    bound = bind(function, args, kwargs, name)
    timing_options = options(
        device=device, cache=cache, method=method, precision=precision, budget_s=budget_s, times=times,
        limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
    )  # fmt: skip
    start = time.perf_counter()
    timer_setup = rig(timing_options)
    with contextlib.ExitStack() as stack:
        watch = ClockWatch(timing_options.reader or timer_setup.reader())
        stack.enter_context(locked(watch, timing_options.lock_mhz))
        stack.enter_context(blamed(bound.name))
        timed_call = set_up(timer_setup, bound, timing_options)
        stack.callback(timed_call.close)
        stack.enter_context(quiet_collector())
        context_switches = Company()
        watch.begin()
        warm = warm_up(timed_call.instrument, timing_options.budget_s)
        collected = collect(
            timed_call.instrument,
            warm,
            precision=precision,
            budget_s=_share(timing_options, timed_call),
            between=watch.look,
        )
        watch.end()
        busy_samples, notes = _beside(timed_call)
        calls_us = _calls(timed_call, timing_options)
        if timed_call.device == "cpu":
            notes += context_switches.notes()
    raw = Taken(timed_call, warm, collected, watch, busy_samples | calls_us, notes)
    return _measurement(raw, timing_options, took_s=time.perf_counter() - start)


@dataclass(frozen=True)
class Taken:
    """All that was taken of one call, before it is judged."""

    rigged: Rigged
    warm: WarmUp
    collected: Collected
    watch: ClockWatch
    beside: dict[str, Samples]
    notes: tuple[str, ...]


def _share(chosen: Options, rigged: Rigged) -> float:
    return chosen.budget_s * (1 - CALL_SHARE) if rigged.wall is not None else chosen.budget_s


def _beside(rigged: Rigged) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """Return the time that kernels were busy, where the decisive instrument cannot tell several apart."""
    if rigged.beside is None or rigged.operations is None:
        return {}, ()
    batches: list[Samples] = []
    try:
        while sum(map(len, batches)) < BESIDE_CALLS:
            batches.append(rigged.beside.take().quantities["busy_us"])
    except (MachineCannot, TrialFailed) as error:
        return {}, (f"busy_us is what the boundaries between {rigged.operations} operations leave of span_us: {error}",)
    return {"busy_us": np.concatenate(batches)}, ()


def _calls(rigged: Rigged, chosen: Options) -> dict[str, Samples]:
    """Return what a caller waits, from a fixed number of calls within its share of the budget."""
    if rigged.wall is None:
        return {}
    afford = int(CALL_SHARE * chosen.budget_s * 1e9 / rigged.wall.shortest_ns)
    count = max(1, min(MOST_CALLS, afford))
    return {"call_us": np.array([rigged.wall.sample_us() for _ in range(count)], dtype=np.float64)}


def _measurement(taken: Taken, chosen: Options, *, took_s: float) -> Measurement:
    timed_call, collected, warm, watch, extra_samples = (
        taken.rigged,
        taken.collected,
        taken.warm,
        taken.watch,
        taken.beside,
    )
    instrument = timed_call.instrument
    samples = collected.samples
    decided = samples[instrument.primary]
    shape = shape_of(decided)
    estimates = _estimates(samples, collected.look, chosen.precision)
    estimates |= {name: estimate([values], "us") for name, values in extra_samples.items()}
    decisive = estimates[timed_call.decisive]
    reported = {f"{time}_us" for time in chosen.times} | {timed_call.decisive, "cycles"}
    return Measurement(
        name=timed_call.bound.name,
        device=timed_call.device,
        cache=chosen.cache if timed_call.device != "cpu" else "warm",
        method=instrument.method,
        why=timed_call.why,
        **{name: value for name, value in estimates.items() if name in reported},
        decisive=timed_call.decisive,
        instrument_error_us=timed_call.error_us,
        operations=timed_call.operations,
        precision_wanted=chosen.precision,
        precision_reached=decisive.relative_half_width,
        stopped=collected.stopped,
        shape=shape.name,
        unsteady=unsteady(decided),
        no_interval=None if decisive.low is not None else refusal_of(samples.get(timed_call.decisive, decided)),
        warmed_up=warm.settled,
        clock=watch.seen(chosen.lock_mhz, [b.mhz for b in collected.batches if b.mhz is not None]),
        samples=len(decided),
        calls=sum(len(b.quantities[instrument.primary]) for b in collected.batches) * instrument.calls_per_sample
        + warm.batches * warm.samples_per_batch * instrument.calls_per_sample
        + sum(map(len, extra_samples.values())),
        took_s=took_s,
        notes=(
            *timed_call.notes,
            *taken.notes,
            *_said(decided, shape.name, warm, watch, on_gpu=timed_call.device != "cpu"),
        ),
        series={name: tuple(values.tolist()) for name, values in (samples | extra_samples | _labels(taken)).items()},
    )


def _labels(taken: Taken) -> dict[str, Samples]:
    """Return for each sample whether the clock was held back, as 0 and 1; nothing where no reader can tell."""
    labels = np.array(taken.watch.labels, dtype=np.float64)
    if taken.rigged.device == "cpu" or not len(labels) or bool(np.isnan(labels).all()):
        return {}
    primary = taken.rigged.instrument.primary
    sizes = [len(batch.quantities[primary]) for batch in taken.collected.batches]
    return {"throttled": np.repeat(labels[: len(sizes)], sizes)[: taken.collected.look.n]}


def _estimates(samples: dict[str, Samples], look: Look, precision: float) -> dict[str, Estimate]:
    """Return the estimate of each quantity; of a call of one kernel, the span is what it is busy."""
    estimates: dict[str, Estimate] = {}
    for name, values in samples.items():
        same = next((done for done in estimates if np.array_equal(samples[done], values)), None)
        estimates[name] = estimates[same] if same is not None else at_look(values, look, _unit(name), precision)
    return estimates


def _unit(quantity: str) -> str:
    return "us" if quantity.endswith("_us") else quantity


def at_look(values: Samples, look: Look, unit: str, precision: float) -> Estimate:
    """Return the median with an interval that held at every look taken so far."""
    observed = values[: look.n]
    within = interval(observed, Look(len(observed), look.share), precision)
    levels = torn_between(observed)
    if within is not None:
        method = AT_EVERY_LOOK if levels is None else "median between two levels close together"
    else:
        method = f"{AT_EVERY_LOOK}{NO_INTERVAL}{why_none(observed)}"
    return Estimate(
        value=float(np.median(observed)),
        low=within[0] if within else None,
        high=within[1] if within else None,
        unit=unit,
        scope="process",
        method=method,
        n=len(observed),
    )


def _said(samples: Samples, shape: str, warm: WarmUp, watch: ClockWatch, *, on_gpu: bool) -> list[str]:
    """Return what a reader should know about the samples."""
    notes = []
    if not warm.settled and warm.batches > 1:
        notes.append("the times had not settled when the warm-up ended")
    levels = torn_between(samples)
    if levels is not None:
        notes.append(
            f"the times switch between two levels, {levels.low:.4g} µs and {levels.high:.4g} µs "
            f"({levels.share_high:.0%} of the time): no one number tells both"
        )
    elif shape == "drift":
        notes.append("the times drift: the median is that of this window")
    elif shape == "bursts":
        notes.append("there are bursts of long times; the median does not show them")
    if watch.throttled and on_gpu:
        notes.append(f"the clock was held back ({', '.join(watch.throttled)}): read times together with cycles")
    return notes
