"""Observations of the running integral of power by each sensor, and the kriging that estimates energies from them.

A counter shows the integral at its ticks; a power reading shows how far it advanced within its window. Either way an
observation is a linear function of the integral at a few moments, so one estimator serves both. A view is what one
sensor of a device observed; what a sensor cannot give is refused.

Power is a level plus deviations with memory (an Ornstein–Uhlenbeck process). Integrals of such a process are Gaussian
with a covariance in closed form, so levels and the energy between ticks have best linear estimates with a variance
(universal kriging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy import linalg

from assay.core.errors import MachineCannot
from assay.joules.readings import POWER_KINDS, counter_series, power_series
from assay.joules.ticks import find_held_ticks, find_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import EnergyRefusal
    from assay.joules.readings import CounterSeries, MeterReading, PowerKind, PowerSeries
    from assay.joules.sensor_model import CounterModel, PowerModel, SensorModel
    from assay.joules.ticks import SensorTicks

    Array = NDArray[np.float64]


T = TypeVar("T")

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


class EnergyRefused(MachineCannot):
    """The readings do not give the energy. Its text is the reason, without a full stop.

    ``needed_s`` is a window length that would be long enough; null where there is none, or it is unknown.
    """

    def __init__(self, code: EnergyRefusal, reason: str, needed_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.needed_s = needed_s


COUNTER = "counter"
MISSED_PERIODS = 2.5
"""Readings were missed where ticks are more periods apart than this."""


@dataclass(frozen=True)
class SensorStream:
    """At least one reading, in order, and the model of the sensors. Times are in s since the first reading."""

    readings: Sequence[MeterReading]
    model: SensorModel

    @property
    def origin_ns(self) -> int:
        """The origin of times."""
        return self.readings[0].t_ns

    def at_s(self, t_ns: int) -> float:
        """Return a moment in s since the first reading."""
        return (t_ns - self.origin_ns) / 1e9

    def power(self, kind: PowerKind) -> PowerSeries:
        """Return the readings of one kind of power."""
        return power_series(self.readings, kind, self.origin_ns)


def open_stream(readings: Sequence[MeterReading], model: SensorModel) -> SensorStream:
    """Return readings as a stream.

    Raises:
        EnergyRefused: There are none.
    """
    if not readings:
        raise EnergyRefused("no_readings", "nothing was read of the device's sensors")
    return SensorStream(readings, model)


@dataclass(frozen=True)
class SensorView:
    """The observations of one sensor.

    Attributes:
        method: ``counter``, or which power is integrated.
        period_s: The spacing of its ticks.
        lag_s: The delay with which it shows the energy spent.
        reach_s: How far back one observation sees without a gap: for power, its window.
        seen_share: Share of the time it sees: 1 for a counter, 0.25 for the mean of 25 ms of each 100 ms.
    """

    method: str
    observations: Observations
    ticks: SensorTicks
    period_s: float
    lag_s: float = 0.0
    reach_s: float = 0.0
    seen_share: float = 1.0

    @property
    def is_counter(self) -> bool:
        """Whether it counts energy, so that a gap between two readings loses nothing."""
        return self.method == COUNTER

    def coverage(self, start_s: float, end_s: float) -> float:
        """Return the share of a window that the ticks cover, that is, between consecutive ticks."""
        return (1.0 - self.gap_share(start_s, end_s)) * self.seen_share

    def gap_share(self, start_s: float, end_s: float) -> float:
        """Return the share of a window in gaps between ticks that are too long for the sensor's spacing."""
        times = np.sort(self.observations.times_s)
        pairs = np.stack([times[:-1], times[1:]], axis=1)
        pairs = pairs[pairs[:, 1] - pairs[:, 0] <= max(MISSED_PERIODS * self.period_s, self.reach_s)]
        overlap = np.clip(pairs, start_s, end_s)
        return 1.0 - float((overlap[:, 1] - overlap[:, 0]).sum()) / (end_s - start_s)

    def unwatched_s(self, start_s: float, end_s: float) -> float:
        """Return how long the sensor was not read before the end of a window, or after its start; 0: it was read."""
        if not len(self.observations):
            return end_s - start_s
        times = np.sort(self.observations.times_s)
        read_every_s = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        slack_s = MISSED_PERIODS * max(self.period_s, read_every_s) + max(0.0, self.lag_s)
        first_s, last_s = float(times[0]), float(times[-1])
        missing_s = max(first_s - self.reach_s - start_s, end_s - last_s)
        return missing_s if missing_s > slack_s else 0.0


