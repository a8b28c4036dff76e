"""Estimate energy per call from a counter's ticks (or power readings) and the boundaries between calls.

The energy up to a moment is

    a rate for each second of rest + an amount per finished call + the part of the current call + random drift

and the sensor shows it at its ticks. Calls need not start or end at a tick: the unknown is how a call spends its energy
between its start and its end. That is the same for every call, and at both ends it is known. So ticks at the same phase
of different calls differ by whole calls, even where calls repeat at the sensor's own period.

The sensor with the narrowest bound is used, and checked against another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from assay.joules.observations import (
    EnergyRefused,
    KrigingTarget,
    bridge_covariance,
    estimate_by_each,
    find_power_ticks,
    fit_kriging,
    integrated_covariance,
    observation_covariance,
    open_stream,
    select_sensor_views,
    thin_observations,
)
from assay.joules.readings import POWER_KINDS, build_activity
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.joules.observations import KrigingFit, Observations, SensorStream, SensorView
    from assay.joules.readings import CallBoundary, DeviceActivity, MeterReading
    from assay.joules.sensor_model import PowerModel, SensorModel


if TYPE_CHECKING:
    Array = NDArray[np.float64]

CONFIDENCE = 0.95
MIN_TICKS_IN_CALLS = 4
"""Minimum number of ticks in the measured part."""
PAUSE_PRECISION = 0.2
"""The power of a pause is reported if it is known to this share."""
MIN_ERROR_SHARE = 0.002
"""No error smaller than this share is claimed: ticks are located on the host's clock by a model."""
SWING = 1.4
"""How far power may swing within a call, relative to its mean above rest: a burst of a third of its time."""
SWINGS_PER_CALL = 6.0
MAX_NEAR_EDGE, MAX_OTHERS = 4, 64
"""Observations used on each side of where calls start and end, and of all others."""
DRIFTS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
MEMORIES_S = (0.03, 0.1, 0.3)
"""How far power may drift between calls, as a share of it, and for how long; the data choose among them."""
JITTERS = (0.0, 0.01, 0.03, 0.1)
"""How far ticks may be from their estimated times, as a share of their spacing; likewise."""


@dataclass(frozen=True)
class PerCallEnergy:
    """Energy per call in J with the half-width of its 95 % interval; powers at rest in W, null where not observed.

    The half-width has two parts: the uncertainty that the sensor leaves, and how much another window of this length
    might differ, as power drifts.

    Attributes:
        idle_w: Before the first call.
        pause_w: In the rests after it; null also where these were too short to estimate it.
        ticks: Number of observations in the measured part.
        drift: How far power deviated from what calls explain, as a share of it.
    """

    joules: float
    error_j: float
    idle_w: float | None
    idle_error_w: float | None
    pause_w: float | None
    ticks: int
    drift: float

    @property
    def rest_w(self) -> float | None:
        """The power of a rest between calls: as observed there, or else before them."""
        return self.pause_w if self.pause_w is not None else self.idle_w


def fit_call_energy(observations: Observations, activity: DeviceActivity, open_s: float) -> PerCallEnergy | None:
    """Return the energy of the calls from ``open_s`` on; null where too few observations lie among them.

    Calls before ``open_s`` are the warm-up: they have an energy of their own.
    """
    if activity.is_empty:
        return None
    last_s = float(activity.times_s[-1])
    inside = int(np.sum((observations.times_s > open_s) & (observations.times_s <= last_s)))
    if inside < MIN_TICKS_IN_CALLS:
        return None
    observations = thin_observations(
        observations, (float(activity.times_s[0]), open_s, last_s), MAX_NEAR_EDGE, MAX_OTHERS
    )
    columns = _EnergyColumns.of(observations, activity, open_s)
    calls = _MeasuredCalls.of(observations, activity, open_s, columns)
    drift_fit = calls.most_likely(columns)
    reach = t_quantile(CONFIDENCE, max(2, inside - 2))
    idle, pause = columns.coefficient(drift_fit.fit, "idle"), columns.coefficient(drift_fit.fit, "pause")
    measured_j, joules = np.sqrt(drift_fit.fit.target_variance or 0.0), drift_fit.fit.target or 0.0
    sampled_j = calls.strays_j(drift_fit)
    return PerCallEnergy(
        joules=joules,
        error_j=float(np.hypot(reach * np.hypot(measured_j, sampled_j), MIN_ERROR_SHARE * joules)),
        idle_w=idle[0] if idle else None,
        idle_error_w=reach * idle[1] if idle else None,
        pause_w=pause[0] if pause and reach * pause[1] <= PAUSE_PRECISION * abs(pause[0]) else None,
        ticks=inside,
        drift=drift_fit.drift,
    )


