"""Verdicts on pairs of known ratio; the benchmark has the same counts in full."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.sequential import InterimLook, compare_at_look, judge_log_ratio, log_ratios, plan_looks
from assay.stats.shape import find_two_levels
from tests.stats.chances import at_least, at_most
from tests.stats.noise_families import FAMILIES, Family, Slow, pairs, pairs_of_own_memory
from tests.stats.simulations import own_noise, verdicts

REPEATS = 150
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unsure": "unsure"}


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_a_thing_is_hardly_ever_called_different_from_itself(family: Family) -> None:
    counts = verdicts(family, 2000, REPEATS, seed=1, ratio=1.0, shared=True).counts
    assert counts["faster"] + counts["slower"] <= at_most(0.01, REPEATS)
    assert counts["same"] >= at_least(0.9, REPEATS)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_two_percent_slower_is_found_and_hardly_ever_called_the_same(family: Family) -> None:
    counts = verdicts(family, 2000, REPEATS, seed=2, ratio=1.02, shared=True).counts
    assert counts["slower"] >= at_least(0.9, REPEATS)
    assert counts["same"] <= at_most(0.01, REPEATS)


def test_a_difference_of_just_the_minimum_effect_stays_unsure_or_errs_seldom() -> None:
    """The hardest truth: on the margin any verdict is an error, and the interval allows five percent of them."""
    counts = verdicts("independent", 2000, REPEATS, seed=3, ratio=1.01, shared=True).counts
    assert REPEATS - counts["unsure"] <= at_most(0.05, REPEATS)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(FAMILIES), st.floats(0.9, 1.1))
def test_swapping_the_two_turns_the_verdict_around(seed: int, family: Family, ratio: float) -> None:
    first, second = (side[0] for side in pairs(family, np.random.default_rng(seed), 1, 400, ratio))
    look = plan_looks(last=400)[-1]
    there, back = compare_at_look(first, second, look), compare_at_look(second, first, look)
    assert back.verdict == OPPOSITE[there.verdict]
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert there.pairs == back.pairs == 400


@settings(deadline=None, max_examples=50)
@given(st.floats(-0.1, 0.1), st.floats(0, 0.1), st.floats(0.001, 0.05))
def test_a_verdict_needs_the_whole_interval(low: float, width: float, minimum_effect: float) -> None:
    high, margin = low + width, math.log1p(minimum_effect)
    verdict = judge_log_ratio(low, high, minimum_effect)
    assert (verdict == "slower") == (low > margin)
    assert (verdict == "faster") == (high < -margin)
    assert (verdict == "same") == (-margin < low and high < margin)


def test_only_whole_blocks_of_pairs_count() -> None:
    first, second = np.ones(103), np.full(103, math.e)
    assert log_ratios(first, second, block=4) == pytest.approx(np.ones(100))
    look = plan_looks(last=103)[-1]
    assert compare_at_look(first, second, look, block=4).pairs == 100


def test_a_ratio_that_switches_between_two_levels_is_not_judged() -> None:
    rng = np.random.default_rng(4)
    first = np.exp(0.01 * rng.standard_normal(400))
    second = np.repeat([1.0, 1.2], 50)[np.arange(400) % 100] * np.exp(0.01 * rng.standard_normal(400))
    found = compare_at_look(first, second, plan_looks(last=400)[-1])
    assert (found.verdict, found.low, found.high) == ("unsure", None, None)
    assert found.reason == "the ratio switches between two levels"


def test_clocks_that_switch_independently_of_each_other_are_seldom_called_a_difference() -> None:
    counts = verdicts("two levels", 1000, REPEATS, seed=6, ratio=1.0, shared=False).counts
    assert counts["faster"] + counts["slower"] <= at_most(0.05, REPEATS)
    assert counts["unsure"] >= at_least(0.9, REPEATS)


def test_a_side_that_switches_by_itself_is_named_as_the_reason() -> None:
    first, second = (side[0] for side in pairs_of_own_memory("two levels", np.random.default_rng(7), 1, 1000, 1.0))
    found = compare_at_look(first, second, plan_looks(last=1000)[-1])
    assert (found.verdict, found.low, found.high) == ("unsure", None, None)
    assert found.reason == "one of the two switches between levels by itself"


def test_a_clock_that_both_share_does_not_keep_them_from_being_judged() -> None:
    first, second = (side[0] for side in pairs("two levels", np.random.default_rng(8), 1, 1000, 1.05))
    assert find_two_levels(first) is not None
    assert compare_at_look(first, second, plan_looks(last=1000)[-1]).verdict == "slower"


def test_too_few_pairs_are_not_judged() -> None:
    found = compare_at_look(np.ones(4), np.full(4, 2.0), plan_looks()[0])
    assert (found.verdict, found.reason, found.pairs) == ("unsure", "too few pairs", 4)


def test_the_interval_lies_around_the_ratio() -> None:
    first, second = (side[0] for side in pairs("spikes", np.random.default_rng(5), 1, 1000, 1.05))
    found = compare_at_look(first, second, plan_looks(last=1000)[-1])
    assert found.low is not None
    assert found.high is not None
    assert 1.01 < found.low < found.ratio < found.high
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(1.05, abs=0.01)


def test_a_clear_difference_is_called_one_on_either_of_two_levels() -> None:
    rng = np.random.default_rng(5)
    level = np.where(np.arange(400) // 20 % 2, 1.5, 1.0)
    first = 10 * np.exp(0.01 * rng.standard_normal(400))
    second = 50 * level * np.exp(0.01 * rng.standard_normal(400))
    found = compare_at_look(first, second, InterimLook(400, 0.5))
    assert found.verdict == "slower"
    assert found.low is not None
    assert found.low > 4
    assert found.reason is not None
    back = compare_at_look(second, first, InterimLook(400, 0.5))
    assert back.verdict == "faster"


@pytest.mark.full
@pytest.mark.parametrize("family", ["random walk", "dwell", "wave"])
def test_noise_that_the_two_do_not_share_is_seldom_called_a_difference(family: Slow) -> None:
    counts = own_noise(family, 600, REPEATS, seed=9).counts
    assert counts["faster"] + counts["slower"] <= at_most(0.05, REPEATS)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_five_percent_slower_is_found_under_noise_that_both_share(family: Family) -> None:
    counts = verdicts(family, 600, REPEATS, seed=10, ratio=1.05, shared=True, first=64).counts
    assert counts["slower"] >= at_least(0.98, REPEATS)


def test_a_ratio_that_wanders_is_known_no_better_than_it_moved() -> None:
    """Eighths whose means lie 0.7 apart: 1.25 times that to each side of their mean, 0.35."""
    logs = np.repeat(np.arange(8) / 10, 50) + 1e-3 * np.random.default_rng(11).standard_normal(400)
    found = compare_at_look(np.ones(400), np.exp(logs), InterimLook(400, 0.5))
    assert (found.verdict, found.caveat) == ("unsure", "ratio wanders")
    assert found.low == pytest.approx(math.exp(0.35 - 1.25 * 0.7), rel=1e-2)
    assert found.high == pytest.approx(math.exp(0.35 + 1.25 * 0.7), rel=1e-2)


def test_before_the_last_look_only_a_large_difference_is_called() -> None:
    rng = np.random.default_rng(12)
    first, noise = np.exp(0.01 * rng.standard_normal(400)), np.exp(0.01 * rng.standard_normal(400))
    early, last = InterimLook(400, 0.5, early=True), InterimLook(400, 0.5)
    for ratio, soon, late in ((1.0, "unsure", "same"), (1.1, "unsure", "slower"), (1.4, "slower", "slower")):
        assert compare_at_look(first, ratio * noise, early).verdict == soon
        assert compare_at_look(first, ratio * noise, last).verdict == late
    assert compare_at_look(first, 1.1 * noise, early).caveat == "too early"


def test_only_the_last_of_the_planned_looks_is_not_early() -> None:
    assert [look.early for look in plan_looks(16, 100)] == [True] * (len(plan_looks(16, 100)) - 1) + [False]
