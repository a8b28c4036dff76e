"""Sensors at their edges: when they tick, how late they are, what they saw and missed, and least squares by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.joules import sensor_model, ticks
from assay.joules.observations import (
    EnergyRefused,
    KrigingTarget,
    Observations,
    SensorStream,
    SensorView,
    average_observations,
    bridge_covariance,
    combine_observations,
    find_power_ticks,
    fit_kriging,
    integrated_covariance,
    observation_covariance,
    observe_counter,
    observe_power,
    open_stream,
    select_sensor_views,
    thin_observations,
)
from assay.joules.readings import CallBoundary, CounterSeries, DeviceActivity, MeterReading, PowerSeries, build_activity
from assay.joules.sensor_model import CounterModel, PowerModel, counter_quantum_j, fit_counter, fit_power
from assay.joules.ticks import SensorTicks, find_held_ticks, find_ticks
from tests.joules.test_joules_edges import counter, model, power

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.joules.sensor_model import SensorModel

MS = 1_000_000
KNOTS = [
    CallBoundary(1_000 * MS, 0),
    CallBoundary(2_000 * MS, 10),
    CallBoundary(2_500 * MS, 10),
    CallBoundary(3_500 * MS, 30),
]
NEVER = DeviceActivity(np.array([100.0, 101.0]), np.array([0.0, 1.0]))
"""On only long after everything."""


def moved(times_s: Any, values: Any = None, **more: Any) -> SensorTicks:
    at = np.array(times_s, dtype=np.float64)
    shown = at if values is None else np.array(values, dtype=np.float64)
    return SensorTicks(at, shown, more.pop("spread_s", np.zeros(len(at))), **more)


# --- courses


def test_a_course_that_begins_with_a_rest_is_not_empty() -> None:
    assert not build_activity([CallBoundary(0, 3), CallBoundary(5, 3), CallBoundary(9, 4)], 0).is_empty
    assert build_activity([CallBoundary(0, 3), CallBoundary(5, 4), CallBoundary(9, 3)], 0).is_empty
    assert build_activity([CallBoundary(0, 3)], 0).is_empty
    assert not build_activity([CallBoundary(0, 3), CallBoundary(5, 4)], 0).is_empty


def test_a_device_is_busy_from_where_a_call_begins_until_just_before_it_ends() -> None:
    course = build_activity(KNOTS, 0)
    at = np.array([0.9, 1.0, 2.0, 2.4, 2.5, 3.4, 3.5])
    assert course.is_busy(at).tolist() == [False, True, False, False, True, True, False]
    assert course.busy_s(2.25, 3.0) == pytest.approx(0.5)
    assert course.busy_s(0.0, 4.5) == pytest.approx(2.0)
    assert course.busy_s(1.5, 2.25) == pytest.approx(0.5)
    assert course.rested_s(np.array([0.25, 1.0, 2.25, 3.5, 4.0])).tolist() == [-0.75, 0.0, 0.25, 0.5, 1.0]


def test_knots_are_counted_from_a_moment_and_looked_up_from_one_on() -> None:
    course = build_activity(KNOTS, 500 * MS)
    assert course.times_s.tolist() == [0.5, 1.5, 2.0, 3.0]
    assert course.calls.tolist() == [0.0, 10.0, 10.0, 30.0]
    assert [course.first_at_or_after(t) for t in (0.0, 1.5, 1.51, 3.0, 3.01)] == [0.5, 1.5, 2.0, 3.0, None]


# --- least squares


def test_least_squares_with_a_likelihood_that_leaves_the_line_out_of_account() -> None:
    """0, 1 and 5 about their line: it rises by 2.5 and leaves 0.5, -1 and 0.5."""
    columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    found = fit_kriging(columns, np.array([0.0, 1.0, 5.0]), 4.0 * np.eye(3))
    assert found.coefficients.tolist() == pytest.approx([-0.5, 2.5])
    assert found.covariance.tolist() == pytest.approx(np.array([[10.0, -6.0], [-6.0, 6.0]]) / 3)
    expected = -0.5 * 1.5 / 4 - 1.5 * math.log(4) - 0.5 * math.log(6 / 16)
    assert found.log_likelihood == pytest.approx(expected, abs=1e-6)
    assert (found.target, found.target_variance) == (None, None)


def test_exact_readings_are_taken_for_a_billionth_off_so_that_they_can_be_compared() -> None:
    """Two readings that stray by 2 alike, and each by itself by a billionth of the variance of 4."""
    found = fit_kriging(np.ones((2, 1)), np.array([1.0, 1.0]), np.full((2, 2), 4.0))
    expected = -0.5 * (math.log(8) + math.log(4e-9)) - 0.5 * math.log(2 / 8)
    assert found.log_likelihood == pytest.approx(expected, abs=1e-4)
    assert found.coefficients.tolist() == pytest.approx([1.0])


def test_a_target_is_its_columns_and_what_the_rest_of_the_data_says_of_it() -> None:
    """1 and 3 are 2 on average; the target goes half with the first, which is 1 below."""
    found = fit_kriging(
        np.ones((2, 1)), np.array([1.0, 3.0]), np.eye(2), KrigingTarget(np.ones(1), np.array([0.5, 0.0]), 1.0)
    )
    assert (found.target, found.target_variance) == pytest.approx((1.5, 0.875))
    sure = fit_kriging(
        np.ones((2, 1)), np.array([1.0, 3.0]), np.eye(2), KrigingTarget(np.ones(1), np.array([2.0, 0.0]), 1.0)
    )
    assert (sure.target, sure.target_variance) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_strays_of_a_short_memory_add_up_and_those_of_a_call_return() -> None:
    one, other = np.array([0.5, -0.5]), np.array([1.0])
    tail = 0.25 * (math.exp(-1) + math.exp(-2) - math.exp(-1) - 1 + 1 + 2 - 1)
    assert integrated_covariance(one, other, 0.5)[0, 0] == pytest.approx(tail)
    away = 0.25 * (1 + math.exp(-1) + 2 + math.exp(-2) - 3 - math.exp(-3) - 1)
    assert integrated_covariance(one, other, 0.5)[1, 0] == pytest.approx(away)
    whole = 2 * 0.25 * (2 + math.exp(-2) - 1)
    half = 2 * 0.25 * (1 + math.exp(-1) - 1)
    assert bridge_covariance(one[:1], one[:1], 1.0, 0.5)[0, 0] == pytest.approx(half - tail**2 / whole)


# --- observations


def seen_at(times_s: Sequence[float], **more: Any) -> Observations:
    found = observe_counter(moved(times_s), lag_s=0.0, lag_error_s=0.0, quantum_j=0.0)
    return replace(found, **more)


def test_a_few_rows_keep_what_belongs_to_them() -> None:
    shown = observe_power(moved([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], spread_s=np.array([0.1, 0.2, 0.3]), shift_s=0.5,
                           stretch=0.25), window_s=0.5, lag_s=0.0, lag_error_s=0.0, since_s=0.0)  # fmt: skip
    some = replace(shown, noise=np.array([1.0, 2.0, 3.0])).rows(np.array([0, 2]))
    assert some.times_s.tolist() == [1.0, 3.0]
    assert some.points_s.tolist() == [1.0, 3.0, 0.5, 2.5]
    assert some.operator.tolist() == [[2.0, 0.0, -2.0, 0.0], [0.0, 2.0, 0.0, -2.0]]
    assert (some.values.tolist(), some.spread_s.tolist(), some.noise.tolist()) == ([5, 7], [0.1, 0.3], [1, 3])
    assert (some.shift_s, some.stretch, len(some)) == (0.5, 0.25, 2)


def test_no_power_reading_is_no_observation() -> None:
    nothing = observe_power(moved([1.0]), window_s=2.0, lag_s=0.0, lag_error_s=0.0, since_s=0.0)
    assert len(nothing) == 0
    assert nothing.operator.shape == (0, 0)
    negative = observe_power(moved([1.0], [-3.0]), window_s=0.5, lag_s=0.0, lag_error_s=0.0, since_s=0.0)
    assert negative.noise.tolist() == [0.0]


def test_readings_are_averaged_by_twos_but_not_across_those_next_to_an_edge() -> None:
    times = [float(t) for t in range(1, 10)]
    shown = observe_power(moved(times, [10 * t for t in times]), window_s=0.5, lag_s=0.0, lag_error_s=0.0, since_s=0.0)
    shown = replace(shown, spread_s=np.full(9, 0.3), noise=np.full(9, 0.4), shift_s=0.5, stretch=0.25)
    found = average_observations(shown, (1.5,), 1, 4)  # two alone and seven in averages of two
    assert found.values.tolist() == [10.0, 20.0, 35.0, 55.0, 75.0, 90.0]
    root = math.sqrt(2)
    assert found.spread_s.tolist() == pytest.approx([0.3, 0.3, *[0.3 / root] * 3, 0.3])
    assert found.noise.tolist() == pytest.approx([0.4, 0.4, *[0.4 / root] * 3, 0.4])
    assert found.operator[2].tolist() == pytest.approx([0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, -1, -1, 0, 0, 0, 0, 0])
    assert (found.shift_s, found.stretch) == (0.5, 0.25)
    ends = average_observations(shown, (0.5,), 1, 4)  # the first alone, eight in averages of two
    assert ends.values.tolist() == [10.0, 25.0, 45.0, 65.0, 85.0]
    assert average_observations(shown, (20.0,), 1, 8).values.tolist() == shown.values.tolist()


def test_observations_out_of_order_are_thinned_by_their_time_and_stay_where_they_were() -> None:
    found = thin_observations(seen_at([5.0, 1.0, 4.0, 0.0, 3.0, 2.0, 6.0]), (0.5,), 1, 3)
    assert found.times_s.tolist() == [1.0, 0.0, 3.0, 6.0]
    assert thin_observations(seen_at([0.0, 1.0, 2.0]), (-1.0,), 2, 1).times_s.tolist() == [0.0, 1.0]
    assert thin_observations(seen_at([0.0, 1.0, 2.0]), (9.0,), 1, 3).times_s.tolist() == [0.0, 1.0, 2.0]


def test_two_sensors_that_are_joined_see_nothing_of_each_other() -> None:
    one = seen_at([1.0, 2.0], shift_s=0.5, stretch=0.125)
    other = observe_power(moved([3.0], [7.0]), window_s=0.5, lag_s=0.0, lag_error_s=0.25, since_s=0.0)
    for both in (
        combine_observations(one, replace(other, stretch=0.25)),
        combine_observations(replace(other, stretch=0.25), one),
    ):
        assert (both.shift_s, both.stretch) == (0.5, 0.25)
    both = combine_observations(one, other)
    assert both.operator.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, -2]]
    assert (both.times_s.tolist(), both.points_s.tolist()) == ([1, 2, 3], [1, 2, 3, 2.5])
    assert (both.values.tolist(), both.noise.tolist()) == ([1, 2, 7], [0, 0, pytest.approx(0.035)])


def test_a_covariance_is_of_the_process_and_of_the_sensor() -> None:
    shown = seen_at([1.0, 3.0], spread_s=np.array([0.1, 0.2]), noise=np.array([2.0, 3.0]))
    found = observation_covariance(shown, np.array([[5.0, 1.0], [1.0, 6.0]]), np.array([10.0, 20.0]))
    assert found.tolist() == pytest.approx(np.array([[10.0, 1.0], [1.0, 31.0]]))
    stretched = seen_at([1.0, 5.0], stretch=0.5)  # 2 s before their middle, and 2 s after it
    found = observation_covariance(stretched, np.zeros((2, 2)), np.array([10.0, 20.0]))
    assert found.tolist() == pytest.approx(np.array([[100.0, -200.0], [-200.0, 400.0]]))


# --- ticks


def test_two_ticks_alone_are_in_the_middle_of_what_bounds_them() -> None:
    begin = np.arange(6.0)
    found = find_ticks(begin, begin + 0.25, np.array([1.0, 1.0, 1.5, 1.5, 0.5, 0.5]))
    assert found.times_s.tolist() == [1.625, 3.625]
    assert found.values.tolist() == [1.5, 0.5]
    assert found.spread_s.tolist() == pytest.approx([0.625 / math.sqrt(3)] * 2)
    assert (found.shift_s, found.stretch, found.period_s, found.fell_s) == (0.0, 0.0, None, (4.25,))


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is asked of even spacing, which is never found."""
    asked: list[Any] = []

    def evenly(low: Any, high: Any, spacing_s: float, *, is_known: bool) -> None:
        asked.append((low.tolist(), high.tolist(), spacing_s, is_known))

    monkeypatch.setattr(ticks, "_fit_even_ticks", evenly)
    return asked


