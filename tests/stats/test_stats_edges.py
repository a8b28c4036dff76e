"""Statistics at their edges, by hand: one, two and no values, ties, values that are not there, equal to a limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import fft, stats

from assay.stats import blocks, variance
from assay.stats import intervals as tails
from assay.stats.correlation import RankCorrelation, adjust_holm, partial_correlation, rank_correlation, rank_values
from assay.stats.intervals import estimate_median, expected_method, explain_no_interval, slowest_rank, summarize_samples
from assay.stats.numerics import cosine_transform, median, quantiles
from assay.stats.ratios import Proportion, mcnemar_p


def test_the_cosines_of_a_series_are_orthonormal_and_the_slowest_comes_first() -> None:
    assert cosine_transform(np.array([1.0, 2.0, 3.0])) == pytest.approx([6 / math.sqrt(3), -math.sqrt(2), 0.0])
    for n in (1, 2, 4, 5, 9):
        values = np.square(np.arange(n, dtype=np.float64)) + 1.0
        assert cosine_transform(values) == pytest.approx(fft.dct(values, norm="ortho"))


def test_labels_are_numbered_as_they_come_and_combinations_that_occur_apart() -> None:
    codes, labels = variance.encode_labels(["b", "a", "b", "c"])
    assert (codes.tolist(), labels) == ([0, 1, 0, 2], ["b", "a", "c"])
    one, other = np.array([0, 0, 1, 1, 0]), np.array([5, 6, 5, 6, 5])
    assert variance.combine_codes(one, other).tolist() == [0, 1, 2, 3, 0]
    assert variance.combine_codes(one, other, one).shape == (5,)


def test_groups_of_no_one_two_and_three_values_have_these_means_medians_and_variances() -> None:
    values, codes = np.array([9.0, 1.0, 7.0, 4.0, 2.0, 100.0]), np.array([3, 2, 3, 0, 2, 2])
    means = [4.0, math.nan, 103 / 3, 8.0, math.nan]
    assert variance.group_means(values, codes, 5) == pytest.approx(means, nan_ok=True)
    medians = [4.0, math.nan, 2.0, 8.0, math.nan]
    assert variance.group_medians(values, codes, 5) == pytest.approx(medians, nan_ok=True)
    squares = (1 - 103 / 3) ** 2 + (2 - 103 / 3) ** 2 + (100 - 103 / 3) ** 2
    variances = [math.nan, math.nan, squares / 2, 2.0, math.nan]
    assert variance.group_variances(values, codes, 5) == pytest.approx(variances, nan_ok=True)


def test_the_median_of_a_group_of_four_is_between_its_middle_two() -> None:
    values, codes = np.array([8.0, 0.0, 1.0, 4.0, 2.0]), np.array([1, 0, 1, 1, 1])
    assert variance.group_medians(values, codes, 2).tolist() == [0.0, 3.0]
    assert variance.group_medians(np.array([5.0, 1.0, 2.0, 9.0, 7.0]), np.zeros(5, dtype=np.intp), 1).tolist() == [5.0]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 40, 41, 200])
def test_medians_and_quantiles_are_numpys_to_the_last_bit(n: int) -> None:
    samples = np.random.default_rng(n).normal(10.0, 3.0, (30, n))
    shares = (0.0, 0.1, 0.25, 0.5, 0.625, 0.7, 0.975, 1.0)
    for each in samples:
        assert median(each) == np.median(each)
        assert quantiles(each, shares) == tuple(np.quantile(each, shares).tolist())


def test_what_has_a_sample_that_is_no_number_has_no_median_and_no_quantiles() -> None:
    for n in (1, 2, 3, 6, 7):
        for place in range(n):
            samples = np.arange(float(n))
            samples[place] = math.nan
            assert math.isnan(median(samples))
            assert [math.isnan(each) for each in quantiles(samples, (0.1, 0.9))] == [True, True]


def test_a_share_has_the_exact_interval_and_none_without_a_try() -> None:
    assert (Proportion(0, 0).value, Proportion(0, 0).interval()) == (None, None)
    assert (Proportion(1, 1).value, Proportion(3, 12).value) == (1.0, 0.25)
    assert Proportion(1, 1).interval() == pytest.approx((0.025, 1.0))
    assert Proportion(0, 1).interval() == pytest.approx((0.0, 0.975))
    assert Proportion(0, 10).interval() == pytest.approx((0.0, 1 - 0.025**0.1))
    assert Proportion(10, 10).interval(0.9) == pytest.approx((0.05**0.1, 1.0))
    exact = stats.binomtest(3, 10).proportion_ci(0.95)
    assert Proportion(3, 10).interval() == pytest.approx((exact.low, exact.high))
    assert Proportion(1, 4) + Proportion(2, 7) == Proportion(3, 11)


def test_one_thing_happens_more_often_by_mcnemars_exact_test() -> None:
    assert mcnemar_p(0, 0) == mcnemar_p(3, 3) == mcnemar_p(1, 0) == 1.0
    assert mcnemar_p(0, 5) == mcnemar_p(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_p(1, 5) == mcnemar_p(5, 1) == pytest.approx(2 * (1 + 6) / 64)


def test_a_quantile_has_an_interval_from_the_fewest_samples_on() -> None:
    """Six for any; as many as leave one beyond it for one far out."""
    samples = np.tile([0.0, 1.0], 10)
    assert tails.quantile_interval(samples[:5], 0.5, 0.5) is None
    assert tails.quantile_interval(samples[:6], 0.5, 0.5) is not None
    spread = np.array([3.0, 7.0, 1.0, 9.0, 2.0, 8.0, 4.0, 6.0, 0.0, 5.0])
    assert tails.quantile_interval(spread[:9], 0.9, 0.2) is None
    assert tails.quantile_interval(spread, 0.9, 0.2) is not None


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_quantile_has_no_interval_that_reaches_to_the_end_of_all_samples(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 48 samples that alternate, the quartile's standard error is that of 48 tries: 1/16, of which 4 are 1/4."""
    samples = np.tile([0.0, 2.0, 1.0, 3.0], 12)
    monkeypatch.setattr(tails, "t_quantile", lambda confidence, freedom: 4.0)
    assert tails.quantile_interval(samples, share) is None
    monkeypatch.setattr(tails, "t_quantile", lambda confidence, freedom: 3.0)
    expected = tuple(np.quantile(samples, [share - 3 / 16, share + 3 / 16]))
    assert tails.quantile_interval(samples, share) == pytest.approx(expected)


