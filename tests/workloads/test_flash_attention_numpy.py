from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads import numpy_support
from assay.workloads.ops import attention
from assay.workloads.ops.attention import (
    FLASH_ATTENTION_NUMPY,
    AttentionScratch,
    NumpyAttentionTiling,
    arrange_layout,
    key_blocks,
)
from assay.workloads.parameters import AttentionProblem

if TYPE_CHECKING:
    from assay.core.results import Check
    from assay.core.values import Params, Scalar

sides = st.integers(min_value=1, max_value=40)


def with_defaults(**changed: Scalar) -> Params:
    return {**FLASH_ATTENTION_NUMPY.defaults(), **changed}


def checked(params: Params, config: Params | None, seed: int = 0) -> Check:
    check = FLASH_ATTENTION_NUMPY.prepare(params, config, device="cpu:0", seed=seed).check
    assert check is not None
    return check()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", numpy_support.NUMPY_DTYPES)
def test_every_configuration_is_right_where_blocks_do_not_divide_the_problem(dtype: str, causal: bool) -> None:
    params = with_defaults(batch=2, heads=3, sequence=150, dim=16, dtype=dtype, causal=causal)
    for config in FLASH_ATTENTION_NUMPY.configs(params):
        assert checked(params, config).passed, config


@settings(max_examples=80, deadline=None)
@given(
    sequence=sides,
    dim=st.integers(1, 9),
    blocks=st.tuples(sides, sides),
    layout=st.sampled_from(attention.LAYOUTS),
    causal=st.booleans(),
)
def test_any_tiling_of_any_problem_is_right(
    sequence: int, dim: int, blocks: tuple[int, int], layout: str, causal: bool
) -> None:
    params = with_defaults(batch=1, heads=2, sequence=sequence, dim=dim, causal=causal)
    config: Params = {"block_q": blocks[0], "block_k": blocks[1], "layout": layout}
    assert checked(params, config, seed=sequence).passed


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 39), rows=sides, block_k=sides, sequence=sides, causal=st.booleans())
def test_key_blocks_cover_what_the_queries_see_and_no_tile_wholly_above_the_diagonal(
    start: int, rows: int, block_k: int, sequence: int, causal: bool
) -> None:
    start %= sequence
    stop = min(start + rows, sequence)
    blocks = key_blocks(slice(start, stop), sequence, block_k, causal=causal)
    covered = [key for block in blocks for key in range(block.start, block.stop)]
    assert covered == list(range(len(covered)))
    assert len(covered) <= sequence
    assert len(covered) >= (stop if causal else sequence)
    if causal:
        assert all(block.start < stop for block in blocks)


def test_causal_attention_skips_nearly_half_of_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    fold, folded = attention._accumulate_block, []

    def counted(scores: numpy_support.Floats, v: numpy_support.Floats, scratch: AttentionScratch) -> None:
        folded.append(scores.shape)
        fold(scores, v, scratch)

    monkeypatch.setattr(attention, "_accumulate_block", counted)
    config: Params = {"block_q": 8, "block_k": 8}
    for causal in (False, True):
        params = with_defaults(heads=1, sequence=64, causal=causal)
        FLASH_ATTENTION_NUMPY.prepare(params, config, device="cpu:0", seed=0).call()
    assert len(folded) == 8 * 8 + 8 * 9 // 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("distribution", numpy_support.DISTRIBUTIONS)
def test_every_distribution_is_checked_and_passes(distribution: str, causal: bool) -> None:
    assert checked(with_defaults(sequence=20, dim=8, distribution=distribution, causal=causal), None).passed


@pytest.mark.parametrize("layout", attention.LAYOUTS)
def test_a_layout_changes_where_values_lie_but_not_what_they_are(layout: str) -> None:
    values = numpy_support.draw_array("normal", (2, 3, 5, 4), "float32", 0)
    placed = arrange_layout(values, layout)
    np.testing.assert_array_equal(placed, values)
    axes = [layout.index(axis) for axis in "bhsd"]
    in_memory = placed.transpose(*(int(axis) for axis in np.argsort(axes)))
    assert in_memory.flags.c_contiguous


