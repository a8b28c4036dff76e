"""Formulas that decide, on numbers worked out by hand or by SciPy: degrees of freedom, error spent, factors, bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import fft, stats

from assay.stats import blocks, selection, sequential
from assay.stats.correlation import partial_correlation
from assay.stats.intervals import (
    autocorrelation,
    effective_size,
    interval_refusal,
    mean_interval,
    median_interval,
    min_samples_for_quantile,
    order_interval,
    quantile_interval,
    restarts_interval,
)
from assay.stats.numerics import centred_time, cosine_count, long_run_variance, robust_scale, t_quantile, winsorize
from assay.stats.sensor_intervals import ProcessReading, combine_processes, mean_spread

NOISE = np.random.default_rng(20).normal(10.0, 1.0, 400)


def cosine(k: int, n: int) -> np.ndarray:
    """Return the k-th cosine of a window of n samples, of amplitude 1."""
    return np.cos(math.pi * k * (np.arange(n) + 0.5) / n)


@pytest.mark.parametrize(("n", "cosines"), [(6, 4), (33, 4), (45, 5), (100, 8), (1100, 42), (4000, 100)])
def test_so_many_values_have_so_many_degrees_of_freedom(n: int, cosines: int) -> None:
    assert cosine_count(n) == cosines


def test_places_in_a_window_are_centred_and_span_it() -> None:
    assert centred_time(4).tolist() == [-0.375, -0.125, 0.125, 0.375]


def test_a_cosine_is_seen_with_its_power_and_the_slower_half_alone_where_it_is_strong() -> None:
    """A cosine of amplitude 1 over 100 samples has the power 50; 8 cosines are looked at, from the second on."""
    in_the_faster_half = long_run_variance(cosine(8, 100))
    assert (in_the_faster_half.variance, in_the_faster_half.degrees) == pytest.approx((50 / 8, 8))
    in_the_slower_half = long_run_variance(cosine(4, 100))
    assert (in_the_slower_half.variance, in_the_slower_half.degrees) == pytest.approx((50 / 4, 4))
    beyond = long_run_variance(cosine(10, 100))
    assert beyond.variance == pytest.approx(0.0, abs=1e-12)


def test_a_straight_drift_is_no_noise() -> None:
    drifting = long_run_variance(cosine(8, 100) + 1000 * centred_time(100))
    assert drifting.variance == pytest.approx(50 / 8)


def test_memory_is_told_by_the_95th_percentile_of_f() -> None:
    """Of 8 cosines, the slower 4 stand apart where they are stronger than the faster 4 by F(4, 4)."""
    limit = stats.f.ppf(0.95, 4, 4)

    def read(slow: float) -> int:
        """Return the degrees of freedom of a series with even cosines only: two slower ones, two faster ones."""
        series = sum(slow * cosine(k, 100) for k in (2, 4)) + sum(cosine(k, 100) for k in (6, 8))
        return long_run_variance(np.asarray(series)).degrees

    assert read(math.sqrt(0.98 * limit)) == 8
    assert read(math.sqrt(1.02 * limit)) == 4


@pytest.mark.parametrize(("confidence", "freedom"), [(0.95, 4), (0.95, 8), (0.99, 3), (0.5, 40)])
def test_an_interval_reaches_as_far_as_students_t_to_both_sides(confidence: float, freedom: int) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


def test_outliers_are_moved_in_to_five_robust_standard_deviations() -> None:
    samples = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    assert robust_scale(samples) == pytest.approx(1.4826)
    assert winsorize(samples).tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 3 + 5 * 1.4826])
    assert winsorize(-samples).tolist() == pytest.approx([-1.0, -2.0, -3.0, -4.0, -3 - 5 * 1.4826])


def long_run_by_scipy(values: np.ndarray) -> tuple[float, int]:
    """Return the long-run variance of values without memory, by another's transform."""
    time = np.arange(len(values)) - (len(values) - 1) / 2
    flat = values - values.mean()
    flat = flat - time * (time @ flat) / (time @ time)
    powers = fft.dct(flat, norm="ortho")[2 : 2 + cosine_count(len(values))] ** 2
    slower, faster = np.split(powers, [len(powers) // 2])
    assert slower.mean() <= faster.mean() * stats.f.ppf(0.95, len(slower), len(faster))
    return float(powers.mean()), len(powers)


def test_the_interval_of_a_mean_is_the_long_run_variance_and_students_t() -> None:
    variance, freedom = long_run_by_scipy(NOISE)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance / 400)
    assert mean_interval(NOISE) == pytest.approx((NOISE.mean() - half, NOISE.mean() + half))
    assert mean_interval(NOISE[:5]) is None
    assert mean_interval(NOISE[:6]) is not None


def test_the_interval_of_a_median_lies_between_order_statistics_as_far_out_as_signs_stray() -> None:
    signs = np.sign(NOISE - np.median(NOISE))
    variance, freedom = long_run_by_scipy(signs)
    reach = stats.t.ppf(0.975, freedom) / 2 * math.sqrt(variance / signs.var() / 400)
    expected = np.quantile(NOISE, [0.5 - reach, 0.5 + reach])
    assert order_interval(NOISE) == pytest.approx(tuple(expected))
    assert median_interval(NOISE) == pytest.approx(tuple(expected))
    assert effective_size(NOISE) == pytest.approx(400 / max(1.0, variance / signs.var()))


def test_so_few_independent_samples_have_no_interval_for_their_median() -> None:
    """The range of m samples misses their median once in 2^(m - 1): 1 in 20 takes 5.3 of them."""
    assert interval_refusal(np.arange(5.0)) == "too few samples"
    eight = np.array([1.0, 2.0, 1.5, 2.5, 1.2, 2.2, 1.7, 2.7])
    assert effective_size(eight) > 1 - math.log2(0.05)
    assert interval_refusal(eight) is None
    assert interval_refusal(eight, confidence=0.999) == "too few samples"  # that takes 11


def test_the_correlation_of_neighbours() -> None:
    """Around its mean: -1, 1, -1, 1, products -1 three times, squares 4."""
    assert autocorrelation(np.array([1.0, 3.0, 1.0, 3.0])) == pytest.approx(-3 / 4)
    assert autocorrelation(np.array([1.0, 3.0, 1.0, 3.0]), lag=2) == pytest.approx(2 / 4)
    assert autocorrelation(np.array([1.0, 3.0])) is None
    assert autocorrelation(np.array([1.0, 3.0, 1.0])) is not None
    assert autocorrelation(np.ones(9)) is None


def test_the_interval_over_processes_is_students_t_on_logarithms() -> None:
    centre, low, high, _ = restarts_interval([1.0, math.e, math.e**2])
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert (centre, low, high) == pytest.approx((math.e, math.exp(1 - half), math.exp(1 + half)))
    centre, low, high, _ = restarts_interval([0.0, 1.0, 2.0])
    assert (centre, low, high) == pytest.approx((1.0, 1 - half, 1 + half))


def test_a_quantile_needs_samples_beyond_it_and_lies_between_order_statistics() -> None:
    assert [min_samples_for_quantile(share) for share in (0.5, 0.9, 0.99, 0.01)] == [2, 10, 100, 100]
    below = (np.quantile(NOISE, 0.9) >= NOISE).astype(float)
    variance, freedom = long_run_by_scipy(below)
    reach = stats.t.ppf(0.975, freedom) * math.sqrt(max(variance, 0.09) / 400)
    assert quantile_interval(NOISE, 0.9) == pytest.approx(tuple(np.quantile(NOISE, [0.9 - reach, 0.9 + reach])))
    assert quantile_interval(NOISE[:99], 0.99) is None


def test_looks_are_these_and_spend_three_fifths_of_the_error() -> None:
    plan = sequential.plan_looks()
    assert [look.n for look in plan] == [100, 140, 196, 275, 385, 538, 753, 1055, 1476, 2067, 2893, 4000]
    assert [look.early for look in plan] == [True] * 11 + [False]
    stretches = [
        stats.t.isf(0.05 * 0.6 * look.share / 2, cosine_count(look.n)) / stats.t.ppf(0.975, cosine_count(look.n))
        for look in plan
    ]
    assert sum(look.share for look in plan) == pytest.approx(1.0)
    assert stretches == pytest.approx([stretches[0]] * 12, rel=1e-6)
    small = [look for look in sequential.plan_looks(16, 4000) if look.n < 100]
    assert [look.n for look in small] == [16, 23, 32, 44, 62, 87]
    assert sum(look.share for look in small) == pytest.approx(0.3)


def test_an_interval_at_a_look_is_the_fixed_one_stretched_by_what_the_look_may_spend() -> None:
    look = sequential.plan_looks()[4]
    seen = NOISE[: look.n]
    fixed, middle = order_interval(seen), float(np.median(seen))
    assert fixed is not None
    freedom = cosine_count(look.n)
    stretch = stats.t.isf(0.05 * 0.6 * look.share / 2, freedom) / stats.t.ppf(0.975, freedom)
    expected = (middle - stretch * (middle - fixed[0]), middle + stretch * (fixed[1] - middle))
    assert sequential.interval_at_look(NOISE, look) == pytest.approx(expected)


def test_known_well_enough_is_half_the_interval_against_the_median() -> None:
    look = sequential.plan_looks(last=385)[-1]
    interval = sequential.interval_at_look(NOISE, look)
    assert interval is not None
    relative = (interval[1] - interval[0]) / 2 / float(np.median(NOISE[:385]))
    assert sequential.decide_to_stop(NOISE, look, relative * 1.001) == "enough"
    assert sequential.decide_to_stop(NOISE, look, relative * 0.999) == "more"


def test_a_gate_looks_at_these_restarts() -> None:
    assert blocks.plan_gate_looks(3) == [3, 5, 7, 10, 14, 20, 28, 40, 56]
    assert blocks.plan_gate_looks(1, 4) == [1, 2, 3]
    assert blocks.plan_gate_looks(3, 7) == [3, 5, 7]


@pytest.mark.parametrize("questions", [1, 2, 5])
def test_a_gate_spends_the_same_at_each_end_of_each_look_shared_by_its_questions(questions: int) -> None:
    judged = blocks.decide_limit([0.1, 0.2, 0.3], 0.02, questions)
    half = stats.t.isf(0.004 / questions, 2) * 0.1 / math.sqrt(3)
    assert judged.ratio is not None
    assert (judged.ratio.low, judged.ratio.high) == pytest.approx((math.exp(0.2 - half), math.exp(0.2 + half)))
    assert judged.ratio.value == pytest.approx(math.exp(0.2))


def test_a_gate_says_worse_only_where_the_whole_interval_is_beyond_the_limit() -> None:
    ratio = blocks.decide_limit([0.1, 0.2, 0.3, 0.2], 0.0).ratio
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    logs = [0.1, 0.2, 0.3, 0.2]
    assert blocks.decide_limit(logs, ratio.low - 1 - 1e-9).verdict == "worse"
    assert blocks.decide_limit(logs, ratio.low - 1).verdict == "unsure"
    assert blocks.decide_limit(logs, ratio.high - 1).verdict == "unsure"
    assert blocks.decide_limit(logs, ratio.high - 1 + 1e-9).verdict == "not worse"


@pytest.mark.parametrize("questions", [1, 3])
def test_restarts_that_would_decide_a_gate(questions: int) -> None:
    logs, away = [0.04, 0.06, 0.05, 0.09], 0.06 - math.log1p(0.02)
    spread = float(np.std(logs, ddof=1))
    enough = [n for n in range(5, 61) if stats.t.isf(0.004 / questions, n - 1) * spread < away * math.sqrt(n)]
    assert blocks.estimate_restarts_needed(logs, 0.02, questions) == enough[0] > 5
    assert blocks.estimate_restarts_needed(logs, math.expm1(0.06)) is None
    assert blocks.estimate_restarts_needed(logs[:1], 0.02) is None


def test_a_pair_gets_a_verdict_only_beyond_or_within_the_minimum_effect() -> None:
    margin = math.log1p(0.01)
    assert sequential.judge_log_ratio(margin + 1e-9, 1.0) == "slower"
    assert sequential.judge_log_ratio(margin, 1.0) == "unsure"
    assert sequential.judge_log_ratio(-1.0, -margin - 1e-9) == "faster"
    assert sequential.judge_log_ratio(-1.0, -margin) == "unsure"
    assert sequential.judge_log_ratio(-margin + 1e-9, margin - 1e-9) == "same"
    assert (
        sequential.judge_log_ratio(-margin, margin - 1e-9)
        == sequential.judge_log_ratio(-margin + 1e-9, margin)
        == "unsure"
    )


def test_pairs_are_taken_in_whole_blocks() -> None:
    first, second = np.array([1.0, 2.0, 4.0, 8.0]), np.array([2.0, 2.0, 2.0])
    assert sequential.log_ratios(first, second, 2).tolist() == pytest.approx([math.log(2), 0.0])
    assert sequential.log_ratios(first, second).tolist() == pytest.approx([math.log(2), 0.0, -math.log(2)])


def test_a_ratio_over_blocks_is_students_t_on_logarithms() -> None:
    ratio = blocks.ratio_over_blocks([0.0, 0.1, 0.2])
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert ratio is not None
    assert ratio.value == pytest.approx(math.exp(0.1))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(0.1 - half), math.exp(0.1 + half)))
    assert ratio.blocks == 3
    assert blocks.ratio_over_blocks([0.5]) == blocks.BlockRatio(math.exp(0.5), None, None, 1)
    assert blocks.ratio_over_blocks([]) is None


