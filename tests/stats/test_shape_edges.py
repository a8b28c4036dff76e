"""Shapes of series, conditions crossed with blocks, and concave curves at their limits, with numbers found by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats import shape
from assay.stats.concave import ConcaveCurve, allocate_total, fit_concave
from assay.stats.multiple_comparisons import Contrast, CrossedDesign, dunnett_quantile, fit_crossed
from assay.stats.shape import DriftSlope, TwoLevels, wanders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

NAN = math.nan


def padded(middle: list[float] | Samples) -> Samples:
    """Return a series whose moving median is what is given: the moving median lacks two samples at either end."""
    values = list(middle)
    return np.array([values[0]] * 2 + values + [values[-1]] * 2)


def eighths(*values: float) -> Samples:
    """Return a series with a moving median of 64 samples that stays on each of eight values for eight."""
    return padded(np.repeat(values, 8))


def two_heaps(half: float, spread: float) -> Samples:
    """Return a series that lies so far below and then above 0, with so much spread, each value for four samples."""
    low = [-half - spread] * 4 + [-half + spread] * 4
    return padded([*4 * low, *(-value for value in reversed(4 * low))])


def rarely(count: int, value: float) -> Samples:
    """Return a series of ones with so many others among the 64 samples of its moving median, first of all."""
    samples = padded([value] * count + [1.0] * (64 - count))
    samples[-1] += 1e-6  # two values alone are the ticks of a timer
    return samples


def test_a_straight_drift_and_a_cosine_have_a_slope_with_an_interval_by_that_cosine() -> None:
    place = np.arange(8.0)
    samples = 100 + (place - 3.5) + np.cos(math.pi * (2 * place + 1) / 8)
    middle = 100 - math.cos(math.pi / 8)
    half = 4.604094871349993 * math.sqrt(96 / 63)  # Student's t of four, a long-run variance of 1
    expected = [8 / middle, (8 - half) / middle, (8 + half) / middle]
    up, down = shape.estimate_slope(samples), shape.estimate_slope(-samples)
    assert up is not None
    assert down is not None
    assert [up.per_window, up.low, up.high] == pytest.approx(expected)
    assert [down.per_window, down.high, down.low] == pytest.approx([-each for each in expected])
    assert shape.estimate_slope(np.array([-1.0, 2.0, 0.0, -2.0, 1.0, 0.0])) is None


def test_levels_lie_further_apart_than_four_and_a_half_spreads_of_64_samples() -> None:
    assert shape.find_two_levels(two_heaps(4.5, 2.0)) is None
    found = shape.find_two_levels(two_heaps(4.625, 2.0))
    assert found == TwoLevels(low=-4.625, high=4.625, share_high=0.5, switches=1)
    assert shape.find_two_levels(100 + two_heaps(4.625, 2.0)) == TwoLevels(95.375, 104.625, 0.5, 1)
    assert shape.find_two_levels(100 + two_heaps(4.5, 2.0)) is None


def test_a_series_of_ticks_has_levels_beyond_the_spread_that_ticks_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "_tick", lambda _: 6.0)  # of a spread of 1 they make one of 2
    monkeypatch.setattr(shape, "wanders", lambda _: False)
    assert shape.find_two_levels(two_heaps(4.5, 1.0)) is None
    assert shape.find_two_levels(two_heaps(4.625, 1.0)) == TwoLevels(-4.625, 4.625, 0.5, 1)
    monkeypatch.setattr(shape, "wanders", lambda _: True)
    assert shape.find_two_levels(two_heaps(4.5, 1.0)) == TwoLevels(-4.5, 4.5, 0.5, 1)


def test_ticks_are_the_smallest_step_between_samples() -> None:
    assert shape._tick(np.array([3.0, 1.0, 1.5, 3.0])) == 0.5
    assert shape._tick(np.array([3.0, 3.0])) == 0.0


def test_the_rarer_level_has_a_tenth_of_the_moving_median() -> None:
    assert shape.find_two_levels(rarely(7, 0.0)) == TwoLevels(0.0, 1.0, 57 / 64, 1)
    assert shape.find_two_levels(rarely(7, 2.0)) == TwoLevels(1.0, 2.0, 7 / 64, 1)
    assert shape.find_two_levels(rarely(6, 0.0)) is None
    assert shape.find_two_levels(rarely(6, 2.0)) is None


def test_the_split_leaves_the_least_spread_and_blips_of_two_samples_are_no_switches() -> None:
    low, middle, high = [0.0] * 9, [1.0] * 9, [10.0] * 9
    low[4] = low[5] = 10.0
    high[4] = 0.0
    samples = np.array([*low, *middle, *high, *low, *middle, *low, *high, *middle])
    assert shape.find_two_levels(samples) == TwoLevels(1.0, 10.0, 18 / 68, 4)


def test_too_short_a_series_and_one_that_never_moves_have_no_levels() -> None:
    samples = eighths(0, 0, 0, 0, 1, 1, 1, 1)
    assert shape.find_two_levels(samples[:63]) is None
    assert shape.find_two_levels(samples[:64]) is not None
    assert shape.find_two_levels(np.ones(64)) is None


def test_levels_differ_by_more_than_a_billionth() -> None:
    near = np.repeat([1e9, 1e9 - 1], 34)
    assert shape.find_two_levels(near) is None
    assert shape.find_two_levels(-near) is None
    assert shape.find_two_levels(near + np.repeat([0.2, 0.0], 34)) is not None


@pytest.mark.parametrize(("apart", "stays"), [(10.0, True), (9.99, False)])
def test_levels_may_stray_by_a_fifth_of_their_distance(apart: float, stays: bool) -> None:
    up = 100 + apart
    found = shape.find_two_levels(eighths(99, up - 1, 99, up - 1, 101, up + 1, 101, up + 1))
    assert found == (TwoLevels(100.0, up, 0.5, 7) if stays else None)


def test_outliers_lie_more_than_five_robust_deviations_above() -> None:
    usual, edge = [-1.0, 0.0, 1.0] * 3, 5.0 * 1.4826
    assert shape.outlier_share(np.array([*usual, edge, -9.0, -9.0])) == 0.0
    assert shape.outlier_share(np.array([*usual, edge + 1e-9, -9.0, -9.0])) == 1 / 12
    assert shape.outlier_share(np.array([1.0, 1.0, 1.0, 50.0])) == 0.0


def test_a_window_moved_by_the_medians_of_its_eighths() -> None:
    assert shape.relative_median_range(np.arange(1.0, 17.0)) == pytest.approx(14 / 8.5)
    assert shape.relative_median_range(-np.arange(1.0, 17.0)) == pytest.approx(14 / 8.5)
    assert shape.relative_median_range(np.array([4.0, 1.0, 2.0])) == 1.5
    assert shape.relative_median_range(np.array([-1.0, 0.0, 1.0])) == math.inf


def test_switching_matters_from_half_a_percent_of_the_median_on() -> None:
    def switching(low: float, high: float) -> str | None:
        return shape.find_unsteadiness(eighths(low, high, low, high, low, high, low, low))

    assert switching(1000.0, 1005.0) == "switching"
    assert switching(1000.0, 1004.99) is None
    assert switching(-1000.0, -995.0) == "switching"
    assert shape.find_unsteadiness(eighths(0, 0, 0, 0, 1, 1, 1, 1)[:63]) is None
    assert shape.find_unsteadiness(eighths(0, 0, 0, 0, 1, 1, 1, 1)[:64]) == "switching"
    assert shape.find_unsteadiness(np.arange(1000.0, 1064.0)) == "drift"
    assert shape.find_unsteadiness(np.array([1000.0, 1001.0] * 32)) is None


def test_a_straight_drift_matters_from_half_a_percent_on_where_its_interval_has_one_sign() -> None:
    still = np.array([1000.0, 1001.0] * 32)

    def drifts(*slope: float) -> bool:
        return shape._drifts(still, DriftSlope(*slope))

    assert drifts(0.005, 0.001, 0.009)
    assert drifts(-0.005, -0.009, -0.001)
    assert not drifts(0.00499, 0.001, 0.009)
    assert not drifts(0.005, -0.001, 0.011)
    assert not drifts(0.005, 0.0, 0.01)
    assert not drifts(-0.005, -0.01, 0.0)


def test_a_series_that_wanders_drifts_where_it_moved_by_half_a_percent() -> None:
    assert shape._drifts(np.repeat([1000.0, 1005.0, 1000.0], [24, 16, 24]), None)
    assert not shape._drifts(np.repeat([1000.0, 1004.99, 1000.0], [24, 16, 24]), None)
    jumpy = np.array([1020.0] * 2 + [1000.0, 1020.0] * 31)
    assert shape.relative_median_range(jumpy) == 10 / 1020
    assert not wanders(jumpy)
    assert not shape._drifts(jumpy, None)


def test_six_samples_may_still_move_where_neighbours_resemble_each_other() -> None:
    six = np.array([0.0, 0.0, 1.0, 2.0, 3.0, 3.0])  # their scores correlate by 0.583; 1.28 / √6 is 0.523
    assert shape.is_unsettled(six)
    assert not shape.is_unsettled(six[[0, 4, 1, 5, 2, 3]])
    assert shape.is_unsettled(np.repeat([0.0, 1.0], 4))  # by 0.625; 0.453
    assert not shape.is_unsettled(six[:5])
    assert not shape.is_unsettled(np.arange(6.0))  # by 0.436
    assert not shape.is_unsettled(np.ones(63))
    assert not shape.is_unsettled(np.array([1000.0, 1001.0] * 32))
    assert shape.is_unsettled(np.arange(1000.0, 1063.0))
    assert shape.is_unsettled(np.arange(1000.0, 1064.0))
    assert not shape.is_unsettled(np.arange(1000.0, 1000.64, 0.01)[:64])


def test_neighbours_resemble_each_other_beyond_the_limit_and_not_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.array([0.0] * 2 + [1.0] + [0.0] * 2 + [1.0] * 6 + [2.0, 1.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(shape, "RELATED_ALARM", 2.0)  # 2 / √16 is a half: of eight that are not in the middle, four
    assert not shape.is_unsettled(samples)
    monkeypatch.setattr(shape, "RELATED_ALARM", 1.99)
    assert shape.is_unsettled(samples)


def test_two_round_trips_make_shares_of_levels() -> None:
    four, three = eighths(0, 0, 1, 1, 0, 0, 1, 0), eighths(0, 0, 1, 1, 0, 0, 1, 1)
    found = shape.classify_shape(four)
    assert (found.name, found.estimand, found.levels) == (
        "two levels",
        "levels and shares",
        TwoLevels(0.0, 1.0, 0.375, 4),
    )
    found = shape.classify_shape(three)
    assert (found.name, found.estimand, found.levels) == ("two levels", "none", TwoLevels(0.0, 1.0, 0.5, 3))


def test_one_outlier_in_a_thousand_makes_bursts() -> None:
    samples = np.array([99.0, 101.0, 100.0, 100.5, 99.5] * 200)
    assert shape.classify_shape(samples).name == "steady"
    samples[500] = 150.0
    found = shape.classify_shape(samples)
    assert (found.name, found.estimand, found.levels, found.outlier_share) == ("bursts", "median", None, 0.001)
    found = shape.classify_shape(np.append(samples, 100.0))
    assert (found.name, found.outlier_share) == ("steady", 1 / 1001)


def test_a_shape_takes_64_samples() -> None:
    assert shape.classify_shape(np.arange(1000.0, 1063.0)) == shape.SeriesShape("too few", "none", None, None, None)
    found = shape.classify_shape(np.arange(1000.0, 1064.0))
    assert (found.name, found.estimand, found.levels, found.outlier_share) == (
        "drift",
        "median of the window",
        None,
        0.0,
    )
    assert found.slope is not None
    assert found.slope.per_window == pytest.approx(64 / 1031.5)


def a_contrast(apart: float | None, reached: float = 0.0, scatter: float | None = 1.5) -> CrossedDesign:
    """Return two conditions that lie so far apart, of an error as large as the scatter, and a third never measured."""
    effects = np.array([0.0, NAN if apart is None else apart, NAN])
    reaches = np.eye(3)
    reaches[2, 0] = reached
    return CrossedDesign(np.full((3, 1), NAN), effects, scatter, 5, np.diag([0.5, 0.5, 0.0]), reaches)


def test_two_conditions_in_two_blocks_are_told_apart_with_one_degree_of_freedom() -> None:
    found = fit_crossed(np.array([[0.0, 10.0], [100.0, 110.1]]))
    assert (found.freedom, found.measured) == (1, [0, 1])
    assert found.scatter == pytest.approx(0.05)
    assert found.effects == pytest.approx([5.0, 105.05])
    assert found.may_be_lowest() == [0]
    value, low, high = found.against(0)[1]
    assert [value, low, high] == pytest.approx([100.05, 100.05 - 0.05 * 12.7062, 100.05 + 0.05 * 12.7062], rel=1e-6)
    value, low, high = found.against(1, two_sided=False)[0]
    assert [value, low, high] == pytest.approx([-100.05, -100.05 - 0.05 * 6.31375, -100.05 + 0.05 * 6.31375], rel=1e-6)


def test_conditions_scatter_like_all_or_like_themselves_where_that_is_more() -> None:
    found = fit_crossed(np.array([[0.0, 0.0, 0.0], [3.0, -3.0, 0.0], [0.0, 0.0, 0.0]]))
    assert found.scatter == pytest.approx(math.sqrt(3))
    own, common = found.contrast(0, 1), found.contrast(0, 2)
    assert own is not None
    assert common is not None
    assert (own.value, own.error) == pytest.approx((0.0, math.sqrt(3)))
    assert (common.value, common.error) == pytest.approx((0.0, math.sqrt(2)))
    assert found.contrast(1, 1) == Contrast(0.0, 0.0)
    assert found.may_be_lowest() == [0, 1, 2]


def test_two_blocks_in_common_have_a_scatter_of_their_own() -> None:
    found = fit_crossed(
        np.array([[0.0, 0.0, NAN, 0.0], [4.0, -4.0, 0.0, NAN], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    )
    own = found.contrast(0, 1)
    assert own is not None
    assert found._own_scatter(0, 1) == pytest.approx(4.0)  # distances of -4 and 4 have a deviation of 4 √2
    assert own.error == pytest.approx(4.0 * math.sqrt(0.75))


def test_a_condition_measured_once_is_known_by_what_its_block_adds() -> None:
    found = fit_crossed(np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [5.0, NAN, NAN]]))
    assert found.freedom == 2
    assert found.scatter == pytest.approx(math.sqrt(0.5))
    assert found.effects == pytest.approx([0.0, 0.0, 4.5], abs=1e-12)
    apart = found.contrast(2, 0)
    assert apart is not None
    assert (apart.value, apart.error) == pytest.approx((4.5, math.sqrt(5 / 6)))


def test_effects_are_means_over_the_blocks_that_were_measured() -> None:
    found = fit_crossed(np.array([[0.0, 0.0, NAN, 9.0], [1.0, 1.0, NAN, 10.0]]))
    assert found.effects == pytest.approx([3.0, 4.0])
    assert found.freedom == 2
    nothing = fit_crossed(np.full((2, 3), NAN))
    assert (nothing.freedom, nothing.scatter, nothing.measured, nothing.against(0)) == (0, None, [], {})


def test_one_block_tells_differences_without_ends() -> None:
    found = fit_crossed(np.array([[0.0], [1.0]]))
    assert found.may_be_lowest() == [0, 1]
    value, low, high = found.against(0)[1]
    assert value == pytest.approx(1.0)
    assert low is high is None


def test_conditions_are_compared_where_what_blocks_leave_open_is_a_millionth_at_most() -> None:
    assert a_contrast(3.0, 1e-6).contrast(1, 0) == Contrast(3.0, 1.5)
    assert a_contrast(3.0, 1.2e-6).contrast(1, 0) is None
    assert a_contrast(3.0, 1.2e-6).against(0) == {}
    assert a_contrast(3.0, scatter=None).contrast(1, 0) == Contrast(3.0, None)
    assert a_contrast(3.0, scatter=None).against(0) == {1: (3.0, None, None)}
    assert a_contrast(3.0, scatter=None).may_be_lowest() == [0, 1]
    assert a_contrast(3.0, 1.2e-6).may_be_lowest() == [0, 1]


def test_one_is_above_another_by_more_than_its_errors_reach() -> None:
    assert a_contrast(3.0)._above(1, 0, 1.99)
    assert not a_contrast(3.0)._above(1, 0, 2.0)
    assert not a_contrast(3.0)._above(1, 0, 2.01)
    assert not a_contrast(3.0)._above(0, 1, 1.0)
    assert a_contrast(0.5, scatter=0.1)._above(1, 0, 2.0)


@pytest.mark.parametrize(("errors", "left"), [(2.34, [0, 1]), (2.37, [0])])
def test_of_two_conditions_the_one_that_is_students_t_above_is_not_the_lowest(errors: float, left: list[int]) -> None:
    above = errors / math.sqrt(3)  # Student's t of three is 2.353
    found = fit_crossed(np.array([[0.0, 0.0, 0.0, 0.0], [above - 1, above - 1, above + 1, above + 1]]))
    assert found.may_be_lowest() == left


def test_a_reference_that_nothing_stands_beside_and_one_never_measured_have_no_differences() -> None:
    found = fit_crossed(np.array([[0.0, 1.0], [2.0, 3.5], [NAN, NAN]]))
    assert found.against(2) == {}
    assert list(found.against(1)) == [0]
    assert fit_crossed(np.array([[0.0, 1.0], [NAN, NAN]])).against(0) == {}
    assert fit_crossed(np.array([[0.0, 1.0], [NAN, NAN]])).may_be_lowest() == [0]


def test_dunnetts_quantile_at_its_ends() -> None:
    assert dunnett_quantile(1, 1) == pytest.approx(12.706204736, rel=1e-8)
    assert dunnett_quantile(1, 1, two_sided=False) == pytest.approx(6.3137515147, rel=1e-8)
    assert dunnett_quantile(1, 4) == pytest.approx(2.7764073572, rel=1e-8)
    assert dunnett_quantile(1, 4, two_sided=False) == pytest.approx(2.1318335658, rel=1e-8)
    assert dunnett_quantile(1, 1, 1 - 1e-9) == pytest.approx(1e4)
    assert 0 < dunnett_quantile(100, 4, 0.0) < 1e-14


def test_a_curve_rises_up_to_where_a_trillionth_is_left() -> None:
    assert ConcaveCurve((1.0, 2.0, 3.0), (0.0, 1 - 0.5e-12, 1.0)).top == 2.0
    assert ConcaveCurve((1.0, 2.0, 3.0), (0.0, 1 - 1.2e-12, 1.0)).top == 3.0
    assert ConcaveCurve((1.0, 2.0, 3.0), (-1.0, 0.0, 0.0)).top == 2.0
    assert ConcaveCurve((1.0, 2.0, 3.0), (0.0, 1.0, 2.0)).low == 1.0


def test_a_curve_reaches_every_height_up_to_its_end() -> None:
    curve = ConcaveCurve((1.0, 2.0, 5.0), (2.0, 6.0, 10.0))
    assert [curve.reaches(y) for y in (1.0, 2.0, 3.0, 6.0, 7.0, 10.0)] == [1.0, 1.0, 1.25, 2.0, 2.75, 5.0]
    assert curve.reaches(10 * (1 + 0.5e-12)) == 5.0
    assert curve.reaches(10 * (1 + 1.2e-12)) is None
    assert ConcaveCurve((1.0, 2.0), (-1.0, 0.0)).reaches(0.0) == 2.0
    assert [curve.at(x) for x in (0.0, 1.5, 3.5, 9.0)] == [2.0, 4.0, 8.0, 10.0]


def test_a_fit_through_a_parabola_is_that_parabola_also_between_places_that_lie_unevenly() -> None:
    x = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    found = fit_concave(x + 3, 5 - 2 * (1 - x / 8) ** 2)
    assert found.x == (3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 11.0)
    assert found.y == pytest.approx([5 - 2 * (1 - (at - 3) / 8) ** 2 for at in found.x], rel=1e-9)


def test_a_fit_may_lie_below_zero_and_be_as_small_as_it_likes() -> None:
    assert fit_concave(np.array([1.0, 2.0, 3.0]), np.array([-5.0, -2.0, -1.0])).y[::4] == pytest.approx([-5, -2, -1])
    tiny = fit_concave(np.array([1.0, 2.0, 3.0]), np.array([1e-20, 2e-20, 2.5e-20]))
    assert tiny.y[::4] == pytest.approx([1e-20, 2e-20, 2.5e-20], rel=1e-6, abs=0.0)
    assert fit_concave(np.array([1.0, 2.0]), np.zeros(2)).y == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert fit_concave(np.array([2.0, 2.0]), np.array([3.0, 4.0])) == ConcaveCurve((2.0,), (3.5,))


def test_a_place_measured_twice_counts_twice_in_a_fit() -> None:
    found = fit_concave(np.array([2.0, 1.0, 1.0]), np.array([0.5, 3.0, 1.0]))
    assert found.x == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert found.y == pytest.approx(5 * [1.5])


def test_a_fit_through_points_that_bend_unevenly_evens_its_bends() -> None:
    expected = [7.145235737e-05, 1.597730257427, 2.960123078891, 4.090695728737, 4.999785642928, 5.70806769339, 6.25]
    for x in (np.array([0.0, 1.0, 2.0, 3.0]), np.array([10.0, 15.0, 20.0, 25.0])):
        assert fit_concave(x, np.array([0.0, 5.0, 7.0, 8.0])).y[:7] == pytest.approx(expected, rel=1e-8)


def test_a_fit_through_many_points_is_found() -> None:
    x = np.arange(61.0)
    found = fit_concave(x, 120 * x - x**2)
    assert list(found.y[::4]) == pytest.approx((120 * x - x**2).tolist(), abs=1e-6)


def test_a_total_may_be_a_billionth_short_of_what_all_begin_with() -> None:
    def shared(total: float, begins: float) -> list[float] | None:
        return allocate_total([ConcaveCurve((begins, begins + 1), (0.0, 1.0))], total)

    assert shared(1000.0, 1000 + 0.9e-6) == [1000 + 0.9e-6]
    assert shared(1000.0, 1000 + 1.2e-6) is None
    assert shared(0.5, 0.5 + 0.9e-9) == [0.5 + 0.9e-9]
    assert shared(0.5, 0.5 + 1.2e-9) is None
    assert shared(0.0, 1e-9) == [1e-9]


def test_what_rises_by_a_trillionth_of_its_height_is_level() -> None:
    def shared(*heights: float) -> list[float] | None:
        return allocate_total([ConcaveCurve((1.0, 2.0, 3.0), heights)], 10.0)

    assert shared(1.0, 2.0, 2 + 1.2e-12 * 2) == [3.0]
    assert shared(1.0, 2.0, 2 + 0.8e-12 * 2) == [2.0]
    assert shared(50.0, 100.0, 100 + 5e-11) == [2.0]
    assert shared(-1.0, 0.0, 0.0) == [2.0]
    assert shared(-150.0, -100.0, -100 + 5e-11) == [2.0]


def test_the_steepest_piece_gets_the_first_bit_and_of_equal_ones_that_of_the_first_curve() -> None:
    steep_later = ConcaveCurve((10.0, 11.0, 13.0), (0.0, 3.0, 4.0))
    shallow = ConcaveCurve((1.0, 3.0), (0.0, 4.0))
    assert allocate_total([shallow, steep_later], 11.5) == [1.0, 10.5]
    assert allocate_total([shallow, steep_later], 13.0) == [2.0, 11.0]
    assert allocate_total([shallow, steep_later], 15.0) == [3.0, 12.0]
    assert allocate_total([shallow, steep_later], 99.0) == [3.0, 13.0]
    high = ConcaveCurve((1.0, 3.0), (100.0, 102.0))
    assert allocate_total([high, shallow], 3.0) == [1.0, 2.0]
    later, sooner = ConcaveCurve((5.0, 7.0), (0.0, 2.0)), ConcaveCurve((1.0, 3.0), (0.0, 2.0))
    assert allocate_total([later, sooner], 7.0) == [6.0, 1.0]
    bent = ConcaveCurve((5.0, 6.0, 7.0), (0.0, 1.0, 2.0))
    assert allocate_total([bent, sooner], 7.5) == [6.5, 1.0]


def test_what_a_curve_was_given_before_is_kept_and_goes_on_from_there() -> None:
    curve = ConcaveCurve((1.0, 3.0, 5.0), (0.0, 4.0, 6.0))
    assert allocate_total([curve, curve], 7.0, [2.0, 3.5]) == [3.5, 3.5]
    assert allocate_total([curve, curve], 5.6, [2.0, 3.5]) == pytest.approx([2.1, 3.5])
    assert allocate_total([curve, curve], 6.0, [0.0, 3.0]) == [3.0, 3.0]
    assert allocate_total([curve, curve], 99.0, [0.0, 6.0]) == [5.0, 6.0]
