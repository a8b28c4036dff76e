from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads import data

if TYPE_CHECKING:
    from assay.core.values import Params

seeds = st.integers(min_value=0, max_value=2**63)
drawn = st.sampled_from(["normal", "uniform"])


@settings(max_examples=25, deadline=None)
@given(seed=seeds, distribution=drawn, dtype=st.sampled_from(data.DTYPES))
def test_the_same_seed_gives_the_same_data(seed: int, distribution: str, dtype: str) -> None:
    first, second = (data.draw(distribution, (3, 5), dtype, seed) for _ in range(2))
    assert first.shape == (3, 5)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, second)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, distribution=drawn)
def test_another_seed_or_another_stream_gives_other_data(seed: int, distribution: str) -> None:
    here = data.draw(distribution, (16,), "float64", seed)
    assert not np.array_equal(here, data.draw(distribution, (16,), "float64", seed + 1))
    assert not np.array_equal(here, data.draw(distribution, (16,), "float64", seed, stream=1))


def test_one_seed_means_the_same_data_in_every_precision() -> None:
    wide = data.normal((64,), "float64", 3)
    np.testing.assert_array_equal(wide.astype("float32"), data.normal((64,), "float32", 3))


def test_the_distributions_are_what_their_names_say() -> None:
    normal = data.draw("normal", (20_000,), "float64", 1)
    uniform = data.draw("uniform", (20_000,), "float64", 1)
    assert abs(normal.mean()) < 0.05
    assert normal.std() == pytest.approx(1, abs=0.05)
    assert abs(uniform.mean()) < 0.05
    assert -1 <= uniform.min() < -0.99 < 0.99 < uniform.max() < 1
    assert not data.draw("zeros", (20,), "float32", 1).any()


def test_an_unknown_distribution_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match=r"^distribution is one of normal, uniform, zeros, not 'normal_'\. Did you mean"):
        data.draw("normal_", (2,), "float32", 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(BadInput, match="seed is zero or more, not -1"):
        data.normal((2,), "float32", -1)


@pytest.mark.parametrize("value", [0, -3, True, 2.0, "8", None])
def test_a_size_that_is_not_a_positive_whole_number_is_refused(value: float | str | None) -> None:
    with pytest.raises(BadInput, match=r"^rows is a whole number of at least 1, not "):
        data.size({"rows": value}, "rows")


def test_a_flag_is_a_yes_or_no_and_nothing_else() -> None:
    assert data.flag({"causal": True}, "causal") is True
    with pytest.raises(BadInput, match=r"^causal is true or false, not 1\.$"):
        data.flag({"causal": 1}, "causal")


def test_block_sizes_keep_their_order_and_are_clipped_to_the_problem_without_repeats() -> None:
    assert data.block_sizes((128, 32, 256), 256) == (128, 32, 256)
    assert data.block_sizes((128, 32, 256), 100) == (100, 32)
    assert data.block_sizes((128, 32, 256), 7) == (7,)


def test_a_configuration_takes_what_it_leaves_out_from_the_default() -> None:
    default: Params = {"block_q": 64, "layout": "bhsd"}
    assert data.complete(None, default) == default
    assert data.complete({}, default) == default
    assert data.complete({"layout": "bshd"}, default) == {"block_q": 64, "layout": "bshd"}


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        BadInput, match=r"^'blok_q' is not a setting here; there are block_q, layout\. Did you mean block_q\?$"
    ):
        data.complete({"blok_q": 8}, {"block_q": 64, "layout": "bhsd"})
