"""Ratios of unpaired results, how to combine several of them, and proportions with exact intervals.

A number is represented by its logarithm, the standard error of that, and the degrees of freedom of the error: those of
the processes it was measured in. Two such numbers are compared by Welch's t; groups of single results, in which each
device is compared with itself, by least squares.
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

    from assay.stats.sequential import SpeedVerdict


DEFAULT_FREEDOM = 4
"""Degrees of freedom where the number of processes behind an interval is unknown."""

MIN_LOG_ERROR = 1e-12
"""Minimum error of a logarithm: floating-point numbers have no more digits."""

MAX_LOG = 700.0
"""Limit of a logarithm: beyond it, the number cannot be represented."""


@dataclass(frozen=True)
class LogEstimate:
    """A logarithm, its standard error, and its degrees of freedom; error null where too little was measured."""

    log: float
    error: float | None = None
    degrees: float = math.inf

    @property
    def value(self) -> float:
        """The number or ratio itself."""
        return math.exp(self.log)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the bounds of the interval; null without an error."""
        if self.error is None:
            return None
        half = _quantile(0.5 + confidence / 2, self.degrees) * self.error
        return math.exp(max(self.log - half, -MAX_LOG)), math.exp(min(self.log + half, MAX_LOG))


def log_estimate(
    value: float, low: float | None, high: float | None, processes: int | None, confidence: float = CONFIDENCE
) -> LogEstimate | None:
    """Return a number known with an interval over ``processes`` processes; null where it has no logarithm.

    If their number is unknown (null), the interval is used as it is, with tails as for few processes.
    """
    if not value > 0 or not math.isfinite(value):
        return None
    if low is None or high is None or not low > 0:
        return LogEstimate(math.log(value))
    half = (math.log(high) - math.log(low)) / 2
    if processes is None:
        return LogEstimate(math.log(value), half / _quantile(0.5 + confidence / 2, math.inf), DEFAULT_FREEDOM)
    degrees = processes - 1 if processes > 1 else math.inf
    return LogEstimate(math.log(value), half / _quantile(0.5 + confidence / 2, degrees), degrees)


def log_estimate_of_draws(values: Sequence[float]) -> LogEstimate:
    """Return the geometric mean of two or more numbers, each of them one draw."""
    logs = np.log(values)
    return LogEstimate(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)


def divide_estimates(first: LogEstimate, second: LogEstimate) -> LogEstimate:
    """Return the ratio of the second to the first."""
    return _sum(first, second, second.log - first.log, 1.0)


def geometric_mean(levels: Sequence[LogEstimate]) -> LogEstimate:
    """Return the geometric mean of independent numbers."""
    result = levels[0]
    for count, estimate in enumerate(levels[1:], 1):
        whole = LogEstimate(result.log * count, None if result.error is None else result.error * count, result.degrees)
        result = _sum(whole, estimate, (whole.log + estimate.log) / (count + 1), 1 / (count + 1))
    return result


def _sum(one: LogEstimate, other: LogEstimate, log: float, scale: float) -> LogEstimate:
    """Return a sum or difference of two, scaled: errors add in squares, degrees of freedom follow Welch."""
    if one.error is None or other.error is None:
        return LogEstimate(log)
    parts = [max(estimate.error or 0.0, MIN_LOG_ERROR) ** 2 for estimate in (one, other)]
    total = sum(parts)
    inverse = sum(part**2 / estimate.degrees for part, estimate in zip(parts, (one, other), strict=True))
    return LogEstimate(log, math.sqrt(total) * scale, total**2 / inverse if inverse else math.inf)


def pooled_ratio(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> LogEstimate | None:
    """Return the ratio of second to first, pooled over groups that are each compared with themselves; null for none.

    Logarithms are a level per group, plus the same difference in all, plus noise: least squares, Student's t. There is
    no error where no degrees of freedom are left for the noise.
    """
    if not groups or not all(first and second for first, second in groups):
        return None
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in groups]
    differences = [float(np.mean(np.log(b)) - np.mean(np.log(a))) for a, b in groups]
    weight = sum(weights)
    centre = sum(w * d for w, d in zip(weights, differences, strict=True)) / weight
    freedom = sum(len(a) + len(b) for a, b in groups) - len(groups) - 1
    if freedom < 1:
        return LogEstimate(centre)
    squares = 0.0
    for first, second in groups:
        logs = np.concatenate([np.log(first), np.log(second) - centre])
        squares += float(np.sum((logs - logs.mean()) ** 2))
    return LogEstimate(centre, math.sqrt(squares / freedom / weight), freedom)


def decide_ratios(
    ratios: Sequence[LogEstimate], minimum_effect: float, confidence: float = CONFIDENCE
) -> list[SpeedVerdict]:
    """Return a verdict on each ratio of times, so that with ``confidence`` none of all is wrong (Holm).

    Slower or faster: significantly by more than the minimum effect. Same: significantly by less. Else unsure.
    """
    margin = math.log1p(minimum_effect)
    claims = [_strongest_claim(estimate, margin) for estimate in ratios]
    verdicts: list[SpeedVerdict] = ["unsure"] * len(claims)
    for step, index in enumerate(sorted(range(len(claims)), key=lambda i: claims[i][0])):
        chance, verdict = claims[index]
        if chance * (len(claims) - step) > 1 - confidence:
            break
        verdicts[index] = verdict
    return verdicts


def _strongest_claim(estimate: LogEstimate, margin: float) -> tuple[float, SpeedVerdict]:
    """Return the most significant claim about a ratio, and the probability of making it wrongly."""
    if estimate.error is None:
        return 1.0, "unsure"
    error = max(estimate.error, MIN_LOG_ERROR)
    reach: dict[SpeedVerdict, float] = {
        "slower": estimate.log - margin,
        "faster": -margin - estimate.log,
        "same": margin - abs(estimate.log),
    }
    verdict = max(reach, key=lambda claim: reach[claim])
    t, degrees = reach[verdict] / error, estimate.degrees
    return 2 * float(special.ndtr(-t) if math.isinf(degrees) else special.stdtr(degrees, -t)), verdict


def _quantile(share: float, degrees: float) -> float:
    return float(special.ndtri(share) if math.isinf(degrees) else special.stdtrit(degrees, share))


@dataclass(frozen=True)
class Proportion:
    """A count out of ``n`` with the exact (Clopper–Pearson) interval of its share; nulls where n is 0."""

    count: int
    n: int

    @property
    def value(self) -> float | None:
        """The share; null where n is 0."""
        return self.count / self.n if self.n else None

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Return the exact interval of the share; null where n is 0."""
        if not self.n:
            return None
        tail = (1 - confidence) / 2
        low = float(special.betaincinv(self.count, self.n - self.count + 1, tail)) if self.count else 0.0
        more = self.n - self.count
        high = float(special.betaincinv(self.count + 1, more, 1 - tail)) if more else 1.0
        return low, high

    def __add__(self, other: Proportion) -> Proportion:
        return Proportion(self.count + other.count, self.n + other.n)


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return McNemar's exact two-sided p from the trials in which only the first or only the second happened."""
    n, least = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * float(special.bdtr(least, n, 0.5))) if n else 1.0
