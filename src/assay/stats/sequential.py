"""Intervals and paired comparisons that stay valid at every interim look, so that measuring may stop early.

Looks are planned before the first sample, at sizes that grow geometrically, and stopping is allowed at looks only.
The interval at a look is the fixed-size one, stretched by the same factor at every look: the allowed error is divided
among the looks accordingly. The shares add up to the total (Bonferroni), so all looks hold jointly however they depend
on each other; some of the error is reserved because the stretched width is itself an estimate.

How far the average of fewer than a hundred samples deviates is itself largely chance. Looks at so few have their own
part of the error, which stretches them further, and are never narrower than if the samples were independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from assay.stats.intervals import CONFIDENCE, mean_interval, order_interval
from assay.stats.numerics import cosine_count, median, quantiles, student_cdf, t_quantile, winsorize
from assay.stats.shape import SMOOTHING, find_two_levels, is_unsettled, range_of_means, range_of_medians, wanders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Estimand = Literal["median", "mean"]
RESERVED_ERROR = 0.4  # share of the allowed error
SMALL_LOOK = 100  # samples
SMALL_LOOK_SHARE = 0.3  # of the error that is not reserved, for all small looks together where there are larger ones
BISECTIONS = 50  # of the search range of the stretch factor: to the last digit


@dataclass(frozen=True)
class InterimLook:
    """A planned look: after how many samples, and which share of the allowed error it may spend.

    ``early`` where more samples are planned after it.
    """

    n: int
    share: float
    early: bool = False


def plan_looks(first: int = 100, last: int = 4000, growth: float = 1.4) -> tuple[InterimLook, ...]:
    """Return the looks from ``first`` to ``last`` samples, each ``growth`` times the one before."""
    steps = math.ceil(math.log(last / first) / math.log(growth) - 1e-9)
    sizes = sorted({min(last, math.ceil(first * growth**step)) for step in range(steps + 1)})
    small, large = [n for n in sizes if n < SMALL_LOOK], [n for n in sizes if n >= SMALL_LOOK]
    if not (small and large):
        plan = _equally_stretched(sizes, 1.0)
    else:
        plan = _equally_stretched(small, SMALL_LOOK_SHARE) + _equally_stretched(large, 1 - SMALL_LOOK_SHARE)
    return (*(replace(look, early=True) for look in plan[:-1]), plan[-1])


def _equally_stretched(sizes: list[int], part: float) -> tuple[InterimLook, ...]:
    """Return looks that share a part of the error such that all stretch the fixed-size interval by the same factor."""
    reach = [(t_quantile(CONFIDENCE, cosine_count(n)), cosine_count(n)) for n in sizes]

    def spent(stretch: float) -> Samples:
        return np.array([2 * student_cdf(-stretch * single, freedom) for single, freedom in reach])

    allowed = (1 - CONFIDENCE) * (1 - RESERVED_ERROR) * part
    low, high = 1.0, 100.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle).sum() > allowed else (low, middle)
    shares = spent(high)
    return tuple(InterimLook(n, float(share)) for n, share in zip(sizes, part * shares / shares.sum(), strict=True))


def interval_at_look(
    samples: Samples, look: InterimLook, confidence: float = CONFIDENCE, estimand: Estimand = "median"
) -> tuple[float, float] | None:
    """Return the interval from the first ``look.n`` samples; null where they allow none.

    With probability ``confidence`` none of the intervals at the planned looks misses. That of a median is widened
    where the samples wander: it then contains the medians of all parts of the window.
    """
    prefix = samples[: look.n]
    fixed = order_interval(prefix, confidence) if estimand == "median" else mean_interval(prefix, confidence)
    if fixed is None:
        return None
    middle = median(prefix) if estimand == "median" else float(prefix.mean())
    spent = (1 - confidence) * (1 - RESERVED_ERROR) * look.share
    stretch = t_quantile(1 - spent, cosine_count(look.n)) / t_quantile(confidence, cosine_count(look.n))
    below, above = stretch * (middle - fixed[0]), stretch * (fixed[1] - middle)
    if look.n < SMALL_LOOK:
        below = above = max(below, above, stretch * _half_width_of_unrelated(prefix, confidence, estimand))
    low, high = middle - below, middle + above
    if estimand == "median" and wanders(prefix):
        lowest, highest = range_of_medians(prefix)
        return min(low, lowest), max(high, highest)
    return low, high


def _half_width_of_unrelated(prefix: Samples, confidence: float, estimand: Estimand) -> float:
    """Return the larger half-width of the interval if the samples were independent."""
    errors = t_quantile(confidence, cosine_count(len(prefix))) / math.sqrt(len(prefix))
    if estimand == "mean":
        return errors * float(prefix.std(ddof=1))
    reach = min(0.5, errors / 2)
    low, middle, high = quantiles(prefix, (0.5 - reach, 0.5, 0.5 + reach))
    return float(max(middle - low, high - middle))


def decide_to_stop(
    samples: Samples, look: InterimLook, precision: float, confidence: float = CONFIDENCE
) -> Literal["enough", "more"]:
    """Return whether the median is known to ±``precision`` of its value (0.01 is ±1 %) at this look.

    Samples that drift or switch, or are too few to tell, are not enough as long as more are planned.
    """
    interval = interval_at_look(samples, look, confidence)
    if interval is None:
        return "more"
    low, high = interval
    prefix = samples[: look.n]
    precise = (high - low) / 2 <= precision * abs(median(prefix))
    return "enough" if precise and not (look.early and is_unsettled(prefix)) else "more"


SpeedVerdict = Literal["faster", "slower", "same", "unsure"]
Caveat = Literal["too few pairs", "too early", "ratio switches", "one side switches", "ratio wanders"]
MINIMUM_EFFECT = 0.01
NEARLY_ALL_SHARE = 0.975  # of the pairs, on each side
WALK_FACTOR = 1.25  # times the range of a ratio's means over eighths of the window
EARLY_EFFECT = 0.25
"""A difference reported before the last look is at least this large: slow changes of one side, such as a clock that
dwells on a level or a wave, look like a smaller one until they have come and gone a few times."""


@dataclass(frozen=True)
class PairedComparison:
    """The second's time as a multiple of the first's, with an interval valid under peeking, and the verdict.

    ``low`` and ``high`` are null where the pairs allow no interval; ``reason`` then says why. ``caveat`` is the kind of
    reason; null where the ratio was stable.
    """

    verdict: SpeedVerdict
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    reason: str | None = None
    caveat: Caveat | None = None


def log_ratios(first: Samples, second: Samples, block: int = 1) -> Samples:
    """Return the logarithm of second over first, pair by pair in time order, whole blocks of pairs only.

    Within a block the order of first and second is balanced, so only a whole block is fair to both.
    """
    pairs = min(len(first), len(second)) // block * block
    return np.log(second[:pairs]) - np.log(first[:pairs])


def judge_log_ratio(low: float, high: float, minimum_effect: float = MINIMUM_EFFECT) -> SpeedVerdict:
    """Return the verdict of an interval of log-ratios: all of it must be on one side of the minimum effect."""
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

    A clock shared by both sides moves both, and leaves the ratio unchanged. Where one side switches by itself, the mean
    ratio depends on how long it happened to be on each level.
    """
    levels = find_two_levels(side)
    if levels is None:
        return False
    high, smooth = _smooth(side) > (levels.low + levels.high) / 2, _smooth(ratios)
    if high.all() or not high.any():
        return False
    return abs(median(smooth[high]) - median(smooth[~high])) > (levels.high - levels.low) / 2