@dataclass(frozen=True)
class _EnergyColumns:
    """The terms of the energy, as the observations show them; terms that they do not show are left out."""

    names: tuple[str, ...]
    values: Array

    @classmethod
    def of(cls, observations: Observations, activity: DeviceActivity, open_s: float) -> _EnergyColumns:
        t = observations.points_s
        rested, before = activity.rested_s(t), activity.rested_s(np.minimum(t, activity.times_s[0]))
        done, warm = activity.progress(t), activity.progress(np.minimum(t, open_s))
        parts = {"idle": before, "pause": rested - before, "warm": warm, "calls": done - warm}
        shown = {
            "start": observations.operator @ np.ones(len(t)),
            **{n: observations.operator @ part for n, part in parts.items()},
        }
        counts = bool(np.any(shown["start"]))  # a counter has an arbitrary offset, a power reading does not
        visible = {n: c for n, c in shown.items() if (n == "start" and counts) or _is_visible(c, counts=counts)}
        return cls(tuple(visible), np.stack(list(visible.values()), axis=1))

    def coefficient(self, kriging_fit: KrigingFit, name: str) -> tuple[float, float] | None:
        """Return a coefficient and its standard error; null where the observations do not show it."""
        if name not in self.names:
            return None
        index = self.names.index(name)
        return float(kriging_fit.coefficients[index]), float(np.sqrt(max(0.0, kriging_fit.covariance[index, index])))


def _is_visible(column: Array, *, counts: bool) -> bool:
    return bool((np.ptp(column) if counts else np.abs(column).max()) > 1e-9)


@dataclass(frozen=True)
class _DriftFit:
    fit: KrigingFit
    drift: float
    memory_s: float


@dataclass(frozen=True)
class _MeasuredCalls:
    """Rough prior estimates of the measured calls, and the moments that matter.

    Attributes:
        phase_s: Time since the start of the current call, at each point.
        level_w: Approximate power at each point.
        worked_s: Total time that calls had run at each point, and at the start and the end of the measured ones.
    """

    observations: Observations
    count: float
    call_s: float
    joules: float
    rest_w: float
    phase_s: Array
    level_w: Array
    worked_s: Array

    @classmethod
    def of(
        cls, observations: Observations, activity: DeviceActivity, open_s: float, columns: _EnergyColumns
    ) -> _MeasuredCalls:
        last_s = float(activity.times_s[-1])
        count = float(activity.calls[-1] - activity.progress(np.array([open_s]))[0])
        call_s = activity.busy_s(open_s, last_s) / count
        rough = fit_kriging(columns.values, observations.values, np.diag(_rough_variance(observations)))
        joules = max(0.0, (columns.coefficient(rough, "calls") or (0.0, 0.0))[0])
        rest_w = next((max(0.0, c[0]) for name in ("idle", "pause") if (c := columns.coefficient(rough, name))), 0.0)
        t = np.concatenate([observations.points_s, [open_s, last_s]])
        return cls(
            observations=observations,
            count=count,
            call_s=call_s,
            joules=joules,
            rest_w=rest_w,
            phase_s=np.mod(activity.progress(observations.points_s), 1.0) * call_s,
            level_w=np.where(activity.is_busy(observations.points_s), joules / call_s, rest_w),
            worked_s=t - activity.rested_s(t),
        )

    def most_likely(self, columns: _EnergyColumns) -> _DriftFit:
        """Fit with the drift, and the jitter of ticks, under which the data are most likely."""
        power_w = self.joules / self.call_s
        swing = SWING * max(power_w - self.rest_w, power_w / 4)
        within = swing**2 * bridge_covariance(self.phase_s, self.phase_s, self.call_s, self.call_s / SWINGS_PER_CALL)
        spacing_s = float(np.median(np.diff(np.sort(self.observations.times_s))))
        slope = self.observations.operator @ self.level_w
        jittered = [np.diag((jitter * spacing_s * slope) ** 2) for jitter in JITTERS]
        selected = np.array([float(name == "calls") for name in columns.names])
        best: _DriftFit | None = None
        for drift, memory_s in product(DRIFTS, MEMORIES_S):
            deviation = (drift * power_w) ** 2 * integrated_covariance(self.worked_s, self.worked_s, memory_s)
            base_covariance = observation_covariance(self.observations, within + deviation[:-2, :-2], self.level_w)
            target = self._spent(deviation, selected)
            for jitter in jittered:
                fitted = fit_kriging(columns.values, self.observations.values, base_covariance + jitter, target)
                if best is None or fitted.log_likelihood > best.fit.log_likelihood:
                    best = _DriftFit(fitted, drift, memory_s)
        assert best is not None  # noqa: S101 - there are several drifts to choose from
        return best

    def strays_j(self, drift_fit: _DriftFit) -> float:
        """Return how far the mean of all measured calls deviates, in J, as a standard deviation.

        Deviations within one call do not count: every call has them.
        """
        if drift_fit.memory_s < self.call_s:
            return 0.0
        return self.joules * drift_fit.drift * float(np.sqrt(2 * drift_fit.memory_s / (self.count * self.call_s)))

    def _spent(self, deviation: Array, selected: Array) -> KrigingTarget:
        """Return the mean energy of a call as a target: the common energy, plus the mean deviation."""
        with_data = self.observations.operator @ (deviation[:-2, -1] - deviation[:-2, -2]) / self.count
        own = float(deviation[-1, -1] + deviation[-2, -2] - 2 * deviation[-1, -2]) / self.count**2
        return KrigingTarget(selected, with_data, own)


