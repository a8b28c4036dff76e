"""``assay.measure``: time one call until its median is known to a given precision."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import NO_INTERVAL, Estimate
from assay.stats.intervals import estimate_median, explain_no_interval, find_competing_levels, interval_refusal
from assay.stats.sequential import InterimLook
from assay.stats.shape import classify_shape, find_unsteadiness
from assay.timing.conditions import ContextSwitchCounter
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, TIMES, resolve_options
from assay.timing.results import Measurement
from assay.timing.sampling import collect_samples, median_interval, warm_up
from assay.timing.setup import attribute_errors, bind_call, timing_session
from assay.timing.wall import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.timing.conditions import ClockWatch
    from assay.timing.options import ClockReader, MethodChoice, TimeKind, TimingOptions
    from assay.timing.results import Cache
    from assay.timing.sampling import Call, CollectedSamples, Samples, WarmUp
    from assay.timing.setup import TimedCall

ANYTIME_METHOD = "median of the window, interval valid at every look, widened where it wanders"
CALL_SHARE = 0.2
"""Share of the budget, at most, for ``call_us`` in addition to the decisive time."""
MAX_CALL_SAMPLES = 200
BUSY_CALLS = 24


def measure(
    function: Callable[..., object],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: MethodChoice = "auto",
    precision: float = PRECISION,
    budget_s: float = BUDGET_S,
    times: tuple[TimeKind, ...] = TIMES,
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
        function: What to call. It is called repeatedly with the same arguments.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        setup: Called before each call, untimed: to undo what a call changed.
        device: ``cpu``, ``cuda`` or ``cuda:1``; by default the current GPU where PyTorch is loaded and sees one.
        cache: ``cold`` (the GPU's L2 is overwritten before each call; the default there) or ``warm``.
        method: ``graph``, ``queue``, ``trace`` or ``wall``; by default the best one the function allows.
        precision: Requested half-width of the 95 % interval, as a share: 0.01 is ±1 %.
        budget_s: Approximate upper limit of the duration, without compilation and first calls.
        times: Which of busy, span and call to measure.
        limit_s: Time limit for a single call.
        lock_mhz: Lock the GPU's SM clock during the measurement, under a lease. Needs privileges.
        name: Name of the function in the result.
        reader: Reads the GPU's clock, temperature and throttle reasons; NVML by default.

    Raises:
        BadInput: The function or an option is invalid.
        TrialFailed: The function raises, or does not return.
        MachineCannot: There is no such device, or its clock may not be set.
    """
    bound = bind_call(function, args, kwargs, name)
    timing_options = resolve_options(
        device=device, cache=cache, method=method, precision=precision, budget_s=budget_s, times=times,
        limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
    )  # fmt: skip
    start = time.perf_counter()
    with timing_session(timing_options) as (timer_setup, watch), contextlib.ExitStack() as stack:
        stack.enter_context(attribute_errors(bound.name))
        timed_call = timer_setup.set_up(bound, timing_options, timer_setup.first_calls(bound, timing_options))
        stack.callback(timed_call.close)
        stack.enter_context(gc_paused())
        context_switches = ContextSwitchCounter()
        watch.begin()
        warm = warm_up(timed_call.instrument, timing_options.budget_s)
        collected = collect_samples(
            timed_call.instrument,
            warm,
            precision=precision,
            budget_s=_sampling_budget_s(timing_options, timed_call),
            after_batch=watch.label_batch,
        )
        watch.end()
        busy_samples, notes = _measure_busy(timed_call)
        calls_us = _measure_call_us(timed_call, timing_options)
        if timed_call.device == "cpu":
            notes += context_switches.notes()
    raw = RawMeasurement(timed_call, warm, collected, watch, busy_samples | calls_us, notes)
    return _build_measurement(raw, timing_options, took_s=time.perf_counter() - start)


@dataclass(frozen=True)
class RawMeasurement:
    """Everything measured of one call, before analysis."""

    timed_call: TimedCall
    warm_up: WarmUp
    collected: CollectedSamples
    watch: ClockWatch
    extra_samples: dict[str, Samples]
    notes: tuple[str, ...]


def _sampling_budget_s(timing_options: TimingOptions, timed_call: TimedCall) -> float:
    return timing_options.budget_s * (1 - CALL_SHARE) if timed_call.wall is not None else timing_options.budget_s


def _measure_busy(timed_call: TimedCall) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """Return the time kernels were busy, where the decisive instrument cannot separate several kernels."""
    if timed_call.busy_instrument is None or timed_call.operations is None:
        return {}, ()
    batches: list[Samples] = []
    try:
        while sum(map(len, batches)) < BUSY_CALLS:
            batches.append(timed_call.busy_instrument.take().quantities["busy_us"])
    except (MachineCannot, TrialFailed) as error:
        return {}, (
            f"busy_us is what the boundaries between {timed_call.operations} operations leave of span_us: {error}",
        )
    return {"busy_us": np.concatenate(batches)}, ()


