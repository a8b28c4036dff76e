"""Peeking does no harm at planned looks; the benchmark has the same counts in full."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.intervals import median_interval
from assay.stats.sequential import SMALL_LOOK, SMALL_LOOK_SHARE, decide_to_stop, interval_at_look, plan_looks
from tests.stats.chances import at_most
from tests.stats.noise_families import FAMILIES, Family, draw
from tests.stats.simulations import peeked_medians, peeked_ratios

if TYPE_CHECKING:
    from assay.stats.sequential import Estimand

REPEATS = 200


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_the_median_is_missed_at_any_look_in_at_most_five_percent(family: Family) -> None:
    outcome = peeked_medians(family, 550, REPEATS, seed=1, precision=0.01)
    assert outcome.counts["missed"] <= at_most(0.05, REPEATS)
    assert max(outcome.stretch, default=0.0) <= 1.8


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_the_median_is_not_missed_more_often_when_the_first_look_is_at_16(family: Family) -> None:
    outcome = peeked_medians(family, 550, REPEATS, seed=1, precision=0.01, first=16)
    assert outcome.counts["missed"] <= at_most(0.05, REPEATS)
    assert min(outcome.stopped_at, default=SMALL_LOOK) >= 32  # ±1 % of noise of 3 % takes more


@pytest.mark.parametrize("shared", [True, False])
def test_the_mean_log_ratio_is_not_missed_more_often_when_the_first_look_is_at_16(shared: bool) -> None:
    counts = peeked_ratios("AR(1) 0.6", 1000, REPEATS, seed=2, shared=shared, first=16).counts
    assert counts["missed"] <= at_most(0.05, REPEATS)


@pytest.mark.parametrize("shared", [True, False])
def test_the_mean_log_ratio_is_missed_at_any_look_in_at_most_five_percent(shared: bool) -> None:
    counts = peeked_ratios("AR(1) 0.6", 1000, REPEATS, seed=2, shared=shared).counts
    assert counts["missed"] <= at_most(0.05, REPEATS)


@pytest.mark.full
def test_taking_the_fixed_size_interval_at_every_look_would_have_missed_more_often() -> None:
    """The control: that the simulation can tell."""
    rows, _ = draw("independent", np.random.default_rng(3), REPEATS, 550)
    missed = 0
    for row in rows:
        intervals = [median_interval(row[: look.n]) for look in plan_looks(last=550)]
        missed += any(i is not None and not i[0] <= 1.0 <= i[1] for i in intervals)
    assert missed > at_most(0.05, REPEATS)


@settings(deadline=None, max_examples=40)
@given(st.integers(64, 500), st.integers(0, 20_000), st.floats(1.1, 3.0))
def test_looks_grow_to_the_last_and_share_the_whole_error(first: int, more: int, growth: float) -> None:
    plan = plan_looks(first, first + more, growth)
    sizes = [look.n for look in plan]
    assert sizes[0] == first
    assert sizes[-1] == first + more
    assert sizes == sorted(set(sizes))
    assert all(after <= np.ceil(before * growth) + 1 for before, after in pairwise(sizes))
    assert sum(look.share for look in plan) == pytest.approx(1.0)


def test_every_look_stretches_the_fixed_size_interval_alike() -> None:
    row = draw("independent", np.random.default_rng(4), 1, 4000)[0][0]
    stretches = []
    for look in plan_looks():
        peeking, fixed = interval_at_look(row, look), median_interval(row[: look.n])
        assert peeking is not None
        assert fixed is not None
        stretches.append((peeking[1] - peeking[0]) / (fixed[1] - fixed[0]))
    assert stretches == pytest.approx([stretches[0]] * len(stretches), rel=1e-6)
    assert 1.0 < stretches[0] <= 1.8


def test_samples_after_the_look_are_not_seen() -> None:
    row, look = draw("independent", np.random.default_rng(5), 1, 4000)[0][0], plan_looks()[2]
    assert interval_at_look(row, look) == interval_at_look(row[: look.n], look)


def test_measuring_goes_on_until_the_median_is_known_well_enough() -> None:
    row, plan = draw("independent", np.random.default_rng(6), 1, 4000)[0][0], plan_looks()
    said = [decide_to_stop(row, look, 0.005) for look in plan]
    assert said == sorted(said, reverse=True)  # more, more, …, enough
    assert (said[0], said[-1]) == ("more", "enough")
    assert decide_to_stop(row, plan[-1], 1e-6) == "more"


def test_two_levels_are_never_enough() -> None:
    row = draw("two levels", np.random.default_rng(7), 1, 4000)[0][0]
    assert interval_at_look(row, plan_looks()[-1]) is None
    assert decide_to_stop(row, plan_looks()[-1], 0.5) == "more"


def test_small_looks_get_a_part_of_the_error_and_large_ones_are_hardly_wider_for_it() -> None:
    row, plan = draw("independent", np.random.default_rng(8), 1, 4000)[0][0], plan_looks(16, 4000)
    assert sum(look.share for look in plan if look.n < SMALL_LOOK) == pytest.approx(SMALL_LOOK_SHARE)
    peeking, fixed = interval_at_look(row, plan[-1]), median_interval(row)
    assert peeking is not None
    assert fixed is not None
    assert (peeking[1] - peeking[0]) / (fixed[1] - fixed[0]) <= 1.75


def test_sixteen_samples_of_little_noise_are_enough() -> None:
    rows = 1 + 0.1 * (draw("independent", np.random.default_rng(9), 50, 16)[0] - 1)  # noise of 0.3 %
    enough = [decide_to_stop(row, plan_looks(16, 4000)[0], 0.015) for row in rows]
    assert enough.count("enough") >= 45


@pytest.mark.parametrize("estimand", ["median", "mean"])
def test_a_few_samples_that_happen_to_balance_are_not_taken_for_precise(estimand: Estimand) -> None:
    """Signs that alternate stray less than chance; of sixteen, that is chance."""
    row = np.tile([1.01, 0.99], 8)
    interval = interval_at_look(row, plan_looks(16, 4000)[0], estimand=estimand)
    assert interval is not None
    assert interval[1] - interval[0] > 0.02
