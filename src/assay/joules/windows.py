"""The energy of a window in a stream of readings, or a refusal with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.core.results import Estimate
from assay.core.units import format_span
from assay.joules.advice import LONGEST_S, long_enough_s
from assay.joules.judge import GAIN_SHARE, MOST_GAPS
from assay.joules.observations import joined, of_power
from assay.joules.readings import POWERS
from assay.joules.refusals import Refused
from assay.joules.sights import Sight, power_ticks, sights, stream
from assay.joules.values import WindowEnergy
from assay.joules.window import FEWEST_INSIDE, energy_between
from assay.joules.wording import percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.joules.model import PowerModel, SensorModel
    from assay.joules.observations import Observations
    from assay.joules.readings import Reading
    from assay.joules.sights import Stream
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
        sensor_stream = stream(readings, model)
        return _told(sensor_stream, sensor_stream.at_s(start_ns), sensor_stream.at_s(end_ns), precision)
    except Refused as refusal:
        return WindowEnergy(
            joules=None, reason=str(refusal), code=refusal.code, needed_s=refusal.needed_s, window_s=window_s
        )


@dataclass(frozen=True)
class _Candidate:
    """What one sensor says of a window."""

    sight: Sight
    with_power: _WithPower
    spent: Spent
    window: tuple[float, float]

    @property
    def window_s(self) -> float:
        return self.window[1] - self.window[0]

    @property
    def statistical(self) -> float:
        """Half the interval, as a share."""
        return self.spent.error_j / self.spent.joules

    @property
    def systematic(self) -> float:
        """How far it may be off that no repeating shows, as a share: gain, time that is not seen, gaps."""
        gaps = 0.0 if self.sight.is_counter else self.sight.gap_share(*self.window)
        return GAIN_SHARE + (1.0 - self.sight.seen_share) / 2 + gaps

    @property
    def ticks(self) -> int:
        return ticks_inside(self.sight, *self.window)


def _told(of: Stream, start_s: float, end_s: float, precision: float) -> WindowEnergy:
    """Return the energy by the sensor that gives the narrowest bound, both of its parts together."""
    estimates = _candidates(of, start_s, end_s)
    precise = [one for one in estimates if one.statistical <= precision]
    if not precise:
        raise _too_wide(estimates, precision)
    best = min(precise, key=lambda one: one.statistical + one.systematic)
    window_fit = best.spent
    return WindowEnergy(
        joules=Estimate(
            value=window_fit.joules,
            low=window_fit.joules - window_fit.error_j,
            high=window_fit.joules + window_fit.error_j,
            unit="J",
            scope="process",
            method=f"{best.sight.method}, {'' if best.sight.is_counter else 'every reading, '}edges interpolated",
            n=best.ticks,
        ),
        window_s=end_s - start_s,
        systematic_j=best.systematic * abs(window_fit.joules),
        power_w=window_fit.joules / (end_s - start_s),
        coverage=best.sight.coverage(start_s, end_s),
        method=best.sight.method,
        crosscheck=best.with_power.crosscheck,
        ticks=best.ticks,
    )


def _candidates(of: Stream, start_s: float, end_s: float) -> list[_Candidate]:
    """Return what the sensors say that say anything of a window, one at least.

    Raises:
        Refused: None does; the reason is that of the first.
    """
    estimates, refusals = [], []
    for view in sights(of, (start_s, end_s)):
        try:
            estimates.append(_candidate(of, view, start_s, end_s))
        except Refused as refusal:
            refusals.append(refusal)
    if not estimates:
        raise refusals[0]
    return estimates


def _candidate(of: Stream, sight: Sight, start_s: float, end_s: float) -> _Candidate:
    check_ticks(sight, start_s, end_s)
    check_covered(sight, start_s, end_s)
    combined = _with_power(of, sight, start_s, end_s)
    margin_s = MARGIN_PERIODS * sight.period_s
    near = np.flatnonzero((combined.seen.times_s >= start_s - margin_s) & (combined.seen.times_s <= end_s + margin_s))
    window_fit = energy_between(combined.seen.rows(near), start_s, end_s, period_s=sight.period_s)
    if window_fit is None or window_fit.joules <= 0:
        raise Refused("no_energy", "the sensor shows no energy spent")
    return _Candidate(sight, combined, window_fit, (start_s, end_s))


def ticks_inside(sight: Sight, start_s: float, end_s: float) -> int:
    """Return how many ticks of a sensor lie in a window."""
    return int(np.sum((sight.seen.times_s >= start_s) & (sight.seen.times_s <= end_s)))


def check_ticks(sight: Sight, start_s: float, end_s: float) -> None:
    """Refuse a window of too few ticks, unless ticks are missing that should be there."""
    if ticks_inside(sight, start_s, end_s) >= FEWEST_INSIDE:
        return
    needed_s = (FEWEST_INSIDE + 1) * sight.period_s
    if end_s - start_s >= needed_s:
        check_covered(sight, start_s, end_s)
    raise Refused(
        "too_few_ticks",
        f"a window of {end_s - start_s:.3g} s is too short: the sensor ticks every {1e3 * sight.period_s:.3g} ms, "
        f"and {FEWEST_INSIDE} ticks at least must fall into it, as they do in {_rounded_up(needed_s):.2g} s",
        needed_s,
    )


def check_covered(sight: Sight, start_s: float, end_s: float) -> None:
    """Refuse a window in which the sensor was not read to the ends, or for too little of the time."""
    missing_s = sight.unwatched_s(start_s, end_s)
    if missing_s:
        raise Refused(
            "not_covered",
            f"readings are missing: {sight.method} was read for only {max(0.0, end_s - start_s - missing_s):.3g} s of "
            f"the {end_s - start_s:.3g} s",
        )
    gaps = sight.gap_share(start_s, end_s)
    if gaps > (1 - LEAST_COVERAGE if sight.is_counter else MOST_GAPS):
        raise Refused(
            "not_covered", f"readings are missing: the sensor's ticks cover only {1 - gaps:.0%} of the window"
        )


def _too_wide(found: list[_Candidate], precision: float) -> Refused:
    """Return the refusal of a window whose energy is not known well enough, with a length that would do."""
    best = min(found, key=lambda one: one.statistical)
    lengths = [long_enough_s(one.with_power.parts, one.spent, one.window, precision) for one in found]
    needed_s = min((length for length in lengths if length is not None), default=None)
    problem = (
        f"a window of {best.window_s:.3g} s is too short for ±{percent_text(precision)}: the sensor ticks every "
        f"{1e3 * best.sight.period_s:.3g} ms and tells it to ±{percent_text(best.statistical)}"
    )
    advice = (
        f"no window of up to {format_span(LONGEST_S)} would do"
        if needed_s is None
        else f"about {_rounded_up(needed_s):.3g} s of the same load would do"
    )
    return Refused("too_wide", f"{problem}; {advice}", needed_s)


def _rounded_up(seconds: float) -> float:
    """Return a length of two digits that is not less."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit - 1e-9) * unit


