"""Estimate the energy spent in a time window from sensor readings, or refuse with a reason.

      tick      start     tick      tick      end       tick
    ───┼──────────╎─────────┼─── … ───┼─────────╎─────────┼───▶ time
          before  │          within             │  after

Power has a level and deviates from it, and it may jump at both edges, as something often starts where a window starts.
The observations decide how far it deviates and whether it jumps, and so how certain the edges are: a ramp that
continues through an edge is distinguished from a load that starts there. Within one tick it may deviate unseen, like a
load that repeats at the sensor's own period: that is always allowed for.

Where a window is too short for the requested precision, the refusal names a length that is enough: the half-width of an
interval depends on when the sensor ticks and on how power deviates, not on the values that are read, so it can be
computed for a window that was never measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field
from scipy import linalg

from assay.core.errors import BadInput
from assay.core.format import format_duration, format_joules, format_percent
from assay.core.results import EnergyRefusal, Estimate
from assay.core.values import Value
from assay.joules.observations import (
    EnergyRefused,
    KrigingTarget,
    Observations,
    SensorView,
    average_observations,
    combine_observations,
    estimate_by_each,
    find_power_ticks,
    fit_kriging,
    integrated_covariance,
    open_stream,
    power_view,
    select_sensor_views,
    sensor_covariance,
    thin_observations,
)
from assay.joules.per_call import GAIN_SHARE, MAX_GAP_SHARE
from assay.joules.readings import POWER_KINDS
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.joules.observations import KrigingFit, SensorStream
    from assay.joules.readings import MeterReading
    from assay.joules.sensor_model import SensorModel


if TYPE_CHECKING:
    Array = NDArray[np.float64]


def joules_estimate(value: float, error_j: float, method: str, n: int) -> Estimate:
    """Return an energy in J with a symmetrical interval, which is about the process that was measured."""
    return Estimate(
        value=value, low=value - error_j, high=value + error_j, unit="J", scope="process", method=method, n=n
    )


def format_energy_estimate(estimate: Estimate, systematic_j: float | None) -> str:
    """Format an energy with both its bounds."""
    text = format_joules(estimate.value, estimate.low, estimate.high)
    if not systematic_j or not estimate.value:
        return text
    return f"{text}, systematic ±{format_percent(systematic_j / abs(estimate.value))}"


def format_evidence(ticks: int | None, coverage: float | None, crosscheck: float | None) -> str:
    """Format the evidence of an energy: ticks, coverage, crosscheck."""
    checked = "" if crosscheck is None else f"; integrated power says {crosscheck:.2f} of it"
    return f"{ticks} ticks, coverage {format_percent(coverage or 0)}{checked}"


class WindowEnergy(Value):
    """The energy spent between two moments, or why it is not reported."""

    joules: Estimate | None = Field(description="Null: refused, for ``reason``.")
    reason: str | None = None
    code: EnergyRefusal | None = Field(default=None, description="Why it was refused, for programs.")
    needed_s: float | None = Field(
        default=None, description="If refused: a window that would be long enough; null: none, or unknown."
    )
    window_s: float
    systematic_j: float | None = None
    power_w: float | None = None
    coverage: float | None = Field(default=None, description="The share of the window that the sensor's ticks cover.")
    method: str | None = None
    crosscheck: float | None = Field(default=None, description="Integrated power over the counter.")
    ticks: int | None = None

    def __str__(self) -> str:
        """Return one line: the energy, or why there is none."""
        if self.joules is None:
            return f"refused: {self.reason}"
        spent = format_energy_estimate(self.joules, self.systematic_j)
        evidence = format_evidence(self.ticks, self.coverage, self.crosscheck)
        return f"{spent} in {self.window_s:.3g} s ({self.power_w:.0f} W), by {self.method}, {evidence}"


CONFIDENCE = 0.95
VARIATIONS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
MEMORIES_S = (0.02, 0.1, 0.5, 2.0)
"""How far power deviates from its level, as a share, and for how long; the data choose among them."""
JUMPS = (0.0, 1.0)
"""How far power jumps at the edges, relative to it, as a standard deviation; likewise."""
UNSEEN_VARIATION, UNSEEN_MEMORY = 1.1, 0.25
"""How far power may deviate within a tick unseen, as a share of it, and for which share of the tick.

