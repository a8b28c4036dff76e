"""Finding out how a device's sensors see: a load is switched on and off at known moments while they are read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.joules.course import course_of
from assay.joules.model import SensorModel
from assay.joules.readings import counter_series, power_series
from assay.joules.sensor_fit import fit_counter, fit_power
from assay.joules.ticks import find_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.joules.course import Knot
    from assay.joules.keeper import Keeper
    from assay.joules.readings import Reading
    from assay.joules.sampling import Sampling

FIRST_REST_S, LONG_ON_S, LONG_OFF_S = 0.5, 1.3, 0.8
"""Long enough to see the end of an average over a second."""
BURSTS = 16
SHORTEST_S, LONGEST_S = 0.03, 0.17
"""Bursts of random length: each falls differently into the sensor's ticks and windows."""
SEED = 5
EVERY_S = 0.002


def probe(load: Keeper, sampling: Sampling, device: str, driver: str) -> SensorModel:
    """Switch a load on and off for about 5 s, and return how the sensors saw it.

    Raises:
        MachineCannot: The device shows neither energy nor power.
    """
    rng = random.Random(SEED)  # noqa: S311 - a pattern is no secret
    sampling.start()
    load.rest(FIRST_REST_S)
    load.keep(LONG_ON_S)
    load.rest(LONG_OFF_S)
    for _ in range(BURSTS):
        load.keep(rng.uniform(SHORTEST_S, LONGEST_S))
        load.rest(rng.uniform(SHORTEST_S, LONGEST_S))
    load.rest(LONGEST_S)
    return fit_model(sampling.stop(), load.knots(), device, driver)


def fit_model(readings: Sequence[Reading], knots: Sequence[Knot], device: str, driver: str) -> SensorModel:
    """Return the model that readings taken under a switched load show.

    Raises:
        MachineCannot: There is nothing to see.
    """
    if not readings:
        raise MachineCannot("The device shows neither energy nor power.")
    origin_ns = readings[0].t_ns
    activity = course_of(list(knots), origin_ns)
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
