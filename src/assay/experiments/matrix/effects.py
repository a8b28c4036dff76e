"""How much longer, from pairs that stand in the same block; and how far apart the same thing lies by chance.

All is done on logarithms, so that twice as long and half as long are equally far from no change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.results import Estimate
from assay.stats.blocks import by_chance, ratio_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Measure = Literal["median", "p99", "jitter"]
MEASURES: dict[Measure, str] = {
    "median": "median time",
    "p99": "99th percentile",
    "jitter": "jitter (coefficient of variation)",
}
FEWEST_FOR_P99 = 100
"""Of fewer samples the 99th percentile is the largest, or nearly."""

Outcome = Literal["no effect seen", "hurts", "cured by isolation", "not cured", "hurts only isolated", "not known"]
TELLS_NOTHING = 2.0
"""Where the time may as well be twice as long, it is not called no effect."""

TIMES = "×"
"""The unit of a ratio."""


def measure(samples: Samples, what: Measure) -> float | None:
    """Return one measure of the samples of one process; null where they do not tell it."""
    if not len(samples):
        return None
    if what == "median":
        return _positive(float(np.median(samples)))
    if what == "p99":
        return _positive(float(np.quantile(samples, 0.99))) if len(samples) >= FEWEST_FOR_P99 else None
    mean = float(samples.mean())
    return _positive(float(samples.std(ddof=1)) / mean) if len(samples) > 1 and mean > 0 else None


def _positive(value: float) -> float | None:
    return value if 0 < value < math.inf else None


def effect(over: Mapping[str, float], under: Mapping[str, float]) -> Estimate | None:
    """Return how many times the one is the other, by the blocks that have both; null where none has."""
    ratio = ratio_of(logs(over, under))
    if ratio is None:
        return None
    return Estimate(
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        unit=TIMES,
        scope="run",
        method=f"geometric mean of the ratios in {ratio.blocks} blocks, Student's t on their logarithms",
        n=ratio.blocks,
    )


def logs(over: Mapping[str, float], under: Mapping[str, float]) -> list[float]:
    """Return the logarithm of the ratio in each block that has both."""
    return [math.log(over[block] / under[block]) for block in over if block in under]


def together(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the geometric mean of two readings of the same thing in each block; of one where the other is missing."""
    blocks = dict.fromkeys((*one, *other))
    readings = {block: [m[block] for m in (one, other) if block in m] for block in blocks}
    return {block: math.exp(float(np.mean(np.log(values)))) for block, values in readings.items()}


def margin(twice: Sequence[float], minimum_effect: float) -> float:
    """Return the ratio beyond which a change counts: above what was asked for, and above what chance shows.

    ``twice`` has the logarithms of how the same thing, measured twice in each block, differs. Of a single block nothing
    counts.
    """
    floor = by_chance(twice, len(twice)) if len(twice) > 1 else None
    return math.inf if floor is None else 1 + max(minimum_effect, floor)


def judge(naive: Estimate | None, isolated: Estimate | None, less: Estimate | None, beyond: float) -> Outcome:
    """Return what an aggressor does to a victim; ``less`` is how many times more it does without isolation."""
    hurts, still = exceeds(naive, beyond), exceeds(isolated, beyond)
    if hurts is None:
        return "not known"
    if still and (hurts or (exceeds(naive, 1.0) and not _surely_less(less))):
        return "not cured"
    if not hurts:
        return "hurts only isolated" if still else "no effect seen" if _tells(naive) else "not known"
    gone = still is not None and not exceeds(isolated, 1.0) and exceeds(less, 1.0)
    return "cured by isolation" if gone else "hurts"


def _surely_less(less: Estimate | None) -> bool:
    """Return whether an aggressor surely does less without isolation than with it."""
    return less is not None and less.high is not None and less.high < 1.0


def _tells(ratio: Estimate | None) -> bool:
    """Return whether an interval is narrow enough for "no effect seen" to mean anything."""
    return ratio is not None and ratio.high is not None and ratio.high <= TELLS_NOTHING


def exceeds(ratio: Estimate | None, beyond: float) -> bool | None:
    """Return whether a ratio surely lies beyond a bound; null where nothing can be said."""
    if ratio is None or ratio.low is None or math.isinf(beyond):
        return None
    return ratio.low > beyond
