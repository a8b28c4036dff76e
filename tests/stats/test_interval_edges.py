"""Ratios, sensors' numbers, draws and wandering at their edges, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from assay.stats import intervals, ratios, shape
from assay.stats.intervals import autocorrelation, effective_size, mean_interval
from assay.stats.numerics import robust_scale, winsorize
from assay.stats.ratios import LogEstimate
from assay.stats.sensor_intervals import (
    ProcessReading,
    combine_processes,
    estimate_joules,
    mean_spread,
    rate_spread,
    scope_of_processes,
)

E = math.e
T2 = float(stats.t.ppf(0.975, 2))


def told(found: LogEstimate | None) -> tuple[float, float | None, float]:
    assert found is not None
    return found.log, found.error, found.degrees


def test_a_level_has_an_interval_by_its_degrees_of_freedom_that_can_be_written() -> None:
    assert LogEstimate(0.5).value == pytest.approx(math.sqrt(E))
    assert LogEstimate(0.5).interval() is None
    half = 0.1 * stats.t.ppf(0.975, 4)
    assert LogEstimate(0.5, 0.1, 4).interval() == pytest.approx((math.exp(0.5 - half), math.exp(0.5 + half)))
    half = 0.1 * stats.norm.ppf(0.95)
    assert LogEstimate(0.5, 0.1).interval(0.9) == pytest.approx((math.exp(0.5 - half), math.exp(0.5 + half)))
    assert LogEstimate(0.0, 1000.0).interval() == pytest.approx((math.exp(-700), math.exp(700)), rel=1e-9, abs=0)


def test_a_number_has_a_level_where_it_has_a_logarithm_and_an_error_where_its_interval_has() -> None:
    for none in (0.0, -1.0, math.inf, math.nan):
        assert ratios.log_estimate(none, 1.0, 2.0, 3) is None
    assert (
        told(ratios.log_estimate(0.5, None, 2.0, 3))
        == told(ratios.log_estimate(0.5, 0.1, None, 3))
        == (-math.log(2), None, math.inf)
    )
    assert told(ratios.log_estimate(0.5, 0.0, 2.0, 3)) == (-math.log(2), None, math.inf)
    usual = stats.norm.ppf(0.975)
    assert told(ratios.log_estimate(1.0, 0.5, 2.0, None)) == pytest.approx((0.0, math.log(2) / usual, 4))
    assert told(ratios.log_estimate(2.0, 1.0, 4.0, 1)) == pytest.approx((math.log(2), math.log(2) / usual, math.inf))
    assert told(ratios.log_estimate(2.0, 1.0, 4.0, 3)) == pytest.approx((math.log(2), math.log(2) / T2, 2))
    assert told(ratios.log_estimate(2.0, 1.0, 4.0, 2)) == pytest.approx(
        (math.log(2), math.log(2) / stats.t.ppf(0.975, 1), 1)
    )
    wider = ratios.log_estimate(2.0, 1.0, 4.0, None, 0.5)
    assert told(wider) == pytest.approx((math.log(2), math.log(2) / stats.norm.ppf(0.75), 4))


def test_draws_ratios_and_means_have_errors_that_add_in_squares() -> None:
    assert told(ratios.log_estimate_of_draws([1.0, 1.0, E**3])) == pytest.approx((1.0, 1.0, 2))
    one, other = LogEstimate(1.0, 0.3, 5), LogEstimate(3.0, 0.4, 10)
    assert told(ratios.divide_estimates(one, other)) == pytest.approx((2.0, 0.5, 0.0625 / (0.0081 / 5 + 0.0256 / 10)))
    assert told(ratios.divide_estimates(LogEstimate(1.0, 0.3), LogEstimate(3.0, 0.4))) == pytest.approx(
        (2.0, 0.5, math.inf)
    )
    assert (
        told(ratios.divide_estimates(one, LogEstimate(3.0)))
        == told(ratios.divide_estimates(LogEstimate(1.0), other))
        == (2.0, None, math.inf)
    )
    exact = ratios.divide_estimates(LogEstimate(0.0, 0.0, 4), LogEstimate(0.0, 0.0, 4))
    assert told(exact) == pytest.approx((0.0, math.sqrt(2) * 1e-12, 8.0), rel=1e-9, abs=0)
    three = ratios.geometric_mean([LogEstimate(0.0, 0.3, 4), LogEstimate(3.0, 0.3, 4), LogEstimate(6.0, 0.6, 8)])
    assert told(three) == pytest.approx((3.0, math.sqrt(0.54) / 3, 14.4))
    assert told(ratios.geometric_mean([LogEstimate(0.0), one, LogEstimate(8.0, 0.1)])) == (3.0, None, math.inf)
    assert ratios.geometric_mean([one]) == one


def test_groups_held_against_themselves_are_least_squares() -> None:
    assert (
        ratios.pooled_ratio([])
        is ratios.pooled_ratio([([1.0], [])])
        is ratios.pooled_ratio([([], [1.0]), ([1.0], [1.0])])
        is None
    )
    assert told(ratios.pooled_ratio([([1.0], [E])])) == (1.0, None, math.inf)
    assert told(ratios.pooled_ratio([([1.0], [E, E**3])])) == pytest.approx((2.0, math.sqrt(3), 1))
    assert told(ratios.pooled_ratio([([1.0, 1.0, E**3], [1.0, 1.0, E**6])])) == pytest.approx((1.0, math.sqrt(5), 4))
    two = ratios.pooled_ratio([([1.0], [E]), ([1.0, 1.0], [E**2, E**4])])
    assert told(two) == pytest.approx((7 / 3, math.sqrt(10 / 3 / 3 / 1.5), 3))


@pytest.mark.parametrize("degrees", [5.0, math.inf])
def test_a_verdict_is_said_as_surely_as_its_chance_among_all_that_are_asked(degrees: float) -> None:
    """All of them are said wrongly with a chance of 3 %."""
    sure = 0.01 * float(stats.t.isf(0.015, degrees) if math.isfinite(degrees) else stats.norm.isf(0.015))
    margin = math.log(1.1)
    for log, verdict in (
        (margin + sure, "slower"),
        (-margin - sure, "faster"),
        (margin - sure, "same"),
        (sure - margin, "same"),
    ):
        found = LogEstimate(log, 0.01, degrees)
        assert ratios.decide_ratios([found], 0.1, 0.9699) == [verdict]
        assert ratios.decide_ratios([found], 0.1, 0.9701) == ["unsure"]
        assert ratios.decide_ratios([found, found], 0.1) == ["unsure", "unsure"]
        assert ratios.decide_ratios([found, LogEstimate(9.0, 0.0, 4), LogEstimate(1.0)], 0.1, 0.93) == [
            verdict,
            "slower",
            "unsure",
        ]
        assert ratios.decide_ratios([found, LogEstimate(9.0, 0.0, 4), LogEstimate(1.0)], 0.1, 0.95) == [
            "unsure",
            "slower",
            "unsure",
        ]


def test_three_processes_are_a_run() -> None:
    assert [scope_of_processes(n) for n in (1, 2, 3, 4)] == ["process", "process", "run", "run"]
    found = estimate_joules([ProcessReading(2.0), ProcessReading(2.0), ProcessReading(2.0)])
    assert found.value == pytest.approx(2.0)
    assert (found.unit, found.scope, found.n) == ("J", "run", 3)


def test_calls_leave_a_rate_open_by_what_each_made_and_took() -> None:
    ones = np.ones(3)
    assert rate_spread(ones, np.array([9.0, 10.0, 11.0])) == pytest.approx(T2 * 0.1 / math.sqrt(3))
    assert rate_spread(np.array([1.0, 1.0, 4.0]), ones) == pytest.approx(T2 / 2)
    assert rate_spread(ones, np.array([1.0, 1.0, 4.0])) == pytest.approx(T2 / 2)
    alike = np.array([1.0, 2.0, 3.0])
    assert rate_spread(alike, 2 * alike) == pytest.approx(0.0)
    assert rate_spread(ones, 2 * ones) == rate_spread(2 * ones, ones) == 0.0
    assert rate_spread(ones, np.ones(2)) is rate_spread(0 * ones, ones) is rate_spread(ones, 0 * ones) is None


def test_the_spread_of_a_mean_is_a_share_of_its_size() -> None:
    skewed = np.array([1.0, 1.0, 4.0])  # mean 2, standard deviation √3
    assert mean_spread(skewed) == mean_spread(-skewed) == pytest.approx(T2 / 2)
    assert mean_spread(np.array([9.0, 11.0])) == pytest.approx(stats.t.ppf(0.975, 1) / 10)
    assert mean_spread(np.array([-1.0, 1.0])) is None
    assert mean_spread(np.full(8, -2.0)) == 0.0
    uneven = np.array([1.0, 5.0, 2.0, 9.0, 3.0, 4.0, 30.0])
    within = mean_interval(uneven)
    assert within is not None
    assert mean_spread(uneven) == mean_spread(-uneven) == pytest.approx((within[1] - within[0]) / 2 / (54 / 7))


def ends(*draws: ProcessReading) -> tuple[float, float | None, float | None]:
    found = combine_processes(draws)
    return found.value, found.low, found.high


def test_processes_of_numbers_that_are_not_positive_have_students_t_over_them() -> None:
    half = T2 * 2 / math.sqrt(3)
    assert ends(ProcessReading(-1.0), ProcessReading(1.0), ProcessReading(3.0)) == pytest.approx(
        (1.0, 1 - half, 1 + half)
    )
    assert ends(ProcessReading(0.0), ProcessReading(2.0), ProcessReading(4.0)) == pytest.approx(
        (2.0, 2 - half, 2 + half)
    )
    sensed = ends(ProcessReading(0.0, 0.5), ProcessReading(2.0, 0.5), ProcessReading(4.0, 0.5))
    assert sensed == pytest.approx((2.0, 2 - half, 2 + half))


def test_two_processes_are_as_open_as_the_calls_of_either() -> None:
    calls = (ProcessReading(1.0, calls=5, spread=0.5), ProcessReading(1.0, calls=5, spread=0.2))
    assert ends(*calls) == pytest.approx((1.0, math.exp(-0.5), math.exp(0.5)))
    assert ends(*calls, ProcessReading(1.0, calls=5, spread=0.2)) == pytest.approx((1.0, 1.0, 1.0))
    assert ends(ProcessReading(-2.0, spread=0.5), ProcessReading(-1.9)) == pytest.approx((-1.95, -2.95, -0.95))
    assert "fewer than the 3" in combine_processes(calls).method
    assert "fewer" not in combine_processes((*calls, ProcessReading(1.0))).method


def test_a_window_that_the_sensor_knows_better_counts_for_more_as_far_as_processes_are_alike() -> None:
    alike = ends(ProcessReading(1.0, 0.01), ProcessReading(1.0, 0.02), ProcessReading(1.0, 0.02))
    assert alike == pytest.approx((1.0, math.exp(-0.02 / 1.5), math.exp(0.02 / 1.5)))
    near = ends(ProcessReading(1.0, 0.1), ProcessReading(math.exp(0.001), 0.2), ProcessReading(math.exp(0.002), 0.2))
    assert near[0] == pytest.approx(math.exp(0.0005), rel=1e-9)
    apart = ends(ProcessReading(1.0, 0.196), ProcessReading(E, 0.392))  # a variance of 19 / 40 between them
    assert apart[0] == pytest.approx(math.exp(0.485))
    half = math.hypot(stats.t.ppf(0.975, 1) * math.sqrt(0.485 * 0.515), 0.515 * 0.196 + 0.485 * 0.392)
    assert apart[1:] == pytest.approx((math.exp(0.485 - half), math.exp(0.485 + half)))
    assert (
        ends(ProcessReading(1.0, 0.0), ProcessReading(E, 0.1))[0]
        == ends(ProcessReading(1.0, 0.3), ProcessReading(E))[0]
        == pytest.approx(math.exp(0.5))
    )


def test_one_process_has_what_its_calls_and_its_sensor_leave_open() -> None:
    assert ends(ProcessReading(-10.0, 0.3, 9, 0.4)) == pytest.approx((-10.0, -15.0, -5.0))
    assert ends(ProcessReading(10.0, 0.3)) == ends(ProcessReading(10.0, spread=0.3)) == pytest.approx((10.0, 7.0, 13.0))
    assert ends(ProcessReading(10.0, 0.3, 1)) == ends(ProcessReading(10.0)) == (10.0, None, None)
    assert "one call:" in combine_processes([ProcessReading(10.0, calls=1)]).method
    assert "2 calls:" in combine_processes([ProcessReading(10.0, calls=2)]).method
    assert "squares" in combine_processes([ProcessReading(10.0, 0.3, 9, 0.4)]).method
    assert "squares" not in combine_processes([ProcessReading(10.0, 0.3)]).method


def test_draws_are_runs_of_neighbours_as_long_as_they_resemble_each_other() -> None:
    chosen = intervals.draw_indices(np.tile([0.0, 1.0], 20), 3)
    assert chosen.shape == (2000, 40)
    assert chosen[0].tolist() == list(range(40))
    assert (chosen.min(), chosen.max()) == (0, 39)
    assert np.mean(np.diff(chosen[1:], axis=1) % 40 == 1) < 0.05
    in_runs = intervals.draw_indices(np.tile(np.repeat([0.0, 1.0], 10), 5), 3)
    assert in_runs.shape == (2000, 100)
    assert np.mean(np.diff(in_runs[1:], axis=1) % 100 == 1) > 0.6
    assert (in_runs.min(), in_runs.max()) == (0, 99)
    assert intervals.medians_of_draws(np.array([1.0, 9.0, 2.0]), np.array([[0, 1, 2], [1, 1, 0]])).tolist() == [
        2.0,
        9.0,
    ]


def test_why_samples_of_one_process_have_no_interval() -> None:
    few = np.array([1.0, 2.0, 1.5, 2.5, 1.2, 2.2])
    assert (intervals.explain_no_process_interval(few[:1]) or "").startswith("1 sample of")
    assert (intervals.explain_no_process_interval(few[:5]) or "").startswith("5 samples of")
    assert "resemble" in (intervals.explain_no_process_interval(few) or "")
    worth = effective_size(few)
    assert intervals.explain_no_process_interval(few, 1 - 2 ** (1.01 - worth)) is None
    assert "resemble" in (intervals.explain_no_process_interval(few, 1 - 2 ** (0.99 - worth)) or "")


def test_most_draws_lie_in_the_interval_and_what_was_measured_is_no_draw() -> None:
    values = np.concatenate([[1e9], np.arange(1001.0)])
    assert intervals.draws_interval(values) == pytest.approx((25.0, 975.0))
    assert intervals.draws_interval(values, 0.9) == pytest.approx((50.0, 950.0))
    values[7] = math.nan
    assert intervals.draws_interval(values) is None


def test_repeats_have_students_t_on_logarithms_where_all_are_positive() -> None:
    half = T2  # logarithms 0, 0 and 3 have the standard error 1
    assert intervals.repeats_interval(np.array([1.0, 1.0, E**3])) == pytest.approx(
        (E, math.exp(1 - half), math.exp(1 + half))
    )
    assert intervals.repeats_interval(np.array([0.0, 0.0, 3.0])) == pytest.approx((1.0, 1 - half, 1 + half))


def test_neighbours_of_small_numbers_correlate_as_those_of_large_ones_do() -> None:
    assert autocorrelation(np.array([0.1, 0.3, 0.1, 0.3])) == pytest.approx(-0.75)
    assert autocorrelation(np.array([0.0, 1e-200, 0.0, 1e-200])) is None


def test_samples_of_which_most_are_equal_have_no_outliers() -> None:
    samples = np.array([5.0] * 8 + [100.0])
    assert winsorize(samples).tolist() == samples.tolist()
    assert robust_scale(np.array([1.0, 3.0, 5.0])) == pytest.approx(2 * 1.4826)


def test_equal_samples_share_a_normal_score() -> None:
    assert shape.normal_scores(np.array([3.0, 1.0, 2.0])) == pytest.approx(special.ndtri([5 / 6, 1 / 6, 0.5]))
    tied = shape.normal_scores(np.array([7.0, 5.0, 9.0, 5.0]))
    assert tied == pytest.approx(special.ndtri([0.625, 0.25, 0.875, 0.25]))


def test_so_many_samples_are_read_with_so_many_cosines() -> None:
    assert [shape.wander_cosine_count(n) for n in (8, 27, 30, 40, 64, 4096)] == [6, 6, 7, 9, 12, 204]


def test_the_parts_of_a_window_have_sixteen_samples_and_there_are_8_to_64_of_them() -> None:
    def range_with_burst(n: int, begin: int, end: int) -> tuple[float, float]:
        samples = np.zeros(n)
        samples[begin:end] = 1.0
        return shape.range_of_medians(samples)

    assert shape.range_of_medians(np.array([4.0, 1.0, 3.0])) == (1.0, 4.0)
    assert shape.range_of_medians(np.repeat(np.arange(10.0), 16)) == (0.0, 9.0)
    assert range_with_burst(144, 16, 25) == (0.0, 1.0)
    assert range_with_burst(128, 16, 24) == (0.0, 0.5)
    assert range_with_burst(135, 126, 135) == (0.0, 1.0)  # in the last sixteen
    assert range_with_burst(2000, 31, 47) == (0.0, 1.0)
    assert range_with_burst(2000, 31, 46) == (0.0, 0.0)


def test_the_means_of_eighths_lie_so_far_apart() -> None:
    assert shape.range_of_means(np.arange(16.0)) == 14.0
    assert shape.range_of_means(np.array([4.0, 1.0, 3.0])) == 3.0
    assert shape.range_of_means(np.array([0.0, 0.0, 3.0] + [0.0] * 21)) == 1.0


def test_no_series_shorter_than_64_wanders_nor_one_that_stands_still() -> None:
    assert not shape.wanders(np.arange(63.0))
    assert shape.wanders(np.arange(64.0))
    assert not shape.wanders(np.ones(64))


def test_a_straight_drift_wanders_only_where_it_counts() -> None:
    noise = np.random.default_rng(1).normal(0.0, 10.0, 128)
    drifting = noise + 0.5 * np.arange(128.0)
    assert shape.wanders(drifting)
    assert not shape.wanders(drifting, straight=False)
    assert not shape.wanders(noise)
