"""What series are called, and how often wrongly; the benchmark has the same counts in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.shape import classify_shape, estimate_slope, find_two_levels, outlier_share
from tests.stats.chances import at_least, at_most
from tests.stats.noise_families import FAMILIES, Family, draw
from tests.stats.simulations import shapes

REPEATS = 300


@pytest.mark.parametrize("family", ["independent", "AR(1) 0.6"])
@pytest.mark.parametrize("n", [100, 1000])
def test_steady_noise_is_seldom_called_anything_else(family: Family, n: int) -> None:
    counts = shapes(family, n, REPEATS, seed=1).counts
    assert REPEATS - counts["steady"] <= at_most(0.05, REPEATS)


@pytest.mark.parametrize(("family", "name"), [("drift", "drift"), ("two levels", "two levels"), ("spikes", "bursts")])
def test_drift_levels_and_bursts_are_found(family: Family, name: str) -> None:
    counts = shapes(family, 400, REPEATS, seed=2).counts
    seen = REPEATS - counts["hidden"]
    assert counts[name] >= at_least(0.9, seen)


def test_the_slopes_interval_covers_the_drift_as_often_as_it_says() -> None:
    rows, _ = draw("drift", np.random.default_rng(3), REPEATS, 400)
    covered = sum(s is not None and s.low <= 0.03 <= s.high for s in map(estimate_slope, rows))
    assert covered >= at_least(0.98, REPEATS)  # it says 99 %


def test_levels_are_given_with_their_shares_and_switches() -> None:
    rng = np.random.default_rng(4)
    centre = np.repeat([1.0, 1.1, 1.0, 1.1, 1.0, 1.1], [60, 40] * 3)
    shape = classify_shape(centre * np.exp(0.03 * rng.standard_normal(300)))
    assert (shape.name, shape.estimand) == ("two levels", "levels and shares")
    assert shape.levels is not None
    assert (shape.levels.low, shape.levels.high) == pytest.approx((1.0, 1.1), abs=0.02)
    assert shape.levels.share_high == pytest.approx(0.4, abs=0.05)
    assert shape.levels.switches == 5


def test_after_a_single_step_not_even_shares_mean_anything() -> None:
    shape = classify_shape(np.repeat([1.0, 1.1], 100) * np.exp(0.03 * np.random.default_rng(5).standard_normal(200)))
    assert (shape.name, shape.estimand) == ("two levels", "none")


def test_levels_are_found_among_spikes() -> None:
    rows, _ = draw("spikes", np.random.default_rng(6), 50, 600)
    on_two = rows * np.tile(np.repeat([1.0, 1.1], 50), 6)
    assert sum(find_two_levels(row) is not None for row in on_two) >= at_least(0.9, 50)


def test_a_strong_straight_drift_is_a_drift_and_not_two_levels() -> None:
    noise = np.exp(0.03 * np.random.default_rng(7).standard_normal((50, 300)))
    for row in noise * np.linspace(1.0, 1.3, 300):
        shape = classify_shape(row)
        assert (shape.name, shape.estimand) == ("drift", "median of the window")
        assert shape.slope is not None
        assert shape.slope.low < shape.slope.per_window < shape.slope.high
        assert shape.slope.per_window == pytest.approx(0.3 / 1.15, abs=0.05)


def test_too_few_samples_have_no_shape() -> None:
    shape = classify_shape(np.ones(63))
    assert (shape.name, shape.estimand, shape.slope) == ("too few", "none", None)


@pytest.mark.parametrize("value", [0.0, 0.1, 7.0])
def test_a_constant_series_is_steady(value: float) -> None:
    shape = classify_shape(np.full(100, value))
    assert (shape.name, shape.estimand, shape.levels, shape.outlier_share) == ("steady", "median", None, 0.0)


def test_the_share_of_outliers_counts_slow_ones_only() -> None:
    row = np.random.default_rng(8).normal(100.0, 1.0, 1000)
    row[:20], row[20:30] = 200.0, 1.0
    assert outlier_share(row) == 0.02


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(FAMILIES), st.sampled_from([2.0**-20, 0.5, 1024.0]))
def test_the_unit_does_not_change_the_shape(seed: int, family: Family, unit: float) -> None:
    row = draw(family, np.random.default_rng(seed), 1, 200)[0][0]
    here, there = classify_shape(row), classify_shape(row * unit)
    assert (here.name, here.estimand, here.outlier_share) == (there.name, there.estimand, there.outlier_share)
    assert here.slope == there.slope


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 4), min_size=64, max_size=200))
def test_levels_of_samples_with_many_ties_are_numbers(ticks: list[int]) -> None:
    levels = find_two_levels(np.array(ticks, dtype=np.float64))
    if levels is not None:
        assert np.isfinite([levels.low, levels.high]).all()
        assert levels.low < levels.high


@pytest.mark.parametrize("tick", [3.0, 1.5, 1.0, 0.5])
def test_noise_rounded_to_a_timers_ticks_is_not_two_levels(tick: float) -> None:
    rows = np.round((100 + np.random.default_rng(9).standard_normal((100, 400))) / tick) * tick
    assert sum(find_two_levels(row) is not None for row in rows) <= at_most(0.01, 100)


def test_two_values_that_each_last_are_two_levels() -> None:
    levels = find_two_levels(np.tile(np.repeat([10.0, 12.0], 40), 3))
    assert levels is not None
    assert (levels.low, levels.high, levels.switches) == (10.0, 12.0, 5)
    assert levels.share_high == pytest.approx(0.5, abs=0.02)


def test_a_random_walk_is_a_drift_and_not_two_levels() -> None:
    rows = np.exp(0.003 * np.cumsum(np.random.default_rng(10).standard_normal((100, 600)), axis=1))
    assert [classify_shape(row).name for row in rows].count("drift") >= at_least(0.95, 100)
