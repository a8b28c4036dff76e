"""Fit concave increasing curves to points, and allocate a total among several of them.

Each part of the total goes where it gains the most. For piecewise linear concave curves that is exact: the pieces are
taken in the order of their slopes, and at most one of them in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


PIECES = 4
"""Linear pieces between two neighbouring positions."""
STIFFNESS = 1e-3
"""Weight of unequal bends relative to distances from the points: just enough to choose among equally close curves."""


@dataclass(frozen=True)
class ConcaveCurve:
    """A piecewise linear, concave curve that never decreases; ``x`` is strictly increasing."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    @property
    def low(self) -> float:
        """Where it starts."""
        return self.x[0]

    @property
    def top(self) -> float:
        """The x from which on it no longer increases; its end where it increases up to there."""
        return self.x[int(np.argmax(np.asarray(self.y) >= self.y[-1] * (1 - 1e-12)))]

    def at(self, x: float) -> float:
        """Return the height at x; beyond the ends, that of the nearer one."""
        return float(np.interp(x, self.x, self.y))

    def reaches(self, y: float) -> float | None:
        """Return the smallest x with at least this height; null where it is never reached."""
        if y > self.y[-1] * (1 + 1e-12):
            return None
        index = int(np.argmax(np.asarray(self.y) >= min(y, self.y[-1])))
        if index == 0:
            return self.x[0]
        (x0, x1), (y0, y1) = self.x[index - 1 : index + 1], self.y[index - 1 : index + 1]
        return x0 + (x1 - x0) * (min(y, y1) - y0) / (y1 - y0)


def fit_concave(x: Samples, y: Samples) -> ConcaveCurve:
    """Return the non-decreasing concave curve nearest to the points (least squares), over their range.

    It is a level plus non-negative slopes that each end at a knot. There are further knots between two positions, and
    of all equally close curves the one with the most even bends is chosen: a chord would lie below a bent curve.
    """
    positions, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    heights = np.bincount(inverse, weights=y) / counts
    if len(positions) == 1:
        return ConcaveCurve((float(positions[0]),), (float(heights[0]),))
    knots = np.concatenate([np.linspace(a, b, PIECES + 1)[:-1] for a, b in pairwise(positions)] + [positions[-1:]])
    span, scale = float(positions[-1] - positions[0]), float(np.abs(heights).max()) or 1.0
    ends, level = (knots - positions[0]) / span, np.ones(len(knots))[:, None]
    basis = np.hstack([level, -level, np.minimum(ends[:, None], ends[None, 1:])])
    at = np.searchsorted(knots, positions)
    weight = np.sqrt(counts)[:, None]
    roughness = np.zeros((len(knots) - 3, basis.shape[1]))
    bends = 2 * STIFFNESS / (ends[2:] - ends[:-2])  # slope change at a knot, relative to the interval it represents
    for row in range(len(roughness)):
        roughness[row, row + 2], roughness[row, row + 3] = bends[row], -bends[row + 1]
    left = np.vstack([weight * basis[at], roughness])
    right = np.concatenate([weight[:, 0] * heights / scale, np.zeros(len(roughness))])
    coefficients, _ = optimize.nnls(left, right, maxiter=50 * len(knots))
    fitted = scale * (basis @ coefficients)
    return ConcaveCurve(tuple(map(float, knots)), tuple(map(float, fitted)))


def allocate_total(
    curves: Sequence[ConcaveCurve], total: float, lows: Sequence[float] | None = None
) -> list[float] | None:
    """Return how much of a total each curve gets so that the sum of heights is largest; null if it is too little.

    Each gets at least its start, or its ``lows``. What none can use is not allocated.
    """
    amounts = [max(curve.low, low) for curve, low in zip(curves, lows or [c.low for c in curves], strict=True)]
    left = total - sum(amounts)
    if left < -1e-9 * max(abs(total), 1.0):
        return None
    pieces = [
        ((y1 - y0) / (x1 - x0), index, max(x0, amounts[index]), x1)
        for index, curve in enumerate(curves)
        for x0, x1, y0, y1 in zip(curve.x, curve.x[1:], curve.y, curve.y[1:], strict=False)
        if x1 > amounts[index] and y1 - y0 > 1e-12 * abs(y1)
    ]
    for _, index, start, end in sorted(pieces, key=lambda piece: (-piece[0], piece[1], piece[2])):
        amount = min(end - start, max(left, 0.0))
        amounts[index] += amount
        left -= amount
        if left <= 0:
            break
    return amounts
