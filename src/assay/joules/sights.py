"""From readings to observations: which sensor is believed, and why none is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import MachineCannot
from assay.joules.observations import of_counter, of_power
from assay.joules.readings import POWERS, counter_series, power_series
from assay.joules.ticks import find_ticks, held_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.joules.model import CounterModel, PowerModel, SensorModel
    from assay.joules.observations import Observations
    from assay.joules.readings import CounterSeries, Power, PowerSeries, Reading
    from assay.joules.ticks import Ticks

    Array = NDArray[np.float64]

MISSED = 2.5
"""Where ticks are more periods apart than this, readings were missed."""


class Refused(MachineCannot):
    """The readings do not tell the energy; its text is the reason, without a full stop."""


@dataclass(frozen=True)
class Stream:
    """Readings in order, one at least, and how the sensors that they are of see. Times are in s since the first."""

    readings: Sequence[Reading]
    model: SensorModel

    @property
    def origin_ns(self) -> int:
        """The moment that times are counted from."""
        return self.readings[0].t_ns

    def at_s(self, t_ns: int) -> float:
        """Return a moment in s since the first reading."""
        return (t_ns - self.origin_ns) / 1e9

    def power(self, which: Power) -> PowerSeries:
        """Return what was said of one kind of power."""
        return power_series(self.readings, which, self.origin_ns)


def stream(readings: Sequence[Reading], model: SensorModel) -> Stream:
    """Return readings as a stream.

    Raises:
        Refused: There are none.
    """
    if not readings:
        raise Refused("nothing was read of the device's sensors")
    return Stream(readings, model)


@dataclass(frozen=True)
class Sight:
    """What the sensor that is believed saw.

    Attributes:
        method: ``counter``, or which power is integrated.
        period_s: The spacing of its ticks.
        seen_share: Of the time: 1 for a counter, 0.25 for power that is the mean of 25 ms of each 100 ms.
    """

    method: str
    seen: Observations
    ticks: Ticks
    period_s: float
    seen_share: float = 1.0

    def coverage(self, start_s: float, end_s: float) -> float:
        """Return the share of a window that the ticks cover: what lies between two that follow each other."""
        times = self.seen.times_s
        pairs = np.stack([times[:-1], times[1:]], axis=1)
        pairs = pairs[pairs[:, 1] - pairs[:, 0] <= MISSED * self.period_s]
        overlap = np.clip(pairs, start_s, end_s)
        return float((overlap[:, 1] - overlap[:, 0]).sum()) / (end_s - start_s) * self.seen_share


def best_sight(of: Stream, span_s: tuple[float, float]) -> Sight:
    """Return what the best sensor saw: the counter where there is one, else the power that sees most.

    Raises:
        Refused: There is none, or the counter went back within the span.
    """
    series = counter_series(of.readings, of.origin_ns)
    if of.model.counter is not None and len(series):
        return _counter(series, of.model.counter, span_s)
    for which in POWERS:
        how: PowerModel | None = getattr(of.model, which)
        ticks = None if how is None else power_ticks(of, which, how, anywhere=True)
        if how is not None and ticks is not None:
            seen = of_power(ticks, window_s=how.window_s, lag_s=how.lag_s, lag_error_s=how.lag_error_s, since_s=0.0)
            return Sight(f"{which} power", seen, ticks, how.period_s, how.seen_share)
    raise Refused("the device has no energy counter, and no power reading of it is understood")


def _counter(series: CounterSeries, counter: CounterModel, span_s: tuple[float, float]) -> Sight:
    fell = np.flatnonzero(np.diff(series.energy_j) < 0) + 1
    before = fell[series.end_s[fell] <= span_s[0]]
    after = fell[series.begin_s[fell - 1] >= span_s[1]]
    within = np.setdiff1d(fell, np.concatenate([before, after]))
    if len(within):
        step = float(series.energy_j[within[0] - 1] - series.energy_j[within[0]])
        raise Refused(f"the energy counter went back by {step:g} J meanwhile, as after a reload of the driver")
    part = series.part(slice(int(before[-1]) if len(before) else 0, int(after[0]) if len(after) else None))
    ticks = find_ticks(part.begin_s, part.end_s, part.energy_j, counter.period_s)
    seen = of_counter(ticks, lag_s=counter.lag_s, lag_error_s=counter.lag_error_s, quantum_j=counter.quantum_j)
    return Sight("counter", seen, ticks, counter.period_s)


def power_ticks(
    of: Stream, which: Power, how: PowerModel, counter: Ticks | None = None, *, anywhere: bool = False
) -> Ticks | None:
    """Return the ticks of a power reading; null where they cannot be placed.

    Those that did not move it are where the counter's are, if the two tick together. ``anywhere`` places them at will
    where the reading never moved, for whom it does not matter when a value was shown that was always shown.
    """
    series = of.power(which)
    if len(series) < 2:
        return None
    anchor = float(counter.times_s[0]) if how.with_counter and counter is not None and len(counter) else None
    if anchor is None and anywhere and np.ptp(series.watts) == 0:
        anchor = float(series.t_s[0])
    return held_ticks(series.t_s, series.watts, how.period_s, anchor)
