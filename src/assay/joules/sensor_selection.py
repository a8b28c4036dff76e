"""Turn readings into a view per sensor, select the sensors worth comparing, and refuse what they cannot give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import MachineCannot
from assay.joules.observations import observe_counter, observe_power
from assay.joules.readings import POWER_KINDS, counter_series, power_series
from assay.joules.ticks import find_held_ticks, find_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import EnergyRefusal
    from assay.joules.observations import Observations
    from assay.joules.readings import CounterSeries, MeterReading, PowerKind, PowerSeries
    from assay.joules.sensor_model import CounterModel, PowerModel, SensorModel
    from assay.joules.ticks import SensorTicks


class EnergyRefused(MachineCannot):
    """The readings do not give the energy. Its text is the reason, without a full stop.

    ``needed_s`` is a window length that would be long enough; null where there is none, or it is unknown.
    """

    def __init__(self, code: EnergyRefusal, reason: str, needed_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.needed_s = needed_s


if TYPE_CHECKING:
    Array = NDArray[np.float64]

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
        read_every_s = (
            float(np.median(np.diff(np.sort(self.observations.times_s)))) if len(self.observations) > 1 else 0.0
        )
        slack_s = MISSED_PERIODS * max(self.period_s, read_every_s) + max(0.0, self.lag_s)
        first_s, last_s = float(self.observations.times_s.min()), float(self.observations.times_s.max())
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
            views.append(_power_view(kind, power_model, ticks))
    if not views:
        raise EnergyRefused("no_sensor", "the device has no energy counter, and no power reading of it is understood")
    return views


def _power_view(kind: PowerKind, power_model: PowerModel, ticks: SensorTicks) -> SensorView:
    observations = observe_power(
        ticks, window_s=power_model.window_s, lag_s=power_model.lag_s, lag_error_s=power_model.lag_error_s, since_s=0.0
    )
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
