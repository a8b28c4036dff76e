"""A sensor's period, window and lag, from what it showed while a load was switched on and off at known moments.

With the on-time until a moment known, what a counter shows is a straight line in time and in on-time, at the right
lag; what a power reading shows is one in the share of on-time, at the right window and lag. Which fits best is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.joules.model import CounterModel, PowerModel
from assay.joules.ticks import find_ticks, held_ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.course import Course
    from assay.joules.readings import CounterSeries, PowerSeries
    from assay.joules.ticks import Ticks

    Array = NDArray[np.float64]

LAGS_S = np.arange(-0.02, 0.4, 0.002)
WINDOWS_S = np.geomspace(0.004, 1.6, 48)
FINER = 25
EXPLAINED = 0.8
"""A power reading that on and off explain less of than this is not understood."""
FEWEST_TICKS = 8
ALIKE, TOGETHER = 0.003, 0.05
"""Two sensors tick together when their periods differ, and their ticks are apart, by these shares at most."""


def fit_counter(series: CounterSeries, load: Course) -> CounterModel | None:
    """Return how a counter counts; null where it moved too rarely or went back."""
    ticks = find_ticks(series.begin_s, series.end_s, series.energy_j)
    if len(ticks) < FEWEST_TICKS or ticks.fell_s:
        return None
    period = ticks.period_s or float(np.median(np.diff(ticks.times_s)))
    quantum = quantum_of(series.energy_j)
    noise = float(np.hypot(quantum / np.sqrt(12.0), ticks.spread_s.max() * np.gradient(ticks.values).max() / period))
    lag, error = _lag(ticks, load, noise)
    return CounterModel(
        period_s=period,
        jitter_s=float(ticks.spread_s.max()),
        quantum_j=quantum,
        lag_s=lag,
        lag_error_s=float(np.hypot(error, ticks.shift_s)),
        read_s=float(np.median(series.end_s - series.begin_s)),
    )


def quantum_of(energy_j: Array) -> float:
    """Return what a counter counts in: the largest energy that all its steps are multiples of, in whole µJ."""
    steps = np.unique(np.rint(np.abs(np.diff(energy_j)) * 1e6).astype(np.int64))
    return float(np.gcd.reduce(steps[steps > 0])) / 1e6 if np.any(steps > 0) else 0.0


def _lag(ticks: Ticks, load: Course, noise_j: float) -> tuple[float, float]:
    """Return the lag and its standard error, both in s: where a line in time and on-time fits best."""
    rest = np.array([_unexplained(ticks, load, lag) for lag in LAGS_S])
    best = int(np.argmin(rest))
    finer = LAGS_S[best] + np.linspace(-0.002, 0.002, 41)
    at = np.array([_unexplained(ticks, load, lag) for lag in finer])
    variance = max(float(at.min()) / (len(ticks) - 3), noise_j**2)
    possible = LAGS_S[rest <= at.min() + 4 * variance]
    reach = float(np.ptp(possible)) / 4 if len(possible) > 1 else 0.001
    return float(finer[int(np.argmin(at))]), max(0.0005, reach)


def _unexplained(ticks: Ticks, load: Course, lag_s: float) -> float:
    t = ticks.times_s - lag_s
    columns = np.stack([np.ones(len(t)), t, t - load.rested_s(t)], axis=1)
    return float(np.sum((ticks.values - columns @ np.linalg.lstsq(columns, ticks.values, rcond=None)[0]) ** 2))


def fit_power(series: PowerSeries, load: Course, counter: Ticks | None) -> PowerModel | None:
    """Return how a power reading sees; null where it never moved, or on and off do not explain it."""
    if len(series) < FEWEST_TICKS:
        return None
    moved = find_ticks(series.t_s, series.t_s, series.watts)
    if len(moved) < FEWEST_TICKS or moved.period_s is None:
        return None
    ticks = held_ticks(series.t_s, series.watts, moved.period_s)
    if ticks is None:
        return None
    window, lag, share = _window(ticks, load, WINDOWS_S, LAGS_S)
    for reach in (0.15, 0.02):
        windows = np.geomspace(window / (1 + reach), window * (1 + reach), FINER)
        lags = lag + np.linspace(-1, 1, 2 * FINER) * max(0.004, reach * window)
        window, lag, share = _window(ticks, load, windows, lags)
    if share < EXPLAINED:
        return None
    return PowerModel(
        period_s=moved.period_s,
        window_s=window,
        lag_s=lag,
        lag_error_s=float(np.hypot(moved.shift_s, max(0.001, window * (1 - share)))),
        with_counter=counter is not None and _together(moved, counter),
        explained=share,
    )


def _window(ticks: Ticks, load: Course, windows_s: Array, lags_s: Array) -> tuple[float, float, float]:
    """Return the window and the lag, in s, under which on-time explains most of the readings, and how much."""
    values = ticks.values - ticks.values.mean()
    ends = ticks.times_s[None, :] - lags_s[:, None]
    until = _on_s(load, ends)
    best = 0.0, 0.0, -1.0
    for window in windows_s:
        share = (until - _on_s(load, ends - window)) / window
        share = share - share.mean(axis=1, keepdims=True)
        power = np.maximum((share**2).sum(axis=1), 1e-12)
        explained = (share @ values) ** 2 / power / float(values @ values)
        index = int(np.argmax(explained))
        if explained[index] > best[2]:
            best = float(window), float(lags_s[index]), float(explained[index])
    return best


def _on_s(load: Course, t_s: Array) -> Array:
    return np.asarray(t_s - load.rested_s(t_s), dtype=np.float64)


def _together(one: Ticks, other: Ticks) -> bool:
    """Whether two evenly ticking sensors tick at the same moments."""
    if one.period_s is None or other.period_s is None or abs(one.period_s / other.period_s - 1) > ALIKE:
        return False
    apart = (one.times_s[len(one) // 2] - other.times_s[len(other) // 2]) / one.period_s
    return bool(abs(apart - round(apart)) <= TOGETHER)