def _rough_variance(observations: Observations) -> Array:
    return np.maximum(observations.noise**2, (1e-3 * np.ptp(observations.values)) ** 2 + 1e-12)


EDGE_S = 0.02
"""Power takes a while to rise when calls start, and to fall when they end: equivalent to this error of the lag."""
GAIN_SHARE = 0.05
"""Gain error of the sensor itself: NVIDIA's documented accuracy. It cannot be determined from readings."""
MAX_GAP_SHARE = 0.1
"""Power readings may be missing for at most this share of the time. The energy in a gap is unknown; it is assumed to
be as in the rest, and the share is added to the systematic bound."""
REST_SHARE = 0.25
"""Relative error of the assumed power of a rest."""


@dataclass(frozen=True)
class CallEnergyEstimate:
    """Energy per call, and its evidence.

    Attributes:
        window_s: From the end of the warm-up to the last call's end; for ``rests_s`` of it the device rested.
        seen_share: Share of the time that the sensor sees.
        unseen_share: Share of the energy that power readings may miss because they see calls only in part.
        crosscheck: Integrated power over the counter; null where only one is available.
    """

    per_call: PerCallEnergy
    method: str
    coverage: float
    seen_share: float
    unseen_share: float
    crosscheck: float | None
    calls: int
    window_s: float
    rests_s: float

    @property
    def call_s(self) -> float:
        """How long a call took, back to back."""
        return (self.window_s - self.rests_s) / self.calls

    @property
    def power_w(self) -> float:
        """The average power while calls ran."""
        return self.per_call.joules / self.call_s

    @property
    def systematic_j(self) -> float:
        """Systematic error of a call's energy, which repeating does not reveal: gain, unseen time, rests."""
        rests = (self.per_call.rest_w or 0.0) * self.rests_s / self.calls
        return (GAIN_SHARE + self.unseen_share) * abs(self.per_call.joules) + REST_SHARE * rests


