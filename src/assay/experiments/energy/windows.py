"""How long a stage is measured: as long as the sensors of its GPUs need, where the scenario does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.joules.kept import kept_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.joules.model import SensorModel
    from assay.machine.model import Gpu

WITHOUT_GPUS_S = 1.0
UNKNOWN_S = 4.0
"""For a sensor that ticks ten times a second and was not looked at."""
LEAST_S, MOST_S = 2.0, 60.0
"""Power moves by itself, as clocks and heat do: a window evens that out, however fast the sensor ticks."""
SENSOR_SHARE = 0.5
"""Of the precision that is wanted: what the sensor may take of it in one window; the rest is the processes'."""
PERIODS_AT = 0.5
"""Over the precision: so many periods of the sensor; for ±1 % fifty."""
EDGES_AT = 2.8
"""Over the precision: so many errors of the lag, at two edges; 1.96 standard deviations, times the root of two."""


def stage_length(asked_s: float | None, gpus: Sequence[Gpu], driver: str | None, precision: float) -> tuple[float, str]:
    """Return how long a stage is measured, in seconds, and why.

    Args:
        asked_s: What the scenario says; null: as the sensors need.
        gpus: Whose energy is metered.
        driver: Sensors are known by GPU and driver.
        precision: A share: how well joules per token are wanted.
    """
    if asked_s is not None:
        return asked_s, "as scenario.window_s says"
    if not gpus:
        return WITHOUT_GPUS_S, "no GPU is metered, and times alone need no longer"
    models = {gpu.index: kept_model(gpu.uuid, driver or "unknown") for gpu in gpus}
    modelled = {number: _needed_s(model, precision) for number, model in models.items() if model is not None}
    needed = {number: needed_s for number, needed_s in modelled.items() if needed_s is not None}
    unknown = [number for number in models if number not in needed]
    if unknown:
        names = f"GPU {unknown[0]}" if len(unknown) == 1 else f"GPUs {', '.join(map(str, unknown))}"
        return max([UNKNOWN_S, *needed.values()]), f"how the sensor of {names} sees was not looked at"
    slowest = max(needed, key=lambda number: needed[number])
    return needed[slowest], f"as the sensor of GPU {slowest} needs for ±{100 * precision:.3g} %"


def _needed_s(model: SensorModel, precision: float) -> float | None:
    """Return how long a window a sensor needs; null where it shows nothing that is understood."""
    share = SENSOR_SHARE * precision
    if model.counter is not None:
        period_s, settle_s, error_s = model.counter.period_s, max(0.0, model.counter.lag_s), model.counter.lag_error_s
    else:
        power = model.instant or model.usage or model.average
        if power is None:
            return None
        period_s, settle_s, error_s = power.period_s, max(0.0, power.lag_s) + power.window_s, power.lag_error_s
    needed_s = settle_s + max(PERIODS_AT * period_s, EDGES_AT * error_s) / share
    return round(min(max(needed_s, LEAST_S), MOST_S), 1)