A load on for a fifth of each tick and nearly off for the rest deviates by twice its mean; bounds hold for most such."""
EDGE_COUNT = 2
TINY = 1e-9
"""A column below this is not visible in the observations."""
MIN_TICKS_INSIDE = 4
"""Minimum number of ticks in a window: with fewer, the edges would dominate it."""
MAX_NEAR_EDGE, MAX_OTHERS = 8, 40
"""Observations used on each side of each edge, and of all others."""
MOST_AVERAGED = 600
"""Maximum number of power readings that are averaged; of more, evenly spread ones."""


@dataclass(frozen=True)
class PowerVariation:
    """How power deviated, as selected by the data: shares of the power, and the duration of its memory."""

    stray: float
    memory_s: float
    jump: float


@dataclass(frozen=True)
class WindowFit:
    """Energy in J with the half-width of its 95 % interval, and the model under which the data were most likely."""

    joules: float
    error_j: float
    model: PowerVariation
    power_w: float


def fit_window_energy(observations: Observations, start_s: float, end_s: float, *, period_s: float) -> WindowFit | None:
    """Return the energy spent between two moments; null where too few observations lie between them.

    ``period_s`` is the spacing of the ticks.
    """
    if np.sum((observations.times_s >= start_s) & (observations.times_s <= end_s)) < MIN_TICKS_INSIDE:
        return None
    observations = _reduce_observations(observations, start_s, end_s)
    level_w, power_w = _rough_power(observations, start_s, end_s)
    target = _WindowTarget.of(observations, start_s, end_s, level_w)
    parts = _PowerProcess.of(observations, start_s, end_s, period_s)
    best: tuple[KrigingFit, PowerVariation] | None = None
    for memory_s, stray, jump in product(MEMORIES_S, VARIATIONS, JUMPS):
        fitted = target.krige(observations, parts.covariance(PowerVariation(stray, memory_s, jump), power_w))
        if best is None or fitted.log_likelihood > best[0].log_likelihood:
            best = fitted, PowerVariation(stray, memory_s, jump)
    assert best is not None and best[0].target is not None  # noqa: S101, PT018 - there are several models to choose from
    return WindowFit(best[0].target, target.error_j(observations, best[0]), best[1], power_w)


def expected_error_j(
    observations: Observations, start_s: float, end_s: float, *, period_s: float, model: PowerVariation, power_w: float
) -> float:
    """Return the half-width that observations at such moments would have under a model, whatever their values."""
    observations = _reduce_observations(observations, start_s, end_s)
    target = _WindowTarget.of(observations, start_s, end_s, np.full(len(observations.points_s), power_w))
    parts = _PowerProcess.of(observations, start_s, end_s, period_s, (model.memory_s,))
    return target.error_j(observations, target.krige(observations, parts.covariance(model, power_w)))


def _reduce_observations(observations: Observations, start_s: float, end_s: float) -> Observations:
    """Return few enough observations for the computation: a counter's thinned, power readings averaged."""
    counts = np.abs(observations.operator.sum(axis=1)) > TINY
    if counts.any():
        return thin_observations(observations, (start_s, end_s), MAX_NEAR_EDGE, MAX_OTHERS)
    few = thin_observations(observations, (start_s, end_s), MAX_NEAR_EDGE, MOST_AVERAGED)
    return average_observations(few, (start_s, end_s), MAX_NEAR_EDGE, MAX_OTHERS)


