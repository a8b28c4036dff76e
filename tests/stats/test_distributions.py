"""Probabilities and quantiles against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from assay.stats.numerics import (
    binomial_beyond,
    cosine_transform,
    f_quantile,
    incomplete_beta,
    normal_quantile,
    student_cdf,
    student_quantile,
)

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
