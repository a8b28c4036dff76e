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

    Raises:
        MachineCannot: It is too short for this sensor.
    """
    period_s, settle_s, read_s = _sensor(model)
    idle_s = max(LEAST_IDLE_S, IDLE_PERIODS * period_s) + settle_s
    warm_s = settle_s + period_s * (1 + chance.random())
    long = call_s > LONG_CALL * period_s
    after_s = 2 * read_s + (settle_s + 3 * period_s if long else 0.5 * period_s)
    least_s = settle_s + FEWEST_PERIODS * period_s
    spare_s = budget_s - idle_s - warm_s - after_s
    if spare_s < least_s and call_s < budget_s:
        needed_s = budget_s - spare_s + least_s
        raise MachineCannot(
            f"The sensor ticks every {1e3 * period_s:.3g} ms: within {budget_s:g} s it cannot tell a call's energy; "
            f"give budget_s={math.ceil(10 * needed_s) / 10:g} or more."
        )
    wanted_s = settle_s + max(LEAST_S, USUAL_PERIODS * period_s, PERIODS_AT / precision * period_s)
    return Plan(
        idle_s=idle_s,
        warm_s=None if call_s > COLD_SHARE * budget_s else warm_s,
        round_s=max(LEAST_ROUND_S, ROUND_PERIODS * period_s),
        measure_s=max(0.0, min(spare_s, wanted_s)),
        dither_s=period_s if long else 0.0,
        after_s=after_s,
    )


def _sensor(model: SensorModel) -> tuple[float, float, float]:
    """Return the period of the sensor that is believed, how long it takes to settle, and to be read, in s."""
    if model.counter is not None:
        return model.counter.period_s, max(0.0, model.counter.lag_s) + model.counter.period_s, model.counter.read_s
    power = model.instant or model.usage or model.average
    if power is None:
        raise MachineCannot(
            "This device shows neither its energy nor a power that is understood, so joules cannot be told."
        )
    return power.period_s, max(0.0, power.lag_s) + power.window_s, power.period_s