@dataclass(frozen=True)
class _WindowTarget:
    """The terms of the energy besides deviations, and the target.

    Attributes:
        columns: Offset and level of the energy, as the observations show them; invisible ones are left out.
        weights: Weight of each column's coefficient in the energy of the window.
        sensor: The sensor's own part of the covariance of the observations.
    """

    columns: Array
    weights: Array
    sensor: Array

    @classmethod
    def of(cls, observations: Observations, start_s: float, end_s: float, level_w: Array) -> _WindowTarget:
        at = observations.points_s - start_s
        shown = observations.operator @ np.stack([np.ones(len(at)), at], axis=1)
        visible = _visible_columns(shown)
        return cls(
            shown[:, visible], np.array([0.0, end_s - start_s])[visible], sensor_covariance(observations, level_w)
        )

    def krige(self, observations: Observations, process: Array) -> KrigingFit:
        """Fit under a covariance of the observations and the two edges."""
        edges = process[:-2, -1] - process[:-2, -2]
        own = float(process[-1, -1] + process[-2, -2] - 2 * process[-1, -2])
        return fit_kriging(
            self.columns, observations.values, process[:-2, :-2] + self.sensor, KrigingTarget(self.weights, edges, own)
        )

    def error_j(self, observations: Observations, fitted: KrigingFit) -> float:
        """Return the half-width of the interval of a fit."""
        reach = t_quantile(CONFIDENCE, max(2, len(observations) - self.columns.shape[1] - EDGE_COUNT))
        return reach * float(np.sqrt(fitted.target_variance or 0.0))


@dataclass(frozen=True)
class _PowerProcess:
    """Covariances of the observations and the two edges, in s²: of unseen deviations, of jumps, of each memory."""

    unseen: Array
    jumps: Array
    strays: dict[float, Array]

    @classmethod
    def of(
        cls,
        observations: Observations,
        start_s: float,
        end_s: float,
        period_s: float,
        memories_s: tuple[float, ...] = MEMORIES_S,
    ) -> _PowerProcess:
        moments = np.concatenate([observations.points_s, [start_s, end_s]])
        since = moments - float(moments.min())
        shown = linalg.block_diag(observations.operator, np.eye(EDGE_COUNT))
        steps = shown @ np.maximum(moments[:, None] - [start_s, end_s], 0.0)
        strays = {memory_s: shown @ integrated_covariance(since, since, memory_s) @ shown.T for memory_s in memories_s}
        unseen = shown @ integrated_covariance(since, since, UNSEEN_MEMORY * period_s) @ shown.T
        return cls(unseen, steps @ steps.T, strays)

    def covariance(self, model: PowerVariation, power_w: float) -> Array:
        """Return the covariance in J² under a model, at approximate power ``power_w``."""
        shares = (
            UNSEEN_VARIATION**2 * self.unseen
            + model.jump**2 * self.jumps
            + model.stray**2 * self.strays[model.memory_s]
        )
        return np.asarray(power_w**2 * shares, dtype=np.float64)


def _visible_columns(columns: Array) -> NDArray[np.bool_]:
    return np.asarray(np.abs(columns).max(axis=0) > TINY)


def _rough_power(observations: Observations, start_s: float, end_s: float) -> tuple[Array, float]:
    """Return the approximate power at each point, and of the window, in W: a level before, within and after it."""
    shown = observations.operator @ _level_columns(observations.points_s, start_s, end_s)
    visible = _visible_columns(shown)
    rough = fit_kriging(
        shown[:, visible],
        observations.values,
        np.diag(observations.noise**2 + (0.01 * np.abs(observations.values).max()) ** 2),
    )
    level_powers_w = np.zeros(4)
    level_powers_w[visible] = rough.coefficients
    power_w = max(1e-9, float(level_powers_w[2]))
    powers = np.where(visible, np.maximum(level_powers_w, 0.0), power_w)
    at = observations.points_s
    return np.where(at < start_s, powers[1], np.where(at <= end_s, powers[2], powers[3])), power_w


def _level_columns(at_s: Array, start_s: float, end_s: float) -> Array:
    """Return a constant, and the running integral of 1 before, within and after the window, at some moments."""
    before, after = np.minimum(at_s - start_s, 0.0), np.maximum(at_s - end_s, 0.0)
    within = np.clip(at_s, start_s, end_s) - start_s
    return np.stack([np.ones(len(at_s)), before, within, after], axis=1)


