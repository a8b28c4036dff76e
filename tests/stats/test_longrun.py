"""The long-run variance against what theory says, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.numerics import cosine_count, long_run_variance, robust_scale, t_quantile, winsorize
from tests.stats.noise_families import related

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize(("rho", "theory"), [(0.0, 1.0), (0.6, 4.0), (0.9, 19.0)])
def test_the_long_run_variance_is_that_of_theory(rho: float, theory: float) -> None:
    """(1 + ρ) / (1 - ρ). 100 rows of about 100 degrees each: 2 % of scatter, and a bias towards short memory."""
    found = [long_run_variance(row).variance for row in related(np.random.default_rng(1), rho, 100, 4000)]
    assert np.mean(found) == pytest.approx(theory, rel=0.15)


def test_memory_longer_than_the_cosines_costs_degrees_of_freedom() -> None:
    rows = related(np.random.default_rng(2), 0.99, 50, 1000)
    assert np.mean([long_run_variance(row).degrees for row in rows]) < cosine_count(1000) / 2


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(-100, 100), st.floats(-100, 100), st.floats(0.1, 10))
def test_shifts_and_straight_drifts_change_nothing_and_scale_counts_squared(
    seed: int, shift: float, drift: float, scale: float
) -> None:
    row = np.random.default_rng(seed).standard_normal(100)
    moved = long_run_variance(scale * row + shift + drift * np.linspace(0, 1, 100))
    assert moved.variance == pytest.approx(scale**2 * long_run_variance(row).variance, rel=1e-6)


def test_there_are_never_fewer_than_four_cosines_nor_more_than_values() -> None:
    found = [cosine_count(n) for n in range(6, 5000)]
    assert found == sorted(found)
    assert found[0] == 4
    assert all(d <= n - 2 for d, n in zip(found, range(6, 5000), strict=True))


def test_the_quantile_is_students() -> None:
    assert t_quantile(0.95, 8) == pytest.approx(2.306, abs=1e-3)


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_outliers_are_moved_in_and_nothing_else_is_touched(seed: int) -> None:
    row = np.random.default_rng(seed).standard_normal(200)
    spiked = row.copy()
    spiked[7] = 1e6
    tame = winsorize(spiked)
    assert tame[7] < 10
    calm = np.abs(spiked - np.median(spiked)) <= 5 * robust_scale(spiked)
    assert np.array_equal(tame[calm], spiked[calm])
    assert np.median(tame) == np.median(spiked)


def test_samples_that_are_mostly_alike_have_no_outliers_to_move() -> None:
    row = np.array([1.0] * 9 + [5.0])
    assert np.array_equal(winsorize(row), row)
