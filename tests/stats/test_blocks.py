from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.stats.blocks import (
    MAX_RESTARTS,
    MIN_RESTARTS,
    TOTAL_ERROR,
    BlockRatio,
    aa_noise_floor,
    average_units,
    decide_difference,
    decide_limit,
    estimate_restarts_needed,
    plan_gate_looks,
    ratio_over_blocks,
)
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


LIMIT = 0.02


def answered(worse: float, noise: float, *, series: int, first: int = 5, heavy: bool = False) -> dict[str, float]:
    """Return how often each answer is given, and how many restarts it took on average."""
    chance = np.random.default_rng(20261115)
    shape = (series, MAX_RESTARTS)
    drawn = chance.standard_t(3, shape) / math.sqrt(3) if heavy else chance.standard_normal(shape)
    logs = math.log1p(worse) + noise * drawn
    found: dict[str, float] = {"worse": 0, "not worse": 0, "unsure": 0, "restarts": 0}
    for row in logs:
        for n in plan_gate_looks(first):
            said = decide_limit(row[:n], LIMIT).verdict
            if said != "unsure":
                break
        found[said] += 1 / series
        found["restarts"] += n / series
    return found


@pytest.mark.parametrize("first", [MIN_RESTARTS, 5])
def test_at_the_limit_either_answer_is_as_rare_as_promised(first: int) -> None:
    found = answered(LIMIT, 0.01, series=1500, first=first)
    slack = 3 * math.sqrt(TOTAL_ERROR * (1 - TOTAL_ERROR) / 1500)
    assert found["worse"] <= TOTAL_ERROR + slack
    assert found["not worse"] <= TOTAL_ERROR + slack


def test_heavy_tails_make_neither_error_more_frequent() -> None:
    found = answered(LIMIT, 0.01, series=1000, heavy=True)
    assert max(found["worse"], found["not worse"]) <= TOTAL_ERROR + 3 * math.sqrt(TOTAL_ERROR / 1000)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.02])
def test_five_percent_is_caught_and_the_same_twice_passes(noise: float) -> None:
    slower, same = answered(0.05, noise, series=200), answered(0.0, noise, series=200)
    assert slower["worse"] >= 0.99
    assert same["not worse"] >= 0.99
    assert same["worse"] == 0
    assert max(slower["restarts"], same["restarts"]) < 16


def test_nothing_is_known_from_one_restart_or_none() -> None:
    assert decide_limit([], LIMIT).verdict == decide_limit([0.5], LIMIT).verdict == "unsure"
    assert decide_limit([], LIMIT).ratio is None


def test_several_questions_at_once_are_each_asked_more_strictly() -> None:
    logs = [0.001, -0.002, 0.0, 0.003, -0.001]
    alone, among = decide_limit(logs, LIMIT).ratio, decide_limit(logs, LIMIT, questions=4).ratio
    assert alone is not None
    assert among is not None
    assert among.low is not None
    assert alone.low is not None
    assert among.low < alone.low


def test_looks_grow_and_end() -> None:
    assert plan_gate_looks(5) == [5, 7, 10, 14, 20, 28, 40, 56]
    assert plan_gate_looks(MAX_RESTARTS) == [MAX_RESTARTS]


def test_what_would_decide_is_foreseen() -> None:
    noisy = [0.03, -0.03, 0.02, -0.02, 0.0]
    needed = estimate_restarts_needed(noisy, LIMIT)
    assert needed is not None
    assert 5 < needed <= MAX_RESTARTS
    assert estimate_restarts_needed([math.log1p(LIMIT) + x for x in noisy], LIMIT) is None
    assert estimate_restarts_needed([0.1], LIMIT) is None
