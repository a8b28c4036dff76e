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
from assay.stats.order import median, quantiles
from assay.stats.shape import SMOOTHING, two_levels
from assay.stats.wander import range_of_means, wanders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats.anytime import Look

    Samples = NDArray[np.float64]

Verdict = Literal["faster", "slower", "same", "unsure"]
Caveat = Literal["too few pairs", "too early", "ratio switches", "one side switches", "ratio wanders"]
MINIMUM_EFFECT = 0.01
NEARLY_ALL = 0.975  # of the pairs, on each side
WALKED = 1.25  # times the range of a ratio's means over eighths of the window
EARLY_EFFECT = 0.25
"""A difference that is called before the last look is at least this large: what one side alone does slowly, a clock
that dwells or a wave, looks the same as a smaller one until it has come and gone a few times."""


@dataclass(frozen=True)
class Comparison:
    """The second's time as a multiple of the first's, with an interval valid under peeking, and what it says.

    ``low`` and ``high`` are null where the pairs allow no interval; then ``reason`` says why. ``caveat`` is the kind of
    reason; null where the ratio stayed where it is.
    """

    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    reason: str | None = None
    caveat: Caveat | None = None


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
    return abs(median(smooth[high]) - median(smooth[~high])) > (levels.high - levels.low) / 2


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
    ``confidence`` no look calls a difference below the minimum effect different, nor one above it the same. A ratio
    that wanders is known no better than it moved. Before the last look only a large difference is called.
    """
    logs = log_ratios(first[: look.n], second[: look.n], block)
    tame = winsorised(logs)
    centre = float(np.mean(tame))
    ratio = math.exp(centre)
    needed = (1 + minimum_effect) * (1 + EARLY_EFFECT) - 1 if look.early else minimum_effect
    if look.early and abs(centre) <= math.log1p(needed):
        return Comparison("unsure", ratio, None, None, len(logs), "more pairs are planned", "too early")
    if two_levels(logs) is not None:
        return _between_levels(logs, ratio, needed, "the ratio switches between two levels", "ratio switches")
    if any(switches_alone(np.log(side[: len(logs)]), logs) for side in (first, second)):
        why = "one of the two switches between levels by itself"
        return _between_levels(logs, ratio, needed, why, "one side switches")
    interval = interval_at(tame, look, confidence, "mean")
    if interval is None:
        return Comparison("unsure", ratio, None, None, len(logs), "too few pairs", "too few pairs")
    low, high = interval
    reason: str | None = None
    caveat: Caveat | None = None
    if wanders(logs):
        low, high = min(low, centre - _moved(tame)), max(high, centre + _moved(tame))
        reason, caveat = "the ratio wanders: it is known no better than it moved", "ratio wanders"
    return Comparison(judge(low, high, needed), ratio, math.exp(low), math.exp(high), len(logs), reason, caveat)


def _moved(logs: Samples) -> float:
    """Return how far a ratio that moves may have moved on the whole.

    Of two equal things that each walk at random from where they were, the mean of the logarithms lies farther from 0
    than this in 0.7 %.
    """
    return WALKED * range_of_means(logs)


def _between_levels(logs: Samples, ratio: float, minimum_effect: float, reason: str, caveat: Caveat) -> Comparison:
    """Return what pairs that switch between levels say: a verdict only where nearly all of them say the same.

    Then it holds on either level, if they do not just follow one another. Otherwise there is no interval for the ratio.
    """
    low, high = quantiles(logs, (1 - NEARLY_ALL, NEARLY_ALL))
    centre, moved = math.log(ratio), _moved(logs)
    low, high = min(low, centre - moved), max(high, centre + moved)
    verdict = judge(low, high, minimum_effect)
    if verdict in {"faster", "slower"}:
        holds = f"{reason}; on either it holds"
        return Comparison(verdict, ratio, math.exp(low), math.exp(high), len(logs), holds, caveat)
    return Comparison("unsure", ratio, None, None, len(logs), reason, caveat)
