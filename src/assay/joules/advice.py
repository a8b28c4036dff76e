"""How long a window must be for a wanted precision: what the same sensors would say of a longer one.

The half-width of an interval depends on when the sensor ticks and on how power strays, and not on the values that are
read. So it can be computed for a window that was never measured.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from assay.joules.observations import Observations, joined
from assay.joules.window import expected_error_j

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.sights import Sight
    from assay.joules.window import Spent

    Array = NDArray[np.float64]

LONGEST_S = 60.0
"""Longer windows are not advised."""
MARGIN = 0.75
"""Advised is what reaches this share of the precision: how power strays is known from a short window only."""
HALVINGS = 4
AROUND_PERIODS = 6
"""Ticks before and after a window that are expected to be read."""


def long_enough_s(
    sensors: tuple[Sight, ...], spent: Spent, window: tuple[float, float], precision: float
) -> float | None:
    """Return a length in s at which a window of the same load reaches a precision; null where none does.

    Args:
        sensors: Those that the energy was computed by.
        spent: What they said of the window, and how power strayed in it.
        window: The start and the end, in s.
        precision: Half the interval over the energy, as a share.
    """

    def reaches(length_s: float) -> bool:
        end_s = window[0] + length_s
        observations = reduce(joined, (_expected(sensor, window[0], end_s) for sensor in sensors))
        error_j = expected_error_j(
            observations, window[0], end_s, period_s=sensors[0].period_s, model=spent.model, power_w=spent.power_w
        )
        return error_j <= MARGIN * precision * spent.power_w * length_s

    short_s = window[1] - window[0]
    long_s = short_s
    while not reaches(long_s):
        if long_s >= LONGEST_S:
            return None
        short_s, long_s = long_s, min(LONGEST_S, 2 * long_s)
    for _ in range(HALVINGS if long_s > short_s else 0):
        middle_s = math.sqrt(short_s * long_s)
        short_s, long_s = (short_s, middle_s) if reaches(middle_s) else (middle_s, long_s)
    return long_s


def _expected(sensor: Sight, start_s: float, end_s: float) -> Observations:
    """Return the observations that a sensor would make in a window and around it; their values are not known."""
    observed, period_s = sensor.seen, sensor.period_s
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
