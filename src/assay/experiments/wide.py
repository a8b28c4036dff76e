"""When an interval is so wide that its ends are of no use to a reader."""

from __future__ import annotations

TELLS_NOTHING = 100.0
"""Ends that are further apart than this many times."""


def tells_nothing(low: float, high: float) -> bool:
    """Return whether the interval of a ratio leaves anything open."""
    return high > TELLS_NOTHING * low
