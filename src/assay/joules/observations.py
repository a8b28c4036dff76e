"""Observations of the running integral of power, and the kriging that estimates energies from them.

A counter shows the integral at its ticks; a power reading shows how far it advanced within its window. Either way an
observation is a linear function of the integral at a few moments, so one estimator serves both.

Power is a level plus deviations with memory (an Ornstein–Uhlenbeck process). Integrals of such a process are Gaussian
with a covariance in closed form, so levels and the energy between ticks have best linear estimates with a variance
(universal kriging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.ticks import SensorTicks


if TYPE_CHECKING:
    Array = NDArray[np.float64]

READING_NOISE = 0.005
"""Noise of a power reading itself, as a share of the largest reading."""


@dataclass(frozen=True)
class Observations:
    """Values, each a row of ``operator`` times the running integral (in J) at ``points_s``.

    Attributes:
        times_s: Time of each value; the end of its window where it has one.
        points_s: Moments at which the integral enters.
        operator: A row per value, a column per moment.
        values: J of a counter, W of power readings.
        spread_s: Independent timing error of each row, as a standard deviation.
        shift_s: Common timing error of all moments.
        stretch: Error of the time between them, as a share.
        noise: Any other error of each value, in its own unit.
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
        """Return the selected rows."""
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


def combine_observations(one: Observations, other: Observations) -> Observations:
    """Combine the observations of one power by two sensors; common timing errors are those of the worse one."""
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


def observe_counter(ticks: SensorTicks, *, lag_s: float, lag_error_s: float, quantum_j: float) -> Observations:
    """Return the observations of a counter: at each tick the integral ``lag_s`` earlier, rounded to its quantum."""
    n = len(ticks)
    times = ticks.times_s - lag_s
    shift = float(np.hypot(ticks.shift_s, lag_error_s))
    noise = np.full(n, quantum_j / np.sqrt(12.0))
    return Observations(times, times, np.eye(n), ticks.values, ticks.spread_s, shift, ticks.stretch, noise)


def observe_power(
    ticks: SensorTicks, *, window_s: float, lag_s: float, lag_error_s: float, since_s: float
) -> Observations:
    """Return the observations of power readings: how far the integral advanced in the window before each tick.

    Readings whose window starts before ``since_s`` are left out: the power before it is unknown.
    """
    usable = ticks.times_s - lag_s - window_s >= since_s
    ends, values = ticks.times_s[usable] - lag_s, ticks.values[usable]
    n = len(ends)
    operator = np.hstack([np.eye(n), -np.eye(n)]) / window_s
    noise = np.full(n, READING_NOISE * float(values.max(initial=0.0)))
    shift = float(np.hypot(ticks.shift_s, lag_error_s))
    points = np.concatenate([ends, ends - window_s])
    return Observations(ends, points, operator, values, ticks.spread_s[usable], shift, ticks.stretch, noise)


