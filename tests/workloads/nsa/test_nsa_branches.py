"""Every path of a branch gives what its definition says, in every small shape there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads.nsa.branches import (
    COMPRESSED,
    GRIDS,
    SLIDING,
    Branch,
    CompressedBranch,
    SlidingBranch,
    compressed_length,
    effective_length,
    pool_blocks,
    sliding_length,
)
from assay.workloads.nsa.paths import (
    ColumnLayout,
    chunked_call,
    flash_by_columns,
    flash_by_groups,
    flash_sliding,
    masked_call,
)
from assay.workloads.nsa.workloads import exact_output
from tests.workloads.nsa import naive

few = st.integers(1, 2)
slidings = st.builds(
    SlidingBranch, few, few, few, st.just(8), st.integers(1, 40), st.just("float64"), window=st.integers(1, 45)
)


@st.composite
def compressed(draw: st.DrawFn) -> CompressedBranch:
    sequence = draw(st.integers(1, 40))
    sizes = (draw(few), draw(few), draw(few), 8, sequence, "float64")
    return CompressedBranch(*sizes, block=draw(st.integers(1, sequence)), stride=draw(st.integers(1, 9)))


branches = st.one_of(slidings, compressed())


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=40)
@given(branches, st.integers(1, 12))
def test_masked_and_chunked_and_reference_are_what_the_definition_says(branch: Branch, step: int) -> None:
    inputs = naive.made(branch)
    expected = naive.attention(branch, inputs)
    same(masked_call(branch, inputs)(), expected)
    same(masked_call(branch, inputs, largest=step * branch.keys)(), expected)
    same(chunked_call(branch, inputs)(), expected)
    same(chunked_call(branch, inputs, step=step)(), expected)
    same(exact_output(branch, inputs, slice(None)).permute(1, 2, 3, 0, 4), expected)


@settings(deadline=None, max_examples=40)
@given(slidings)
def test_the_window_given_to_flash_kernels_is_the_branchs(branch: SlidingBranch) -> None:
    inputs = naive.made(branch)
    same(flash_sliding(branch, inputs, naive.flash_kernel)(), naive.attention(branch, inputs))


@settings(deadline=None, max_examples=40)
@given(compressed())
def test_the_staircase_is_a_causal_mask_in_columns_and_none_in_groups(branch: CompressedBranch) -> None:
    inputs = naive.made(branch)
    expected = naive.attention(branch, inputs)
    same(flash_by_columns(branch, inputs, naive.flash_kernel)(), expected)
    same(flash_by_groups(branch, inputs, naive.varlen_kernel)(), expected)


@settings(deadline=None, max_examples=200)
@given(compressed())
def test_rows_of_columns_that_see_nothing_make_up_for_the_tokens_there_are_fewer_of(branch: CompressedBranch) -> None:
    layout = ColumnLayout.of(branch)
    assert 0 <= layout.before < branch.stride
    assert layout.rows * branch.stride - branch.sequence < 2 * branch.stride
    _, end = branch.key_range()
    for t in range(branch.sequence):
        row = (t + layout.before) // branch.stride
        assert max(0, row + 1 + branch.keys - layout.rows) == end[t]


@settings(deadline=None, max_examples=200)
@given(branches)
def test_what_queries_see_follows_the_definition_and_never_falls(branch: Branch) -> None:
    first, end = branch.key_range()
    for t in range(branch.sequence):
        assert list(range(first[t], end[t])) == naive.keys_seen(branch, t)
    assert (np.diff(first) >= 0).all()
    assert (np.diff(end) >= 0).all()
    assert branch.queries_without_keys == sum(not naive.keys_seen(branch, t) for t in range(branch.sequence))
    assert branch.flop == 4 * branch.all_heads * branch.head_dim * int((end - first).sum())


@settings(deadline=None, max_examples=200)
@given(branches, st.integers(1, 40))
def test_neighbouring_queries_see_no_more_than_their_span(branch: Branch, queries: int) -> None:
    first, end = branch.key_range()
    for start in range(branch.sequence):
        rows = slice(start, start + queries)
        assert end[rows].max() - first[rows].min() <= branch.span(queries)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_an_effective_length_is_the_most_that_any_query_sees(sequence: int, one: int, other: int) -> None:
    window = max(min(one, t + 1) for t in range(sequence))
    assert sliding_length(sequence, one) == window == effective_length({"sequence": sequence, "window": one})
    counts = [0 if t + 1 < one else (t + 1 - one) // other + 1 for t in range(sequence)]
    assert compressed_length(sequence, one, other) == max(counts)
    assert effective_length({"sequence": sequence, "block": one, "stride": other}) == counts[-1]


def test_the_older_grid_has_the_lengths_that_its_thresholds_are_written_in() -> None:
    older = GRIDS["older"]
    assert [effective_length(cell) for cell in older[COMPRESSED]] == [15, 31, 63]
    assert {(cell["sequence"], effective_length(cell)) for cell in older[SLIDING]} == {
        (s, w) for s in (256, 512, 1024) for w in (32, 64, 128, 256)
    }
    assert all(cell["heads"] == cell["groups"] == 2 for cells in older.values() for cell in cells)


def test_the_long_grid_reaches_64k() -> None:
    for cells in GRIDS["long"].values():
        assert max(cell["sequence"] for cell in cells) == 65536  # type: ignore[type-var]
    assert max(map(effective_length, GRIDS["long"][COMPRESSED])) == 4095


def test_a_length_of_neither_branch_is_asked_for_in_vain() -> None:
    with pytest.raises(BadInput, match=r"^Neither a window nor a block and a stride are among sequence\.$"):
        effective_length({"sequence": 4})


def test_compressed_tokens_are_block_sums_at_the_scale_of_what_they_stand_for() -> None:
    import torch

    x = torch.arange(24, dtype=torch.float64).reshape(1, 1, 12, 2)
    found = pool_blocks(x, 4, 3)
    assert found.shape == (1, 1, 3, 2)
    for token in range(3):
        assert found[0, 0, token].tolist() == pytest.approx((x[0, 0, 3 * token : 3 * token + 4].sum(0) / 2).tolist())