def test_samples_that_equal_a_quantile_lie_below_it() -> None:
    """Ones take turns with twos in blocks of 16, between zeros: that shows only where ones are below."""
    samples = np.zeros(128)
    samples[1::2] = np.tile(np.repeat([1.0, 2.0], 8), 4)
    assert tails.quantile_interval(samples, 0.6) == (0.0, 2.0)


def test_one_process_is_told_by_its_samples_and_several_by_their_medians() -> None:
    samples = np.array([3.0, 7.0, 1.0, 9.0, 2.0, 8.0, 4.0, 6.0, 0.0, 50.0])
    one = estimate_median([samples], "us")
    assert (one.value, one.n, one.scope, one.unit) == (5.0, 10, "process", "us")
    assert one.low is not None
    assert one.high is not None
    assert one.low < 5.0 < one.high
    assert one.method == expected_method(1)
    assert estimate_median([samples], "us", scope_of_one="run").scope == "run"
    two = estimate_median([np.array([1.0]), np.array([math.e**2] * 2)], "us")
    assert two.value == pytest.approx(math.e)
    assert (two.n, two.scope) == (3, "run")
    assert two.method == expected_method(2) != expected_method(3)


def test_the_slowest_rank_of_each_iteration_that_all_made() -> None:
    assert slowest_rank([np.array([1.0, 5.0, 9.0]), np.array([4.0, 2.0])]).tolist() == [4.0, 5.0]


def test_why_a_median_has_no_interval() -> None:
    assert explain_no_interval(np.arange(3.0)) == "too few effective samples"
    slow = np.tile(np.repeat([10.0, 20.0], [30, 20]), 3) + np.tile([0.0, 0.1, 0.3, 0.2, 0.05], 30)
    assert explain_no_interval(slow).startswith("two levels, 10.1 and 20.1 (4")


