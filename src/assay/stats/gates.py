"""Whether something has become worse by more than a limit, looked at while restarts come in.

Every restart gives one logarithm of a ratio, worse above zero, and restarts are the draws: Student's t over them. Looks
are planned after ``first`` restarts and then whenever there are 1.4 times as many; every look spends the same
`LEVEL` at each end of its interval. With it the two wrong answers are as rare as this, over all looks together:

    "worse" of what is worse by the limit or less          at most 2.5 %
    "not worse" of what is worse by the limit or more      at most 2.5 %

as simulated with Gaussian restarts and looks from 3, 4, 5 … restarts to 60 (0.41 %, 0.46 %, 0.48 % would do); restarts
with heavy tails make both rarer. Between the limit and either answer it goes on, and may never know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.stats.blocks import ratio_of
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.stats.blocks import Ratio

Verdict = Literal["worse", "not worse", "unsure"]

LEVEL = 0.004
"""Of one end of the interval at one look."""
ERROR = 0.025
"""Of one answer over all looks."""
GROWTH = 1.4
FEWEST, MOST = 3, 60
"""Restarts of the first look at the least, and of the last at the most."""


@dataclass(frozen=True)
class Judged:
    """How much worse it is, as a ratio that is above 1 where it is worse, and what that says about the limit."""

    verdict: Verdict
    ratio: Ratio | None


def looks(first: int, most: int = MOST) -> list[int]:
    """Return after how many restarts it is looked."""
    planned = [first]
    while (following := max(planned[-1] + 1, math.ceil(GROWTH * planned[-1]))) <= most:
        planned.append(following)
    return planned


def judge(logs: Sequence[float], limit: float, questions: int = 1) -> Judged:
    """Return whether it is worse by more than a limit (0.02 is 2 %), from the logarithms of all restarts so far.

    Where several questions are asked at once, each gets a part of the error, so that any wrong "worse" is as rare as of
    a single one.
    """
    ratio = ratio_of(logs, 1 - 2 * LEVEL / questions)
    if ratio is None or ratio.low is None or ratio.high is None:
        return Judged("unsure", ratio)
    if ratio.low > 1 + limit:
        return Judged("worse", ratio)
    return Judged("not worse" if ratio.high < 1 + limit else "unsure", ratio)


def restarts_needed(logs: Sequence[float], limit: float, questions: int = 1) -> int | None:
    """Return about how many restarts would decide it if all go on as so far; null where more than are ever made."""
    n = len(logs)
    if n < 2:
        return None
    centre = sum(logs) / n
    spread = math.sqrt(sum((log - centre) ** 2 for log in logs) / (n - 1))
    away = abs(centre - math.log1p(limit))
    for count in range(max(n + 1, FEWEST), MOST + 1):
        if quantile(1 - 2 * LEVEL / questions, count - 1) * spread < away * math.sqrt(count):
            return count
    return None
