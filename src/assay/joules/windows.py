"""The energy of a window in a stream of readings, or a refusal with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.core.results import Estimate
from assay.joules.judge import GAIN_SHARE
from assay.joules.observations import joined, of_power
from assay.joules.readings import POWERS
from assay.joules.sights import Refused, best_sight, power_ticks, stream
from assay.joules.values import WindowEnergy
from assay.joules.window import FEWEST_INSIDE, energy_between
from assay.joules.wording import percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.joules.model import PowerModel, SensorModel
    from assay.joules.observations import Observations
    from assay.joules.readings import Reading
    from assay.joules.sights import Sight, Stream
    from assay.joules.window import Spent

PRECISION = 0.05
LEAST_COVERAGE = 0.5
INSTANT = 1.5
"""Power that is the mean of less than this many periods shows where in time energy was spent."""
MARGIN_PERIODS = 12.0
"""Readings this many periods before and after a window help to place its edges."""


def window_energy(
    readings: Sequence[Reading], start_ns: int, end_ns: int, model: SensorModel, *, precision: float = PRECISION
) -> WindowEnergy:
    """Return the energy spent from one moment to another, both in ns on the clock of the readings.

    It is refused where the readings cannot tell it to ±``precision``, a share: the sensor ticks too rarely for a window
    so short, the counter went back, readings are missing.

    Raises:
        BadInput: The window ends before it begins, or the precision is no share.
    """
    if end_ns <= start_ns:
        raise BadInput("A window ends after it begins.")
    if not 0 < precision < 1:
        raise BadInput(f"precision is a share between 0 and 1, such as 0.05 for ±5 %, not {precision!r}.")
    window_s = (end_ns - start_ns) / 1e9
    try:
        of = stream(readings, model)
        return _told(of, of.at_s(start_ns), of.at_s(end_ns), precision)
    except Refused as refusal:
        return WindowEnergy(joules=None, reason=str(refusal), window_s=window_s)


def _told(of: Stream, start_s: float, end_s: float, precision: float) -> WindowEnergy:
    sight = best_sight(of, (start_s, end_s))
    with_power = _with_power(of, sight, start_s, end_s)
    spent = _spent(with_power, sight, start_s, end_s)
    coverage = sight.coverage(start_s, end_s)
    ticks = int(np.sum((sight.seen.times_s >= start_s) & (sight.seen.times_s <= end_s)))
    _make_sure(sight, spent, coverage, end_s - start_s, precision)
    return WindowEnergy(
        joules=Estimate(
            value=spent.joules,
            low=spent.joules - spent.error_j,
            high=spent.joules + spent.error_j,
            unit="J",
            scope="process",
            method=f"{sight.method}, edges interpolated",
            n=ticks,
        ),
        window_s=end_s - start_s,
        systematic_j=(GAIN_SHARE + (1.0 - sight.seen_share) / 2) * abs(spent.joules),
        power_w=spent.joules / (end_s - start_s),
        coverage=coverage,
        method=sight.method,
        crosscheck=with_power.crosscheck,
        ticks=ticks,
    )


def _spent(of: _WithPower, sight: Sight, start_s: float, end_s: float) -> Spent:
    margin_s = MARGIN_PERIODS * sight.period_s
    near = np.flatnonzero((of.seen.times_s >= start_s - margin_s) & (of.seen.times_s <= end_s + margin_s))
    spent = energy_between(of.seen.rows(near), start_s, end_s, period_s=sight.period_s)
    if spent is None:
        raise Refused(
            f"a window of {end_s - start_s:.3g} s is too short: the sensor ticks every {1e3 * sight.period_s:.3g} ms, "
            f"and {FEWEST_INSIDE} ticks at least must fall into it"
        )
    return spent


def _make_sure(sight: Sight, spent: Spent, coverage: float, window_s: float, precision: float) -> None:
    """Refuse what is not known well enough."""
    if coverage < LEAST_COVERAGE * sight.seen_share:
        raise Refused(f"readings are missing: the sensor's ticks cover only {coverage:.0%} of the window")
    if spent.joules <= 0:
        raise Refused("the sensor shows no energy spent")
    reached = spent.error_j / spent.joules
    if reached > precision:
        raise Refused(
            f"a window of {window_s:.3g} s is too short for ±{percent_text(precision)}: the sensor ticks every "
            f"{1e3 * sight.period_s:.3g} ms and tells it to ±{percent_text(reached)}; "
            f"about {window_s * reached / precision:.2g} s would do"
        )


@dataclass(frozen=True)
class _WithPower:
    """A counter's observations with those of instant power, which help at the edges.

    ``crosscheck`` is integrated power over the counter; null without one of them.
    """

    seen: Observations
    crosscheck: float | None = None


def _with_power(of: Stream, sight: Sight, start_s: float, end_s: float) -> _WithPower:
    which = next((name for name in POWERS if _is_instant(getattr(of.model, name))), None)
    mean_w = _mean_w(sight, start_s, end_s)
    if sight.method != "counter" or which is None or not mean_w:
        return _WithPower(sight.seen)
    how: PowerModel = getattr(of.model, which)
    ticks = power_ticks(of, which, how, sight.ticks)
    if ticks is None:
        series = of.power(which)
        inside = (series.t_s >= start_s) & (series.t_s <= end_s)
        return _WithPower(sight.seen, float(series.watts[inside].mean()) / mean_w if inside.any() else None)
    power = of_power(ticks, window_s=how.window_s, lag_s=how.lag_s, lag_error_s=how.lag_error_s, since_s=0.0)
    inside = (power.times_s - how.window_s >= start_s) & (power.times_s <= end_s)
    ratio = float(power.values[inside].mean()) / mean_w if inside.any() else None
    return _WithPower(joined(sight.seen, power), ratio)


def _is_instant(how: PowerModel | None) -> bool:
    return how is not None and how.window_s <= INSTANT * how.period_s


def _mean_w(sight: Sight, start_s: float, end_s: float) -> float | None:
    """Return the mean power between the first and the last tick of a window."""
    times, values = sight.seen.times_s, sight.seen.values
    inside = np.flatnonzero((times >= start_s) & (times <= end_s))
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    return float((values[last] - values[first]) / (times[last] - times[first]))