def test_a_tick_is_not_further_before_the_reading_that_shows_it_than_ticks_are_apart(bounds: list[Any]) -> None:
    begin = np.arange(6.0)
    shown = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    found = find_ticks(begin, begin + 0.25, shown, 0.5)
    assert bounds == [(pytest.approx([1.49, 3.49]), [2.25, 4.25], 0.5, True)]
    assert found.times_s.tolist() == pytest.approx([1.87, 3.87])
    find_ticks(begin, begin + 0.25, shown, 2.0)
    assert bounds[1] == ([1.0, 3.0], [2.25, 4.25], 2.0, True)
    find_ticks(begin, begin + 0.25, np.array([1.0, 1.0, 2.0, 3.0, 3.0, 4.0]))
    assert bounds[2][2:] == (1.25, False)
    find_ticks(begin, begin + 0.25, shown)
    assert len(bounds) == 3


def test_a_spacing_is_guessed_from_three_ticks_by_the_shorter_distances() -> None:
    assert ticks._guess_period(np.array([0.0, 1.0, 2.5]), np.array([1.0, 1.5, 4.5])) == 1.125
    assert ticks._guess_period(np.array([0.0, 1.0]), np.array([1.0, 1.5])) is None
    assert ticks._guess_period(np.ones(3), np.ones(3)) is None


