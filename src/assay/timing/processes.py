"""What several fresh processes say together: one process is one draw, so the interval is over them.

Memory layout, clocks and hash seeds are drawn anew at each start. Samples within a process know only their own draw,
however many they are: the estimate is the geometric mean of the processes' medians, with Student's t on their
logarithms. A ratio is taken within each process, where both sides saw the same, and then over the processes in the same
way.

Processes that follow one another within seconds are no independent draws of a machine that switches between levels for
seconds. That shows inside of them: where several are unsteady, the interval of a time is no narrower than a typical one
of theirs, which spans what the machine did meanwhile.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from assay.core.errors import TrialFailed
from assay.core.results import Estimate
from assay.stats.intervals import CONFIDENCE, restarts_interval
from assay.stats.paired import judge
from assay.stats.ratios import drawn
from assay.timing.compare import CLOCK_MOVED
from assay.timing.turns import TINY_US
from assay.timing.values import Clock, Compared, Comparison, Measurement, ProcessTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.timing.values import Verdict

FEWEST = 2
"""Processes that an interval over them takes at least."""

UNSTEADY = 2
"""So many unsteady processes say that the machine moves, and not one of them alone."""

TIMES = ("busy_us", "span_us", "call_us", "cycles")
ResultT = TypeVar("ResultT", Measurement, Comparison)


def over_processes(estimates: Sequence[Estimate], unsteady: Sequence[Estimate] = ()) -> Estimate:
    """Return the time of a typical process from those of two or more, each of which knows its own.

    Args:
        estimates: Of each process.
        unsteady: Those of the processes whose samples drift, wander or switch between levels.
    """
    values = [estimate.value for estimate in estimates]
    centre, low, high, method = restarts_interval(values)
    if len(unsteady) >= UNSTEADY:
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


def of_measurement(process: int, found: Measurement) -> ProcessTimes:
    """Return what is kept of one process that measured a function."""
    times = {name: estimate for name in TIMES if (estimate := getattr(found, name)) is not None}
    return ProcessTimes(process=process, times=times, samples=found.samples, took_s=found.took_s)


def of_comparison(process: int, found: Comparison) -> ProcessTimes:
    """Return what is kept of one process that compared functions."""
    times = {found.first: found.first_us, **{other.name: other.time_us for other in found.others}}
    ratios = {other.name: other.ratio for other in found.others}
    return ProcessTimes(process=process, times=times, ratios=ratios, samples=found.pairs, took_s=found.took_s)


def merge_measurements(found: Sequence[Measurement], by_process: Sequence[ProcessTimes]) -> Measurement:
    """Return one measurement of two or more, each from a process of its own; a time that not all have is left out."""
    first = found[0]
    times = {name: [getattr(measurement, name) for measurement in found] for name in TIMES}
    moved = [number for number, measurement in enumerate(found) if measurement.unsteady is not None]
    merged = {
        name: over_processes(values, [values[number] for number in moved])
        for name, values in times.items()
        if all(values)
    }
    missing = [name for name, values in times.items() if any(values) and not all(values)]
    if first.decisive not in merged:
        raise TrialFailed(f"{first.name}: not every process could be timed by {first.decisive.removesuffix('_us')}.")
    reached = merged[first.decisive].relative_half_width
    return first.model_copy(
        update={
            **dict.fromkeys(TIMES),
            **merged,
            "scope": "run",
            "unsteady": next((measurement.unsteady for measurement in found if measurement.unsteady is not None), None),
            "no_interval": None,
            "method": _joined(measurement.method for measurement in found),
            "instrument_error_us": max(
                (e for measurement in found if (e := measurement.instrument_error_us) is not None), default=None
            ),
            "precision_reached": reached,
            "stopped": "precise enough"
            if reached is not None and reached <= first.precision_wanted
            else "all processes",
            "shape": _joined(measurement.shape for measurement in found),
            "warmed_up": all(measurement.warmed_up for measurement in found),
            "clock": _clock([measurement.clock for measurement in found]),
            "samples": sum(measurement.samples for measurement in found),
            "calls": sum(measurement.calls for measurement in found),
            "took_s": sum(measurement.took_s for measurement in found),
            "notes": (*_notes(found), *(f"{name} was not measured in every process" for name in missing)),
            "processes": len(found),
            "by_process": tuple(by_process),
            "series": {},
        }
    )


def merge_comparisons(found: Sequence[Comparison], by_process: Sequence[ProcessTimes]) -> Comparison:
    """Return one comparison of two or more, each from a process of its own, with a verdict over the processes."""
    first = found[0]
    if any(comparison.quantity != first.quantity for comparison in found):
        raise TrialFailed(f"Not every process could be timed by {first.quantity.removesuffix('_us')}; use --by call.")
    clock = _clock([comparison.clock for comparison in found])
    return first.model_copy(
        update={
            "first_us": over_processes([comparison.first_us for comparison in found]),
            "others": tuple(_compared(found, index, clock) for index in range(len(first.others))),
            "methods": {name: _joined(comparison.methods[name] for comparison in found) for name in first.methods},
            "pairs": sum(comparison.pairs for comparison in found),
            "stopped": "all processes",
            "scope": "run",
            "clock": clock,
            "took_s": sum(comparison.took_s for comparison in found),
            "notes": _notes(found),
            "processes": len(found),
            "by_process": tuple(by_process),
            "series": {},
        }
    )


def _compared(found: Sequence[Comparison], place: int, clock: Clock) -> Compared:
    sides = [comparison.others[place] for comparison in found]
    effect, confidence = found[0].minimum_effect, 1 - (1 - CONFIDENCE) / len(found[0].others)
    ratio, low, high, verdict = _judged([side.ratio for side in sides], effect, confidence)
    in_cycles = [side.cycles_ratio for side in sides if side.cycles_ratio is not None]
    cycles_ratio, cycles_verdict, reason = None, None, None
    if len(in_cycles) == len(sides):
        cycles_ratio, _, _, cycles_verdict = _judged(in_cycles, effect, confidence)
        if verdict in {"faster", "slower"} and cycles_verdict != verdict and _moved(clock):
            reason = f"it is {verdict} in time, and in cycles {cycles_verdict}: the clock moved"
            verdict = "unsure"
    return Compared(
        name=sides[0].name,
        verdict=verdict,
        ratio=ratio,
        low=low,
        high=high,
        cycles_verdict=cycles_verdict,
        cycles_ratio=cycles_ratio,
        reason=reason,
        time_us=over_processes([side.time_us for side in sides]),
    )


def _judged(ratios: Sequence[float], effect: float, confidence: float) -> tuple[float, float, float, Verdict]:
    """Return the geometric mean of the processes' ratios, its interval, and what that says."""
    level = drawn([max(process_ratio, TINY_US) for process_ratio in ratios])
    within = level.interval(confidence)
    assert within is not None  # noqa: S101 - two or more have an error
    low, high = within
    return level.value, low, high, judge(math.log(low), math.log(high), effect)


