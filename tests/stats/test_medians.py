"""Medians and quantiles are NumPy's, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.stats.numerics import median, quantiles

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
