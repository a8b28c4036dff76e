"""What part of the numbers is drawn, and where: limits of an axis, thinning, bins. Pure functions on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Strip

Floats: TypeAlias = NDArray[np.float64]

_REACH = 1.0
"""Samples further from the middle 98 % than this many times its width lie beyond the axis."""

_LOG_RATIO = 30.0
"""Strips whose middles are this far apart share a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    """The limits of an axis and whether it is logarithmic."""

    low: float
    high: float
    log: bool = False

    def position(self, values: Floats) -> Floats:
        """Return where values lie between the limits: 0 is the low one, 1 the high one."""
        low, high = (np.log10([self.low, self.high])) if self.log else (self.low, self.high)
        placed = np.log10(values) if self.log else values
        return np.asarray((placed - low) / (high - low), dtype=np.float64)


def finite(values: Sequence[float | None]) -> Floats:
    """Return the numbers that can be drawn."""
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return array[np.isfinite(array)]


def thin(values: Floats, most: int) -> Floats:
    """Return at most so many values in ascending order, evenly spread over the ranks; both extremes stay."""
    ordered = np.sort(values)
    if len(ordered) <= most:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, most).round().astype(np.intp)]


def strip_axis(strips: Sequence[Strip]) -> Axis:
    """Return an axis on which all strips can be read: strays do not squeeze the rest together."""
    samples = [array for array in (finite(strip.samples) for strip in strips) if len(array)]
    marks = finite([mark for strip in strips for mark in (strip.value, strip.low, strip.high)])
    everything = np.concatenate([*samples, marks])
    if not len(everything):
        return Axis(0.0, 1.0)
    log = _spread_over_decades(samples, everything)
    scaled = [np.log10(array) if log else array for array in (*samples, marks, everything)]
    low, high = _padded(*_limits(scaled[:-2], scaled[-2], scaled[-1]))
    return Axis(10**low, 10**high, log=True) if log else Axis(low, high)


def density(values: Floats, axis: Axis, bins: int) -> NDArray[np.intp]:
    """Count values in equal bins along an axis; values beyond it count in the outermost bins."""
    places = np.clip(axis.position(values), 0.0, 1.0)
    counts: NDArray[np.intp] = np.histogram(places, bins=bins, range=(0.0, 1.0))[0]
    return counts


def decimate(x: Floats, y: Floats, most: int) -> NDArray[np.intp]:
    """Return which points of a long line to draw: the ends, lows and highs of equal stretches."""
    if len(x) <= most:
        return np.arange(len(x))
    kept: set[int] = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), max(1, most // 3)):
        known = part[np.isfinite(y[part])]
        kept.add(int(part[0]))
        if len(known):
            kept |= {int(known[np.argmin(y[known])]), int(known[np.argmax(y[known])])}
    return np.array(sorted(kept), dtype=np.intp)


def _spread_over_decades(samples: Sequence[Floats], everything: Floats) -> bool:
    if len(samples) < 2 or float(everything.min()) <= 0:
        return False
    middles = [float(np.median(array)) for array in samples]
    return max(middles) / min(middles) >= _LOG_RATIO


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


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    return low - pad, high + pad
