"""From which size on something is faster: rarely too low, mostly exact, with few samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats.crossover import (
    SpeedupBound,
    bound_speedup,
    decide_threshold,
    isotonic_regression,
    next_look,
    next_size,
)

if TYPE_CHECKING:
    from assay.stats.crossover import ThresholdDecision

MARGIN, SIZES, REPEATS = 1.2, 8, 60


def decided(speedups: list[float], noise: float, rng: np.random.Generator) -> tuple[ThresholdDecision, int]:
    """Return what is decided about sizes of such speed-ups, and how many pairs it took."""
    logs = [np.empty(0) for _ in speedups]
    bounds: list[SpeedupBound | None] = [None] * len(speedups)
    while (place := next_size(bounds)) is not None:
        more = next_look(len(logs[place])) - len(logs[place])
        drawn = math.log(speedups[place]) + math.sqrt(2) * noise * rng.standard_normal(more)
        logs[place] = np.concatenate([logs[place], drawn])
        bounds[place] = bound_speedup([logs[place]], MARGIN)
    return decide_threshold(bounds), sum(map(len, logs))


@pytest.mark.parametrize(("steepness", "noise", "exact"), [(2.0, 0.1, 0.75), (2.0, 0.2, 0.7), (1.4, 0.1, 0.6)])
def test_thresholds_are_never_too_low_mostly_exact_and_cheap(steepness: float, noise: float, exact: float) -> None:
    rng = np.random.default_rng(7)
    right, near, pairs = 0, 0, 0
    for _ in range(REPEATS):
        crossing = rng.uniform(1, 6)
        truth = math.ceil(crossing)
        found, taken = decided([MARGIN * steepness ** (size - crossing) for size in range(SIZES)], noise, rng)
        assert found.index >= truth
        right += found.index == truth
        near += found.index - truth <= 1 and found.low <= truth <= found.high
        pairs += taken
    assert right >= exact * REPEATS
    assert near >= 0.95 * REPEATS
    assert pairs < 20 * SIZES * REPEATS


def test_where_nothing_gains_it_is_disabled_and_where_all_gains_it_begins_with_the_first() -> None:
    rng = np.random.default_rng(8)
    never, always = decided([0.7] * SIZES, 0.1, rng)[0], decided([2.5] * SIZES, 0.1, rng)[0]
    assert (never.kind, never.index) == ("disable", SIZES)
    assert (always.kind, always.index, always.low) == ("threshold", 0, 0)


def test_a_size_that_fails_above_others_that_clear_moves_the_threshold_above_it() -> None:
    found, _ = decided([0.5, 2.0, 2.0, 0.6, 2.0, 3.0, 3.0, 3.0], 0.1, np.random.default_rng(9))
    assert found.index == 4
    assert found.monotone or any(last < found.index for _, last in found.cleared)


def test_processes_that_disagree_widen_the_bounds() -> None:
    rng = np.random.default_rng(10)
    logs = [rng.normal(0.5, 0.05, 20), rng.normal(0.5, 0.05, 20)]
    alone, together = bound_speedup(logs, MARGIN), bound_speedup(logs, MARGIN, between=0.04)
    assert alone is not None
    assert together is not None
    assert together.low < alone.low
    assert (alone.state, together.state) == ("clears", "open")


def test_the_isotonic_fit_never_falls_and_keeps_the_weighted_mean() -> None:
    means, pairs = [0.1, 0.5, 0.3, 0.2, 0.9], [4, 8, 4, 2, 6]
    fitted = isotonic_regression(means, pairs)
    assert (np.diff(fitted) >= 0).all()
    assert np.average(fitted, weights=pairs) == pytest.approx(np.average(means, weights=pairs))
