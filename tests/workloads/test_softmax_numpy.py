from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads import numpy_support
from assay.workloads.ops import rows
from assay.workloads.ops.rows import SOFTMAX_NUMPY, SoftmaxScratch, SoftmaxTiling
from assay.workloads.parameters import SoftmaxProblem

if TYPE_CHECKING:
    from assay.core.results import Check
    from assay.core.values import Params, Scalar

sides = st.integers(min_value=1, max_value=40)
layouts = st.sampled_from(rows.LAYOUTS)


def with_defaults(**changed: Scalar) -> Params:
    return {**SOFTMAX_NUMPY.defaults(), **changed}


def checked(params: Params, config: Params | None, seed: int = 0) -> Check:
    check = SOFTMAX_NUMPY.prepare(params, config, device="cpu:0", seed=seed).check
    assert check is not None
    return check()


@pytest.mark.parametrize("dtype", numpy_support.NUMPY_DTYPES)
def test_every_configuration_is_right_where_blocks_do_not_divide_the_problem(dtype: str) -> None:
    params = with_defaults(rows=150, cols=777, dtype=dtype)
    for config in SOFTMAX_NUMPY.configs(params):
        assert checked(params, config).passed, config


@settings(max_examples=60, deadline=None)
@given(rows=sides, cols=sides, block_rows=sides, block_cols=sides, layout=layouts)
def test_any_tiling_of_any_problem_is_right(
    rows: int, cols: int, block_rows: int, block_cols: int, layout: str
) -> None:
    config: Params = {"block_rows": block_rows, "block_cols": block_cols, "layout": layout}
    assert checked(with_defaults(rows=rows, cols=cols), config, seed=rows).passed


@pytest.mark.parametrize("distribution", numpy_support.DISTRIBUTIONS)
def test_every_distribution_is_checked_and_passes(distribution: str) -> None:
    assert checked(with_defaults(rows=33, cols=20, distribution=distribution), None).passed


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), layout=layouts)
def test_inputs_far_beyond_the_range_of_exp_do_not_overflow(seed: int, layout: str) -> None:
    x = numpy_support.draw_array("normal", (6, 30), "float32", seed) * np.float32(1e4)
    tiling = SoftmaxTiling(4, 7, layout)
    out = np.zeros_like(x)
    rows.softmax_tiled(x, out, SoftmaxScratch.of(SoftmaxProblem(6, 30, "float32"), tiling), tiling)
    assert numpy_support.check_output(out, numpy_support.reference_softmax(x), "float32").passed


def test_no_configuration_means_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[SoftmaxTiling] = []
    monkeypatch.setattr(rows, "softmax_tiled", lambda *arguments: used.append(arguments[3]))
    params = with_defaults()
    for config in (None, {}, SOFTMAX_NUMPY.configs(params)[0]):
        SOFTMAX_NUMPY.prepare(params, config, device="cpu:0", seed=0).call()
    assert used == [SoftmaxTiling(32, 1024, "row")] * 3


def test_a_call_that_writes_nothing_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = SOFTMAX_NUMPY.prepare(with_defaults(rows=8, cols=8), None, device="cpu:0", seed=0)
    prepared.call()
    monkeypatch.setattr(rows, "softmax_tiled", lambda *_: None)
    assert prepared.check is not None
    assert prepared.check().error == np.inf


def test_powers_that_are_not_normalised_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_normalize", lambda *_: None)
    check = checked(with_defaults(rows=16, cols=32), {"block_cols": 8})
    assert not check.passed
    assert np.isfinite(check.error)


def test_the_default_space_has_distinct_configurations_and_all_of_them_can_be_prepared() -> None:
    params = with_defaults()
    configs = SOFTMAX_NUMPY.configs(params)
    assert 15 <= len(configs) <= 40
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        SOFTMAX_NUMPY.prepare(params, config, device="cpu:0", seed=0)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 800), cols=st.integers(1, 2000))
def test_blocks_never_exceed_the_problem_and_no_configuration_comes_twice(rows: int, cols: int) -> None:
    configs = SOFTMAX_NUMPY.configs(with_defaults(rows=rows, cols=cols))
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        tiling = SoftmaxTiling.of(config)
        assert tiling.block_rows <= rows
        assert tiling.block_cols <= cols


def test_flop_and_bytes_follow_from_the_sizes() -> None:
    prepared = SOFTMAX_NUMPY.prepare(with_defaults(rows=3, cols=7), None, device="cpu:0", seed=0)
    assert prepared.flop == 5 * 3 * 7
    assert prepared.bytes_moved == 2 * 4 * 3 * 7


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rows": 0}, r"^rows is a whole number of at least 1, not 0\.$"),
        ({"cols": -4}, r"^cols is a whole number of at least 1, not -4\.$"),
        ({"dtype": "int8"}, r"^dtype is one of float32, float64, not 'int8'\."),
        ({"distribution": "zero"}, r"^distribution is one of .*, not 'zero'\. Did you mean zeros\?$"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(changed: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        SOFTMAX_NUMPY.prepare(with_defaults(**changed), None, device="cpu:0", seed=0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"block_row": 8}, r"^'block_row' is not a setting here; .* Did you mean block_rows"),
        ({"block_cols": 0}, r"^block_cols is a whole number of at least 1, not 0\.$"),
        ({"layout": "bhsd"}, r"^layout is one of row, column, not 'bhsd'\.$"),
    ],
)
def test_bad_configurations_are_refused_in_one_sentence(config: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        SOFTMAX_NUMPY.prepare(with_defaults(), config, device="cpu:0", seed=0)
