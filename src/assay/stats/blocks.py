"""Ratios of two conditions over blocks or restarts: whether they differ, and whether one is worse by more than a limit.

Blocks share the hour and the state of the machine among their conditions, so each block gives one ratio, and blocks are
the draws: Student's t on the logarithms of the ratios. Measuring the same condition twice in a block (A/A) shows which
differences are noise. A difference is reported only where its interval excludes zero *and* it is larger than A/A
differences over as many blocks.

A gate looks after ``first`` restarts and then whenever there are 1.4 times as many; every look spends the same
`LOOK_ERROR` at each end of its interval. Over all looks together:

    "worse" although it is worse by the limit or less       at most 2.5 %
    "not worse" although it is worse by the limit or more   at most 2.5 %

as simulated with Gaussian restarts and looks from 3, 4, 5 … restarts to 60 (0.41 %, 0.46 %, 0.48 % would suffice);
heavy-tailed restarts make both rarer. Between the limit and either answer the gate continues, and may stay unsure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

DifferenceVerdict = Literal["yes", "no", "unsure"]
MINIMUM_EFFECT = 0.01
MAX_FLOOR_FOR_NO = 0.1
"""Where A/A differences are larger than this, too little is known to conclude that there is no difference."""


@dataclass(frozen=True)
class BlockRatio:
    """The typical ratio over blocks with its interval; ``low`` and ``high`` are null for a single block."""

    value: float
    low: float | None
    high: float | None
    blocks: int


def ratio_over_blocks(logs: Sequence[float], confidence: float = CONFIDENCE) -> BlockRatio | None:
    """Return the geometric mean of per-block ratios given as logarithms, with Student's interval; null for none."""
    values = np.asarray(logs, dtype=np.float64)
    n = len(values)
    if n == 0:
        return None
    centre = float(values.mean())
    if n == 1:
        return BlockRatio(math.exp(centre), None, None, 1)
    half = t_quantile(confidence, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return BlockRatio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)


def aa_noise_floor(same: Sequence[float], blocks: int, confidence: float = CONFIDENCE) -> float | None:
    """Return how far from 1 the ratio of ``blocks`` blocks comes out by chance: 0.03 is 3 %. Null without A/A.

    ``same`` has the logarithms of A/A ratios. Their true mean is zero, as the order of measurement is random, so their
    mean square about zero is the variance, with as many degrees of freedom as there are ratios.
    """
    values = np.asarray(same, dtype=np.float64)
    if not len(values) or blocks < 1:
        return None
    spread = math.sqrt(float(np.mean(values**2)))
    return math.expm1(t_quantile(confidence, len(values)) * spread / math.sqrt(blocks))


def decide_difference(
    ratio: BlockRatio | None, floor: float | None, minimum_effect: float = MINIMUM_EFFECT
) -> DifferenceVerdict:
    """Return whether a ratio differs from 1 by more than the noise floor and the minimum effect.

    Yes: its interval excludes 1 and it lies beyond the floor. No: its whole interval lies within both, and within 10 %.
    Without an A/A floor the answer is always unsure.
    """
    if ratio is None or ratio.low is None or ratio.high is None or floor is None:
        return "unsure"
    low, middle, high = math.log(ratio.low), math.log(ratio.value), math.log(ratio.high)
    if low * high > 0 and abs(middle) > math.log1p(max(floor, minimum_effect)):
        return "yes"
    margin = math.log1p(max(minimum_effect, min(floor, MAX_FLOOR_FOR_NO)))
    return "no" if -margin <= low and high <= margin else "unsure"


def average_units(by_unit: Sequence[Sequence[float | None]]) -> list[float]:
    """Return the mean over units of each block's logarithm; a unit missing from a block does not shift the block.

    ``by_unit`` has a row per unit and a column per block. Blocks without any measurement are left out.
    """
    rows = np.array([[math.nan if v is None else v for v in row] for row in by_unit], dtype=np.float64)
    rows = rows[np.isfinite(rows).any(axis=1)] if rows.size else rows
    if not rows.size:
        return []
    centres = np.nanmean(rows, axis=1, keepdims=True)
    measured = np.isfinite(rows).any(axis=0)
    deviations = np.nanmean((rows - centres)[:, measured], axis=0)
    return [float(centres.mean() + deviation) for deviation in deviations]


LimitVerdict = Literal["worse", "not worse", "unsure"]

LOOK_ERROR = 0.004
"""Error probability of one end of the interval at one look."""
TOTAL_ERROR = 0.025
"""Error probability of one answer over all looks."""
LOOK_GROWTH = 1.4
MIN_RESTARTS, MAX_RESTARTS = 3, 60
"""Minimum number of restarts at the first look, and maximum at the last."""


@dataclass(frozen=True)
class LimitDecision:
    """The slowdown as a ratio above 1 where it is worse, and the verdict about the limit."""

    verdict: LimitVerdict
    ratio: BlockRatio | None


def plan_gate_looks(first: int, most: int = MAX_RESTARTS) -> list[int]:
    """Return the numbers of restarts after which there is a look."""
    planned = [first]
    while (next_count := max(planned[-1] + 1, math.ceil(LOOK_GROWTH * planned[-1]))) <= most:
        planned.append(next_count)
    return planned


def decide_limit(logs: Sequence[float], limit: float, questions: int = 1) -> LimitDecision:
    """Return whether it is worse by more than a limit (0.02 is 2 %), from the logarithms of all restarts so far.

    Where several questions are asked at once, each gets a part of the error, so that any wrong "worse" is as rare as
    for a single one.
    """
    ratio = ratio_over_blocks(logs, 1 - 2 * LOOK_ERROR / questions)
    if ratio is None or ratio.low is None or ratio.high is None:
        return LimitDecision("unsure", ratio)
    if ratio.low > 1 + limit:
        return LimitDecision("worse", ratio)
    return LimitDecision("not worse" if ratio.high < 1 + limit else "unsure", ratio)


def estimate_restarts_needed(logs: Sequence[float], limit: float, questions: int = 1) -> int | None:
    """Return about how many restarts would decide it if the trend continues; null if over the maximum."""
    n = len(logs)
    if n < 2:
        return None
    centre = sum(logs) / n
    spread = math.sqrt(sum((log - centre) ** 2 for log in logs) / (n - 1))
    distance = abs(centre - math.log1p(limit))
    for count in range(max(n + 1, MIN_RESTARTS), MAX_RESTARTS + 1):
        if t_quantile(1 - 2 * LOOK_ERROR / questions, count - 1) * spread < distance * math.sqrt(count):
            return count
    return None
