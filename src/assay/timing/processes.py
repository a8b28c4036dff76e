"""Combine the results of several fresh processes: each process is one random draw, so the interval is over processes.

Memory layout, clocks and hash seeds are drawn anew at each start. Samples within a process only show their own draw,
however many there are: the estimate is the geometric mean of the processes' medians, with Student's t on their
logarithms. A ratio is computed within each process, where both sides had the same conditions, and then combined over
the processes in the same way.

Processes that run within seconds of each other are not independent draws on a machine that switches between levels for
seconds. That shows within the processes: where several are unsteady, the interval of a time is at least as wide as
their typical interval, which covers what the machine did.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from assay.core.errors import TrialFailed
from assay.core.format import format_list
from assay.core.results import Estimate
from assay.stats.intervals import CONFIDENCE, restarts_interval
from assay.stats.ratios import log_estimate_of_draws
from assay.stats.sequential import judge_log_ratio
from assay.timing.compare import CLOCK_MOVED_SHARE
from assay.timing.interleaved import TINY_US
from assay.timing.results import ClockSummary, ComparedFunction, Comparison, Measurement, ProcessTimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.timing.results import Verdict

MIN_PROCESSES = 2
"""Minimum number of processes for an interval over them."""

MIN_UNSTEADY = 2
"""This many unsteady processes, rather than a single one, indicate that the machine is unsteady."""

TIME_QUANTITIES = ("busy_us", "span_us", "call_us", "cycles")
ResultT = TypeVar("ResultT", Measurement, Comparison)


def combine_processes(estimates: Sequence[Estimate], unsteady: Sequence[Estimate] = ()) -> Estimate:
    """Return the time of a typical process from the estimates of two or more processes.

    Args:
        estimates: One for each process.
        unsteady: Those of the processes whose samples drift, wander or switch between levels.
    """
    values = [estimate.value for estimate in estimates]
    centre, low, high, method = restarts_interval(values)
    if len(unsteady) >= MIN_UNSTEADY:
        bounds = [
            (estimate.low, estimate.high)
            for estimate in unsteady
            if estimate.low is not None and estimate.high is not None
        ]
        bounds = bounds or [(min(values), max(values))]
        low = min(low, statistics.median(bound[0] for bound in bounds))
        high = max(high, statistics.median(bound[1] for bound in bounds))
    n = sum(estimate.n for estimate in estimates)
    how = f"{method}; no narrower than in unsteady processes"
    return Estimate(value=centre, low=low, high=high, unit=estimates[0].unit, scope="run", method=how, n=n)


def summarize_measurement(process: int, measurement: Measurement) -> ProcessTimes:
    """Return the summary of one process that measured a function."""
    times = {name: estimate for name in TIME_QUANTITIES if (estimate := getattr(measurement, name)) is not None}
    return ProcessTimes(process=process, times=times, samples=measurement.samples, took_s=measurement.took_s)


def summarize_comparison(process: int, comparison: Comparison) -> ProcessTimes:
    """Return the summary of one process that compared functions."""
    times = {comparison.first: comparison.first_us, **{other.name: other.time_us for other in comparison.others}}
    ratios = {other.name: other.ratio for other in comparison.others}
    return ProcessTimes(process=process, times=times, ratios=ratios, samples=comparison.pairs, took_s=comparison.took_s)


def merge_measurements(measurements: Sequence[Measurement], by_process: Sequence[ProcessTimes]) -> Measurement:
    """Merge measurements from two or more processes into one; a time that some processes lack is left out."""
    first = measurements[0]
    times = {name: [getattr(measurement, name) for measurement in measurements] for name in TIME_QUANTITIES}
    unsteady_indices = [number for number, measurement in enumerate(measurements) if measurement.unsteady is not None]
    merged = {
        name: combine_processes(values, [values[number] for number in unsteady_indices])
        for name, values in times.items()
        if all(values)
    }
    missing = [name for name, values in times.items() if any(values) and not all(values)]
    if first.decisive not in merged:
        raise TrialFailed(f"{first.name}: not every process could be timed by {first.decisive.removesuffix('_us')}.")
    reached = merged[first.decisive].relative_half_width
    return first.model_copy(
        update={
            **dict.fromkeys(TIME_QUANTITIES),
            **merged,
            "scope": "run",
            "unsteady": next(
                (measurement.unsteady for measurement in measurements if measurement.unsteady is not None), None
            ),
            "no_interval": None,
            "method": format_list([*dict.fromkeys(measurement.method for measurement in measurements)]),
            "instrument_error_us": max(
                (e for measurement in measurements if (e := measurement.instrument_error_us) is not None), default=None
            ),
            "precision_reached": reached,
            "stopped": "precise enough"
            if reached is not None and reached <= first.precision_wanted
            else "all processes",
            "shape": format_list([*dict.fromkeys(measurement.shape for measurement in measurements)]),
            "warmed_up": all(measurement.warmed_up for measurement in measurements),
            "clock": _merge_clocks([measurement.clock for measurement in measurements]),
            "samples": sum(measurement.samples for measurement in measurements),
            "calls": sum(measurement.calls for measurement in measurements),
            "took_s": sum(measurement.took_s for measurement in measurements),
            "notes": (*_merge_notes(measurements), *(f"{name} was not measured in every process" for name in missing)),
            "processes": len(measurements),
            "by_process": tuple(by_process),
            "series": {},
        }
    )


def merge_comparisons(comparisons: Sequence[Comparison], by_process: Sequence[ProcessTimes]) -> Comparison:
    """Merge comparisons from two or more processes into one, with a verdict over the processes."""
    first = comparisons[0]
    if any(comparison.quantity != first.quantity for comparison in comparisons):
        time = first.quantity.removesuffix("_us")
        raise TrialFailed(f"Not every process could be timed by {time}; use --decide-on call.")
    clock = _merge_clocks([comparison.clock for comparison in comparisons])
    return first.model_copy(
        update={
            "first_us": combine_processes([comparison.first_us for comparison in comparisons]),
            "others": tuple(_merge_compared(comparisons, index, clock) for index in range(len(first.others))),
            "methods": {
                name: format_list([*dict.fromkeys(comparison.methods[name] for comparison in comparisons)])
                for name in first.methods
            },
            "pairs": sum(comparison.pairs for comparison in comparisons),
            "stopped": "all processes",
            "scope": "run",
            "clock": clock,
            "took_s": sum(comparison.took_s for comparison in comparisons),
            "notes": _merge_notes(comparisons),
            "processes": len(comparisons),
            "by_process": tuple(by_process),
            "series": {},
        }
    )


def _merge_compared(comparisons: Sequence[Comparison], index: int, clock: ClockSummary) -> ComparedFunction:
    sides = [comparison.others[index] for comparison in comparisons]
    effect, confidence = comparisons[0].minimum_effect, 1 - (1 - CONFIDENCE) / len(comparisons[0].others)
    ratio, low, high, verdict = _ratio_verdict([side.ratio for side in sides], effect, confidence)
    in_cycles = [side.cycles_ratio for side in sides if side.cycles_ratio is not None]
    cycles_ratio, cycles_verdict, reason = None, None, None
    if len(in_cycles) == len(sides):
        cycles_ratio, _, _, cycles_verdict = _ratio_verdict(in_cycles, effect, confidence)
        if verdict in {"faster", "slower"} and cycles_verdict != verdict and _clock_moved(clock):
            reason = f"it is {verdict} in time, and in cycles {cycles_verdict}: the clock moved"
            verdict = "unsure"
    return ComparedFunction(
        name=sides[0].name,
        verdict=verdict,
        ratio=ratio,
        low=low,
        high=high,
        cycles_verdict=cycles_verdict,
        cycles_ratio=cycles_ratio,
        reason=reason,
        time_us=combine_processes([side.time_us for side in sides]),
    )


def _ratio_verdict(ratios: Sequence[float], effect: float, confidence: float) -> tuple[float, float, float, Verdict]:
    """Return the geometric mean of the processes' ratios, its interval, and the verdict."""
    level = log_estimate_of_draws([max(process_ratio, TINY_US) for process_ratio in ratios])
    within = level.interval(confidence)
    assert within is not None  # noqa: S101 - two or more draws have an error
    low, high = within
    return level.value, low, high, judge_log_ratio(math.log(low), math.log(high), effect)