def test_what_chance_gives_is_the_mean_square_about_zero_with_all_its_degrees_of_freedom() -> None:
    found = blocks.aa_noise_floor([0.03, -0.04], 4)
    assert found == pytest.approx(math.expm1(stats.t.ppf(0.975, 2) * math.sqrt(0.00125) / 2))
    assert blocks.aa_noise_floor([], 4) is None
    assert blocks.aa_noise_floor([0.1], 0) is None
    assert blocks.aa_noise_floor([0.1], 1) is not None


def test_a_difference_is_beyond_the_floor_and_its_interval_excludes_none() -> None:
    def judged(low: float, value: float, high: float, floor: float) -> str:
        return blocks.decide_difference(blocks.BlockRatio(value, low, high, 3), floor)

    assert judged(1.001, 1.06, 1.2, 0.05) == "yes"
    assert judged(1.001, 1.0499, 1.2, 0.05) == "unsure"  # not beyond the floor
    assert judged(1.0, 1.06, 1.2, 0.05) == "unsure"  # 1 is in it
    assert judged(0.5, 0.6, 0.9, 0.05) == "yes"
    assert judged(1.001, 1.0105, 1.02, 0.001) == "yes"
    assert judged(1.001, 1.0095, 1.02, 0.001) == "unsure"  # less than what matters
    assert judged(1 / 1.0499, 1.0, 1.0499, 0.05) == "no"
    assert judged(1 / 1.0499, 1.0, 1.0501, 0.05) == judged(1 / 1.0501, 1.0, 1.0499, 0.05) == "unsure"
    assert judged(1 / 1.099, 1.0, 1.099, 0.5) == "no"
    assert judged(1 / 1.099, 1.0, 1.101, 0.5) == "unsure"  # nobody knows enough


