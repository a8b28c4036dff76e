"""How much two conditions differ, from blocks in which both were measured.

Conditions of one block share the hour and the state of the machine, so each block gives one ratio, and blocks are the
draws: Student's t on the logarithms of the ratios. What the same condition gives when it is measured twice in a block
(A/A) says which differences need no explanation. A difference is called one only where its interval excludes none
*and* it is larger than A/A differences over as many blocks come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Verdict = Literal["yes", "no", "unsure"]
MINIMUM_EFFECT = 0.01
MOST_FOR_NO = 0.1
"""Where A/A differences are larger than this, nobody knows enough to say that there is no difference."""


@dataclass(frozen=True)
class Ratio:
    """The typical ratio over blocks with its interval; ``low`` and ``high`` are null for a single block."""

    value: float
    low: float | None
    high: float | None
    blocks: int


def ratio_of(logs: Sequence[float], confidence: float = CONFIDENCE) -> Ratio | None:
    """Return the geometric mean of ratios given as logarithms, one a block, with Student's interval; null for none."""
    values = np.asarray(logs, dtype=np.float64)
    n = len(values)
    if n == 0:
        return None
    centre = float(values.mean())
    if n == 1:
        return Ratio(math.exp(centre), None, None, 1)
    half = quantile(confidence, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)


def by_chance(same: Sequence[float], blocks: int, confidence: float = CONFIDENCE) -> float | None:
    """Return how far from 1 the ratio of so many blocks comes out without a cause: 0.03 is 3 %. Null without A/A.

    ``same`` has the logarithms of A/A ratios. Their true mean is zero, as what is measured first is drawn by lot, so
    their mean square about zero is the variance, known with as many degrees of freedom as there are ratios.
    """
    values = np.asarray(same, dtype=np.float64)
    if not len(values) or blocks < 1:
        return None
    spread = math.sqrt(float(np.mean(values**2)))
    return math.expm1(quantile(confidence, len(values)) * spread / math.sqrt(blocks))


def judge(ratio: Ratio | None, floor: float | None, minimum_effect: float = MINIMUM_EFFECT) -> Verdict:
    """Return whether a ratio differs from 1 by more than the floor, and than the least effect that matters.

    Yes: its interval excludes 1 and it lies beyond the floor. No: all of its interval lies within, and within 10 %.
    Without an A/A floor nothing is sure.
    """
    if ratio is None or ratio.low is None or ratio.high is None or floor is None:
        return "unsure"
    low, middle, high = math.log(ratio.low), math.log(ratio.value), math.log(ratio.high)
    if low * high > 0 and abs(middle) > math.log1p(max(floor, minimum_effect)):
        return "yes"
    margin = math.log1p(max(minimum_effect, min(floor, MOST_FOR_NO)))
    return "no" if -margin <= low and high <= margin else "unsure"


def together(by_unit: Sequence[Sequence[float | None]]) -> list[float]:
    """Return the mean over units of each block's logarithm; a unit that a block lacks does not shift the block.

    ``by_unit`` has a row a unit and a column a block. Blocks that nobody was measured in are left out.
    """
    rows = np.array([[math.nan if v is None else v for v in row] for row in by_unit], dtype=np.float64)
    rows = rows[np.isfinite(rows).any(axis=1)] if rows.size else rows
    if not rows.size:
        return []
    centres = np.nanmean(rows, axis=1, keepdims=True)
    measured = np.isfinite(rows).any(axis=0)
    strays = np.nanmean((rows - centres)[:, measured], axis=0)
    return [float(centres.mean() + stray) for stray in strays]
