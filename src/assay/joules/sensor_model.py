"""How a device's energy counter and power readings behave: period, averaging window and lag, fitted once and saved.

A load is switched on and off at known times while the sensors are read. Given the on-time up to each moment, a counter
is a straight line in time and in on-time, at the right lag; a power reading is a straight line in the share of on-time,
at the right window and lag. The best fit is found by search, and stored for the GPU and its driver.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, ValidationError

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import home_folder, read_sealed_json, write_sealed_json
from assay.core.results import make_check
from assay.core.values import SCHEMA_VERSION, Value
from assay.joules.readings import build_activity, counter_series, power_series
from assay.joules.ticks import find_held_ticks, find_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.core.results import Finding
    from assay.joules.devices import CallLoad
    from assay.joules.readings import (
        CallBoundary,
        CounterSeries,
        DeviceActivity,
        MeterReading,
        PowerSeries,
        ReadingSampler,
    )
    from assay.joules.ticks import SensorTicks
    from assay.machine.model import Machine


class CounterModel(Value):
    """How an energy counter is updated."""

    period_s: float = Field(description="From one tick to the next.")
    jitter_s: float = Field(description="How far a tick may be from its regular time.")
    quantum_j: float = Field(description="Smallest increment.")
    lag_s: float = Field(description="Age of the energy it shows at a tick.")
    lag_error_s: float = Field(description="Error of the lag, as a standard deviation.")
    read_s: float = Field(description="Median time to read it.")


class PowerModel(Value):
    """How a power reading is computed: at each tick the mean over a window that ended some time before."""

    period_s: float = Field(description="From one tick to the next.")
    window_s: float = Field(description="Averaging window.")
    lag_s: float = Field(description="Between the window's end and the tick that shows it.")
    lag_error_s: float = Field(description="Error of the lag, as a standard deviation.")
    with_counter: bool = Field(description="Whether it ticks when the energy counter does.")
    explained: float = Field(description="Share of the readings' variance explained by the model: 1 is all.")

    @property
    def seen_share(self) -> float:
        """The share of the time that it sees: 0.25 where it averages 25 ms of each 100 ms."""
        return min(1.0, self.window_s / self.period_s)


class SensorModel(Value):
    """The behaviour of one device's sensors. Null: not available, or could not be determined."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    device: str = Field(description="UUID of the GPU, or the domains of a processor.")
    driver: str
    counter: CounterModel | None = None
    instant: PowerModel | None = None
    average: PowerModel | None = None
    usage: PowerModel | None = Field(
        default=None, description="For cards that report neither instant nor average power."
    )

    def describe(self) -> str:
        """Return it as one line, for the doctor."""
        parts = []
        if self.counter is not None:
            lag = f", lag {1e3 * self.counter.lag_s:.0f} ms"
            parts.append(f"the energy counter ticks every {_ms(self.counter.period_s)}{lag}")
        for name, named in (("instant", "instant power"), ("average", "average power"), ("usage", "power")):
            power: PowerModel | None = getattr(self, name)
            if power is not None:
                averaging = f"the mean of {_ms(power.window_s)} every {_ms(power.period_s)}"
                parts.append(f"{named} is {averaging}, lag {1e3 * power.lag_s:.0f} ms")
        return "; ".join(parts) or "it shows neither energy nor power"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def load_sensor_model(device: str, driver: str) -> SensorModel | None:
    """Return the stored model of a device's sensors; null where there is none, or it is damaged or outdated."""
    try:
        model = SensorModel.model_validate_json(read_sealed_json(_model_path(device, driver)))
    except (BadInput, ValidationError):
        return None
    return model if (model.device, model.driver) == (device, driver) else None


def save_sensor_model(model: SensorModel) -> None:
    """Store a sensor model."""
    path = _model_path(model.device, model.driver)
    path.parent.mkdir(exist_ok=True)
    write_sealed_json(path, model.as_json())


def _model_path(device: str, driver: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in f"{device}-{driver}")
    return home_folder() / "sensors" / f"{name}.json"


if TYPE_CHECKING:
    Array = NDArray[np.float64]

LAGS_S = np.arange(-0.02, 0.4, 0.002)
WINDOWS_S = np.geomspace(0.004, 1.6, 48)
FINER_STEPS = 25
MIN_EXPLAINED = 0.8
"""A power reading is not understood if on and off explain less of it than this."""
MIN_FIT_TICKS = 8
SAME_PERIOD_SHARE, SAME_PHASE_SHARE = 0.003, 0.05
"""Two sensors tick together if their periods differ, and their ticks are apart, by at most these shares."""


