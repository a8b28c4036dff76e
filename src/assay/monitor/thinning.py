"""Lines for drawing out of any number of readings: lows and highs of equal stretches, in little memory."""

from __future__ import annotations

from typing import TypeAlias

MOST_STRETCHES = 600
"""Twice as many at most, two points each."""

Point: TypeAlias = tuple[float, float]


class Thinned:
    """A line that grows; when it has too many stretches, neighbours become one."""

    def __init__(self) -> None:
        self._stretches: list[tuple[Point, Point]] = []
        self._readings = 1
        self._open = 0

    def add(self, x: float, y: float) -> None:
        """Take a reading."""
        point = x, y
        if self._open == 0:
            self._stretches.append((point, point))
        else:
            self._stretches[-1] = _extremes(self._stretches[-1], (point, point))
        self._open = (self._open + 1) % self._readings
        if len(self._stretches) > 2 * MOST_STRETCHES and self._open == 0:
            self._halve()

    def _halve(self) -> None:
        pairs = zip(self._stretches[::2], self._stretches[1::2], strict=False)
        odd = self._stretches[-1:] if len(self._stretches) % 2 else []
        self._stretches = [_extremes(one, other) for one, other in pairs] + odd
        self._open = self._readings if odd else 0
        self._readings *= 2

    @property
    def points(self) -> list[Point]:
        """The lowest and the highest reading of each stretch, in their order."""
        return [point for low, high in self._stretches for point in sorted({low, high})]


def _extremes(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    low = one[0] if one[0][1] <= other[0][1] else other[0]
    high = one[1] if one[1][1] >= other[1][1] else other[1]
    return low, high
