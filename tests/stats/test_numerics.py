"""Probabilities and quantiles against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special

from assay.stats.numerics import (
    binomial_beyond,
    cosine_count,
    cosine_transform,
    f_quantile,
    incomplete_beta,
    long_run_variance,
    median,
    normal_quantile,
    quantiles,
    robust_scale,
    student_cdf,
    student_quantile,
    t_quantile,
    winsorize,
)
from tests.stats.noise_families import related

FREEDOM = st.one_of(st.integers(1, 4000).map(float), st.floats(0.5, 1e4))
TAIL = st.floats(-12, math.log10(0.5)).map(lambda exponent: 10.0**exponent)


@given(TAIL, FREEDOM, st.booleans())
def test_students_quantile_is_scipys(tail: float, freedom: float, upper: bool) -> None:
    p = 1 - tail if upper else tail
    assert student_quantile(p, freedom) == pytest.approx(float(special.stdtrit(freedom, p)), rel=1e-9, abs=1e-9)


@given(st.floats(-1e3, 1e3), FREEDOM)
def test_students_probability_is_scipys(t: float, freedom: float) -> None:
    assert student_cdf(t, freedom) == pytest.approx(float(special.stdtr(freedom, t)), rel=1e-9, abs=1e-290)


@given(st.floats(0.5, 0.9999), st.integers(1, 500), st.integers(1, 500))
def test_the_quantile_of_f_is_scipys(p: float, above: int, below: int) -> None:
    assert f_quantile(p, above, below) == pytest.approx(float(special.fdtri(above, below, p)), rel=1e-8)


@given(st.integers(-1, 300), st.integers(0, 300), st.floats(0, 1))
def test_the_binomial_tail_is_scipys(k: int, more: int, p: float) -> None:
    n = max(k, 0) + more
    expected = 1.0 if k < 0 else float(special.bdtrc(k, n, p))
    assert binomial_beyond(k, n, p) == pytest.approx(expected, rel=1e-9, abs=1e-290)


@given(st.floats(1e-12, 1 - 1e-12))
def test_the_normal_quantile_is_scipys(p: float) -> None:
    assert normal_quantile(p) == pytest.approx(float(special.ndtri(p)), rel=1e-12, abs=1e-14)


def test_values_from_a_printed_table() -> None:
    """Of Student's t and Fisher's F, as every textbook has them."""
    assert student_quantile(0.975, 4) == pytest.approx(2.776, abs=5e-4)
    assert student_quantile(0.975, math.inf) == pytest.approx(1.96, abs=5e-4)
    assert student_quantile(0.5, 3) == 0.0
    assert (student_quantile(0.0, 3), student_quantile(1.0, 3)) == (-math.inf, math.inf)
    assert student_cdf(0.0, 7) == 0.5
    assert f_quantile(0.95, 5, 10) == pytest.approx(3.33, abs=5e-3)
    assert binomial_beyond(1, 2, 0.5) == pytest.approx(0.25)
    assert (incomplete_beta(2, 3, 0.0), incomplete_beta(2, 3, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 64, 101, 1000])
def test_the_cosine_transform_is_scipys(n: int) -> None:
    from scipy.fft import dct

    values = np.random.default_rng(n).normal(size=n)
    assert cosine_transform(values) == pytest.approx(np.asarray(dct(values, norm="ortho")), rel=1e-9, abs=1e-12)


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


SERIES = arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e12, 1e12))


@given(SERIES)
def test_the_median_is_numpys(samples: np.ndarray) -> None:
    assert median(samples) == np.median(samples)


@given(SERIES, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_are_numpys(samples: np.ndarray, shares: list[float]) -> None:
    assert list(quantiles(samples, shares)) == np.quantile(samples, shares).tolist()


def test_by_hand() -> None:
    assert median(np.array([3.0, 1.0, 2.0])) == 2.0
    assert median(np.array([4.0, 1.0, 2.0, 3.0])) == 2.5
    assert quantiles(np.array([40.0, 10.0, 20.0, 30.0]), [0.0, 0.25, 0.5, 0.9, 1.0]) == (10, 17.5, 25, 37, 40)


def test_what_is_no_number_is_passed_on() -> None:
    broken = np.array([1.0, math.nan, 2.0])
    assert math.isnan(median(broken))
    assert all(map(math.isnan, quantiles(broken, [0.1, 0.5])))


@pytest.mark.parametrize("of", [median, lambda samples: quantiles(samples, [0.5])])
def test_the_samples_stay_in_their_order(of: object) -> None:
    samples = np.array([3.0, 1.0, 2.0])
    assert callable(of)
    of(samples)
    assert samples.tolist() == [3.0, 1.0, 2.0]