LONGEST_ADVISED_S = 60.0
"""Longer windows are not recommended."""
PRECISION_MARGIN = 0.75
"""A recommended window reaches this share of the precision, as a short window shows only roughly how power deviates."""
HALVINGS = 4
AROUND_PERIODS = 6
"""Ticks before and after a window that are expected to be read."""


def sufficient_window_s(
    sensors: tuple[SensorView, ...], window_fit: WindowFit, window: tuple[float, float], precision: float
) -> float | None:
    """Return a length in s at which a window of the same load reaches a precision; null where none does.

    Args:
        sensors: The sensors that the energy was computed from.
        window_fit: Their fit of the window, with how power deviated in it.
        window: The start and the end, in s.
        precision: Half the interval over the energy, as a share.
    """

    def reaches(length_s: float) -> bool:
        end_s = window[0] + length_s
        observations = reduce(
            combine_observations, (_expected_observations(sensor, window[0], end_s) for sensor in sensors)
        )
        error_j = expected_error_j(
            observations,
            window[0],
            end_s,
            period_s=sensors[0].period_s,
            model=window_fit.model,
            power_w=window_fit.power_w,
        )
        return error_j <= PRECISION_MARGIN * precision * window_fit.power_w * length_s

    short_s = window[1] - window[0]
    long_s = short_s
    while not reaches(long_s):
        if long_s >= LONGEST_ADVISED_S:
            return None
        short_s, long_s = long_s, min(LONGEST_ADVISED_S, 2 * long_s)
    for _ in range(HALVINGS if long_s > short_s else 0):
        middle_s = math.sqrt(short_s * long_s)
        short_s, long_s = (short_s, middle_s) if reaches(middle_s) else (middle_s, long_s)
    return long_s


def _expected_observations(sensor: SensorView, start_s: float, end_s: float) -> Observations:
    """Return the observations that a sensor would make in a window and around it; their values are unknown."""
    observed, period_s = sensor.observations, sensor.period_s
    around_s = AROUND_PERIODS * period_s
    phase_s = float(observed.times_s[-1]) % period_s
    first, last = math.ceil((start_s - around_s) / period_s), math.floor((end_s + around_s) / period_s)
    times: Array = phase_s + period_s * np.arange(first, last + 1, dtype=np.float64)
    n = len(times)
    span_s = float(np.ptp(observed.times_s))
    same = np.eye(n)
    back_s = sensor.reach_s
    return Observations(
        times_s=times,
        points_s=times if sensor.is_counter else np.asarray(np.concatenate([times, times - back_s]), dtype=np.float64),
        operator=same if sensor.is_counter else np.hstack([same, -same]) / back_s,
        values=np.zeros(n),
        spread_s=np.full(n, float(observed.spread_s.max())),
        shift_s=observed.shift_s,
        stretch=observed.stretch * min(1.0, span_s / float(np.ptp(times))),
        noise=np.full(n, float(observed.noise.max())),
    )


PRECISION = 0.05
MIN_COVERAGE = 0.5
INSTANT_PERIODS = 1.5
"""Power averaged over less than this many periods shows when energy was spent."""
MARGIN_PERIODS = 12.0
"""Readings this many periods before and after a window help to locate its edges."""


def estimate_window_energy(
    readings: Sequence[MeterReading], start_ns: int, end_ns: int, model: SensorModel, *, precision: float = PRECISION
) -> WindowEnergy:
    """Return the energy spent from one moment to another, both in ns on the clock of the readings.

    It is refused where the readings do not give it to ±``precision``, a share: the sensor ticks too rarely for such a
    short window, the counter decreased, readings are missing.

    Raises:
        BadInput: The window ends before it starts, or the precision is not a share.
    """
    if end_ns <= start_ns:
        raise BadInput("A window ends after it begins.")
    if not 0 < precision < 1:
        raise BadInput(f"precision is a share between 0 and 1, such as 0.05 for ±5 %, not {precision!r}.")
    window_s = (end_ns - start_ns) / 1e9
    try:
        sensor_stream = open_stream(readings, model)
        return _narrowest_estimate(sensor_stream, sensor_stream.at_s(start_ns), sensor_stream.at_s(end_ns), precision)
    except EnergyRefused as refusal:
        return WindowEnergy(
            joules=None, reason=str(refusal), code=refusal.code, needed_s=refusal.needed_s, window_s=window_s
        )


