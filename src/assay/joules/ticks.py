"""Find when a counter or a sensor was updated, from readings that only bound each update between two moments.

reading  ├──old──┤  ├──old──┤   ├──new──┤             each takes a while (3 to 20 ms for the counter of an H200)
                    └─────── tick ──────┘             so a tick is only known to lie between two moments
ticks         ╎         ╎         ╎         ╎         but ticks are evenly spaced, which locates them all
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MIN_TICKS = 3
"""Minimum number of ticks to fit a spacing."""
PERIOD_TOLERANCE = 0.02
"""How far the spacing of ticks may be from the known one, as a share."""
MAX_JITTER_SHARE = 0.15
"""Ticks that deviate by more than this share of their spacing are not evenly spaced."""
MAX_READ_SHARE = 0.5
"""If readings take longer than this share of the spacing, ticks cannot be told apart."""
CANDIDATE_PERIODS = 81
"""Number of spacings tried, first in the whole range and then in the feasible one."""
_SQRT_3 = float(np.sqrt(3.0))


@dataclass(frozen=True)
class SensorTicks:
    """The times at which a sensor changed, and what it showed from then on.

    Attributes:
        times_s: The times, on the clock of the readings.
        values: What was shown from then on.
        spread_s: Independent error of each time, as a standard deviation.
        shift_s: Common error of all times.
        stretch: Error of their spacing, as a share.
        period_s: From one to the next; null where they are not evenly spaced, or too few.
        fell_s: Times at which the value decreased, which a counter's should not.
    """

    times_s: Array
    values: Array
    spread_s: Array
    shift_s: float = 0.0
    stretch: float = 0.0
    period_s: float | None = None
    fell_s: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.times_s)


@dataclass(frozen=True)
class _EvenTicks:
    """Evenly spaced ticks: their times, how far all may shift together, and how far each deviates by itself.

    ``shift_s`` and ``stretch`` are standard deviations over all solutions that the readings allow.
    """

    times_s: Array
    period_s: float
    shift_s: float
    stretch: float
    jitter_s: float


def find_ticks(begin_s: Array, end_s: Array, values: Array, period_s: float | None = None) -> SensorTicks:
    """Return the ticks that readings show; each was queried at ``begin_s`` and answered at ``end_s``.

    With a spacing known beforehand, fewer readings locate them well.
    """
    moved = np.flatnonzero(np.diff(values) != 0) + 1
    fell = tuple(float(t) for t in end_s[moved[np.diff(values)[moved - 1] < 0]])
    low, high, shown = begin_s[moved - 1], end_s[moved], values[moved]
    spacing = period_s if period_s is not None else _guess_period(low, high)
    if spacing is not None:
        low = np.maximum(low, np.minimum(begin_s[moved] - spacing * (1 + PERIOD_TOLERANCE), high))
        even = _fit_even_ticks(low, high, spacing, is_known=period_s is not None)
        if even is not None:
            spread = np.full(len(shown), even.jitter_s)
            return SensorTicks(even.times_s, shown, spread, even.shift_s, even.stretch, even.period_s, fell)
    return SensorTicks((low + high) / 2, shown, (high - low) / 2 / _SQRT_3, fell_s=fell)


def _guess_period(low: Array, high: Array) -> float | None:
    """Return the approximate spacing of ticks; some may have been missed, so not the median of all distances."""
    if len(low) < MIN_TICKS:
        return None
    return float(np.quantile(np.diff((low + high) / 2), 0.25)) or None


def _fit_even_ticks(low: Array, high: Array, spacing_s: float, *, is_known: bool) -> _EvenTicks | None:
    """Locate evenly spaced ticks within their bounds; null where that is impossible.

    All spacings and positions within the bounds form a convex area, and its centroid is taken: over the whole area,
    its error is smallest. The spacing with most room around it is a corner of the area and may be far from most of it.
    """
    if (
        not len(low)
        or (len(low) < MIN_TICKS and not is_known)
        or float(np.median(high - low)) > MAX_READ_SHARE * spacing_s
    ):
        return None
    middle = (low + high) / 2
    numbers = _number_ticks(middle, spacing_s)
    around = numbers - numbers.mean()
    periods = _candidate_periods(middle, around, high - low, spacing_s, is_known=is_known)
    slack = _FeasibleSpacings.by(low, high, around, periods).slack_s
    allowed = _FeasibleSpacings.by(low, high, around, _refine_periods(periods, slack))
    jitter = max(0.0, -float(allowed.slack_s.max()) / 2)
    period, position, shift, spread = allowed.middle()
    if jitter > MAX_JITTER_SHARE * period:
        return None
    times = np.clip(position + period * around, low, high)
    return _EvenTicks(np.asarray(times, dtype=np.float64), period, shift, spread / period, jitter)


@dataclass(frozen=True)
class _FeasibleSpacings:
    """For each spacing: the range of times of the middle of all ticks; reversed where there is none."""

    periods_s: Array
    after_s: Array
    before_s: Array

    @classmethod
    def by(cls, low: Array, high: Array, around: Array, periods: Array) -> _FeasibleSpacings:
        """Return the range that bounds allow for ticks with these numbers, counted from their mean."""
        at = periods[:, None] * around[None, :]
        return cls(periods, (low[None, :] - at).max(axis=1), (high[None, :] - at).min(axis=1))

    @property
    def slack_s(self) -> Array:
        """How far the middle may move; negative where it is infeasible."""
        return self.before_s - self.after_s

    def middle(self) -> tuple[float, float, float, float]:
        """Return spacing and position at the centroid, and the standard deviations of position and spacing, all in s.

        Where nothing is feasible, the least infeasible solution.
        """
        slack, positions = self.slack_s, (self.after_s + self.before_s) / 2
        best = int(np.argmax(slack))
        if slack[best] <= 0:
            return float(self.periods_s[best]), float(positions[best]), 0.0, 0.0
        weights = np.maximum(slack, 0.0) / float(np.maximum(slack, 0.0).sum())
        period, position = float(weights @ self.periods_s), float(weights @ positions)
        shift = float(np.sqrt(weights @ ((positions - position) ** 2 + slack**2 / 12)))
        return period, position, shift, float(np.sqrt(weights @ (self.periods_s - period) ** 2))


def _refine_periods(periods: Array, slack_s: Array) -> Array:
    """Return as many spacings over the feasible ones, and one beyond on each side."""
    allowed = np.flatnonzero(slack_s >= min(0.0, float(slack_s.max())))
    first, last = max(0, int(allowed[0]) - 1), min(len(periods) - 1, int(allowed[-1]) + 1)
    return np.linspace(periods[first], periods[last], len(periods))


def _number_ticks(middle: Array, spacing_s: float) -> Array:
    """Return the number of each tick, from 0; numbers are skipped where ticks were missed."""
    numbers = np.zeros(len(middle))
    for _ in range(2):
        steps = np.maximum(1.0, np.rint(np.diff(middle) / spacing_s))
        numbers = np.concatenate([[0.0], np.cumsum(steps)])
        if len(middle) >= MIN_TICKS:
            spacing_s = float(np.polyfit(numbers, middle, 1)[0])
    return numbers


def _candidate_periods(middle: Array, around: Array, widths: Array, spacing_s: float, *, is_known: bool) -> Array:
    """Return spacings to try: near the known one, or near that of a straight line through the midpoints."""
    if is_known and len(middle) < MIN_TICKS:
        return np.array([spacing_s])
    straight = float(np.polyfit(around, middle, 1)[0])
    reach = 4 * float(np.sqrt(np.mean(widths**2) / 12 / (around @ around)))
    ends = np.array([straight - reach, straight + reach])
    if is_known:
        ends = np.clip(ends, spacing_s * (1 - PERIOD_TOLERANCE), spacing_s * (1 + PERIOD_TOLERANCE))
    return np.linspace(ends[0], ends[1], CANDIDATE_PERIODS)


def find_held_ticks(t_s: Array, values: Array, period_s: float, anchor_s: float | None = None) -> SensorTicks | None:
    """Return every tick of a sensor that holds a value until its next tick, even where the value stayed the same.

    Where too few changed to locate the ticks, ``anchor_s`` is a time known to be at a tick; null without it.
    """
    moved = find_ticks(t_s, t_s, values, period_s)
    if moved.period_s is None and anchor_s is None:
        return None
    spacing = moved.period_s or period_s
    anchor = float(moved.times_s[0]) if moved.period_s is not None else float(anchor_s or 0.0)
    first, last = int(np.ceil((t_s[0] - anchor) / spacing)), int((t_s[-1] - anchor) // spacing)
    grid = anchor + spacing * np.arange(first, last + 1, dtype=np.float64)
    middle = grid + spacing / 2
    after = np.clip(np.searchsorted(t_s, middle), 1, len(t_s) - 1)
    nearest = after - (middle - t_s[after - 1] < t_s[after] - middle)
    was_read = (t_s[nearest] >= grid) & (t_s[nearest] < grid + spacing)
    spread = np.full(int(was_read.sum()), float(moved.spread_s[0]) if moved.period_s is not None else 0.0)
    return SensorTicks(grid[was_read], values[nearest[was_read]], spread, moved.shift_s, moved.stretch, spacing)