def evenly(low: Sequence[float], high: Sequence[float], spacing_s: float, *, known: bool) -> Any:
    return ticks._fit_even_ticks(
        np.array(low, dtype=np.float64), np.array(high, dtype=np.float64), spacing_s, is_known=known
    )


def test_too_few_ticks_or_blurred_ones_have_no_spacing() -> None:
    assert evenly([], [], 1.0, known=True) is None
    assert evenly([0.0, 1.0], [0.1, 1.1], 1.0, known=False) is None
    assert evenly([0.0, 1.0], [0.1, 1.1], 1.0, known=True) is not None
    assert evenly([0.0, 1.0, 2.0], [0.1, 1.1, 2.1], 1.0, known=False) is not None
    assert evenly([0.0, 1.0, 2.0], [0.5, 1.5, 2.5], 1.0, known=False) is not None
    assert evenly([0.0, 1.0, 2.0], [0.6, 1.6, 2.6], 1.0, known=False) is None
    assert evenly([0.0, 1.0, 2.0], [0.1, 1.1, 4.0], 1.0, known=False) is not None


def test_even_ticks_are_where_they_are_and_may_move_as_far_as_all_their_bounds_allow() -> None:
    """Four ticks 2 s apart, each known to 0.2 s either way: what is allowed is a rhombus, 2/15 s and 0.2 s high."""
    at = np.array([0.0, 2.0, 4.0, 6.0])
    found = evenly(list(at - 0.2), list(at + 0.2), 2.0, known=False)
    assert found.times_s.tolist() == pytest.approx(at, abs=1e-9)
    assert found.period_s == pytest.approx(2.0)
    assert found.shift_s == pytest.approx(0.2 / math.sqrt(6), rel=0.01)
    assert found.stretch == pytest.approx(2 / 15 / math.sqrt(6) / 2, rel=0.01)
    assert found.jitter_s == 0.0


