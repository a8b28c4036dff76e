from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.stats.blocks import BlockRatio, aa_noise_floor, average_units, decide_difference, ratio_over_blocks
from assay.stats.correlation import adjust_holm, rank_correlation
from assay.stats.ratios import Proportion, mcnemar_p


def test_a_ratio_is_the_geometric_mean_with_students_interval() -> None:
    found = ratio_over_blocks([math.log(2.0), math.log(2.2), math.log(1.8)])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    interval = stats.t.interval(0.95, 2, *_mean_and_error([math.log(2.0), math.log(2.2), math.log(1.8)]))
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(interval)))
    assert ratio_over_blocks([]) is None
    assert ratio_over_blocks([0.1]) == BlockRatio(math.exp(0.1), None, None, 1)


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(stats.sem(values))


def test_a_difference_needs_its_interval_and_the_floor() -> None:
    assert decide_difference(BlockRatio(1.5, 1.3, 1.7, 4), 0.1) == "yes"
    assert decide_difference(BlockRatio(0.7, 0.6, 0.8, 4), 0.1) == "yes"
    assert decide_difference(BlockRatio(1.5, 1.3, 1.7, 4), 0.6) == "unsure"
    assert decide_difference(BlockRatio(1.5, 0.9, 2.2, 4), 0.1) == "unsure"
    assert decide_difference(BlockRatio(1.002, 0.998, 1.006, 4), 0.001) == "no"
    assert decide_difference(BlockRatio(1.03, 1.01, 1.05, 4), 0.2) == "no"
    assert decide_difference(BlockRatio(1.2, 0.8, 1.5, 4), 0.9) == "unsure", (
        "whoever strays so far knows too little for a no"
    )
    assert decide_difference(BlockRatio(1.5, 1.3, 1.7, 4), None) == "unsure"
    assert decide_difference(BlockRatio(1.5, None, None, 1), 0.1) == "unsure"
    assert decide_difference(None, 0.1) == "unsure"


def test_what_chance_shows_shrinks_with_blocks_and_needs_a_control() -> None:
    few, many = aa_noise_floor([0.1, -0.1], 2), aa_noise_floor([0.1, -0.1] * 8, 16)
    assert few is not None
    assert many is not None
    assert many < few / 3
    assert aa_noise_floor([], 4) is None
    assert aa_noise_floor([0.1], 0) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(-2, 2))
def test_a_unit_that_a_block_lacks_does_not_shift_the_block(blocks: list[float], other: float) -> None:
    whole = average_units([blocks, [b + other for b in blocks]])
    torn = average_units([blocks, [None, *(b + other for b in blocks[1:])]])
    assert len(whole) == len(torn) == len(blocks)
    assert whole == pytest.approx([b + other / 2 for b in blocks])
    assert average_units([]) == average_units([[None, None]]) == []


@pytest.mark.parametrize(("count", "n"), [(0, 20), (3, 20), (20, 20), (1, 2)])
def test_shares_have_exact_intervals(count: int, n: int) -> None:
    expected = stats.binomtest(count, n).proportion_ci()
    assert Proportion(count, n).interval() == pytest.approx((expected.low, expected.high))
    assert Proportion(0, 0).interval() is None
    assert Proportion(0, 0).value is None
    assert Proportion(1, 2) + Proportion(2, 3) == Proportion(3, 5)


def test_which_of_two_happens_more_often_is_mcnemars_exact_test() -> None:
    assert mcnemar_p(0, 6) == pytest.approx(stats.binomtest(0, 6).pvalue)
    assert mcnemar_p(3, 3) == mcnemar_p(0, 0) == 1.0


def test_what_rises_together_is_found_and_nulls_are_left_out() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, None]
    found = rank_correlation(values, [None if v is None else v**3 for v in values])
    assert found is not None
    assert found.rho == pytest.approx(1.0)
    assert found.n == 7
    assert found.p < 0.005
    assert rank_correlation([1.0] * 8, list(map(float, range(8)))) is None
    assert rank_correlation([1.0] * 3 + [None] * 5, list(map(float, range(8)))) is None


def test_of_many_correlations_p_holds_for_all() -> None:
    chance = np.random.default_rng(0)
    alarms = 0
    for _ in range(60):
        y = chance.normal(size=12).tolist()
        found = [c for _ in range(6) if (c := rank_correlation(y, chance.normal(size=12).tolist())) is not None]
        alarms += any(each.p <= 0.05 for each in adjust_holm(found))
    assert alarms <= 8
    assert adjust_holm([]) == []
