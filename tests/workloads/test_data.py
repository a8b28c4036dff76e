from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads import numpy_support

seeds = st.integers(min_value=0, max_value=2**63)
drawn = st.sampled_from(["normal", "uniform"])


@settings(max_examples=25, deadline=None)
@given(seed=seeds, distribution=drawn, dtype=st.sampled_from(numpy_support.NUMPY_DTYPES))
def test_the_same_seed_gives_the_same_data(seed: int, distribution: str, dtype: str) -> None:
    first, second = (numpy_support.draw_array(distribution, (3, 5), dtype, seed) for _ in range(2))
    assert first.shape == (3, 5)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, second)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, distribution=drawn)
def test_another_seed_or_another_stream_gives_other_data(seed: int, distribution: str) -> None:
    here = numpy_support.draw_array(distribution, (16,), "float64", seed)
    assert not np.array_equal(here, numpy_support.draw_array(distribution, (16,), "float64", seed + 1))
    assert not np.array_equal(here, numpy_support.draw_array(distribution, (16,), "float64", seed, stream=1))


def test_one_seed_means_the_same_data_in_every_precision() -> None:
    wide = numpy_support.draw_array("normal", (64,), "float64", 3)
    np.testing.assert_array_equal(wide.astype("float32"), numpy_support.draw_array("normal", (64,), "float32", 3))


def test_the_distributions_are_what_their_names_say() -> None:
    normal = numpy_support.draw_array("normal", (20_000,), "float64", 1)
    uniform = numpy_support.draw_array("uniform", (20_000,), "float64", 1)
    assert abs(normal.mean()) < 0.05
    assert normal.std() == pytest.approx(1, abs=0.05)
    assert abs(uniform.mean()) < 0.05
    assert -1 <= uniform.min() < -0.99 < 0.99 < uniform.max() < 1
    assert not numpy_support.draw_array("zeros", (20,), "float32", 1).any()


def test_an_unknown_distribution_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match=r"^distribution is one of normal, uniform, zeros, not 'normal_'\. Did you mean"):
        numpy_support.draw_array("normal_", (2,), "float32", 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(BadInput, match="seed is zero or more, not -1"):
        numpy_support.draw_array("normal", (2,), "float32", -1)
