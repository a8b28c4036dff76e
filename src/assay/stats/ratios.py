"""How many times as much: ratios of results that were not taken in pairs, and what several of them say together.

A number is known by its logarithm, the standard error of that, and the degrees of freedom the error is known with:
those of the processes it was measured in. Two such numbers differ by Welch's t; groups of single results, of which each
device is held against itself, by least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.stats.paired import Verdict

FEW = 4
"""Degrees of freedom where it is not told how many processes an interval rests on."""

TINY = 1e-12
"""The least error of a logarithm: numbers have no more digits."""


FARTHEST = 700.0
"""Of a logarithm: what is farther is no number that can be written."""


@dataclass(frozen=True)
class Level:
    """A logarithm, its standard error, and the degrees of freedom of that; null where too little was measured."""

    log: float
    error: float | None = None
    degrees: float = math.inf

    @property
    def value(self) -> float:
        """The number, or the ratio, that it is the logarithm of."""
        return math.exp(self.log)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the ends of the interval; null without an error."""
        if self.error is None:
            return None
        half = _quantile(0.5 + confidence / 2, self.degrees) * self.error
        return math.exp(max(self.log - half, -FARTHEST)), math.exp(min(self.log + half, FARTHEST))


def level(
    value: float, low: float | None, high: float | None, processes: int | None, confidence: float = CONFIDENCE
) -> Level | None:
    """Return a number that is known with an interval over so many processes; null where it has no logarithm.

    Where it is not told how many (null), the interval is taken as it is, and its tails as those of few.
    """
    if not value > 0 or not math.isfinite(value):
        return None
    if low is None or high is None or not low > 0:
        return Level(math.log(value))
    half = (math.log(high) - math.log(low)) / 2
    if processes is None:
        return Level(math.log(value), half / _quantile(0.5 + confidence / 2, math.inf), FEW)
    degrees = processes - 1 if processes > 1 else math.inf
    return Level(math.log(value), half / _quantile(0.5 + confidence / 2, degrees), degrees)


def drawn(values: Sequence[float]) -> Level:
    """Return the geometric mean of two or more numbers, each of them one draw."""
    logs = np.log(values)
    return Level(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)


def ratio(first: Level, second: Level) -> Level:
    """Return how many times the first the second is."""
    return _sum(first, second, second.log - first.log, 1.0)


def mean(levels: Sequence[Level]) -> Level:
    """Return the geometric mean of numbers that are independent of each other."""
    result = levels[0]
    for count, estimate in enumerate(levels[1:], 1):
        result = _sum(
            _times(result, count), estimate, (count * result.log + estimate.log) / (count + 1), 1 / (count + 1)
        )
    return result


def _times(each: Level, factor: float) -> Level:
    return Level(each.log * factor, None if each.error is None else each.error * factor, each.degrees)


def _sum(one: Level, other: Level, log: float, scale: float) -> Level:
    """Return a sum or difference of two, scaled: errors add in squares, degrees of freedom as Welch has them."""
    if one.error is None or other.error is None:
        return Level(log)
    parts = [max(estimate.error or 0.0, TINY) ** 2 for estimate in (one, other)]
    total = sum(parts)
    inverse = sum(part**2 / estimate.degrees for part, estimate in zip(parts, (one, other), strict=True))
    return Level(log, math.sqrt(total) * scale, total**2 / inverse if inverse else math.inf)


def pooled(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Level | None:
    """Return how many times the first of each group the second is, each group held against itself; null without any.

    Logarithms are a level for each group, plus the same difference in all, plus noise: least squares, Student's t.
    There is no error where nothing is left to tell the noise from.
    """
    if not groups or not all(first and second for first, second in groups):
        return None
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in groups]
    differences = [float(np.mean(np.log(b)) - np.mean(np.log(a))) for a, b in groups]
    weight = sum(weights)
    centre = sum(w * d for w, d in zip(weights, differences, strict=True)) / weight
    freedom = sum(len(a) + len(b) for a, b in groups) - len(groups) - 1
    if freedom < 1:
        return Level(centre)
    squares = 0.0
    for first, second in groups:
        logs = np.concatenate([np.log(first), np.log(second) - centre])
        squares += float(np.sum((logs - logs.mean()) ** 2))
    return Level(centre, math.sqrt(squares / freedom / weight), freedom)


def decide(ratios: Sequence[Level], minimum_effect: float, confidence: float = CONFIDENCE) -> list[Verdict]:
    """Return what each ratio of times says, so that with ``confidence`` none of all is said wrongly (Holm).

    Slower or faster: surely by more than the minimum effect. Same: surely by less. Anything else is unsure.
    """
    margin = math.log1p(minimum_effect)
    claims = [_claim(estimate, margin) for estimate in ratios]
    verdicts: list[Verdict] = ["unsure"] * len(claims)
    for step, index in enumerate(sorted(range(len(claims)), key=lambda i: claims[i][0])):
        chance, verdict = claims[index]
        if chance * (len(claims) - step) > 1 - confidence:
            break
        verdicts[index] = verdict
    return verdicts


def _claim(each: Level, margin: float) -> tuple[float, Verdict]:
    """Return what is most surely said of a ratio, and the chance that it is said so and is not."""
    if each.error is None:
        return 1.0, "unsure"
    error = max(each.error, TINY)
    reach: dict[Verdict, float] = {
        "slower": each.log - margin,
        "faster": -margin - each.log,
        "same": margin - abs(each.log),
    }
    verdict = max(reach, key=lambda claim: reach[claim])
    return 2 * _beyond(reach[verdict] / error, each.degrees), verdict


def _beyond(t: float, degrees: float) -> float:
    return float(special.ndtr(-t)) if math.isinf(degrees) else float(special.stdtr(degrees, -t))


def _quantile(share: float, degrees: float) -> float:
    return float(special.ndtri(share)) if math.isinf(degrees) else float(special.stdtrit(degrees, share))