def test_no_configuration_means_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[NumpyAttentionTiling] = []
    monkeypatch.setattr(attention, "attend_tiled", lambda *_, **named: used.append(named["tiling"]))
    params = with_defaults(heads=1)
    for config in (None, {}, FLASH_ATTENTION_NUMPY.configs(params)[0]):
        FLASH_ATTENTION_NUMPY.prepare(params, config, device="cpu:0", seed=0).call()
    assert used == [NumpyAttentionTiling(128, 128, "bhsd")] * 3


def test_a_call_that_writes_nothing_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = FLASH_ATTENTION_NUMPY.prepare(with_defaults(sequence=8, dim=4), None, device="cpu:0", seed=0)
    prepared.call()
    monkeypatch.setattr(attention, "attend_tiled", lambda *_, **__: None)
    assert prepared.check is not None
    assert prepared.check().error == np.inf


def test_a_forgotten_causal_mask_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_mask_later_keys", lambda *_: None)
    check = checked(with_defaults(sequence=32, dim=8, causal=True), {"block_q": 8, "block_k": 8})
    assert not check.passed
    assert np.isfinite(check.error)


def test_the_default_space_has_distinct_configurations_and_all_of_them_can_be_prepared() -> None:
    params = with_defaults()
    configs = FLASH_ATTENTION_NUMPY.configs(params)
    assert 15 <= len(configs) <= 40
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    for config in configs:
        FLASH_ATTENTION_NUMPY.prepare(params, config, device="cpu:0", seed=0)


@settings(max_examples=40, deadline=None)
@given(sequence=st.integers(1, 600))
def test_blocks_never_exceed_the_sequence_and_no_configuration_comes_twice(sequence: int) -> None:
    configs = FLASH_ATTENTION_NUMPY.configs(with_defaults(sequence=sequence))
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    assert all(
        max(NumpyAttentionTiling.of(config).block_q, NumpyAttentionTiling.of(config).block_k) <= sequence
        for config in configs
    )


@settings(max_examples=30, deadline=None)
@given(sequence=sides)
def test_causal_flop_counts_exactly_the_pairs_under_the_mask(sequence: int) -> None:
    pairs = int(np.tri(sequence).sum())
    assert AttentionProblem(3, 2, sequence, 8, causal=True, dtype="float32").flop == 4 * 3 * 2 * pairs * 8
    assert AttentionProblem(3, 2, sequence, 8, causal=False, dtype="float32").flop == 4 * 3 * 2 * sequence**2 * 8


def test_bytes_are_three_inputs_read_and_one_output_written() -> None:
    prepared = FLASH_ATTENTION_NUMPY.prepare(
        with_defaults(batch=2, heads=3, sequence=5, dim=7), None, device="cpu:0", seed=0
    )
    assert prepared.bytes_moved == 4 * 4 * 2 * 3 * 5 * 7
    assert prepared.flop == 4 * 2 * 3 * 5 * 5 * 7


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batch": 0}, r"^batch is a whole number of at least 1, not 0\.$"),
        ({"sequence": -4}, r"^sequence is a whole number of at least 1, not -4\.$"),
        ({"causal": "yes"}, r"^causal is true or false, not 'yes'\.$"),
        ({"dtype": "float16"}, r"^dtype is one of float32, float64, not 'float16'\."),
        ({"distribution": "gauss"}, r"^distribution is one of normal, uniform, zeros, not 'gauss'\.$"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(changed: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        FLASH_ATTENTION_NUMPY.prepare(with_defaults(**changed), None, device="cpu:0", seed=0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"block_m": 8}, r"^'block_m' is not a setting here; there are block_q, block_k, layout\."),
        ({"block_q": False}, r"^block_q is a whole number of at least 1, not False\.$"),
        ({"layout": "bsdh"}, r"^layout is one of bhsd, bshd, not 'bsdh'\. Did you mean "),
    ],
)
def test_bad_configurations_are_refused_in_one_sentence(config: Params, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        FLASH_ATTENTION_NUMPY.prepare(with_defaults(), config, device="cpu:0", seed=0)
