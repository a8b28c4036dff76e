"""Where a curve is lowest: the step, and every other step that may as well be it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar
    from assay.stats.crossed import Crossed, Samples

WINDOW = 5
"""Steps that a curve is smoothed over: a parabola through each step and its neighbours."""
FEWEST = 4


@dataclass(frozen=True)
class Optimum:
    """The lowest step by its place, and the places of all that cannot be told from it, itself among them.

    ``told`` says that it is known to within one step, and another is surely worse; ``chance`` that the repeats tell
    how far chance goes.
    """

    place: int
    may_be: tuple[int, ...]
    told: bool
    chance: bool
    repeats: int


def lowest(found: Crossed, settings: Sequence[Scalar], *, smooth: bool, same: Sequence[int] = ()) -> Optimum | None:
    """Return where a quantity is lowest; null where it was never told. Settings that are words have no neighbours.

    Of the steps that cannot be told from the lowest the one is taken at which the smoothed curve is lowest, where
    the curve is a smooth one. Steps of ``same`` are the same thing under several names, so that it does not matter
    which of them it is.
    """
    measured = found.measured
    if not measured:
        return None
    may_be = found.may_be_lowest()
    levels = smoothed(found.effects, settings, measured) if smooth else found.effects
    best = min(may_be, key=lambda row: float(levels[row]))
    ranks = {row: rank for rank, row in enumerate(measured)}
    first = min((ranks[row] for row in same if row in ranks), default=None)
    steps = {row: first if first is not None and row in same else ranks[row] for row in measured}
    reach = 0 if isinstance(settings[best], str) else 1
    near = all(abs(steps[row] - steps[best]) <= reach for row in may_be)
    chance = found.freedom > 0
    repeats = int(np.isfinite(found.table[measured]).any(axis=0).sum())
    worse = any(row not in may_be and steps[row] != steps[best] for row in measured)
    clear = near and worse and chance
    return Optimum(best, tuple(may_be), clear, chance, repeats)


def smoothed(levels: Samples, settings: Sequence[Scalar], there: Sequence[int]) -> Samples:
    """Return the levels of a smooth curve, each read off a parabola through its neighbourhood."""
    result = levels.copy()
    if len(there) < FEWEST:
        return result
    x = np.array([float(str(settings[row])) for row in there])
    width = min(WINDOW, len(there))
    for rank, row in enumerate(there):
        start = min(max(0, rank - width // 2), len(there) - width)
        near = np.arange(start, start + width)
        scale = float(np.ptp(x[near])) or 1.0
        fit = np.polynomial.polynomial.polyfit((x[near] - x[rank]) / scale, levels[np.array(there)[near]], 2)
        result[row] = float(fit[0])
    return result