def _moved(clock: Clock) -> bool:
    if clock.mhz is None or clock.mhz_low is None or clock.mhz_high is None:
        return False
    return clock.mhz_high - clock.mhz_low > CLOCK_MOVED * clock.mhz


def _clock(clocks: Sequence[Clock]) -> Clock:
    """Return what the clock did in all processes."""
    lows = [clock.mhz_low for clock in clocks if clock.mhz_low is not None]
    middles = [clock.mhz for clock in clocks if clock.mhz is not None]
    highs = [clock.mhz_high for clock in clocks if clock.mhz_high is not None]
    shares = [clock.throttled_share for clock in clocks if clock.throttled_share is not None]
    return Clock(
        mhz_low=min(lows, default=None),
        mhz=float(np.median(middles)) if middles else None,
        mhz_high=max(highs, default=None),
        before=clocks[0].before,
        after=clocks[-1].after,
        throttle=tuple(dict.fromkeys(reason for clock in clocks for reason in clock.throttle)),
        throttled_share=float(np.mean(shares)) if shares else None,
        locked_mhz=clocks[0].locked_mhz,
    )


def _joined(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _notes(found: Sequence[ResultT]) -> tuple[str, ...]:
    """Return what is noted, once where it differs between processes only in its numbers, and of how many it holds."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for result in found:
        kinds: Mapping[str, str] = {re.sub(r"[\d.]+", "#", note): note for note in result.notes}
        for kind, note in kinds.items():
            shown.setdefault(kind, note)
            count[kind] += 1
    many = len(found)
    return tuple(
        note if count[kind] == many else f"in {count[kind]} of {many} processes: {note}" for kind, note in shown.items()
    )
