"""How long to rest, to warm up and to measure, from how the sensor sees and how long a call takes.

rest    │ warm-up        │ measured: rounds of calls, between them rests of random length where calls are long
────────┼────────────────┼──────────────────────────────────────────────────────────────▶ time
idle_w    lag is over      the window; its start is at random against the sensor's ticks
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.joules.judge import unseen_share
from assay.joules.percall import FEWEST_TICKS

if TYPE_CHECKING:
    import random

    from assay.joules.model import SensorModel

IDLE_PERIODS, LEAST_IDLE_S = 4.0, 0.25
FEWEST_PERIODS = FEWEST_TICKS + 2.0
USUAL_PERIODS = 15.0
LEAST_S = 1.0
"""Power moves by itself, as clocks and temperature do: a window evens that out, however fast the sensor ticks."""
PERIODS_AT = 0.5
"""Over the precision: so many periods; for ±1 % fifty."""
ROUND_PERIODS, LEAST_ROUND_S = 4.0, 0.2
LONG_CALL = 0.125
"""A call longer than this share of a period has a phase against the sensor, which is then varied."""
COLD_SHARE = 0.25
"""A call that takes more than this share of the budget is not warmed up by another."""


@dataclass(frozen=True)
class Plan:
    """Lengths in s.

    Attributes:
        warm_s: Calls before the window opens; null where one call is too long to be spent on that.
        dither_s: The longest rest between two rounds; 0: none.
        after_s: The rest at the end, until the last tick is read.
    """

    idle_s: float
    warm_s: float | None
    round_s: float
    measure_s: float
    dither_s: float
    after_s: float


def plan(model: SensorModel, call_s: float, budget_s: float, precision: float, chance: random.Random) -> Plan:
    """Return how to spend a budget.

    Without a counter it is planned for the power reading that misses least of such calls, among those that the budget
    is long enough for; whichever gives the narrowest bound in the end is used.

    Raises:
        MachineCannot: It is too short for every sensor of the device.
    """
    sensors = _sensors(model, call_s)
    fitting = [sensor for sensor in sensors if sensor.needed_s(call_s) <= budget_s or call_s >= budget_s]
    if not fitting:
        nearest = min(sensors, key=lambda sensor: sensor.needed_s(call_s))
        raise MachineCannot(
            f"The sensor ticks every {1e3 * nearest.period_s:.3g} ms: within {budget_s:g} s it cannot tell a call's "
            f"energy; give budget_s={math.ceil(10 * nearest.needed_s(call_s)) / 10:g} or more."
        )
    return fitting[0].planned(call_s, budget_s, precision, chance)


@dataclass(frozen=True)
class _Sensor:
    """A sensor that a measurement may be planned for: its period, how long it takes to settle and to be read, in s."""

    period_s: float
    settle_s: float
    read_s: float

    @property
    def idle_s(self) -> float:
        return max(LEAST_IDLE_S, IDLE_PERIODS * self.period_s) + self.settle_s

    @property
    def least_s(self) -> float:
        return self.settle_s + FEWEST_PERIODS * self.period_s

    def after_s(self, call_s: float) -> float:
        return 2 * self.read_s + (self.settle_s + 3 * self.period_s if self._is_long(call_s) else 0.5 * self.period_s)

    def needed_s(self, call_s: float) -> float:
        """Return the least budget, whatever chance makes of the warm-up."""
        return self.idle_s + self.settle_s + 2 * self.period_s + self.least_s + self.after_s(call_s)

    def planned(self, call_s: float, budget_s: float, precision: float, chance: random.Random) -> Plan:
        warm_s = self.settle_s + self.period_s * (1 + chance.random())
        after_s = self.after_s(call_s)
        spare_s = budget_s - self.idle_s - warm_s - after_s
        periods = max(USUAL_PERIODS, PERIODS_AT / precision)
        return Plan(
            idle_s=self.idle_s,
            warm_s=None if call_s > COLD_SHARE * budget_s else warm_s,
            round_s=max(LEAST_ROUND_S, ROUND_PERIODS * self.period_s),
            measure_s=max(0.0, min(spare_s, self.settle_s + max(LEAST_S, periods * self.period_s))),
            dither_s=self.period_s if self._is_long(call_s) else 0.0,
            after_s=after_s,
        )

    def _is_long(self, call_s: float) -> bool:
        return call_s > LONG_CALL * self.period_s


def _sensors(model: SensorModel, call_s: float) -> list[_Sensor]:
    """Return the counter, or else the power readings: those that miss least of such calls first.

    Raises:
        MachineCannot: There is none.
    """
    counter = model.counter
    if counter is not None:
        return [_Sensor(counter.period_s, max(0.0, counter.lag_s) + counter.period_s, counter.read_s)]
    powers = [power for power in (model.instant, model.usage, model.average) if power is not None]
    if not powers:
        raise MachineCannot(
            "This device shows neither its energy nor a power that is understood, so joules cannot be told."
        )
    powers.sort(key=lambda power: round(unseen_share(power.seen_share, power.period_s, call_s), 2))
    return [_Sensor(power.period_s, max(0.0, power.lag_s) + power.window_s, power.period_s) for power in powers]