def test_a_summary_is_over_all_processes_and_their_neighbours_correlation_is_averaged() -> None:
    """Neighbours correlate by -3/4, 1/2 (1 + 1 - 1 + 1 + 1 of squares 6) and -1/4; those of one sample do not."""
    parts = ([1.0, 3.0, 1.0, 3.0], [1.0, 1.0, 1.0, 3.0, 3.0, 3.0], [1.0, 3.0, 3.0, 1.0], [9.0])
    found = summarize_samples("role", 2, "call_us", "us", [np.array(part) for part in parts])
    assert (found.role, found.subject, found.quantity, found.n) == ("role", 2, "call_us", 15)
    assert (found.mean, found.minimum, found.maximum) == pytest.approx((37 / 15, 1.0, 9.0))
    assert found.quartiles == (1.0, 3.0, 3.0)
    assert found.cv == pytest.approx(float(np.std(np.concatenate(parts), ddof=1)) * 15 / 37)
    assert found.autocorrelation == pytest.approx((-3 / 4 + 1 / 2 - 1 / 4) / 3)


def test_a_summary_has_quartiles_over_all_processes() -> None:
    found = summarize_samples("role", 0, "call_us", "us", [np.array([4.0, 0.0, 16.0]), np.array([1.0, 9.0])])
    assert found.quartiles == (1.0, 4.0, 9.0)


