"""Intervals that stay valid while one looks at them, so that measuring may stop as soon as it is enough.

Looks are planned before the first sample, at sizes that grow geometrically, and stopping is allowed at looks only.
The interval at a look is the fixed-size one, stretched by the same factor at every look: the allowed error is
divided among the looks such that it comes out so. The shares add up to the whole (Bonferroni), so that all looks hold
together however they depend on each other; some of the error is kept back because the width that is stretched is
itself only estimated.

How far the average of fewer than a hundred samples strays is itself much a matter of chance. Looks at so few get a
part of the error of their own, which stretches them further, and are never narrower than if the samples did not
resemble each other: whoever can stop early does, and nobody else pays much for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.distributions import student_cdf
from assay.stats.intervals import CONFIDENCE, mean_interval, order_interval
from assay.stats.longrun import degrees, quantile
from assay.stats.order import median, quantiles
from assay.stats.shape import may_still_move
from assay.stats.wander import range_of_medians, wanders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Estimand = Literal["median", "mean"]
KEPT_BACK = 0.4  # share of the allowed error
SMALL = 100  # samples
SMALL_SHARE = 0.3  # of the error that is not kept back, for all looks at fewer where there are looks at more
HALVINGS = 50  # of the range in which the stretch is looked for: to the last digit


@dataclass(frozen=True)
class Look:
    """A planned look: after how many samples, and which share of the allowed error it may spend.

    ``early`` where more samples are planned after it.
    """

    n: int
    share: float
    early: bool = False


def looks(first: int = 100, last: int = 4000, growth: float = 1.4) -> tuple[Look, ...]:
    """Return the looks from ``first`` to ``last`` samples, each ``growth`` times the one before."""
    steps = math.ceil(math.log(last / first) / math.log(growth) - 1e-9)
    sizes = sorted({min(last, math.ceil(first * growth**step)) for step in range(steps + 1)})
    small, large = [n for n in sizes if n < SMALL], [n for n in sizes if n >= SMALL]
    if not (small and large):
        plan = _stretched_alike(sizes, 1.0)
    else:
        plan = _stretched_alike(small, SMALL_SHARE) + _stretched_alike(large, 1 - SMALL_SHARE)
    return (*(replace(look, early=True) for look in plan[:-1]), plan[-1])


def _stretched_alike(sizes: list[int], part: float) -> tuple[Look, ...]:
    """Return looks that share a part of the error such that all stretch the fixed-size interval by the same factor."""
    reach = [(quantile(CONFIDENCE, degrees(n)), degrees(n)) for n in sizes]

    def spent(stretch: float) -> Samples:
        return np.array([2 * student_cdf(-stretch * single, freedom) for single, freedom in reach])

    allowed = (1 - CONFIDENCE) * (1 - KEPT_BACK) * part
    low, high = 1.0, 100.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle).sum() > allowed else (low, middle)
    shares = spent(high)
    return tuple(Look(n, float(share)) for n, share in zip(sizes, part * shares / shares.sum(), strict=True))


def interval_at(
    samples: Samples, look: Look, confidence: float = CONFIDENCE, estimand: Estimand = "median"
) -> tuple[float, float] | None:
    """Return the interval from the first ``look.n`` samples; null where they allow none.

    With probability ``confidence`` none of the intervals at the planned looks misses. That of a median is widened where
    the samples wander: it then has all medians that parts of the window had.
    """
    prefix = samples[: look.n]
    fixed = order_interval(prefix, confidence) if estimand == "median" else mean_interval(prefix, confidence)
    if fixed is None:
        return None
    middle = median(prefix) if estimand == "median" else float(prefix.mean())
    spent = (1 - confidence) * (1 - KEPT_BACK) * look.share
    stretch = quantile(1 - spent, degrees(look.n)) / quantile(confidence, degrees(look.n))
    below, above = stretch * (middle - fixed[0]), stretch * (fixed[1] - middle)
    if look.n < SMALL:
        below = above = max(below, above, stretch * _half_width_of_unrelated(prefix, confidence, estimand))
    low, high = middle - below, middle + above
    if estimand == "median" and wanders(prefix):
        lowest, highest = range_of_medians(prefix)
        return min(low, lowest), max(high, highest)
    return low, high


def _half_width_of_unrelated(seen: Samples, confidence: float, estimand: Estimand) -> float:
    """Return how far the interval of so many samples reaches to its wider side if they do not resemble each other."""
    errors = quantile(confidence, degrees(len(seen))) / math.sqrt(len(seen))
    if estimand == "mean":
        return errors * float(seen.std(ddof=1))
    reach = min(0.5, errors / 2)
    low, middle, high = quantiles(seen, (0.5 - reach, 0.5, 0.5 + reach))
    return float(max(middle - low, high - middle))


def decide(samples: Samples, look: Look, precision: float, confidence: float = CONFIDENCE) -> Literal["enough", "more"]:
    """Return whether the median is known to ±``precision`` of its value (0.01 is ±1 %) at this look.

    Samples that drift or switch, or are too few to tell, are not enough as long as there are more to come.
    """
    interval = interval_at(samples, look, confidence)
    if interval is None:
        return "more"
    low, high = interval
    prefix = samples[: look.n]
    precise = (high - low) / 2 <= precision * abs(median(prefix))
    return "enough" if precise and not (look.early and may_still_move(prefix)) else "more"
