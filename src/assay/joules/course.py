"""What a device did: calls back to back, and rests in between, as knots on the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Knot:
    """A moment between two calls: how many had ended by then."""

    t_ns: int
    calls: int


@dataclass(frozen=True)
class Course:
    """Moments between calls in order; where the number of calls stands still, the device rested.

    Attributes:
        times_s: The moments, on the clock that the readings are on.
        calls: How many calls had ended by then.
    """

    times_s: Array
    calls: Array

    @property
    def is_empty(self) -> bool:
        """Whether no call has ended."""
        return len(self.times_s) < 2 or self.calls[-1] == self.calls[0]

    def progress(self, at_s: Array) -> Array:
        """Return how many calls had ended at moments, the one under way as a share."""
        return np.asarray(np.interp(at_s, self.times_s, self.calls), dtype=np.float64)

    def rested_s(self, at_s: Array) -> Array:
        """Return for how long the device had rested by then; before the first knot and after the last it rests."""
        resting = np.where(np.diff(self.calls) == 0, np.diff(self.times_s), 0.0)
        first, last = self.times_s[0], self.times_s[-1]
        inside = np.interp(at_s, self.times_s, np.concatenate([[0.0], np.cumsum(resting)]))
        return np.asarray(inside + np.minimum(at_s - first, 0.0) + np.maximum(at_s - last, 0.0), dtype=np.float64)

    def is_busy(self, at_s: Array) -> NDArray[np.bool_]:
        """Return whether a call was under way."""
        index = np.searchsorted(self.times_s, at_s, side="right")
        inside = (index > 0) & (index < len(self.times_s))
        at = np.clip(index, 1, len(self.times_s) - 1)
        return np.asarray(inside & (self.calls[at] > self.calls[at - 1]))

    def busy_s(self, from_s: float, until_s: float) -> float:
        """Return for how long calls were under way between two moments."""
        rested = self.rested_s(np.array([from_s, until_s]))
        return float(until_s - from_s - (rested[1] - rested[0]))

    def first_at_or_after(self, t_s: float) -> float | None:
        """Return the first knot at or after a moment; null where there is none."""
        index = int(np.searchsorted(self.times_s, t_s))
        return float(self.times_s[index]) if index < len(self.times_s) else None


def course_of(knots: list[Knot], origin_ns: int) -> Course:
    """Return knots as a course, in seconds since a moment."""
    times = np.array([(knot.t_ns - origin_ns) / 1e9 for knot in knots], dtype=np.float64)
    return Course(times, np.array([knot.calls for knot in knots], dtype=np.float64))
