"""Who is unlike the rest: how often nobody is called so, and that the far ones are."""

from __future__ import annotations

import numpy as np
import pytest

from assay.stats.outliers import (
    estimate_scale,
    estimate_tail_freedom,
    false_discovery_rates,
    holm_p_values,
    outlier_p_values,
)
from tests.stats.chances import at_most

REPEATS = 400


@pytest.mark.parametrize("n", [4, 9, 12, 60, 500])
def test_among_equals_somebody_is_called_as_seldom_as_the_rate_says(n: int) -> None:
    rows = np.random.default_rng(n).standard_normal((REPEATS, n))
    called = sum((false_discovery_rates(outlier_p_values(row - np.median(row))) <= 0.05).any() for row in rows)
    assert called <= at_most(0.055, REPEATS)


@pytest.mark.parametrize("n", [4, 12, 60])
def test_one_far_from_the_rest_is_found_among_few_and_many(n: int) -> None:
    row = np.random.default_rng(n).standard_normal(n)
    row[1] += 40.0
    found = false_discovery_rates(outlier_p_values(row - np.median(row))) <= 0.05
    assert found[1]
    assert found.sum() == 1


def test_a_fifth_that_stray_neither_hide_each_other_nor_widen_the_scale() -> None:
    row = np.random.default_rng(3).standard_normal(50)
    row[:10] += 30.0
    assert estimate_scale(row - np.median(row)) < 2.0
    assert (false_discovery_rates(outlier_p_values(row - np.median(row)))[:10] <= 0.05).all()


def test_the_far_ends_of_heavy_tails_are_seldom_called_and_one_beyond_them_is() -> None:
    row = np.random.default_rng(6).standard_t(4, 5000)
    row[7] = 60.0
    assert 3.0 <= estimate_tail_freedom(row) <= 8.0
    called = false_discovery_rates(outlier_p_values(row)) <= 0.05
    assert called[7]
    assert called.sum() < 15
    assert estimate_tail_freedom(np.random.default_rng(7).standard_normal(5000)) > 1000


def test_what_is_known_less_well_is_less_unlikely() -> None:
    row = np.random.default_rng(4).standard_normal(50)
    row[0], extra = 8.0, np.zeros(50)
    extra[0] = 100.0
    assert outlier_p_values(row, extra)[0] > 0.1 > outlier_p_values(row)[0]


def test_numbers_that_a_sensor_rounds_have_the_scale_of_what_it_rounds() -> None:
    true = np.random.default_rng(5).normal(0, 1.9, 400)
    assert estimate_scale(np.round(true), least=0.5) == pytest.approx(1.9, rel=0.15)


def test_three_have_no_rest_and_equal_numbers_stand_out_by_nothing() -> None:
    assert np.isnan(outlier_p_values(np.array([1.0, 2.0, 9.0]))).all()
    assert (outlier_p_values(np.zeros(20), least=0.1) == 1.0).all()


def test_corrections_keep_the_order_and_leave_out_what_is_not_known() -> None:
    chances = np.array([0.01, np.nan, 0.02, 0.5, 0.001])
    assert false_discovery_rates(chances) == pytest.approx([0.02, np.nan, 0.08 / 3, 0.5, 0.004], nan_ok=True)
    assert holm_p_values(chances) == pytest.approx([0.03, np.nan, 0.04, 0.5, 0.004], nan_ok=True)
    assert np.isnan(false_discovery_rates(np.array([np.nan]))).all()