def test_a_summary_of_one_sample_or_about_zero_has_no_relative_spread() -> None:
    alone = summarize_samples("role", 0, "call_us", "us", [np.array([4.0])])
    assert (alone.cv, alone.autocorrelation, alone.n) == (None, None, 1)
    assert summarize_samples("role", 0, "call_us", "us", [np.array([-1.0, 1.0])]).cv is None
    two = summarize_samples("role", 0, "call_us", "us", [np.array([1.0, 3.0])], scope_of_one="run")
    assert two.cv == pytest.approx(math.sqrt(2) / 2)
    assert two.estimate.scope == "run"


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert rank_values(np.array([20.0, 10.0, 20.0, 30.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_a_correlation_takes_six_pairs_and_two_things_that_change() -> None:
    rising: list[float | None] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, None, 8.0]
    other: list[float | None] = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, None]
    found = rank_correlation(rising, other)
    assert found is not None
    assert (found.rho, found.n) == pytest.approx((1.0, 6))
    assert 1 / 4001 < found.p < 0.01  # 2 of 720 orders are as far apart
    assert rank_correlation(rising[:5], other[:5]) is None
    assert rank_correlation(rising[:6], [1.0] * 6) is None


def test_a_correlation_among_ties_is_spearmans_and_chance_is_counted_in_4000_shuffles() -> None:
    one, other = [1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 9.0], [5.0, 4.0, 6.0, 6.0, 6.0, 6.0, 8.0]
    found = rank_correlation(one, other)
    assert found is not None
    assert found.rho == pytest.approx(float(stats.spearmanr(one, other).statistic))
    assert found.p * 4001 == pytest.approx(round(found.p * 4001), abs=1e-6)
    surely = rank_correlation(range(20), range(0, -20, -1))
    assert surely is not None
    assert (surely.rho, surely.n, surely.p) == pytest.approx((-1.0, 20, 1 / 4001))


def test_holm_raises_each_chance_by_how_many_are_left_and_keeps_their_order() -> None:
    def raised(*chances: float) -> list[float]:
        return [each.p for each in adjust_holm([RankCorrelation(0.5, 9, p) for p in chances])]

    assert raised(0.01, 0.04, 0.03) == pytest.approx([0.03, 0.06, 0.06])
    assert raised(0.7, 0.6) == [1.0, 1.0]
    assert raised(0.2) == [0.2]
    assert adjust_holm([]) == []


def test_an_association_takes_three_things_and_one_more_for_each_held_equal() -> None:
    first, second, third = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.array([2.0, 1, 4, 3])
    assert partial_correlation(first[:2], second[:2]) is None
    assert partial_correlation(first[:3], second[:3]) is not None
    assert partial_correlation(first[:3], second[:3], [third[:3]]) is None
    assert partial_correlation(first, second, [third]) is not None
    gone = np.array([1.0, math.nan, 3.0, math.inf])
    assert partial_correlation(first, gone) is None


def test_an_association_has_an_interval_from_six_free_things_on_and_none_where_it_is_perfect() -> None:
    first, second = np.arange(8.0), np.array([1.0, 0, 3, 2, 5, 4, 7, 6])
    for spent, known in ((0, True), (2, True), (3, False)):
        found = partial_correlation(first, second, spent=spent)
        assert found is not None
        assert (found.low is not None, found.high is not None, found.n) == (known, known, 8)
    paired = partial_correlation(first, second, independent=False)
    assert paired is not None
    assert (paired.low, paired.high) == (None, None)
    for n in range(3, 64):  # of 53 and 57 things, rounding alone would make it less than -1
        steps = np.arange(n, dtype=np.float64)
        rising, falling = partial_correlation(steps, steps), partial_correlation(steps, -steps)
        assert rising is not None
        assert falling is not None
        assert (rising.rho, falling.rho) == pytest.approx((1.0, -1.0))
        assert rising.low is None
        assert -1.0 <= falling.rho < rising.rho <= 1.0


def test_what_is_wholly_told_by_what_is_held_equal_goes_with_nothing_else() -> None:
    chance = np.random.default_rng(4)
    first, second = chance.normal(size=(2, 500))
    assert partial_correlation(first, second, [first]) is None
    assert partial_correlation(np.ones(500), second) is None
    assert partial_correlation(first, second) is not None


def test_a_difference_at_its_limits_is_not_called() -> None:
    """Ratios of which the logarithms are exact: 1, and the floors' own."""
    at_floor = blocks.BlockRatio(1.25, 1.125, 1.5, 3)
    assert blocks.decide_difference(at_floor, 0.25) == "unsure"
    assert blocks.decide_difference(blocks.BlockRatio(1.2500001, 1.125, 1.5, 3), 0.25) == "yes"
    assert blocks.decide_difference(blocks.BlockRatio(1.0, 1.0, 1.0625, 3), 0.0625) == "no"
    assert blocks.decide_difference(blocks.BlockRatio(1.0, 1.0, 1.0625, 3), 0.01, 0.0625) == "no"
    assert blocks.decide_difference(blocks.BlockRatio(1.0, 1.0, 1.0625, 3), 0.01) == "unsure"
    assert blocks.decide_difference(None, 0.1) == blocks.decide_difference(at_floor, None) == "unsure"
    for low, high in ((None, None), (1.5, None), (None, 3.0)):
        assert blocks.decide_difference(blocks.BlockRatio(2.0, low, high, 1), 0.1) == "unsure"
    assert blocks.decide_difference(blocks.BlockRatio(0.9, 0.8, 1.0, 3), 0.05) == "unsure"
    assert blocks.decide_difference(blocks.BlockRatio(1.0, 0.5, 1.5, 3), 0.01, 1.0) == "no"
    assert blocks.aa_noise_floor([0.0, 0.0, 0.3], 1) == pytest.approx(
        math.expm1(stats.t.ppf(0.975, 3) * math.sqrt(0.03))
    )


def test_the_middle_of_units_is_their_mean_and_each_block_strays_by_the_mean_of_theirs() -> None:
    """Units at 1, 2 and 9 have the mean 4; their first blocks stray by -1, 0 and -4."""
    found = blocks.average_units([[0.0, 2.0], [2.0, 2.0], [5.0, 13.0], [None, None]])
    assert found == pytest.approx([4 - 5 / 3, 4 + 5 / 3])


def test_a_gate_looks_at_one_more_restart_where_they_hardly_grow() -> None:
    assert blocks.plan_gate_looks(2, 4) == [2, 3]
    assert blocks.plan_gate_looks(43) == [43]
    assert blocks.decide_limit([], 0.02) == blocks.LimitDecision("unsure", None)
    assert blocks.decide_limit([0.5], 0.02).verdict == "unsure"
    assert blocks.decide_limit([0.1, 0.2], 0.02) == blocks.decide_limit([0.1, 0.2], 0.02, 1)


def test_a_gate_of_two_restarts_may_be_decided_by_three_and_never_by_more_than_sixty() -> None:
    assert blocks.estimate_restarts_needed([0.1, 0.1 + 1e-9], 0.02) == 3
    assert blocks.estimate_restarts_needed([0.1] * 5, 0.0) == 6
    assert blocks.estimate_restarts_needed([0.0, 0.0], 0.0) is None

    def spread_for(n: int) -> float:
        return math.sqrt(n) / float(stats.t.isf(0.004, n - 1))

    for spread, needed in (
        (1.0001 * spread_for(59), 60),
        (0.9999 * spread_for(60), 60),
        (1.0001 * spread_for(60), None),
    ):
        apart = spread / math.sqrt(2)
        assert blocks.estimate_restarts_needed([1 - apart, 1 + apart], 0.0) == needed