def _measure_call_us(timed_call: TimedCall, timing_options: TimingOptions) -> dict[str, Samples]:
    """Return what a caller waits, from a fixed number of calls within its share of the budget."""
    if timed_call.wall is None:
        return {}
    afford = int(CALL_SHARE * timing_options.budget_s * 1e9 / timed_call.wall.shortest_ns)
    count = max(1, min(MAX_CALL_SAMPLES, afford))
    return {"call_us": np.array([timed_call.wall.sample_us() for _ in range(count)], dtype=np.float64)}


def _build_measurement(raw: RawMeasurement, timing_options: TimingOptions, *, took_s: float) -> Measurement:
    timed_call, collected, warm, extra_samples = raw.timed_call, raw.collected, raw.warm_up, raw.extra_samples
    instrument = timed_call.instrument
    samples = collected.samples
    decided = samples[instrument.primary]
    shape = classify_shape(decided)
    estimates = _estimate_quantities(samples, collected.look, timing_options.precision)
    estimates |= {name: estimate_median([values], "us") for name, values in extra_samples.items()}
    decisive = estimates[timed_call.decisive]
    reported = {f"{time}_us" for time in timing_options.times} | {timed_call.decisive, "cycles"}
    return Measurement(
        name=timed_call.bound_call.name,
        device=timed_call.device,
        cache=timing_options.cache if timed_call.device != "cpu" else "warm",
        method=instrument.method,
        why=timed_call.why,
        **{name: value for name, value in estimates.items() if name in reported},
        decisive=timed_call.decisive,
        instrument_error_us=timed_call.error_us,
        operations=timed_call.operations,
        precision_wanted=timing_options.precision,
        precision_reached=decisive.relative_half_width,
        stopped=collected.stopped,
        shape=shape.name,
        unsteady=find_unsteadiness(decided),
        no_interval=None if decisive.low is not None else interval_refusal(samples.get(timed_call.decisive, decided)),
        warmed_up=warm.settled,
        clock=raw.watch.summary(timing_options.lock_mhz, [b.mhz for b in collected.batches if b.mhz is not None]),
        samples=len(decided),
        calls=sum(len(b.quantities[instrument.primary]) for b in collected.batches) * instrument.calls_per_sample
        + warm.batches * warm.samples_per_batch * instrument.calls_per_sample
        + sum(map(len, extra_samples.values())),
        took_s=took_s,
        notes=(
            *timed_call.notes,
            *raw.notes,
            *_sample_notes(decided, shape.name, warm, raw.watch, on_gpu=timed_call.device != "cpu"),
        ),
        series={
            name: tuple(values.tolist()) for name, values in (samples | extra_samples | _throttle_labels(raw)).items()
        },
    )


def _throttle_labels(raw: RawMeasurement) -> dict[str, Samples]:
    """Return for each sample whether the clock was throttled, as 0 and 1; empty where no reader can tell."""
    labels = np.array(raw.watch.labels, dtype=np.float64)
    if raw.timed_call.device == "cpu" or not len(labels) or bool(np.isnan(labels).all()):
        return {}
    primary = raw.timed_call.instrument.primary
    sizes = [len(batch.quantities[primary]) for batch in raw.collected.batches]
    return {"throttled": np.repeat(labels[: len(sizes)], sizes)[: raw.collected.look.n]}


def _estimate_quantities(samples: dict[str, Samples], look: InterimLook, precision: float) -> dict[str, Estimate]:
    """Return the estimate of each quantity; for a call of one kernel, span equals busy."""
    estimates: dict[str, Estimate] = {}
    for name, values in samples.items():
        same = next((previous for previous in estimates if np.array_equal(samples[previous], values)), None)
        estimates[name] = (
            estimates[same]
            if same is not None
            else estimate_at_look(values, look, "us" if name.endswith("_us") else name, precision)
        )
    return estimates


def estimate_at_look(values: Samples, look: InterimLook, unit: str, precision: float) -> Estimate:
    """Return the median with an interval that is valid at every look so far."""
    observed = values[: look.n]
    within = median_interval(observed, InterimLook(len(observed), look.share), precision)
    levels = find_competing_levels(observed)
    if within is not None:
        method = ANYTIME_METHOD if levels is None else "median between two levels close together"
    else:
        method = f"{ANYTIME_METHOD}{NO_INTERVAL}{explain_no_interval(observed)}"
    return Estimate(
        value=float(np.median(observed)),
        low=within[0] if within else None,
        high=within[1] if within else None,
        unit=unit,
        scope="process",
        method=method,
        n=len(observed),
    )


def _sample_notes(samples: Samples, shape: str, warm: WarmUp, watch: ClockWatch, *, on_gpu: bool) -> list[str]:
    """Return notes that a reader needs to interpret the samples."""
    notes = []
    if not warm.settled and warm.batches > 1:
        notes.append("the times had not settled when the warm-up ended")
    levels = find_competing_levels(samples)
    if levels is not None:
        notes.append(
            f"the times switch between two levels, {levels.low:.4g} µs and {levels.high:.4g} µs "
            f"({levels.share_high:.0%} of the time): no single number describes both"
        )
    elif shape == "drift":
        notes.append("the times drift: the median is that of this window")
    elif shape == "bursts":
        notes.append("there are bursts of long times; the median does not show them")
    if watch.throttled and on_gpu:
        notes.append(f"the clock was throttled ({', '.join(watch.throttled)}): read times together with cycles")
    return notes