@dataclass(frozen=True)
class _WithPower:
    """A sensor's observations; a counter's with those of instant power, which help at the edges.

    ``crosscheck`` is integrated power over the counter; null without one of them.
    """

    seen: Observations
    parts: tuple[Sight, ...]
    crosscheck: float | None = None


def _with_power(of: Stream, sight: Sight, start_s: float, end_s: float) -> _WithPower:
    kind = next((name for name in POWERS if _is_instant(getattr(of.model, name))), None)
    mean_w = _mean_w(sight, start_s, end_s)
    if not sight.is_counter or kind is None or not mean_w:
        return _WithPower(sight.seen, (sight,))
    power_model: PowerModel = getattr(of.model, kind)
    ticks = power_ticks(of, kind, power_model, sight.ticks)
    if ticks is None:
        series = of.power(kind)
        inside = (series.t_s >= start_s) & (series.t_s <= end_s)
        ratio = float(series.watts[inside].mean()) / mean_w if inside.any() else None
        return _WithPower(sight.seen, (sight,), ratio)
    power = of_power(
        ticks, window_s=power_model.window_s, lag_s=power_model.lag_s, lag_error_s=power_model.lag_error_s, since_s=0.0
    )
    inside = (power.times_s - power_model.window_s >= start_s) & (power.times_s <= end_s)
    ratio = float(power.values[inside].mean()) / mean_w if inside.any() else None
    power_view = Sight(
        f"{kind} power",
        power,
        ticks,
        power_model.period_s,
        power_model.lag_s,
        power_model.window_s,
        power_model.seen_share,
    )
    return _WithPower(joined(sight.seen, power), (sight, power_view), ratio)


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