def fit_counter(series: CounterSeries, activity: DeviceActivity) -> CounterModel | None:
    """Return the model of a counter; null where it changed too rarely or decreased."""
    ticks = find_ticks(series.begin_s, series.end_s, series.energy_j)
    if len(ticks) < MIN_FIT_TICKS or ticks.fell_s:
        return None
    period = ticks.period_s or float(np.median(np.diff(ticks.times_s)))
    quantum = counter_quantum_j(series.energy_j)
    noise = float(np.hypot(quantum / np.sqrt(12.0), ticks.spread_s.max() * np.gradient(ticks.values).max() / period))
    lag, error = _fit_lag(ticks, activity, noise)
    return CounterModel(
        period_s=period,
        jitter_s=float(ticks.spread_s.max()),
        quantum_j=quantum,
        lag_s=lag,
        lag_error_s=float(np.hypot(error, ticks.shift_s)),
        read_s=float(np.median(series.end_s - series.begin_s)),
    )


def counter_quantum_j(energy_j: Array) -> float:
    """Return a counter's quantum in J: the largest energy that all its steps are multiples of, in whole µJ."""
    steps = np.unique(np.rint(np.abs(np.diff(energy_j)) * 1e6).astype(np.int64))
    return float(np.gcd.reduce(steps[steps > 0])) / 1e6 if np.any(steps > 0) else 0.0


def _fit_lag(ticks: SensorTicks, activity: DeviceActivity, noise_j: float) -> tuple[float, float]:
    """Return the lag and its standard error, both in s: where a line in time and on-time fits best."""
    residuals = np.array([_residual(ticks, activity, lag) for lag in LAGS_S])
    best = int(np.argmin(residuals))
    finer = LAGS_S[best] + np.linspace(-0.002, 0.002, 41)
    fine_residuals = np.array([_residual(ticks, activity, lag) for lag in finer])
    variance = max(float(fine_residuals.min()) / (len(ticks) - 3), noise_j**2)
    possible = LAGS_S[residuals <= fine_residuals.min() + 4 * variance]
    reach = float(np.ptp(possible)) / 4 if len(possible) > 1 else 0.001
    return float(finer[int(np.argmin(fine_residuals))]), max(0.0005, reach)


def _residual(ticks: SensorTicks, activity: DeviceActivity, lag_s: float) -> float:
    t = ticks.times_s - lag_s
    columns = np.stack([np.ones(len(t)), t, t - activity.rested_s(t)], axis=1)
    return float(np.sum((ticks.values - columns @ np.linalg.lstsq(columns, ticks.values, rcond=None)[0]) ** 2))


def fit_power(series: PowerSeries, activity: DeviceActivity, counter: SensorTicks | None) -> PowerModel | None:
    """Return the model of a power reading; null where it never changed, or on and off do not explain it."""
    if len(series) < MIN_FIT_TICKS:
        return None
    moved = find_ticks(series.t_s, series.t_s, series.watts)
    if len(moved) < MIN_FIT_TICKS or moved.period_s is None:
        return None
    ticks = find_held_ticks(series.t_s, series.watts, moved.period_s)
    if ticks is None:
        return None
    window, lag, share = _fit_window(ticks, activity, WINDOWS_S, LAGS_S)
    for reach in (0.15, 0.02):
        windows = np.geomspace(window / (1 + reach), window * (1 + reach), FINER_STEPS)
        lags = lag + np.linspace(-1, 1, 2 * FINER_STEPS) * max(0.004, reach * window)
        window, lag, share = _fit_window(ticks, activity, windows, lags)
    if share < MIN_EXPLAINED:
        return None
    return PowerModel(
        period_s=moved.period_s,
        window_s=window,
        lag_s=lag,
        lag_error_s=float(np.hypot(moved.shift_s, max(0.001, window * (1 - share)))),
        with_counter=counter is not None and _tick_together(moved, counter),
        explained=share,
    )