def test_ticks_that_stray_are_even_up_to_a_share_of_their_spacing(monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 1, 2.2 and 3 s lie about a line of 1.02 s, by 0.11 s either way."""
    found = evenly([0.0, 1.0, 2.2, 3.0], [0.0, 1.0, 2.2, 3.0], 1.0, known=False)
    assert (found.period_s, found.jitter_s) == pytest.approx((1.02, 0.11))
    assert (found.shift_s, found.stretch) == (0.0, 0.0)
    assert found.times_s.tolist() == [0.0, 1.0, 2.2, 3.0]
    twice = evenly([0.0, 2.0, 4.4, 6.0], [0.0, 2.0, 4.4, 6.0], 2.0, known=False)
    assert (twice.period_s, twice.jitter_s) == pytest.approx((2.04, 0.22))
    assert evenly([0.0, 1.0, 2.35, 3.0], [0.0, 1.0, 2.35, 3.0], 1.0, known=False) is None
    monkeypatch.setattr(ticks, "MAX_JITTER_SHARE", 0.25)
    assert evenly([0.0, 1.5], [0.0, 1.5], 1.0, known=True).jitter_s == 0.25
    assert evenly([0.0, 1.501], [0.0, 1.501], 1.0, known=True).jitter_s < 0.25


def test_found_ticks_say_how_far_they_stray_and_may_move() -> None:
    begin = np.array([0.0, 0.99, 1.01, 1.99, 2.01, 3.19, 3.21, 3.99, 4.01, 5.0])
    shown = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0])
    found = find_ticks(begin, begin, shown)
    assert found.period_s == pytest.approx(1.02, rel=0.02)
    assert found.spread_s.tolist() == pytest.approx([0.1] * 4, rel=0.1)
    assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    with_room = find_ticks(np.arange(0.0, 5.0, 0.25), np.arange(0.0, 5.0, 0.25), np.floor(np.arange(0.0, 5.0, 0.25)))
    assert with_room.spread_s.tolist() == [0.0] * 4
    assert 0.03 < with_room.shift_s < 0.06
    assert 0.02 < with_room.stretch < 0.04
    assert with_room.period_s == pytest.approx(1.0)
    assert with_room.times_s.tolist() == pytest.approx([0.875, 1.875, 2.875, 3.875])


def test_the_middle_of_ticks_may_be_where_all_bounds_allow_it() -> None:
    low, high, around = np.array([0.0, 1.0]), np.array([0.5, 1.5]), np.array([-0.5, 0.5])
    allowed = ticks._FeasibleSpacings.by(low, high, around, np.array([1.0, 0.5]))
    assert (allowed.after_s.tolist(), allowed.before_s.tolist()) == ([0.5, 0.75], [1.0, 0.75])
    assert allowed.slack_s.tolist() == [0.5, 0.0]


def test_the_centroid_of_what_is_allowed_is_taken_or_what_is_wrong_by_least() -> None:
    after = np.array([0.0, 1.0, 3.0])
    found = ticks._FeasibleSpacings(np.array([1.0, 2.0, 4.0]), after, np.full(3, 2.0)).middle()
    assert found == pytest.approx((4 / 3, 7 / 6, math.sqrt(33 / 108), math.sqrt(2 / 9)))
    just = ticks._FeasibleSpacings(np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 5.0]), np.full(3, 2.0))
    assert just.middle() == (2.0, 2.0, 0.0, 0.0)
    crossed = ticks._FeasibleSpacings(np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.5, 5.0]), np.full(3, 2.0))
    assert crossed.middle() == (2.0, 2.25, 0.0, 0.0)


@pytest.mark.parametrize(
    ("slack", "ends"),
    [
        ([-3.0, -1.0, 0.0, 1.0, -1.0, -2.0, -3.0], (2.0, 5.0)),
        ([-3.0, -2.0, -1.0, -2.0, -2.0, -3.0, -4.0], (2.0, 4.0)),
        ([1.0, 0.5, -1.0, -1.0, -1.0, -1.0, -1.0], (1.0, 3.0)),
        ([-1.0, -1.0, -1.0, -1.0, -1.0, 0.5, 1.0], (5.0, 7.0)),
    ],
)
def test_spacings_are_looked_at_again_up_to_one_beyond_those_that_are_allowed(
    slack: list[float], ends: tuple[float, float]
) -> None:
    found = ticks._refine_periods(np.arange(1.0, 8.0), np.array(slack))
    assert found.tolist() == pytest.approx(np.linspace(*ends, 7))


def test_ticks_are_numbered_twice_the_second_time_by_the_spacing_of_the_first() -> None:
    def numbered(middle: list[float], spacing_s: float) -> list[float]:
        found: list[float] = ticks._number_ticks(np.array(middle), spacing_s).tolist()
        return found

    assert numbered([0.0, 1.1, 2.0, 5.0], 1.0) == [0, 1, 2, 5]
    assert numbered([0.0, 0.2, 0.4, 2.0], 1.0) == [0, 1, 2, 5]
    assert numbered([0.0, 1.0, 10.0], 3.9) == [0, 1, 4]
    assert numbered([0.0, 29.0, 30.0, 49.0], 2.3) == [0, 13, 14, 23]
    assert numbered([0.0, 10.0], 3.9) == [0, 3]
    assert numbered([5.0], 3.9) == [0]


def test_spacings_are_tried_around_a_straight_line_and_near_one_that_is_known() -> None:
    middle, around, widths = np.array([0.0, 1.0, 2.0]), np.array([-1.0, 0.0, 1.0]), np.array([0.1, 0.1, 0.4])
    free = ticks._candidate_periods(middle, around, widths, 1.1, is_known=False)
    assert free.tolist() == pytest.approx(np.linspace(0.8, 1.2, 81))
    near = ticks._candidate_periods(middle, around, widths, 1.1, is_known=True)
    assert near.tolist() == pytest.approx(np.linspace(1.078, 1.122, 81))
    two = ticks._candidate_periods(middle[:2], np.array([-0.5, 0.5]), widths[:2], 1.1, is_known=True)
    assert two.tolist() == [1.1]


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the ticks of something that showed 1, 2, 3 … at some moments, where it moved at some others."""

    def held(times_s: list[float], by: SensorTicks, *, anchor_s: float | None = None, period_s: float = 0.5) -> Any:
        monkeypatch.setattr(ticks, "find_ticks", lambda *_: by)
        return find_held_ticks(np.array(times_s), np.arange(1.0, len(times_s) + 1), period_s, anchor_s)

    return held


def test_each_tick_shows_the_reading_nearest_to_the_middle_until_the_next(holding: Callable[..., Any]) -> None:
    unplaced = moved([], shift_s=0.25, stretch=0.125)
    found = holding([0.125, 0.625, 0.875, 1.5, 2.5], unplaced, anchor_s=5.0)
    assert found.times_s.tolist() == [0.5, 1.5, 2.5]
    assert found.values.tolist() == [3.0, 4.0, 5.0]  # of two that are as near the later one
    assert (found.spread_s.tolist(), found.shift_s, found.stretch, found.period_s) == ([0.0] * 3, 0.25, 0.125, 0.5)
    few = holding([0.5, 1.5, 2.25], unplaced, anchor_s=5.0)
    assert (few.times_s.tolist(), few.values.tolist()) == ([0.5, 1.5, 2.0], [1.0, 2.0, 3.0])
    before = holding([0.125, 0.625, 0.875, 1.5, 2.5], unplaced, anchor_s=-5.0)
    assert before.times_s.tolist() == [0.5, 1.5, 2.5]
    off = holding([0.125, 0.625, 0.875, 1.5, 2.5], unplaced, anchor_s=5.0625)
    assert off.times_s.tolist() == [0.5625, 1.0625, 2.0625]
    assert off.values.tolist() == [3.0, 4.0, 5.0]
    assert holding([0.125, 0.625], unplaced) is None


def test_ticks_that_were_placed_by_what_moved_go_on_from_the_first_of_them(holding: Callable[..., Any]) -> None:
    placed = moved([1.25, 1.5], period_s=0.25, spread_s=np.array([0.5, 0.75]), shift_s=0.125)
    found = holding([0.0, 0.3, 0.6], placed, anchor_s=9.1)
    assert found.times_s.tolist() == [0.0, 0.25, 0.5]
    assert found.values.tolist() == [1.0, 2.0, 3.0]
    assert (found.spread_s.tolist(), found.period_s) == ([0.5] * 3, 0.25)
    uneven = moved([1.3125, 1.5], period_s=0.25, spread_s=np.array([0.5, 0.75]))
    strayed = holding([0.0, 0.25, 0.625], uneven)
    assert (strayed.times_s.tolist(), strayed.values.tolist()) == ([0.0625, 0.5625], [2.0, 3.0])


# --- how sensors see


def test_lags_from_before_until_long_after_and_windows_up_to_seconds_are_tried() -> None:
    lags, windows = sensor_model.LAGS_S, sensor_model.WINDOWS_S
    assert (len(lags), lags[0], lags[-1]) == (211, -0.02, pytest.approx(0.4))
    assert (len(windows), windows[0], windows[-1]) == (48, pytest.approx(0.004), pytest.approx(1.6))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the model of a counter of given ticks, and the noise that its lag was looked for with."""

    def found(by: SensorTicks, lag: tuple[float, float] = (0.01, 0.04)) -> Any:
        noises: list[float] = []

        def lagging(_: SensorTicks, __: DeviceActivity, noise_j: float) -> tuple[float, float]:
            noises.append(noise_j)
            return lag

        monkeypatch.setattr(sensor_model, "find_ticks", lambda *_: by)
        monkeypatch.setattr(sensor_model, "_fit_lag", lagging)
        begin = np.arange(3.0)
        series = CounterSeries(begin, begin + np.array([0.001, 0.002, 0.006]), np.array([0.0, 0.24, 0.6]))
        return fit_counter(series, NEVER), noises

    return found


RISING = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0]


def test_a_counter_is_known_by_its_period_quantum_and_lag(counts: Callable[..., Any]) -> None:
    by = moved(range(8), RISING, period_s=0.5, shift_s=0.03, spread_s=np.array([0.02, *[0.01] * 7]))
    found, (noise_j,) = counts(by)
    assert found == CounterModel(
        period_s=0.5, jitter_s=0.02, quantum_j=0.12, lag_s=0.01, lag_error_s=found.lag_error_s, read_s=found.read_s
    )
    assert (found.lag_error_s, found.read_s) == pytest.approx((0.05, 0.002))
    assert noise_j == pytest.approx(math.sqrt(0.0012 + 0.0144))  # of 0.12 J, and of 0.02 s at 6 W


def test_a_counter_that_ticks_unevenly_has_the_middle_of_its_spacings_and_too_few_ticks_none(
    counts: Callable[..., Any],
) -> None:
    uneven = moved([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0], RISING)
    assert counts(uneven)[0].period_s == 0.5
    assert counts(moved(range(7), RISING[:7], period_s=1.0))[0] is None
    assert counts(moved(range(8), RISING, period_s=1.0, fell_s=(3.0,)))[0] is None


def test_a_quantum_is_the_largest_that_all_steps_are_multiples_of() -> None:
    assert counter_quantum_j(np.array([5.0, 5.002, 5.002, 4.999])) == 0.001
    assert counter_quantum_j(np.array([0.0, 1e-6, 3e-6])) == 1e-6
    assert counter_quantum_j(np.array([0.0, 1e-6])) == 1e-6
    assert counter_quantum_j(np.array([2.0, 2.0])) == counter_quantum_j(np.array([2.0])) == 0.0


@pytest.mark.parametrize(
    ("steepness", "best_s", "noise_j", "error_s"),
    [
        (1 / 0.0101**2, 0.0507, 0.1, 0.0045),  # from 0.042 s to 0.060 s: less than four variances more
        (1 / 0.0101**2, 0.0507, 0.6, 0.0055),  # from 0.040 s to 0.062 s
        (1e12, 0.0507, 0.1, 0.001),
        (1 / 0.0012**2, 0.0510, 0.1, 0.0005),
        (1 / 0.0012**2, 0.0500, 0.1, 0.001),
    ],
)
def test_a_lag_is_where_least_is_left_and_as_open_as_others_leave_hardly_more(
    monkeypatch: pytest.MonkeyPatch, steepness: float, best_s: float, noise_j: float, error_s: float
) -> None:
    monkeypatch.setattr(sensor_model, "_residual", lambda _, __, lag: 2 + steepness * (lag - best_s) ** 2)
    lag_s, found_s = sensor_model._fit_lag(moved(range(11)), NEVER, noise_j)
    assert lag_s == pytest.approx(best_s, abs=1e-7)
    assert found_s == pytest.approx(error_s, abs=1e-7)


def test_a_lag_that_leaves_just_four_variances_more_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(_: SensorTicks, __: DeviceActivity, lag_s: float) -> float:
        return 2.0 if abs(lag_s - 0.05) < 1e-9 else 3.0 if abs(lag_s - 0.05) < 0.009 else 100.0

    monkeypatch.setattr(sensor_model, "_residual", left)
    assert sensor_model._fit_lag(moved(range(11)), NEVER, 0.1) == pytest.approx((0.05, 0.004))


def test_what_a_line_in_time_and_on_time_leaves_is_squared() -> None:
    assert sensor_model._residual(moved(range(4), [1.0, -1.0, -1.0, 1.0]), NEVER, 0.0) == pytest.approx(4.0)
    load = DeviceActivity(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.0, 2.0]))
    times = np.arange(0.25, 6.0, 0.5)
    on = np.array([load.busy_s(0.0, t) for t in times - 0.25])
    by = moved(times, 3 + 2 * times + 5 * on)
    assert sensor_model._residual(by, load, 0.25) == pytest.approx(0.0, abs=1e-9)
    assert sensor_model._residual(by, load, 0.0) > 1.0
    assert sensor_model._on_s(load, times) - sensor_model._on_s(load, np.zeros(1)) == pytest.approx(
        np.array([load.busy_s(0.0, t) for t in times])
    )


def looked(
    by: SensorTicks, load: DeviceActivity, windows_s: list[float], lags_s: list[float]
) -> tuple[float, float, float]:
    return sensor_model._fit_window(by, load, np.array(windows_s), np.array(lags_s))


def test_a_window_and_a_lag_are_those_under_which_on_time_explains_most() -> None:
    load = DeviceActivity(np.array([1.0, 2.0, 3.0, 3.5, 5.0, 6.0]), np.array([0.0, 1.0, 1.0, 2.0, 2.0, 3.0]))
    times = np.arange(1.0, 8.5, 0.375)
    share = np.array([load.busy_s(t - 0.75, t - 0.25) / 0.5 for t in times])
    found = looked(moved(times, 50 + 100 * share), load, [0.25, 0.5, 1.0], [0.0, 0.25, 0.5])
    assert found == pytest.approx((0.5, 0.25, 1.0))
    back = looked(moved(times, 50 - 100 * share), load, [1.0, 0.5, 0.25], [0.5, 0.25, 0.0])
    assert back == pytest.approx((0.5, 0.25, 1.0))


def test_how_much_on_time_explains_is_a_share_of_the_variance() -> None:
    """1, 2 and 4 W while it was off, on and on: 4/7 of the variance."""
    load = DeviceActivity(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
    assert looked(moved([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]), load, [0.5], [0.0]) == pytest.approx((0.5, 0.0, 4 / 7))
    assert looked(moved([1.0, 2.0, 3.0]), NEVER, [0.5, 0.25], [0.125, 0.25]) == (0.5, 0.125, 0.0)


def test_a_load_that_was_hardly_on_explains_as_much_and_one_that_was_next_to_never_does_not() -> None:
    """On for 0.1 µs of a reading's millisecond, or for a tenth of that and less."""
    for on_s, explained in ((1e-7, 1.0), (4e-10, 2 / 3 * 0.16)):
        load = DeviceActivity(np.array([2.0 - on_s, 2.0]), np.array([0.0, 1.0]))
        found = looked(moved([1.0, 2.0, 3.0], [1.0, 2.0, 1.0]), load, [0.001], [0.0])
        assert found[2] == pytest.approx(explained, rel=1e-3)


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the model of a power reading by what moved, by windows and lags that fit best; and where was looked."""

    def found(
        *best: tuple[float, float, float],
        n: int = 8,
        by: SensorTicks | None = None,
        held: bool = True,
        beside: Any = None,
    ) -> Any:
        asked, left = [], list(best)

        def window(_: Any, __: DeviceActivity, windows_s: Any, lags_s: Any) -> tuple[float, float, float]:
            asked.append((windows_s, lags_s))
            return left.pop(0)

        ticking = by or moved(range(8), period_s=0.5, shift_s=0.03)
        monkeypatch.setattr(sensor_model, "find_ticks", lambda *_: ticking)
        monkeypatch.setattr(sensor_model, "find_held_ticks", lambda *_: ticking if held else None)
        monkeypatch.setattr(sensor_model, "_fit_window", window)
        return fit_power(PowerSeries(np.arange(float(n)), np.ones(n)), NEVER, beside), asked

    return found


def test_a_power_reading_is_looked_at_ever_closer(shows: Callable[..., Any]) -> None:
    found, asked = shows((0.04, 0.1, 0.5), (0.05, 0.2, 0.6), (0.25, 0.125, 0.84))
    assert [len(windows) for windows, _ in asked] == [48, 25, 25]
    assert [len(lags) for _, lags in asked] == [211, 50, 50]
    assert asked[1][0] == pytest.approx(np.geomspace(0.04 / 1.15, 0.046, 25))
    assert asked[1][1] == pytest.approx(np.linspace(0.094, 0.106, 50))
    assert asked[2][0] == pytest.approx(np.geomspace(0.05 / 1.02, 0.051, 25))
    assert asked[2][1] == pytest.approx(np.linspace(0.196, 0.204, 50))
    assert found == PowerModel(
        period_s=0.5, window_s=0.25, lag_s=0.125, lag_error_s=found.lag_error_s, with_counter=False, explained=0.84
    )
    assert found.lag_error_s == pytest.approx(0.05)  # 0.03 s by its ticks, and 0.16 of its window
    sure, _ = shows((0.04, 0.1, 0.5), (0.05, 0.2, 0.6), (0.25, 0.125, 0.999))
    assert sure.lag_error_s == pytest.approx(math.hypot(0.03, 0.001), rel=1e-9)


def test_a_power_reading_that_on_and_off_do_not_explain_is_not_understood(shows: Callable[..., Any]) -> None:
    once = (0.25, 0.125, 0.9)
    assert shows(once, once, (0.25, 0.125, 0.8))[0] is not None
    assert shows(once, once, (0.25, 0.125, 0.79))[0] is None
    assert shows(once, once, once, n=7)[0] is None
    assert shows(once, once, once, by=moved(range(7), period_s=0.5))[0] is None
    assert shows(once, once, once, by=moved(range(8)))[0] is None
    assert shows(once, once, once, held=False)[0] is None
    beside = moved(range(20), period_s=0.5)
    assert shows(once, once, once, beside=beside)[0].with_counter


def test_sensors_tick_together_at_the_same_spacing_and_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(one: SensorTicks, other: SensorTicks) -> bool:
        return sensor_model._tick_together(one, other)

    def even(period_s: float | None, *times_s: float) -> SensorTicks:
        return moved(times_s, period_s=period_s)

    half = even(0.5, 0.0, 0.7, 1.0, 1.7)  # the third of four counts
    assert together(half, even(0.5, 9.1, 9.7, 8.0, 9.3))
    assert together(half, even(0.5, 9.1, 6.52))
    assert not together(half, even(0.5, 9.1, 6.53))
    assert not together(half, even(0.5, 9.1, 6.47))
    assert together(even(0.5, 0.0, 2.5, 0.3), even(0.5, 0.0, 1.0, 0.3))
    assert together(even(0.5, 9.1, 1.2), even(0.5, 9.1, 6.7))
    assert together(half, even(0.5 * 1.002, 9.1, 6.5))
    assert not together(half, even(0.5 * 1.004, 9.1, 6.5))
    assert not together(half, even(0.5 / 1.004, 9.1, 6.5))
    assert not together(half, even(None, 9.1, 6.5))
    assert not together(even(None, 9.1, 6.5), half)
    monkeypatch.setattr(sensor_model, "SAME_PERIOD_SHARE", 0.25)
    monkeypatch.setattr(sensor_model, "SAME_PHASE_SHARE", 0.25)
    assert together(even(1.25, 0.0, 2.5), even(1.0, 0.0, 0.0))
    assert together(even(1.0, 0.0, 2.25), even(1.0, 0.0, 0.0))


# --- what sensors saw


EIGHTHS = [0.125 * i for i in range(17)]
"""Two seconds of ticks."""


def sight(times_s: Sequence[float], *, lag_s: float = 0.0, reach_s: float = 0.0, seen_share: float = 1.0) -> SensorView:
    return SensorView("counter", seen_at(times_s), moved(times_s), 0.125, lag_s, reach_s, seen_share)


def test_ticks_two_and_a_half_periods_apart_still_follow_each_other() -> None:
    assert sight(EIGHTHS).gap_share(0.0, 2.0) == 0.0
    assert sight(EIGHTHS).gap_share(0.0, 4.0) == 0.5
    assert sight(EIGHTHS).gap_share(-2.0, 2.0) == 0.5
    assert sight([0.0, 0.3125, 0.625]).gap_share(0.0, 0.625) == 0.0
    assert sight([0.625, 0.0, 0.25]).gap_share(0.0, 0.625) == 0.6
    assert sight([0.0, 0.25, 0.625], reach_s=0.375).gap_share(0.0, 0.625) == 0.0
    assert sight(EIGHTHS, seen_share=0.5).coverage(1.0, 3.0) == 0.25


def test_a_window_is_watched_where_ticks_end_hardly_before_it_does() -> None:
    assert sight([]).unwatched_s(1.0, 3.0) == 2.0
    assert sight(EIGHTHS).unwatched_s(0.5, 2.3125) == 0.0  # two and a half periods
    assert sight(EIGHTHS).unwatched_s(0.5, 2.375) == 0.375
    assert sight(EIGHTHS).unwatched_s(-0.3125, 1.0) == 0.0
    assert sight(EIGHTHS).unwatched_s(-0.375, 1.0) == 0.375
    assert sight(EIGHTHS, lag_s=0.125).unwatched_s(0.5, 2.4375) == 0.0
    assert sight(EIGHTHS, lag_s=0.125).unwatched_s(0.5, 2.5) == 0.5
    assert sight(EIGHTHS, lag_s=-0.125).unwatched_s(0.5, 2.3125) == 0.0
    assert sight(EIGHTHS, reach_s=0.25).unwatched_s(-0.5625, 1.0) == 0.0
    assert sight(EIGHTHS, reach_s=0.25).unwatched_s(-0.625, 1.0) == 0.375


def test_a_sensor_that_is_read_more_rarely_than_it_ticks_has_more_time() -> None:
    rarely = sight([0.0, 1.0, 0.25, 0.75, 0.5, 4.0])
    assert rarely.unwatched_s(0.0, 4.625) == 0.0
    assert rarely.unwatched_s(0.0, 4.75) == 0.75
    assert sight([0.0, 1.0]).unwatched_s(0.0, 3.5) == 0.0
    assert sight([0.0, 1.0]).unwatched_s(0.0, 3.625) == 2.625
    assert sight([1.0]).unwatched_s(1.0, 1.375) == 0.375


def test_what_is_not_said_of_a_sight_is_as_of_a_counter_without_lag() -> None:
    plain = SensorView("counter", seen_at([1.0]), moved([1.0]), 0.125)
    assert (plain.lag_s, plain.reach_s, plain.seen_share, plain.is_counter) == (0.0, 0.0, 1.0, True)
    assert not replace(plain, method="instant power").is_counter


def counting(
    energies: dict[float, float], *, until_s: float = 4.0, watts: dict[str, Callable[[float], float]] | None = None
) -> list[MeterReading]:
    """Return readings every 62.5 ms from 5 s on: of a counter of 2 J each 0.125 s, and of power where that is told.

    ``energies`` is by how much the counter moved beside, at moments since the first reading.
    """
    found = []
    for i in range(round(until_s * 16) + 1):
        t_s = i / 16
        joules = 2.0 * (i // 2) + sum(step for at_s, step in energies.items() if t_s >= at_s)
        at_ns = 5_000 * MS + round(t_s * 1e9)
        more: dict[str, float] = {f"{which}_w": of(t_s) for which, of in (watts or {}).items()}
        found.append(MeterReading(at_ns, at_ns, at_ns + 5 * MS, energy_j=joules, **more))
    return found


def seen_of(
    readings: list[MeterReading], of: SensorModel, span_s: tuple[float, float] = (1.0, 3.0)
) -> list[SensorView]:
    return select_sensor_views(open_stream(readings, of), span_s)


COUNTS = model(counter=counter(0.125, lag_s=0.03125, lag_error_s=0.25, quantum_j=math.sqrt(12.0)))


def test_a_counter_that_was_read_to_the_end_is_all_that_is_needed() -> None:
    both = COUNTS.model_copy(update={"instant": power(0.125, 0.0625)})
    readings = counting({}, watts={"instant": lambda t_s: 8 * t_s // 1})
    (only,) = seen_of(readings, both)
    assert (only.method, only.period_s, only.lag_s, only.reach_s, only.seen_share) == ("counter", 0.125, 0.03125, 0, 1)
    assert only.observations.shift_s == pytest.approx(0.25, rel=0.01)
    assert only.observations.noise.tolist() == pytest.approx([1.0] * 32)
    assert only.observations.times_s.tolist() == pytest.approx([0.125 * i - 0.03125 for i in range(1, 33)], abs=0.07)
    assert [one.method for one in seen_of(readings, both, (1.0, 9.0))] == ["counter", "instant power"]


def test_every_power_reading_is_taken_where_there_is_no_counter() -> None:
    readings = counting({}, watts={"instant": lambda t_s: 8 * t_s // 1, "average": lambda t_s: 8 * t_s // 1})
    late = power(0.125, 0.0625).model_copy(update={"lag_s": 0.03125, "lag_error_s": 0.25})
    told = seen_of(readings, model(average=power(0.125, 0.5), instant=late, usage=power(0.125, 0.5)))
    assert [one.method for one in told] == ["instant power", "average power"]
    assert (told[0].period_s, told[0].lag_s, told[0].reach_s, told[0].seen_share) == (0.125, 0.03125, 0.0625, 0.5)
    assert told[0].observations.shift_s == pytest.approx(0.25, rel=0.01)
    assert float(told[0].observations.points_s.min()) >= 0.0
    with pytest.raises(EnergyRefused) as refusal:
        seen_of(readings, model(usage=power(0.125, 0.5)))
    assert refusal.value.code == "no_sensor"
    assert str(refusal.value) == "the device has no energy counter, and no power reading of it is understood"
    with pytest.raises(EnergyRefused, match="no energy counter"):
        seen_of(readings, model())


def test_no_reading_is_refused_and_times_are_since_the_first() -> None:
    with pytest.raises(EnergyRefused, match=r"^nothing was read of the device's sensors$") as refusal:
        open_stream([], COUNTS)
    assert refusal.value.code == "no_readings"
    of = SensorStream(counting({}, watts={"usage": lambda t_s: t_s}), COUNTS)
    assert (of.origin_ns, of.at_s(6_500 * MS)) == (5_000 * MS, 1.5)
    assert of.power("usage").t_s.tolist() == of.power("usage").watts.tolist()
    assert len(of.power("instant")) == 0


def test_a_counter_that_went_back_within_a_span_is_refused_with_how_far() -> None:
    """At 2 s it had shown 30 J, and shows 32 J less 13 J: it went back by 11 J."""
    with pytest.raises(EnergyRefused) as refusal:
        seen_of(counting({2.0: -13.0, 2.5: -9.0}), COUNTS)
    assert refusal.value.code == "counter_reset"
    expected = "the energy counter went back by 11 J meanwhile, as after a reload of the driver"
    assert str(refusal.value) == expected
    with pytest.raises(EnergyRefused, match="went back by 13 J"):
        seen_of(counting({2.0625: -13.0}), COUNTS)


def test_a_counter_that_went_back_beside_a_span_is_read_from_there_or_until_there() -> None:
    """A reading takes 5 ms; the one at 0.5 s is the first after a fall, the one before it began at 0.4375 s."""
    fell = counting({0.5: -100.0, 0.75: -100.0, 3.5: -100.0, 3.75: -100.0})
    (part,) = seen_of(fell, COUNTS, (0.755, 3.4375))
    assert part.ticks.values.tolist() == [-188.0 + 2 * i for i in range(1, 22)]
    (later,) = seen_of(counting({0.5: -100.0}), COUNTS)
    assert later.ticks.values.tolist() == [-92.0 + 2 * i for i in range(1, 29)]
    (whole,) = seen_of(counting({0.0625: 1.0}), COUNTS)
    assert whole.ticks.values.tolist() == [1.0, *(1.0 + 2 * i for i in range(1, 33))]
    for span in ((0.7549, 3.4375), (0.755, 3.4376)):
        with pytest.raises(EnergyRefused, match="went back by 98 J"):
            seen_of(fell, COUNTS, span)


def placed(series: dict[str, Callable[[float], float]], how: PowerModel, **more: Any) -> SensorTicks | None:
    until_s = more.pop("until_s", 1.0)
    return find_power_ticks(SensorStream(counting({}, watts=series, until_s=until_s), model()), "instant", how, **more)


def test_a_power_that_did_not_move_ticks_with_the_counter_or_anywhere() -> None:
    still: dict[str, Callable[[float], float]] = {"instant": lambda _: 50.0}
    beside = power(0.125, 0.0625).model_copy(update={"with_counter": True})
    by = moved([0.3125, 0.9])
    found = placed(still, beside, counter=by)
    assert found is not None
    assert found.times_s.tolist() == [0.0625 + 0.125 * i for i in range(8)]
    assert placed(still, beside) is None
    assert placed(still, beside, counter=moved([])) is None
    assert placed(still, power(0.125, 0.0625), counter=by) is None
    anywhere = placed(still, power(0.125, 0.0625), counter=by, anywhere=True)
    assert anywhere is not None
    assert anywhere.times_s.tolist() == [0.125 * i for i in range(9)]
    with_counter = placed(still, beside, counter=by, anywhere=True)
    assert with_counter is not None
    assert with_counter.times_s.tolist() == found.times_s.tolist()


def test_a_power_that_moved_once_cannot_be_anywhere_and_two_readings_are_enough() -> None:
    blurred: dict[str, Callable[[float], float]] = {"instant": lambda t_s: 50.0 + (t_s > 0.5)}
    assert placed(blurred, power(0.1, 0.0625), anywhere=True) is None
    still: dict[str, Callable[[float], float]] = {"instant": lambda _: 50.0}
    two = placed(still, power(0.0625, 0.0625), anywhere=True, until_s=1 / 16)
    assert two is not None
    assert two.times_s.tolist() == [0.0625]
    assert placed(still, power(0.0625, 0.0625), anywhere=True, until_s=0.0) is None
