"""Combine a sensor reading (joules per token, watts) from one or several processes into a value with an interval.

Two sources of uncertainty count:

- the workload: calls of one process differ from each other, and processes differ more. Seen in their spread;
- the sensor: its statistical error in a window. Its lag is the same in every window, so repeating does not reveal all
  of it, and it counts once, as if every window had the same error.

They add in squares. The part of the sensor's error that differs between windows is then in both, which makes the
interval wider than necessary, never too narrow. The systematic bound of the sensor is separate, and is in neither.

For one process the spread is that of its calls: the interval is for another window of this process, not for another
process. For several it is Student's t over them. Windows that the sensor measures better weigh more, as far as
processes are similar (DerSimonian and Laird; the spread is that of Hartung and Knapp). The spread of a process's calls
is not used as a weight: on a host with unstable speed, steady processes are also the fast ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.stats.intervals import CONFIDENCE, mean_interval
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Scope

    Samples = NDArray[np.float64]

HALF_WIDTH_DEVIATIONS = 1.96
"""Standard deviations in half of a sensor's interval."""


MIN_PROCESSES = 3
"""With fewer, their spread says too little about other processes for an estimate to be called that of a run."""


@dataclass(frozen=True)
class ProcessReading:
    """The reading of one process.

    Attributes:
        share: Error of the sensor in its window: half an interval over the value. Null: no sensor is involved.
        calls: Number of calls averaged. Null: not about calls, such as idle power.
        spread: Uncertainty from its calls: half an interval over the value. Null: too few calls, or not about calls.
    """

    value: float
    share: float | None = None
    calls: int | None = None
    spread: float | None = None


@dataclass(frozen=True)
class TypicalProcess:
    """The typical process: its value, the interval, and the method. Bounds are null where too little is known."""

    value: float
    low: float | None
    high: float | None
    method: str


def scope_of_processes(processes: int) -> Scope:
    """Return the scope of an estimate over several processes: a run takes three, fewer stand for themselves only."""
    return "run" if processes >= MIN_PROCESSES else "process"


def rate_spread(counts: Samples, times: Samples) -> float | None:
    """Return the uncertainty of a rate (amount per time, or the inverse) from calls: half a 95 % interval, as a share.

    ``counts`` is the amount of each call, ``times`` its duration, in order. Energy per amount is equally uncertain at
    constant power, as energy is then proportional to time. Null for a single call.
    """
    if len(counts) != len(times) or not counts.sum() or not times.sum():
        return None
    return mean_spread(np.asarray(1.0 + times / times.mean() - counts / counts.mean(), dtype=np.float64))


def mean_spread(values: Samples) -> float | None:
    """Return half a 95 % interval of the mean of values in order, as a share of it; null for a single value.

    Neighbours may be correlated. Too few values to detect that are treated as independent.
    """
    if len(values) < 2 or not values.mean():
        return None
    ends = mean_interval(values)
    if ends is not None:
        return (ends[1] - ends[0]) / 2 / abs(float(values.mean()))
    half = t_quantile(CONFIDENCE, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return half / abs(float(values.mean()))


def combine_processes(draws: Sequence[ProcessReading], confidence: float = CONFIDENCE) -> TypicalProcess:
    """Combine the readings of one or more processes."""
    if len(draws) == 1:
        return _from_one_process(draws[0])
    values = np.array([draw.value for draw in draws])
    relative = bool(values.min() > 0)
    shares = np.array([draw.share for draw in draws if draw.share is not None])
    weighted = relative and len(shares) == len(draws)
    scaled = np.log(values) if relative else values
    weights = _weights(scaled, shares / HALF_WIDTH_DEVIATIONS) if weighted else np.full(len(draws), 1.0)
    weights = weights / weights.sum()
    centre = float(weights @ scaled)
    spread = math.sqrt(float(weights @ (scaled - centre) ** 2) / (len(draws) - 1))
    half = t_quantile(confidence, len(draws) - 1) * spread
    how = f"{'geometric ' if relative else ''}mean of {len(draws)} processes, Student's t over them"
    if len(draws) < MIN_PROCESSES:
        half = max(half, max(draw.spread or 0.0 for draw in draws) * (1.0 if relative else float(np.abs(values).max())))
        how += f" (fewer than the {MIN_PROCESSES} that stand for a run)"
    if weighted:
        half = math.hypot(half, float(weights @ shares))
        how += ", and the sensor's statistical interval once, added in squares"
    ends = (centre, centre - half, centre + half)
    value, low, high = (math.exp(end) for end in ends) if relative else ends
    return TypicalProcess(value, low, high, how)


def estimate_joules(draws: Sequence[ProcessReading]) -> Estimate:
    """Return the joules of one or more processes as an estimate with its scope."""
    combined, scope = combine_processes(draws), scope_of_processes(len(draws))
    ends = {"value": combined.value, "low": combined.low, "high": combined.high}
    return Estimate(**ends, unit="J", scope=scope, method=combined.method, n=len(draws))


def _from_one_process(draw: ProcessReading) -> TypicalProcess:
    if draw.calls is not None and draw.spread is None:
        few = "one call" if draw.calls == 1 else f"{draw.calls} calls"
        return TypicalProcess(draw.value, None, None, f"one process of {few}: too little for an interval")
    parts = {"the spread of its calls": draw.spread, "the sensor's statistical interval": draw.share}
    there = {name: part for name, part in parts.items() if part is not None}
    if not there:
        return TypicalProcess(draw.value, None, None, "one process; too little for an interval")
    half = abs(draw.value) * math.hypot(*there.values())
    method = f"one process: {' and '.join(there)}{', added in squares' if len(there) > 1 else ''}"
    return TypicalProcess(draw.value, draw.value - half, draw.value + half, method)


def _weights(logs: Samples, errors: Samples) -> Samples:
    """Return the weight of each process: its inverse variance, including the variance between processes."""
    if errors.min() <= 0:
        return np.full(len(logs), 1.0)
    precise = 1 / errors**2
    centre = float(precise @ logs) / precise.sum()
    excess = float(precise @ (logs - centre) ** 2) - (len(logs) - 1)
    scale = float(precise.sum() - (precise**2).sum() / precise.sum())
    between = max(0.0, excess / scale)
    return np.asarray(1 / (errors**2 + between), dtype=np.float64)
