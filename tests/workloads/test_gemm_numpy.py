from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads import numpy_support
from assay.workloads.ops import gemm
from assay.workloads.ops.gemm import GEMM_NUMPY

if TYPE_CHECKING:
    from assay.core.results import Check
    from assay.core.values import Params, Scalar

sides = st.integers(min_value=1, max_value=40)


def with_defaults(**changed: Scalar) -> Params:
    return {**GEMM_NUMPY.defaults(), **changed}


def checked(params: Params, config: Params | None, seed: int = 0) -> Check:
    check = GEMM_NUMPY.prepare(params, config, device="cpu:0", seed=seed).check
    assert check is not None
    return check()


@pytest.mark.parametrize("dtype", numpy_support.NUMPY_DTYPES)
def test_every_configuration_is_right_where_blocks_do_not_divide_the_problem(dtype: str) -> None:
    params = with_defaults(m=150, n=131, k=270, dtype=dtype)
    for config in GEMM_NUMPY.configs(params):
        assert checked(params, config).passed, config


@settings(max_examples=60, deadline=None)
@given(m=sides, n=sides, k=sides, blocks=st.tuples(sides, sides, sides), layout=st.sampled_from(gemm.LAYOUTS))
def test_any_tiling_of_any_problem_is_right(m: int, n: int, k: int, blocks: tuple[int, int, int], layout: str) -> None:
    block_m, block_n, block_k = blocks
    config: Params = {"block_m": block_m, "block_n": block_n, "block_k": block_k, "layout": layout}
    assert checked(with_defaults(m=m, n=n, k=k), config, seed=m).passed


@pytest.mark.parametrize("distribution", numpy_support.DISTRIBUTIONS)
def test_every_distribution_is_checked_and_passes(distribution: str) -> None:
    assert checked(with_defaults(m=33, n=20, k=40, distribution=distribution), None).passed


def test_no_configuration_means_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[gemm.NumpyGemmTiling] = []
    monkeypatch.setattr(gemm, "multiply_tiled", lambda *arguments: used.append(arguments[4]))
    params = with_defaults()
    for config in (None, {}, GEMM_NUMPY.configs(params)[0]):
        GEMM_NUMPY.prepare(params, config, device="cpu:0", seed=0).call()
    assert used == [gemm.NumpyGemmTiling(128, 128, 128, "row")] * 3


def test_a_call_that_writes_nothing_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = GEMM_NUMPY.prepare(with_defaults(m=8, n=8, k=8), None, device="cpu:0", seed=0)
    prepared.call()
    monkeypatch.setattr(gemm, "multiply_tiled", lambda *_: None)
    assert prepared.check is not None
    assert prepared.check().error == np.inf


def test_a_product_that_leaves_out_one_block_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = gemm._fill_tile

    def forgetful(
        a: numpy_support.Floats,
        b: numpy_support.Floats,
        tile: numpy_support.Floats,
        scratch: numpy_support.Floats,
        block_k: int,
    ) -> None:
        fill(a[:, :-block_k], b[:-block_k], tile, scratch, block_k)

    monkeypatch.setattr(gemm, "_fill_tile", forgetful)
    check = checked(with_defaults(m=64, n=64, k=64), {"block_k": 16})
    assert not check.passed
    assert np.isfinite(check.error)


def test_the_default_space_has_distinct_configurations_and_all_of_them_can_be_prepared() -> None:
    params = with_defaults()
    configs = GEMM_NUMPY.configs(params)
    assert 20 <= len(configs) <= 60
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        GEMM_NUMPY.prepare(params, config, device="cpu:0", seed=0)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 600), n=st.integers(1, 600), k=st.integers(1, 600))
def test_blocks_never_exceed_the_problem_and_no_configuration_comes_twice(m: int, n: int, k: int) -> None:
    configs = GEMM_NUMPY.configs(with_defaults(m=m, n=n, k=k))
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        tiling = gemm.NumpyGemmTiling.of(config)
        assert tiling.block_m <= m
        assert tiling.block_n <= n
        assert tiling.block_k <= k


def test_flop_and_bytes_follow_from_the_sizes() -> None:
    prepared = GEMM_NUMPY.prepare(with_defaults(m=2, n=3, k=5, dtype="float64"), None, device="cpu:0", seed=0)
    assert prepared.flop == 2 * 2 * 3 * 5
    assert prepared.bytes_moved == 8 * (2 * 5 + 5 * 3 + 2 * 3)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"m": 0}, r"^m is a whole number of at least 1, not 0\.$"),
        ({"k": -4}, r"^k is a whole number of at least 1, not -4\.$"),
        ({"dtype": "float23"}, r"^dtype is one of float32, float64, not 'float23'\. Did you mean float32"),
        ({"distribution": "normal_"}, r"^distribution is one of .*, not 'normal_'\. Did you mean normal"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(changed: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        GEMM_NUMPY.prepare(with_defaults(**changed), None, device="cpu:0", seed=0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"block_x": 8}, r"^'block_x' is not a setting here; there are block_m, block_n, block_k, layout\."),
        ({"block_m": 0}, r"^block_m is a whole number of at least 1, not 0\.$"),
        ({"block_n": "8"}, r"^block_n is a whole number of at least 1, not '8'\.$"),
        ({"layout": "col"}, r"^layout is one of row, column, not 'col'\. Did you mean column"),
    ],
)
def test_bad_configurations_are_refused_in_one_sentence(config: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        GEMM_NUMPY.prepare(with_defaults(), config, device="cpu:0", seed=0)
