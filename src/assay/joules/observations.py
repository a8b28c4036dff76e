"""What was seen of a power's running integral: a counter shows it, a power reading shows how far it went in a while.

Either way an observation is a linear function of the integral at a few moments, so one estimator serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.ticks import Ticks

    Array = NDArray[np.float64]

READING_NOISE = 0.005
"""How far a power reading strays by itself, as a share of the largest."""


@dataclass(frozen=True)
class Observations:
    """Values, each a row of ``operator`` times the running integral (in J) at ``points_s``.

    Attributes:
        times_s: When each value is from; the end of its window, where it is of one.
        points_s: Moments at which the integral enters.
        operator: A row for each value, a column for each moment.
        values: J of a counter, W of power readings.
        spread_s: How far the moments of a row may be off by themselves, as a standard deviation.
        shift_s: How far all moments may be off together.
        stretch: How far the time between them may be off, as a share.
        noise: How far each value may be off otherwise, in its own unit.
    """

    times_s: Array
    points_s: Array
    operator: Array
    values: Array
    spread_s: Array
    shift_s: float
    stretch: float
    noise: Array

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, chosen: NDArray[np.intp]) -> Observations:
        """Return some of them."""
        used = np.flatnonzero(np.any(self.operator[chosen] != 0, axis=0))
        return Observations(
            self.times_s[chosen],
            self.points_s[used],
            self.operator[np.ix_(chosen, used)],
            self.values[chosen],
            self.spread_s[chosen],
            self.shift_s,
            self.stretch,
            self.noise[chosen],
        )


def joined(one: Observations, other: Observations) -> Observations:
    """Return what two sensors saw of one power; how far their clocks are off counts for both as for the worse."""
    zeros = np.zeros((len(one), len(other.points_s))), np.zeros((len(other), len(one.points_s)))
    return Observations(
        np.concatenate([one.times_s, other.times_s]),
        np.concatenate([one.points_s, other.points_s]),
        np.block([[one.operator, zeros[0]], [zeros[1], other.operator]]),
        np.concatenate([one.values, other.values]),
        np.concatenate([one.spread_s, other.spread_s]),
        max(one.shift_s, other.shift_s),
        max(one.stretch, other.stretch),
        np.concatenate([one.noise, other.noise]),
    )


def of_counter(ticks: Ticks, *, lag_s: float, lag_error_s: float, quantum_j: float) -> Observations:
    """Return what a counter shows: at each tick the integral as it was ``lag_s`` before, less what it rounds off."""
    n = len(ticks)
    times = ticks.times_s - lag_s
    shift = float(np.hypot(ticks.shift_s, lag_error_s))
    noise = np.full(n, quantum_j / np.sqrt(12.0))
    return Observations(times, times, np.eye(n), ticks.values, ticks.spread_s, shift, ticks.stretch, noise)


def of_power(ticks: Ticks, *, window_s: float, lag_s: float, lag_error_s: float, since_s: float) -> Observations:
    """Return what power readings show: how far the integral went in the window before each tick.

    Readings whose window begins before ``since_s`` are left out: what was then is not known.
    """
    usable = ticks.times_s - lag_s - window_s >= since_s
    ends, values = ticks.times_s[usable] - lag_s, ticks.values[usable]
    n = len(ends)
    operator = np.hstack([np.eye(n), -np.eye(n)]) / window_s
    noise = np.full(n, READING_NOISE * float(values.max(initial=0.0)))
    shift = float(np.hypot(ticks.shift_s, lag_error_s))
    points = np.concatenate([ends, ends - window_s])
    return Observations(ends, points, operator, values, ticks.spread_s[usable], shift, ticks.stretch, noise)


def thinned(seen: Observations, edges_s: tuple[float, ...], near: int, most: int) -> Observations:
    """Return the ``near`` observations on each side of each edge, and of the others at most so many, evenly spread.

    More of a counter would say hardly more, and cost the cube of their number.
    """
    order = np.argsort(seen.times_s, kind="stable")
    keep = _near_edges(seen.times_s[order], edges_s, near)
    keep[:: max(1, -(-len(order) // most))] = True
    return seen.rows(np.sort(order[keep]))


def averaged(seen: Observations, edges_s: tuple[float, ...], near: int, most: int) -> Observations:
    """Return the ``near`` observations on each side of each edge, and the others in order as about ``most`` averages.

    Unlike a counter's, a power reading in the middle of a window carries energy that no other reading shows: leaving
    it out would make long windows no better known than short ones.
    """
    order = np.argsort(seen.times_s, kind="stable")
    single = _near_edges(seen.times_s[order], edges_s, near)
    size = max(1, -(-int(np.sum(~single)) // most))
    numbers = np.empty(len(order), dtype=np.intp)
    group, filled = -1, size
    for index in range(len(order)):
        after_single = index > 0 and bool(single[index - 1])
        if single[index] or filled >= size or after_single:
            group, filled = group + 1, 0
        numbers[index] = group
        filled += 1
    mixing = np.zeros((group + 1, len(order)))
    mixing[numbers, order] = 1.0
    mixing /= mixing.sum(axis=1, keepdims=True)
    return Observations(
        mixing @ seen.times_s,
        seen.points_s,
        mixing @ seen.operator,
        mixing @ seen.values,
        np.sqrt(mixing**2 @ seen.spread_s**2),
        seen.shift_s,
        seen.stretch,
        np.sqrt(mixing**2 @ seen.noise**2),
    )


def _near_edges(times_s: Array, edges_s: tuple[float, ...], near: int) -> NDArray[np.bool_]:
    """Return which of some moments in order are among the nearest on each side of an edge."""
    keep = np.zeros(len(times_s), dtype=bool)
    for edge in edges_s:
        index = int(np.searchsorted(times_s, edge))
        keep[max(0, index - near) : index + near] = True
    return keep


def covariance(seen: Observations, process: Array, level_w: Array) -> Array:
    """Return the covariance of the values: of the process at the moments, of when these were, and of the readings."""
    return np.asarray(seen.operator @ process @ seen.operator.T + sensor_covariance(seen, level_w), dtype=np.float64)


def sensor_covariance(seen: Observations, level_w: Array) -> Array:
    """Return the part of the covariance that is the sensor's: of when the moments were, and of the readings.

    ``level_w`` is about the power at each moment: to be off in time by δ is to be off by δ times that.
    """
    slope = seen.operator @ level_w
    stretched = seen.operator @ (level_w * (seen.points_s - float(seen.points_s.mean())))
    own = np.diag((seen.spread_s * slope) ** 2 + seen.noise**2)
    together = seen.shift_s**2 * np.outer(slope, slope) + seen.stretch**2 * np.outer(stretched, stretched)
    return np.asarray(own + together, dtype=np.float64)
