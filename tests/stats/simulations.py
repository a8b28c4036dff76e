"""What the statistics say about noise of known truth, counted: for the tests in small, for the benchmark in full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

from assay.stats import sequential
from assay.stats.intervals import median_interval
from assay.stats.sequential import InterimLook, compare_at_look, decide_to_stop, interval_at_look, plan_looks
from assay.stats.shape import MIN_RARE_SHARE, classify_shape, find_unsteadiness
from tests.stats.noise_families import (
    NOISE,
    Family,
    Slow,
    draw,
    median_around,
    pairs,
    pairs_of_own_memory,
    related,
    slow_path,
    truth,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


@dataclass
class Outcome:
    """How often each thing happened, and at which sizes and with which stretch measuring stopped."""

    counts: Counter[str] = field(default_factory=Counter)
    stopped_at: list[int] = field(default_factory=list)
    stretch: list[float] = field(default_factory=list)


def shapes(family: Family, n: int, repeats: int, seed: int) -> Outcome:
    """Count the names given to windows; two-level windows that hardly show their rarer level apart ("hidden")."""
    rows, around = draw(family, np.random.default_rng(seed), repeats, n)
    outcome = Outcome()
    for row, centre in zip(rows, around, strict=True):
        share = float(np.mean(centre > 0))
        hidden = family == "two levels" and not MIN_RARE_SHARE <= share <= 1 - MIN_RARE_SHARE
        outcome.counts["hidden" if hidden else classify_shape(row).name] += 1
    return outcome


def _held(interval: tuple[float, float] | None, true: float) -> str:
    if interval is None:
        return "refused"
    return "covered" if interval[0] <= true <= interval[1] else "missed"


def fixed_intervals(family: Family, n: int, repeats: int, seed: int) -> Outcome:
    """Count how often the 95 % interval of n samples covers the window's median, misses it, or is refused."""
    rows, around = draw(family, np.random.default_rng(seed), repeats, n)
    held = (_held(median_interval(row), truth(family, centre)) for row, centre in zip(rows, around, strict=True))
    return Outcome(Counter(held))


Intervals = dict[InterimLook, tuple[float, float] | None]


def _first_enough(row: Samples, intervals: Intervals, precision: float) -> InterimLook | None:
    """Return the look at which measuring stops; the intervals of the looks are known and not computed again."""
    with mock.patch.object(sequential, "interval_at_look", lambda _, look, __: intervals[look]):
        return next((look for look in intervals if decide_to_stop(row, look, precision) == "enough"), None)


def _stretch(row: Samples, look: InterimLook, peeking: tuple[float, float] | None) -> float | None:
    fixed = median_interval(row[: look.n])
    if peeking is None or fixed is None:
        return None
    return (peeking[1] - peeking[0]) / (fixed[1] - fixed[0])


def peeked_medians(
    family: Family, last: int, repeats: int, seed: int, precision: float = 0.005, first: int = 100
) -> Outcome:
    """Count series in which any look's interval misses the median of the window so far; stop at ±0.5 %."""
    rows, around = draw(family, np.random.default_rng(seed), repeats, last)
    outcome, plan = Outcome(), plan_looks(first, last)
    for row, centre in zip(rows, around, strict=True):
        intervals = {look: interval_at_look(row, look) for look in plan}
        seen = {_held(interval, truth(family, centre[: look.n])) for look, interval in intervals.items()}
        outcome.counts["missed" if "missed" in seen else "held"] += 1
        stop = _first_enough(row, intervals, precision)
        if stop and (stretch := _stretch(row, stop, intervals[stop])) is not None:
            outcome.stopped_at.append(stop.n)
            outcome.stretch.append(round(stretch, 3))
    return outcome


def _pairs(
    family: Family, rng: np.random.Generator, repeats: int, last: int, ratio: float, *, shared: bool
) -> tuple[Samples, Samples]:
    source = pairs if shared else pairs_of_own_memory
    return source(family, rng, repeats, last, ratio)


def peeked_ratios(family: Family, last: int, repeats: int, seed: int, *, shared: bool, first: int = 100) -> Outcome:
    """Count series of pairs in which any look's interval misses the true mean log-ratio, 0."""
    firsts, seconds = _pairs(family, np.random.default_rng(seed), repeats, last, 1.0, shared=shared)
    outcome, plan = Outcome(), plan_looks(first, last)
    for logs in np.log(seconds) - np.log(firsts):
        missed = any(_held(interval_at_look(logs, look, estimand="mean"), 0.0) == "missed" for look in plan)
        outcome.counts["missed" if missed else "held"] += 1
    return outcome


def verdicts(
    family: Family, last: int, repeats: int, seed: int, *, ratio: float, shared: bool, first: int = 100
) -> Outcome:
    """Count the verdicts on a true ratio, measuring until one is sure or ``last`` pairs are taken."""
    firsts, seconds = _pairs(family, np.random.default_rng(seed), repeats, last, ratio, shared=shared)
    return _judged(firsts, seconds, plan_looks(first, last))


def _judged(firsts: Samples, seconds: Samples, plan: tuple[InterimLook, ...]) -> Outcome:
    outcome = Outcome()
    for one, other in zip(firsts, seconds, strict=True):
        found = compare_at_look(one, other, plan[0])
        for look in plan[1:]:
            if found.verdict != "unsure":
                break
            found = compare_at_look(one, other, look)
        outcome.counts[found.verdict] += 1
        outcome.stopped_at.append(found.pairs)
    return outcome


STILL = {"independent": 0.0, "AR(1) 0.5": 0.5}
"""Noise around a level that stands still, by the correlation of neighbours."""


def windows(family: Slow | str, n: int, repeats: int, seed: int) -> Outcome:
    """Count what the last look says of windows whose level moves or stands still.

    Whether the interval covers the window's median, misses it, or is refused; whether it covers the median of the level
    without its noise ("level"); and how often the window is called unsteady.
    """
    rng = np.random.default_rng(seed)
    outcome, plan = Outcome(), plan_looks(16, n)
    moving = family not in STILL
    paths = slow_path(family, rng, repeats, n) if moving else np.zeros((repeats, n))  # type: ignore[arg-type]
    rows = np.exp(paths + NOISE * related(rng, STILL.get(family, 0.0), repeats, n))
    for row, path in zip(rows, paths, strict=True):
        interval = interval_at_look(row, plan[-1])
        outcome.counts[_held(interval, median_around(path) if moving else 1.0)] += 1
        outcome.counts["level"] += _held(interval, float(np.exp(np.median(path)))) == "covered"
        outcome.counts["unsteady"] += find_unsteadiness(row) is not None
    return outcome


def own_noise(family: Slow, last: int, repeats: int, seed: int, *, ratio: float = 1.0, first: int = 64) -> Outcome:
    """Count the verdicts on two things of which each has slow noise of its own."""
    rng = np.random.default_rng(seed)
    sides = [
        np.exp(slow_path(family, rng, repeats, last) + NOISE * rng.standard_normal((repeats, last))) for _ in range(2)
    ]
    return _judged(sides[0], ratio * sides[1], plan_looks(first, last))
