"""Intervals that stay valid while one looks at them, so that measuring may stop as soon as it is enough.

Looks are planned before the first sample, at sizes that grow geometrically, and stopping is allowed at looks only.
The interval at a look is the fixed-size one, stretched by the same factor at every look: the allowed error is
divided among the looks such that it comes out so. The shares add up to the whole (Bonferroni), so that all looks hold
together however they depend on each other; some of the error is kept back because the width that is stretched is
itself only estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import optimize, stats

from assay.stats.intervals import CONFIDENCE, mean_interval, median_interval
from assay.stats.longrun import degrees, quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Estimand = Literal["median", "mean"]
KEPT_BACK = 0.4  # share of the allowed error


@dataclass(frozen=True)
class Look:
    """A planned look: after how many samples, and which share of the allowed error it may spend."""

    n: int
    share: float


def looks(first: int = 100, last: int = 4000, growth: float = 1.4) -> tuple[Look, ...]:
    """Return the looks from ``first`` to ``last`` samples, each ``growth`` times the one before."""
    steps = math.ceil(math.log(last / first) / math.log(growth) - 1e-9)
    sizes = sorted({min(last, math.ceil(first * growth**step)) for step in range(steps + 1)})
    freedom = np.array([degrees(n) for n in sizes])
    single = stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)

    def spent(stretch: float) -> Samples:
        return np.asarray(2 * stats.t.sf(stretch * single, freedom), dtype=np.float64)

    allowed = (1 - CONFIDENCE) * (1 - KEPT_BACK)
    stretch = float(optimize.brentq(lambda x: float(spent(x).sum()) - allowed, 1.0, 100.0))
    shares = spent(stretch)
    return tuple(Look(n, float(share)) for n, share in zip(sizes, shares / shares.sum(), strict=True))


def interval_at(
    samples: Samples, look: Look, confidence: float = CONFIDENCE, estimand: Estimand = "median"
) -> tuple[float, float] | None:
    """Return the interval from the first ``look.n`` samples; null where they allow none.

    With probability ``confidence`` none of the intervals at the planned looks misses.
    """
    seen = samples[: look.n]
    fixed = median_interval(seen, confidence) if estimand == "median" else mean_interval(seen, confidence)
    if fixed is None:
        return None
    middle = float(np.median(seen) if estimand == "median" else seen.mean())
    spent = (1 - confidence) * (1 - KEPT_BACK) * look.share
    stretch = quantile(1 - spent, degrees(look.n)) / quantile(confidence, degrees(look.n))
    return middle - stretch * (middle - fixed[0]), middle + stretch * (fixed[1] - middle)


def decide(samples: Samples, look: Look, precision: float, confidence: float = CONFIDENCE) -> Literal["enough", "more"]:
    """Return whether the median is known to ±``precision`` of its value (0.01 is ±1 %) at this look."""
    interval = interval_at(samples, look, confidence)
    if interval is None:
        return "more"
    low, high = interval
    middle = abs(float(np.median(samples[: look.n])))
    return "enough" if (high - low) / 2 <= precision * middle else "more"
