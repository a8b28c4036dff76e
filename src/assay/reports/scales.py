"""Axis limits, thinning, bins and colour scales of figures. Pure functions on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import StripRow

Floats: TypeAlias = NDArray[np.float64]

_REACH = 1.0
"""Samples further from the middle 98 % than this many times its width lie beyond the axis."""

_LOG_RATIO = 30.0
"""Strips whose medians, or interval ends, differ by this factor share a logarithmic axis."""

_INTERVAL_REACH = 1.5
"""Interval ends further from the samples than this many times their width lie beyond the axis."""

FULL_COLOUR = 2.0
"""Ratios from this one on, up or down, get the full colour; the number beside it gives the amount."""
_MIN_FULL_COLOUR = 1.1
"""If no ratio is larger than this, this one gets the full colour: a difference of a percent stays pale."""


@dataclass(frozen=True)
class Axis:
    """The limits of an axis and whether it is logarithmic."""

    low: float
    high: float
    log: bool = False

    def position(self, values: Floats) -> Floats:
        """Return the positions of values between the limits: 0 is the low one, 1 the high one."""
        low, high = (np.log10([self.low, self.high])) if self.log else (self.low, self.high)
        placed = np.log10(values) if self.log else values
        return np.asarray((placed - low) / (high - low), dtype=np.float64)

    def at(self, position: float) -> float:
        """Return the value at a position between the limits."""
        if self.log:
            return float(self.low * (self.high / self.low) ** position)
        return self.low + (self.high - self.low) * position


def finite(values: Sequence[float | None]) -> Floats:
    """Return the finite numbers."""
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return array[np.isfinite(array)]


def thin_samples(values: Floats, most: int) -> Floats:
    """Return at most ``most`` values in ascending order, evenly spaced in rank; both extremes stay."""
    ordered = np.sort(values)
    if len(ordered) <= most:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, most).round().astype(np.intp)]


def strip_axis(strips: Sequence[StripRow], centre: float | None = None) -> Axis:
    """Return an axis on which all strips are readable: outliers and wide intervals do not compress the rest."""
    samples = [array for array in (finite(strip.samples) for strip in strips) if len(array)]
    marks = finite([*(strip.value for strip in strips), centre])
    ends = finite([end for strip in strips for end in (strip.low, strip.high)])
    everything = np.concatenate([*samples, marks])
    if not len(everything):
        return Axis(0.0, 1.0)
    log = _spread_over_decades(samples, ends, everything)
    scaled = [np.log10(array) if log else array for array in (*samples, marks, ends, everything)]
    limits = _limits(scaled[:-3], scaled[-3], scaled[-1])
    low, high = _with_ends(limits, scaled[-2], log=log)
    pad = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    if log:
        return Axis(10 ** (low - pad), 10 ** (high + pad), log=True)
    return Axis(0.0 if low - pad < 0 < everything.min() else low - pad, high + pad)


@dataclass(frozen=True)
class ShadeScale:
    """How strongly numbers are coloured: not at all at the centre, fully at the limits and beyond."""

    low: float
    centre: float
    high: float
    log: bool

    def strength(self, value: float) -> float:
        """Return the colour strength of a number, from -1 (full, below) to 1 (full, above)."""
        if not np.isfinite(value):
            return float("nan")
        if self.log:
            return float(np.clip(np.log(value / self.centre) / np.log(self.high / self.centre), -1.0, 1.0))
        return float(np.clip((value - self.centre) / (self.high - self.centre), -1.0, 1.0))


def shade_scale(values: Floats, centre: float, *, ratios: bool) -> ShadeScale:
    """Return the colour scale around a centre; of ratios, twice as much and half as much are equally strong.

    A single huge ratio does not take the colour from the others, nor does a tiny one get full colour.
    """
    finite_values = finite(list(values.ravel()))
    if ratios and centre > 0 and (not len(finite_values) or finite_values.min() > 0):
        largest = float(np.exp(np.abs(np.log(finite_values / centre)).max())) if len(finite_values) else 1.0
        full = min(max(largest, _MIN_FULL_COLOUR), FULL_COLOUR)
        return ShadeScale(centre / full, centre, centre * full, log=True)
    reach = (float(np.abs(finite_values - centre).max()) if len(finite_values) else 0.0) or abs(centre) * 0.1 or 1.0
    return ShadeScale(centre - reach, centre, centre + reach, log=False)


def bin_counts(values: Floats, axis: Axis, bins: int) -> NDArray[np.intp]:
    """Count values in equal bins along an axis; values beyond it count in the outermost bins."""
    positions = np.clip(axis.position(values), 0.0, 1.0)
    counts: NDArray[np.intp] = np.histogram(positions, bins=bins, range=(0.0, 1.0))[0]
    return counts


def decimate(x: Floats, y: Floats, most: int) -> NDArray[np.intp]:
    """Return the indices of the points of a long line to draw: the ends, lows and highs of equal segments."""
    if len(x) <= most:
        return np.arange(len(x))
    indices: set[int] = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), max(1, most // 3)):
        finite_part = part[np.isfinite(y[part])]
        indices.add(int(part[0]))
        if len(finite_part):
            indices |= {int(finite_part[np.argmin(y[finite_part])]), int(finite_part[np.argmax(y[finite_part])])}
    return np.array(sorted(indices), dtype=np.intp)


def _spread_over_decades(samples: Sequence[Floats], ends: Floats, everything: Floats) -> bool:
    if float(everything.min()) <= 0 or (len(ends) and float(ends.min()) <= 0):
        return False
    if len(ends) and float(ends.max()) / float(ends.min()) >= _LOG_RATIO:
        return True
    middles = [float(np.median(array)) for array in samples]
    return len(samples) > 1 and max(middles) / min(middles) >= _LOG_RATIO


def _with_ends(limits: tuple[float, float], ends: Floats, *, log: bool) -> tuple[float, float]:
    """Return limits that include the interval ends, as far as these leave room for the rest."""
    low, high = limits
    if not len(ends):
        return limits
    width = (high - low) or (np.log10(2.0) if log else abs(low) / 2) or 1.0
    reach = _INTERVAL_REACH * width
    return max(low - reach, min(low, float(ends.min()))), min(high + reach, max(high, float(ends.max())))


def _limits(samples: Sequence[Floats], marks: Floats, everything: Floats) -> tuple[float, float]:
    whole = float(everything.min()), float(everything.max())
    if not samples:
        return whole
    lows, highs = zip(*(np.quantile(array, [0.01, 0.99]) for array in samples), strict=True)
    core_low, core_high = float(min([*lows, *marks])), float(max([*highs, *marks]))
    reach = (core_high - core_low) * _REACH
    if reach == 0:
        return whole
    near = everything[(everything >= core_low - reach) & (everything <= core_high + reach)]
    return float(near.min()), float(near.max())