def compare_at_look(
    first: Samples,
    second: Samples,
    look: InterimLook,
    *,
    minimum_effect: float = MINIMUM_EFFECT,
    confidence: float = CONFIDENCE,
    block: int = 1,
) -> PairedComparison:
    """Return whether the second is faster than the first, from the pairs up to a planned look.

    Uses the mean log-ratio of pairs, outliers clipped to five robust standard deviations. With probability
    ``confidence`` no look reports a difference below the minimum effect as different, nor one above it as the same. The
    interval of a ratio that wanders covers its movement. Before the last look only a large difference is reported.
    """
    logs = log_ratios(first[: look.n], second[: look.n], block)
    clipped = winsorize(logs)
    centre = float(np.mean(clipped))
    ratio = math.exp(centre)
    needed = (1 + minimum_effect) * (1 + EARLY_EFFECT) - 1 if look.early else minimum_effect
    if look.early and abs(centre) <= math.log1p(needed):
        return PairedComparison("unsure", ratio, None, None, len(logs), "more pairs are planned", "too early")
    if find_two_levels(logs) is not None:
        return _compare_between_levels(logs, ratio, needed, "the ratio switches between two levels", "ratio switches")
    if any(switches_alone(np.log(side[: len(logs)]), logs) for side in (first, second)):
        why = "one of the two switches between levels by itself"
        return _compare_between_levels(logs, ratio, needed, why, "one side switches")
    interval = interval_at_look(clipped, look, confidence, "mean")
    if interval is None:
        return PairedComparison("unsure", ratio, None, None, len(logs), "too few pairs", "too few pairs")
    low, high = interval
    reason: str | None = None
    caveat: Caveat | None = None
    if wanders(logs):
        low, high = min(low, centre - _possible_drift(clipped)), max(high, centre + _possible_drift(clipped))
        reason, caveat = "the ratio wanders: it is known no better than it moved", "ratio wanders"
    return PairedComparison(
        judge_log_ratio(low, high, needed), ratio, math.exp(low), math.exp(high), len(logs), reason, caveat
    )


def _possible_drift(logs: Samples) -> float:
    """Return how far a moving ratio may have moved in total.

    For two equal subjects that each follow a random walk, the mean of the logarithms is farther from 0 than this in
    0.7 % of cases.
    """
    return WALK_FACTOR * range_of_means(logs)


def _compare_between_levels(
    logs: Samples, ratio: float, minimum_effect: float, reason: str, caveat: Caveat
) -> PairedComparison:
    """Return the comparison of pairs that switch between levels: a verdict only where nearly all of them agree.

    Then it holds on either level, if they do not just follow one another. Otherwise the ratio has no interval.
    """
    low, high = quantiles(logs, (1 - NEARLY_ALL_SHARE, NEARLY_ALL_SHARE))
    centre, moved = math.log(ratio), _possible_drift(logs)
    low, high = min(low, centre - moved), max(high, centre + moved)
    verdict = judge_log_ratio(low, high, minimum_effect)
    if verdict in {"faster", "slower"}:
        holds = f"{reason}; on either it holds"
        return PairedComparison(verdict, ratio, math.exp(low), math.exp(high), len(logs), holds, caveat)
    return PairedComparison("unsure", ratio, None, None, len(logs), reason, caveat)