def estimate_call_energy(
    readings: Sequence[MeterReading], boundaries: Sequence[CallBoundary], open_ns: int, model: SensorModel
) -> CallEnergyEstimate:
    """Return the energy per call from the first call that starts after ``open_ns``.

    Raises:
        EnergyRefused: The readings do not give it, and why.
    """
    sensor_stream = open_stream(readings, model)
    activity = build_activity(list(boundaries), sensor_stream.origin_ns)
    open_s = None if activity.is_empty else activity.first_at_or_after(sensor_stream.at_s(open_ns))
    last_s = 0.0 if activity.is_empty else float(activity.times_s[-1])
    if open_s is None or open_s >= last_s:
        raise EnergyRefused("no_calls", "no call ended after the warm-up")
    estimates = estimate_by_each(
        select_sensor_views(sensor_stream, (float(activity.times_s[0]), last_s)),
        lambda view: _estimate_by_sensor(sensor_stream, view, activity, open_s),
    )
    return min(estimates, key=lambda one: (one.per_call.error_j + one.systematic_j) / one.per_call.joules)


def _estimate_by_sensor(
    sensor_stream: SensorStream, view: SensorView, activity: DeviceActivity, open_s: float
) -> CallEnergyEstimate:
    """Return the energy per call by one sensor."""
    last_s = float(activity.times_s[-1])
    gaps = _check_gaps(view, open_s, last_s)
    observations = replace(view.observations, shift_s=math.hypot(view.observations.shift_s, EDGE_S))
    per_call = fit_call_energy(observations, activity, open_s)
    if per_call is None:
        raise EnergyRefused(
            "too_few_ticks",
            f"too few readings: the sensor ticks every {1e3 * view.period_s:.3g} ms, "
            f"and at least {MIN_TICKS_IN_CALLS} ticks must fall into the calls",
        )
    if per_call.joules <= 0:
        raise EnergyRefused("no_energy", "the sensor shows no energy that calls explain")
    start, end = activity.progress(np.array([open_s, last_s]))
    calls, busy_s = round(end - start), activity.busy_s(open_s, last_s)
    return CallEnergyEstimate(
        per_call=per_call,
        method=view.method,
        coverage=view.coverage(open_s, last_s),
        seen_share=view.seen_share,
        unseen_share=unseen_energy_share(view.seen_share, view.period_s, busy_s / calls) + gaps,
        crosscheck=_crosscheck(sensor_stream, view, activity, per_call, open_s) if view.is_counter else None,
        calls=calls,
        window_s=last_s - open_s,
        rests_s=last_s - open_s - busy_s,
    )


def unseen_energy_share(seen_share: float, period_s: float, call_s: float) -> float:
    """Return the share of a call's energy that a power reading may miss if it sees only a share of each period."""
    in_part = min(1.0, call_s / (seen_share * period_s))
    return in_part * (1.0 - seen_share) / 2


def _check_gaps(view: SensorView, open_s: float, last_s: float) -> float:
    """Return the share of the calls in which power was not read; 0 for a counter, which loses nothing in a gap.

    Raises:
        EnergyRefused: It is too much, or the sensor was not read to the end.
    """
    missing_s = view.unwatched_s(open_s, last_s)
    gaps = 0.0 if view.is_counter else view.gap_share(open_s, last_s)
    if missing_s or gaps > MAX_GAP_SHARE:
        raise EnergyRefused(
            "not_covered",
            f"readings are missing: {view.method} was not read for "
            f"{max(missing_s, gaps * (last_s - open_s)):.3g} s of the {last_s - open_s:.3g} s of calls",
        )
    return gaps


def _crosscheck(
    sensor_stream: SensorStream, view: SensorView, activity: DeviceActivity, per_call: PerCallEnergy, open_s: float
) -> float | None:
    """Return power readings in the window relative to what the calls' energy predicts."""
    for kind in POWER_KINDS:
        model: PowerModel | None = getattr(sensor_stream.model, kind)
        ticks = None if model is None else find_power_ticks(sensor_stream, kind, model, view.ticks, anywhere=True)
        if model is None or ticks is None:
            continue
        ends = ticks.times_s - model.lag_s
        begins = ends - model.window_s
        inside = (begins >= open_s) & (ends <= activity.times_s[-1])
        called = activity.progress(ends[inside]) - activity.progress(begins[inside])
        rested = activity.rested_s(ends[inside]) - activity.rested_s(begins[inside])
        expected_j = float(per_call.joules * called.sum() + (per_call.rest_w or 0.0) * rested.sum())
        if expected_j > 0:
            return float(ticks.values[inside].sum()) * model.window_s / expected_j
    return None