@dataclass(frozen=True)
class _SensorEstimate:
    """The estimate of one sensor for a window.

    Attributes:
        views: The sensor, and for a counter also instant power, which helps at the edges.
        crosscheck: Integrated power over the counter; null without one of them.
    """

    view: SensorView
    views: tuple[SensorView, ...]
    crosscheck: float | None
    window_fit: WindowFit
    window: tuple[float, float]

    @property
    def window_s(self) -> float:
        return self.window[1] - self.window[0]

    @property
    def statistical(self) -> float:
        """Half the interval, as a share."""
        return self.window_fit.error_j / self.window_fit.joules

    @property
    def systematic(self) -> float:
        """Systematic error as a share, which repeating does not reveal: gain, unseen time, gaps."""
        gaps = 0.0 if self.view.is_counter else self.view.gap_share(*self.window)
        return GAIN_SHARE + (1.0 - self.view.seen_share) / 2 + gaps

    @property
    def ticks(self) -> int:
        return count_ticks(self.view, *self.window)


def _narrowest_estimate(sensor_stream: SensorStream, start_s: float, end_s: float, precision: float) -> WindowEnergy:
    """Return the energy by the sensor with the narrowest bound, statistical and systematic together."""
    estimates = estimate_by_each(
        select_sensor_views(sensor_stream, (start_s, end_s)),
        lambda view: _estimate_by_sensor(sensor_stream, view, start_s, end_s),
    )
    precise = [estimate for estimate in estimates if estimate.statistical <= precision]
    if not precise:
        raise _too_wide_error(estimates, precision)
    best = min(precise, key=lambda estimate: estimate.statistical + estimate.systematic)
    window_fit = best.window_fit
    method = f"{best.view.method}, {'' if best.view.is_counter else 'every reading, '}edges interpolated"
    return WindowEnergy(
        joules=joules_estimate(window_fit.joules, window_fit.error_j, method, best.ticks),
        window_s=end_s - start_s,
        systematic_j=best.systematic * abs(window_fit.joules),
        power_w=window_fit.joules / (end_s - start_s),
        coverage=best.view.coverage(start_s, end_s),
        method=best.view.method,
        crosscheck=best.crosscheck,
        ticks=best.ticks,
    )


def _estimate_by_sensor(sensor_stream: SensorStream, view: SensorView, start_s: float, end_s: float) -> _SensorEstimate:
    check_ticks(view, start_s, end_s)
    check_covered(view, start_s, end_s)
    views, crosscheck = _combine_with_power(sensor_stream, view, start_s, end_s)
    observations = reduce(combine_observations, (combined.observations for combined in views))
    margin_s = MARGIN_PERIODS * view.period_s
    near = (observations.times_s >= start_s - margin_s) & (observations.times_s <= end_s + margin_s)
    window_fit = fit_window_energy(observations.rows(np.flatnonzero(near)), start_s, end_s, period_s=view.period_s)
    if window_fit is None or window_fit.joules <= 0:
        raise EnergyRefused("no_energy", "the sensor shows no energy spent")
    return _SensorEstimate(view, views, crosscheck, window_fit, (start_s, end_s))


def count_ticks(view: SensorView, start_s: float, end_s: float) -> int:
    """Return how many ticks of a sensor lie in a window."""
    return int(np.sum((view.observations.times_s >= start_s) & (view.observations.times_s <= end_s)))


