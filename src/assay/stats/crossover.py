"""The size from which on one implementation is faster than another by a margin, decided so that it is rarely too low.

        speed-up
           │                            ● ●   cleared: the lower bound is above the margin
  margin ──┼──────────────────●───────────────────
           │             ●    │               fails: the upper bound is below it
           │    ●   ●         └ open
           └──────────────────────────────── size
                        └──┬──┘
              the threshold is one of these; the answer is the upper end

Sizes are tested from the largest down, each by its own samples, and the first that does not clear the margin ends it.
A threshold can only be too low if the largest size that truly fails was cleared, so one error counts however many
sizes there are (a fixed sequence needs no correction). Looks at a size are planned, and share its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

SizeState = Literal["clears", "fails", "open"]
ThresholdKind = Literal["threshold", "disable", "unsure"]

LOOKS = (4, 8, 16, 32, 64, 128, 256)
"""Numbers of pairs at a size after which it is tested."""
LOOK_WEIGHTS = (1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0)
"""How the looks share the error: sizes near the margin need a good part of it at the end."""
TOO_LOW_ERROR, TOO_HIGH_ERROR = 0.02, 0.05
"""Probability that a size exactly at the margin is ever called clear, or failing. Any size farther away is misjudged
much more rarely: a threshold was too low in fewer than one of a hundred simulated decisions."""
ENOUGH_PAIRS = 64
"""Pairs at the last open size after which the search ends, with an interval over it and its neighbour."""


@dataclass(frozen=True)
class SpeedupBound:
    """Result of the pairs at one size: the mean speed-up as a logarithm, its bounds at the last look, the state."""

    pairs: int
    mean: float
    low: float
    high: float
    state: SizeState


@dataclass(frozen=True)
class ThresholdDecision:
    """Where the threshold is, as indices into the list of sizes.

    ``index`` is the answer: from there on all clear the margin; the number of sizes means that none does. The true
    index lies in ``low`` to ``high``. ``cleared`` are ranges of sizes that clear it, by first and last index.
    """

    kind: ThresholdKind
    index: int
    low: int
    high: int
    cleared: tuple[tuple[int, int], ...]

    @property
    def monotone(self) -> bool:
        """Whether no size below one that fails the margin was seen to clear it."""
        return all(last >= self.index for _, last in self.cleared)


def variance_between_processes(cells: Sequence[Sequence[Samples]]) -> float:
    """Return the variance of mean log speed-ups between processes, pooled over sizes; 0 where none is seen.

    Args:
        cells: For each size the log speed-ups of its processes.
    """
    squares, freedom = 0.0, 0
    for processes in cells:
        means = np.array([logs.mean() for logs in processes if len(logs)])
        if len(means) < 2:
            continue
        within = float(np.mean([logs.var(ddof=1) / len(logs) for logs in processes if len(logs) > 1] or [0.0]))
        squares += (len(means) - 1) * (float(means.var(ddof=1)) - within)
        freedom += len(means) - 1
    return max(0.0, squares / freedom) if freedom else 0.0


def bound_speedup(processes: Sequence[Samples], margin: float, between: float = 0.0) -> SpeedupBound | None:
    """Return the result of the pairs at a size at the last planned look they reach; null before the first.

    Args:
        processes: Log speed-ups of interleaved pairs, for each process that measured them.
        margin: The speed-up to clear, 1.2 for a fifth faster.
        between: Variance between processes, which more pairs in one process do not reduce.
    """
    logs = np.concatenate([np.asarray(process, dtype=np.float64) for process in processes] or [np.array([])])
    reached = [index for index, n in enumerate(LOOKS) if n <= len(logs)]
    if not reached:
        return None
    look = reached[-1]
    n = LOOKS[look] if look + 1 < len(LOOKS) else len(logs)
    used = logs[:n]
    mean = float(used.mean())
    error = math.sqrt(float(used.var(ddof=1)) / n + between / max(1, len(processes)))
    share = LOOK_WEIGHTS[look] / sum(LOOK_WEIGHTS)
    low = mean - _quantile(TOO_LOW_ERROR * share, n - 1) * error
    high = mean + _quantile(TOO_HIGH_ERROR * share, n - 1) * error
    edge = math.log(margin)
    state: SizeState = "clears" if low > edge else "fails" if high < edge else "open"
    return SpeedupBound(len(logs), mean, low, high, state)


def _quantile(tail: float, freedom: int) -> float:
    return float(special.stdtrit(freedom, 1 - tail))


def decide_threshold(bounds: Sequence[SpeedupBound | None]) -> ThresholdDecision:
    """Return where the threshold is, given the bounds of the sizes in order."""
    states = [size_bound.state if size_bound is not None else "open" for size_bound in bounds]
    failing = max((index for index, state in enumerate(states) if state == "fails"), default=-1)
    index = len(states)
    while index > 0 and states[index - 1] == "clears":
        index -= 1
    low = min(failing + 1, index)
    never: ThresholdKind = "disable" if failing == len(states) - 1 >= 0 else "unsure"
    kind: ThresholdKind = "threshold" if index < len(states) else never
    return ThresholdDecision(kind, index, low, index, _cleared_ranges(states))


def _cleared_ranges(states: Sequence[SizeState]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of neighbouring sizes that clear the margin."""
    ranges: list[tuple[int, int]] = []
    for index, state in enumerate(states):
        if state != "clears":
            continue
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return tuple(ranges)


def next_size(
    bounds: Sequence[SpeedupBound | None], *, most: int = LOOKS[-1], enough: int = ENOUGH_PAIRS
) -> int | None:
    """Return the size to measure next; null when it is decided, or more pairs would not decide it.

    The largest comes first, and nothing else until it is decided: unless it is known to clear the margin, no threshold
    is. Then comes the middle of those that are open and not yet measured, which is a bisection because those found
    clear or failing close the rest; then the one nearest to a decision.
    """
    decision = decide_threshold(bounds)
    between = range(decision.low, decision.index)
    open_places = [p for p in between if (bound := bounds[p]) is None or bound.state == "open"]
    if bounds and open_places and open_places[-1] == len(bounds) - 1:
        last = bounds[-1]
        return len(bounds) - 1 if last is None or last.pairs < most else None
    unmeasured = [index for index in open_places if bounds[index] is None]
    if unmeasured:
        return unmeasured[len(unmeasured) // 2]
    left = {index: bound for index in open_places if (bound := bounds[index]) is not None and bound.pairs < most}
    alone = decision.index - decision.low == 1
    if not left or (alone and all(bound.pairs >= enough for bound in left.values())):
        return None
    # The nearest to a decision has the narrowest interval.
    return min(left, key=lambda index: max(0.0, (left[index].high - left[index].low) / 2))


def next_look(pairs: int) -> int:
    """Return the number of pairs at a size's next look."""
    return next((n for n in LOOKS if n > pairs), pairs + LOOKS[-1])


def isotonic_regression(means: Sequence[float], pairs: Sequence[int]) -> Samples:
    """Return the non-decreasing speed-ups nearest to the means, weighted by their number of pairs."""
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(means, pairs, strict=True):
        level, mass, length = float(mean), float(weight), 1
        while blocks and blocks[-1][0] > level:
            before, mass_before, length_before = blocks.pop()
            level = (before * mass_before + level * mass) / (mass_before + mass)
            mass, length = mass_before + mass, length_before + length
        blocks.append((level, mass, length))
    return np.concatenate([np.full(length, level) for level, _, length in blocks]) if blocks else np.array([])