def _fit_window(
    ticks: SensorTicks, activity: DeviceActivity, windows_s: Array, lags_s: Array
) -> tuple[float, float, float]:
    """Return the window and the lag, in s, under which on-time explains most of the readings, and how much."""
    values = ticks.values - ticks.values.mean()
    ends = ticks.times_s[None, :] - lags_s[:, None]
    until = _on_s(activity, ends)
    best = 0.0, 0.0, -1.0
    for window in windows_s:
        share = (until - _on_s(activity, ends - window)) / window
        share = share - share.mean(axis=1, keepdims=True)
        power = np.maximum((share**2).sum(axis=1), 1e-12)
        explained = (share @ values) ** 2 / power / float(values @ values)
        index = int(np.argmax(explained))
        if explained[index] > best[2]:
            best = float(window), float(lags_s[index]), float(explained[index])
    return best


def _on_s(activity: DeviceActivity, t_s: Array) -> Array:
    return np.asarray(t_s - activity.rested_s(t_s), dtype=np.float64)


def _tick_together(one: SensorTicks, other: SensorTicks) -> bool:
    """Return whether two evenly ticking sensors tick at the same moments."""
    if one.period_s is None or other.period_s is None or abs(one.period_s / other.period_s - 1) > SAME_PERIOD_SHARE:
        return False
    apart = (one.times_s[len(one) // 2] - other.times_s[len(other) // 2]) / one.period_s
    return bool(abs(apart - round(apart)) <= SAME_PHASE_SHARE)


PROBE_REST_S, PROBE_ON_S, PROBE_OFF_S = 0.5, 1.3, 0.8
"""Long enough to see the end of an average over a second."""
BURSTS = 16
SHORTEST_BURST_S, LONGEST_BURST_S = 0.03, 0.17
"""Bursts of random length, so that each is at a different phase of the sensor's ticks and windows."""
PROBE_SEED = 5
PROBE_INTERVAL_S = 0.002


def probe_sensors(load: CallLoad, sampler: ReadingSampler, device: str, driver: str) -> SensorModel:
    """Switch a load on and off for about 5 s, and return the model fitted to the sensors' readings.

    Raises:
        MachineCannot: The device shows neither energy nor power.
    """
    rng = random.Random(PROBE_SEED)  # noqa: S311 - a pattern is no secret
    sampler.start()
    load.rest(PROBE_REST_S)
    load.run(PROBE_ON_S)
    load.rest(PROBE_OFF_S)
    for _ in range(BURSTS):
        load.run(rng.uniform(SHORTEST_BURST_S, LONGEST_BURST_S))
        load.rest(rng.uniform(SHORTEST_BURST_S, LONGEST_BURST_S))
    load.rest(LONGEST_BURST_S)
    return fit_sensor_model(sampler.stop(), load.boundaries(), device, driver)


def fit_sensor_model(
    readings: Sequence[MeterReading], boundaries: Sequence[CallBoundary], device: str, driver: str
) -> SensorModel:
    """Return the model fitted to readings taken under a switched load.

    Raises:
        MachineCannot: There are no readings.
    """
    if not readings:
        raise MachineCannot("The device shows neither energy nor power.")
    origin_ns = readings[0].t_ns
    activity = build_activity(list(boundaries), origin_ns)
    counted = counter_series(readings, origin_ns)
    counter = fit_counter(counted, activity)
    ticks = None
    if counter is not None:
        ticks = find_ticks(counted.begin_s, counted.end_s, counted.energy_j, counter.period_s)
    return SensorModel(
        device=device,
        driver=driver,
        counter=counter,
        instant=fit_power(power_series(readings, "instant", origin_ns), activity, ticks),
        average=fit_power(power_series(readings, "average", origin_ns), activity, ticks),
        usage=fit_power(power_series(readings, "usage", origin_ns), activity, ticks),
    )


def check_sensors(machine: Machine) -> list[Finding]:
    """Return for each GPU the behaviour of its energy counter and power readings, where it has been probed."""
    findings = []
    for gpu in machine.gpus:
        model = load_sensor_model(gpu.uuid, machine.driver or "unknown")
        counter = model.counter if model is not None else None
        check = make_check(
            f"GPU {gpu.index}'s energy counter is known: when it ticks, and how late",
            "unsure" if model is None else "yes" if counter is not None else "no",
            "not probed yet: the first assay.energy on it does so, and keeps it" if model is None else model.describe(),
            topic="gpus",
            counter_period_s=counter.period_s if counter is not None else None,
            counter_lag_s=counter.lag_s if counter is not None else None,
        )
        findings.append(check)
    return findings