def check_ticks(view: SensorView, start_s: float, end_s: float) -> None:
    """Refuse a window with too few ticks, unless expected ticks are missing."""
    if count_ticks(view, start_s, end_s) >= MIN_TICKS_INSIDE:
        return
    needed_s = (MIN_TICKS_INSIDE + 1) * view.period_s
    if end_s - start_s >= needed_s:
        check_covered(view, start_s, end_s)
    raise EnergyRefused(
        "too_few_ticks",
        f"a window of {end_s - start_s:.3g} s is too short: the sensor ticks every {1e3 * view.period_s:.3g} ms, "
        f"and {MIN_TICKS_INSIDE} ticks at least must fall into it, as they do in {_round_up(needed_s):.2g} s",
        needed_s,
    )


def check_covered(view: SensorView, start_s: float, end_s: float) -> None:
    """Refuse a window in which the sensor was not read to the ends, or for too little of the time."""
    missing_s = view.unwatched_s(start_s, end_s)
    if missing_s:
        raise EnergyRefused(
            "not_covered",
            f"readings are missing: {view.method} was read for only {max(0.0, end_s - start_s - missing_s):.3g} s of "
            f"the {end_s - start_s:.3g} s",
        )
    gaps = view.gap_share(start_s, end_s)
    if gaps > (1 - MIN_COVERAGE if view.is_counter else MAX_GAP_SHARE):
        raise EnergyRefused(
            "not_covered", f"readings are missing: the sensor's ticks cover only {1 - gaps:.0%} of the window"
        )


def _too_wide_error(estimates: list[_SensorEstimate], precision: float) -> EnergyRefused:
    """Return the refusal of a window whose energy is too uncertain, with a length that would be enough."""
    best = min(estimates, key=lambda estimate: estimate.statistical)
    lengths = [
        sufficient_window_s(estimate.views, estimate.window_fit, estimate.window, precision) for estimate in estimates
    ]
    needed_s = min((length for length in lengths if length is not None), default=None)
    problem = (
        f"a window of {best.window_s:.3g} s is too short for ±{format_percent(precision)}: the sensor ticks every "
        f"{1e3 * best.view.period_s:.3g} ms and tells it to ±{format_percent(best.statistical)}"
    )
    advice = (
        f"no window of up to {format_duration(LONGEST_ADVISED_S)} would do"
        if needed_s is None
        else f"about {_round_up(needed_s):.3g} s of the same load would do"
    )
    return EnergyRefused("too_wide", f"{problem}; {advice}", needed_s)


def _round_up(seconds: float) -> float:
    """Round a length up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit - 1e-9) * unit


def _combine_with_power(
    sensor_stream: SensorStream, view: SensorView, start_s: float, end_s: float
) -> tuple[tuple[SensorView, ...], float | None]:
    """Return a sensor, a counter together with instant power, and the ratio of the two; null without one of them."""
    models = {kind: getattr(sensor_stream.model, kind) for kind in POWER_KINDS}
    kind = next((k for k, m in models.items() if m is not None and m.window_s <= INSTANT_PERIODS * m.period_s), None)
    mean_w = _mean_w(view, start_s, end_s)
    if not view.is_counter or kind is None or not mean_w:
        return (view,), None
    ticks = find_power_ticks(sensor_stream, kind, models[kind], view.ticks)
    views: tuple[SensorView, ...] = (view,)
    if ticks is None:
        series = sensor_stream.power(kind)
        inside, watts = (series.t_s >= start_s) & (series.t_s <= end_s), series.watts
    else:
        power = power_view(kind, models[kind], ticks)
        views, watts, times = (view, power), power.observations.values, power.observations.times_s
        inside = (times - power.reach_s >= start_s) & (times <= end_s)
    return views, float(watts[inside].mean()) / mean_w if inside.any() else None


def _mean_w(view: SensorView, start_s: float, end_s: float) -> float | None:
    """Return the mean power between the first and the last tick of a window."""
    times, values = view.observations.times_s, view.observations.values
    inside = np.flatnonzero((times >= start_s) & (times <= end_s))
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    return float((values[last] - values[first]) / (times[last] - times[first]))