def select_sensor_views(sensor_stream: SensorStream, span_s: tuple[float, float]) -> list[SensorView]:
    """Return the views that may give the energy of a span: the counter, or else every power reading.

    Which power reading is best depends on the window: instant power of an H200 sees a quarter of the time, average
    power all of it, a second late. So the caller computes the bound by each, and takes the narrowest.

    Raises:
        EnergyRefused: There is none, or the counter decreased within the span.
    """
    views: list[SensorView] = []
    series = counter_series(sensor_stream.readings, sensor_stream.origin_ns)
    if sensor_stream.model.counter is not None and len(series):
        views.append(_counter_view(series, sensor_stream.model.counter, span_s))
        if not views[0].unwatched_s(*span_s):
            return views
    for kind in POWER_KINDS:
        power_model: PowerModel | None = getattr(sensor_stream.model, kind)
        ticks = None if power_model is None else find_power_ticks(sensor_stream, kind, power_model, anywhere=True)
        if power_model is not None and ticks is not None:
            views.append(power_view(kind, power_model, ticks))
    if not views:
        raise EnergyRefused("no_sensor", "the device has no energy counter, and no power reading of it is understood")
    return views


def estimate_by_each(views: Sequence[SensorView], estimate: Callable[[SensorView], T]) -> list[T]:
    """Return the estimates of all sensors that give one, at least one.

    Raises:
        EnergyRefused: None does; the reason is that of the first.
    """
    estimates, refusals = [], []
    for view in views:
        try:
            estimates.append(estimate(view))
        except EnergyRefused as refusal:
            refusals.append(refusal)
    if not estimates:
        raise refusals[0]
    return estimates


def power_view(kind: PowerKind, power_model: PowerModel, ticks: SensorTicks) -> SensorView:
    """Return the observations of one kind of power, integrated."""
    lags = {"lag_s": power_model.lag_s, "lag_error_s": power_model.lag_error_s}
    observations = observe_power(ticks, window_s=power_model.window_s, **lags, since_s=0.0)
    return SensorView(
        f"{kind} power",
        observations,
        ticks,
        power_model.period_s,
        power_model.lag_s,
        power_model.window_s,
        power_model.seen_share,
    )


def _counter_view(series: CounterSeries, counter: CounterModel, span_s: tuple[float, float]) -> SensorView:
    fell = np.flatnonzero(np.diff(series.energy_j) < 0) + 1
    before = fell[series.end_s[fell] <= span_s[0]]
    after = fell[series.begin_s[fell - 1] >= span_s[1]]
    within = np.setdiff1d(fell, np.concatenate([before, after]))
    if len(within):
        step = float(series.energy_j[within[0] - 1] - series.energy_j[within[0]])
        raise EnergyRefused(
            "counter_reset",
            f"the energy counter went back by {step:g} J meanwhile, as after a reload of the driver",
        )
    part = series.part(slice(int(before[-1]) if len(before) else 0, int(after[0]) if len(after) else None))
    ticks = find_ticks(part.begin_s, part.end_s, part.energy_j, counter.period_s)
    observations = observe_counter(
        ticks, lag_s=counter.lag_s, lag_error_s=counter.lag_error_s, quantum_j=counter.quantum_j
    )
    return SensorView(COUNTER, observations, ticks, counter.period_s, counter.lag_s)


def find_power_ticks(
    sensor_stream: SensorStream,
    kind: PowerKind,
    power_model: PowerModel,
    counter: SensorTicks | None = None,
    *,
    anywhere: bool = False,
) -> SensorTicks | None:
    """Return the ticks of a power reading; null where they cannot be located.

    Ticks that did not change the reading are located by the counter's, if the two tick together. If the reading never
    changed, ``anywhere`` locates them arbitrarily, for callers to whom the time of a constant value does not matter.
    """
    series = sensor_stream.power(kind)
    if len(series) < 2:
        return None
    anchor = float(counter.times_s[0]) if power_model.with_counter and counter is not None and len(counter) else None
    if anchor is None and anywhere and np.ptp(series.watts) == 0:
        anchor = float(series.t_s[0])
    return find_held_ticks(series.t_s, series.watts, power_model.period_s, anchor)