def thin_observations(observations: Observations, edges_s: tuple[float, ...], near: int, most: int) -> Observations:
    """Return the ``near`` observations on each side of each edge, and at most ``most`` of the others, evenly spread.

    More of a counter's would hardly add information, and cost the cube of their number.
    """
    order = np.argsort(observations.times_s, kind="stable")
    keep = _near_edges(observations.times_s[order], edges_s, near)
    keep[:: max(1, -(-len(order) // most))] = True
    return observations.rows(np.sort(order[keep]))


def average_observations(observations: Observations, edges_s: tuple[float, ...], near: int, most: int) -> Observations:
    """Return the ``near`` observations on each side of each edge, and about ``most`` averages of the others, in order.

    Unlike a counter's, a power reading in the middle of a window contains energy that no other reading shows: without
    it, long windows would be known no better than short ones.
    """
    order = np.argsort(observations.times_s, kind="stable")
    single = _near_edges(observations.times_s[order], edges_s, near)
    size = max(1, -(-int(np.sum(~single)) // most))
    groups = np.empty(len(order), dtype=np.intp)
    group, filled = -1, size
    for index in range(len(order)):
        after_single = index > 0 and bool(single[index - 1])
        if single[index] or filled >= size or after_single:
            group, filled = group + 1, 0
        groups[index] = group
        filled += 1
    mixing = np.zeros((group + 1, len(order)))
    mixing[groups, order] = 1.0
    mixing /= mixing.sum(axis=1, keepdims=True)
    return Observations(
        mixing @ observations.times_s,
        observations.points_s,
        mixing @ observations.operator,
        mixing @ observations.values,
        np.sqrt(mixing**2 @ observations.spread_s**2),
        observations.shift_s,
        observations.stretch,
        np.sqrt(mixing**2 @ observations.noise**2),
    )


def _near_edges(times_s: Array, edges_s: tuple[float, ...], near: int) -> NDArray[np.bool_]:
    """Return which of some ordered moments are among the nearest on each side of an edge."""
    keep = np.zeros(len(times_s), dtype=bool)
    for edge in edges_s:
        index = int(np.searchsorted(times_s, edge))
        keep[max(0, index - near) : index + near] = True
    return keep


def observation_covariance(observations: Observations, process: Array, level_w: Array) -> Array:
    """Return the covariance of the values: from the process, from timing errors, and from the readings themselves."""
    return np.asarray(
        observations.operator @ process @ observations.operator.T + sensor_covariance(observations, level_w),
        dtype=np.float64,
    )


def sensor_covariance(observations: Observations, level_w: Array) -> Array:
    """Return the sensor's part of the covariance: from timing errors, and from the readings themselves.

    ``level_w`` is the approximate power at each moment: a timing error of δ is an error of δ times that.
    """
    slope = observations.operator @ level_w
    stretched = observations.operator @ (level_w * (observations.points_s - float(observations.points_s.mean())))
    own = np.diag((observations.spread_s * slope) ** 2 + observations.noise**2)
    together = observations.shift_s**2 * np.outer(slope, slope) + observations.stretch**2 * np.outer(
        stretched, stretched
    )
    return np.asarray(own + together, dtype=np.float64)


NUGGET = 1e-9
"""Share of the mean variance, added to keep a covariance of exact readings invertible."""


@dataclass(frozen=True)
class KrigingFit:
    """Result of least squares: the coefficients, their covariance, and the likelihood of the data under the model.

    ``target`` and ``target_variance`` are of a requested linear function; null where none was requested.
    """

    coefficients: Array
    covariance: Array
    log_likelihood: float
    target: float | None = None
    target_variance: float | None = None


@dataclass(frozen=True)
class KrigingTarget:
    """A linear function of the same process: its part in the columns, its covariance with the data, its variance."""

    columns: Array
    with_data: Array
    variance: float


def integrated_covariance(one: Array, other: Array, memory_s: float) -> Array:
    """Return the covariance of ∫₀ᵃ q and ∫₀ᵇ q, for each pair of times in s, where q has unit variance.

    q has a memory of ``memory_s``: cov(q(x), q(y)) = exp(-|x - y| / memory_s). In s².
    """

    def bent(x: Array) -> Array:
        scaled = np.abs(x) / memory_s
        return scaled + np.exp(-scaled)

    column, row = one[:, None], other[None, :]
    return np.asarray(memory_s**2 * (bent(column) + bent(row) - bent(column - row) - 1.0), dtype=np.float64)


def bridge_covariance(one: Array, other: Array, length_s: float, memory_s: float) -> Array:
    """Return the covariance of ∫₀ᵃ q and ∫₀ᵇ q (see ``integrated_covariance``), given that ∫₀ of the whole length is 0.

    It describes how a call's energy deviates from a straight line: at its start and at its end not at all.
    """
    end = np.array([length_s])
    whole = float(integrated_covariance(end, end, memory_s)[0, 0])
    left, right = integrated_covariance(one, end, memory_s), integrated_covariance(end, other, memory_s)
    return np.asarray(integrated_covariance(one, other, memory_s) - left @ right / whole, dtype=np.float64)


def fit_kriging(columns: Array, observed: Array, covariance: Array, target: KrigingTarget | None = None) -> KrigingFit:
    """Return the generalized least squares of ``observed`` on ``columns`` under a covariance.

    The likelihood is the restricted one, which compares covariances independently of the coefficients.
    """
    n = len(observed)
    factor = linalg.cho_factor(covariance + NUGGET * np.trace(covariance) / n * np.eye(n), lower=True)
    weighted = np.asarray(linalg.cho_solve(factor, columns), dtype=np.float64)
    precision = columns.T @ weighted
    scale = np.sqrt(np.diag(precision))
    inverse = np.asarray(linalg.pinvh(precision / np.outer(scale, scale)), dtype=np.float64) / np.outer(scale, scale)
    coefficients = inverse @ (weighted.T @ observed)
    rest = observed - columns @ coefficients
    solved = np.asarray(linalg.cho_solve(factor, rest), dtype=np.float64)
    _, determinant = np.linalg.slogdet(precision / np.outer(scale, scale))
    likelihood = -0.5 * float(rest @ solved) - float(np.log(np.diag(factor[0])).sum())
    likelihood -= 0.5 * float(determinant) + float(np.log(scale).sum())
    if target is None:
        return KrigingFit(coefficients, inverse, likelihood)
    value = float(target.columns @ coefficients + target.with_data @ solved)
    weights = np.asarray(linalg.cho_solve(factor, target.with_data), dtype=np.float64)
    open_part = target.columns - columns.T @ weights
    variance = target.variance - float(target.with_data @ weights) + float(open_part @ inverse @ open_part)
    return KrigingFit(coefficients, inverse, likelihood, value, max(0.0, variance))