def test_a_unit_that_a_block_lacks_does_not_shift_the_block() -> None:
    assert blocks.average_units([[1.0, 2.0, 3.0], [5.0, None, 7.0]]) == pytest.approx([3.0, 4.0, 5.0])
    assert blocks.average_units([[None, 1.0], [None, 3.0]]) == pytest.approx([2.0])
    assert blocks.average_units([]) == blocks.average_units([[None]]) == []


def test_what_is_believed_of_noise_before_the_first_sample() -> None:
    nothing = selection.NoiseStats()
    assert (nothing.freedom, nothing.variance, nothing.spike_rate) == pytest.approx((4.0, 0.0004, 0.1))
    some = nothing + selection.NoiseStats(squares=0.0084, degrees=6.0, spikes=1, samples=10)
    assert (some.freedom, some.variance, some.spike_rate) == pytest.approx((10.0, 0.001, 0.1))


def test_the_interval_of_a_rank_correlation_is_fishers_with_the_variance_of_ranks() -> None:
    first = np.arange(20.0)
    second = first.copy()
    second[[0, 19]] = second[[19, 0]]
    rho = float(stats.spearmanr(first, second).statistic)
    for spent in (0, 2):
        found = partial_correlation(first, second, spent=spent)
        reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (20 - spent - 3))
        assert found is not None
        assert found.rho == pytest.approx(rho)
        assert (found.low, found.high) == pytest.approx(
            (math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach))
        )