def _clock_moved(clock: ClockSummary) -> bool:
    if clock.mhz is None or clock.mhz_low is None or clock.mhz_high is None:
        return False
    return clock.mhz_high - clock.mhz_low > CLOCK_MOVED_SHARE * clock.mhz


def _merge_clocks(clocks: Sequence[ClockSummary]) -> ClockSummary:
    """Return the clock summary over all processes."""
    lows = [clock.mhz_low for clock in clocks if clock.mhz_low is not None]
    middles = [clock.mhz for clock in clocks if clock.mhz is not None]
    highs = [clock.mhz_high for clock in clocks if clock.mhz_high is not None]
    shares = [clock.throttled_share for clock in clocks if clock.throttled_share is not None]
    return ClockSummary(
        mhz_low=min(lows, default=None),
        mhz=float(np.median(middles)) if middles else None,
        mhz_high=max(highs, default=None),
        before=clocks[0].before,
        after=clocks[-1].after,
        throttle=tuple(dict.fromkeys(reason for clock in clocks for reason in clock.throttle)),
        throttled_share=float(np.mean(shares)) if shares else None,
        locked_mhz=clocks[0].locked_mhz,
    )


def _merge_notes(results: Sequence[ResultT]) -> tuple[str, ...]:
    """Return the notes, merged where they differ only in numbers, with how many processes each applies to."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for result in results:
        kinds: Mapping[str, str] = {re.sub(r"[\d.]+", "#", note): note for note in result.notes}
        for kind, note in kinds.items():
            shown.setdefault(kind, note)
            count[kind] += 1
    many = len(results)
    return tuple(
        note if count[kind] == many else f"in {count[kind]} of {many} processes: {note}" for kind, note in shown.items()
    )
