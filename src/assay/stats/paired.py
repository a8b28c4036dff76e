"""Which of two things is faster, from interleaved pairs, decided as soon as it is sure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.anytime import interval_at
from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import winsorised
from assay.stats.shape import SMOOTHING, two_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats.anytime import Look

    Samples = NDArray[np.float64]

Verdict = Literal["faster", "slower", "same", "unsure"]
MINIMUM_EFFECT = 0.01
NEARLY_ALL = 0.975  # of the pairs, on each side


@dataclass(frozen=True)
class Comparison:
    """The second's time as a multiple of the first's, with an interval valid under peeking, and what it says.

    ``low`` and ``high`` are null where the pairs allow no interval; then ``reason`` says why.
    """

    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    reason: str | None = None


def log_ratios(first: Samples, second: Samples, block: int = 1) -> Samples:
    """Return the logarithm of second over first, pair by pair in time order, whole blocks of pairs only.

    Within a block the order of first and second is balanced, so that only a whole block is fair to both.
    """
    pairs = min(len(first), len(second)) // block * block
    return np.log(second[:pairs]) - np.log(first[:pairs])


def judge(low: float, high: float, minimum_effect: float = MINIMUM_EFFECT) -> Verdict:
    """Return what an interval of log-ratios says: a verdict needs all of it on one side of the minimum effect."""
    margin = math.log1p(minimum_effect)
    if low > margin:
        return "slower"
    if high < -margin:
        return "faster"
    return "same" if -margin < low and high < margin else "unsure"


def _smooth(samples: Samples) -> Samples:
    return np.asarray(np.median(sliding_window_view(samples, SMOOTHING), axis=1), dtype=np.float64)


def switches_alone(side: Samples, ratios: Samples) -> bool:
    """Return whether one side switches between two levels and the ratio with it, both as logarithms.

    A clock that both share moves both, and leaves the ratio where it is. Where one side switches by itself, the mean
    ratio says how long it happened to be on which level.
    """
    levels = two_levels(side)
    if levels is None:
        return False
    high, smooth = _smooth(side) > (levels.low + levels.high) / 2, _smooth(ratios)
    if high.all() or not high.any():
        return False
    return abs(float(np.median(smooth[high]) - np.median(smooth[~high]))) > (levels.high - levels.low) / 2


def compare_at(
    first: Samples,
    second: Samples,
    look: Look,
    *,
    minimum_effect: float = MINIMUM_EFFECT,
    confidence: float = CONFIDENCE,
    block: int = 1,
) -> Comparison:
    """Return whether the second is faster than the first, from the pairs up to a planned look.

    The mean log-ratio of pairs, outliers moved in to five robust standard deviations. With probability
    ``confidence`` no look calls a difference below the minimum effect different, nor one above it the same.
    """
    logs = log_ratios(first[: look.n], second[: look.n], block)
    ratio = math.exp(float(np.mean(winsorised(logs))))
    if two_levels(logs) is not None:
        return _between_levels(logs, ratio, minimum_effect, "the ratio switches between two levels")
    if any(switches_alone(np.log(side[: len(logs)]), logs) for side in (first, second)):
        return _between_levels(logs, ratio, minimum_effect, "one of the two switches between levels by itself")
    interval = interval_at(winsorised(logs), look, confidence, "mean")
    if interval is None:
        return Comparison("unsure", ratio, None, None, len(logs), "too few pairs")
    low, high = interval
    return Comparison(judge(low, high, minimum_effect), ratio, math.exp(low), math.exp(high), len(logs))


def _between_levels(logs: Samples, ratio: float, minimum_effect: float, reason: str) -> Comparison:
    """Return what pairs that switch between levels say: a verdict only where nearly all of them say the same.

    Then it holds on either level. Otherwise there is no interval for the ratio.
    """
    low, high = (float(quantile) for quantile in np.quantile(logs, [1 - NEARLY_ALL, NEARLY_ALL]))
    verdict = judge(low, high, minimum_effect)
    if verdict in {"faster", "slower"}:
        return Comparison(verdict, ratio, math.exp(low), math.exp(high), len(logs), f"{reason}; on either it holds")
    return Comparison("unsure", ratio, None, None, len(logs), reason)