def test_a_degree_of_freedom_goes_for_each_thing_that_is_held_equal() -> None:
    chance = np.random.default_rng(3)
    first, second, third = chance.normal(size=(3, 30))
    found = partial_correlation(first, second, [third])
    by_hand = [stats.rankdata(column) for column in (first, second, third)]
    one, other = (column - np.polyval(np.polyfit(by_hand[2], column, 1), by_hand[2]) for column in by_hand[:2])
    rho = float(one @ other / math.sqrt((one @ one) * (other @ other)))
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (30 - 1 - 3))
    assert found is not None
    assert found.rho == pytest.approx(rho)
    assert found.low == pytest.approx(math.tanh(math.atanh(rho) - reach))


def test_processes_without_a_sensor_have_students_t_over_their_logarithms() -> None:
    found = combine_processes([ProcessReading(1.0), ProcessReading(math.e), ProcessReading(math.e**2)])
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((math.e, math.exp(1 - half), math.exp(1 + half)))


def test_a_sensors_error_is_added_in_squares_once() -> None:
    found = combine_processes(
        [ProcessReading(10.0, share=0.03), ProcessReading(10.0, share=0.03), ProcessReading(10.0, share=0.03)]
    )
    assert found.low is not None
    assert found.high is not None
    assert (math.log(found.high / 10), math.log(10 / found.low)) == pytest.approx((0.03, 0.03))


def test_the_spread_of_a_few_values_is_students_t_of_independent_ones() -> None:
    assert mean_spread(np.array([9.0, 10.0, 11.0])) == pytest.approx(stats.t.ppf(0.975, 2) / math.sqrt(3) / 10)
    assert mean_spread(np.array([10.0])) is None
