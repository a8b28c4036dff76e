from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.workloads import torch_support
from assay.workloads.torch_support import TensorReference, compare_with_reference, spread_rows


def truth(right: Any, *, flop_per_row: float = 1.0) -> TensorReference:
    return TensorReference(len(right), lambda which: right[which], flop_per_row, elements_per_row=right[0].numel())


def tensor(rows: int = 1000) -> Any:
    import torch

    return torch.arange(1.0, 2 * rows + 1, dtype=torch.float64).reshape(rows, 2)


def error(out: Any, right: Any, **options: Any) -> float:
    return compare_with_reference(out, truth(right, **options), tolerance=1e-6, seed=3).error


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the reference computed in several parts."""
    monkeypatch.setattr(torch_support, "_ELEMENTS_AT_ONCE", 60)


@pytest.mark.usefixtures("few_at_once")
def test_the_error_is_relative_to_the_norm_and_taken_over_all_parts() -> None:
    right = tensor()
    assert error(right, right) == 0
    assert error(right * 1.001, right) == pytest.approx(1e-3)
    check = compare_with_reference(right.float(), truth(right), tolerance=1e-6, seed=3)
    assert check.passed
    assert check.measure == "relative error ‖out − reference‖ / ‖reference‖"


def test_one_wrong_element_anywhere_counts() -> None:
    right = tensor()
    out = right.clone()
    out[700, 1] += 1e6
    assert error(out, right) > 1


@pytest.mark.parametrize("flop_per_row", [1.0, 1e12])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", range(0, 1000, 333))
def test_what_is_not_finite_never_passes_even_in_a_row_that_is_not_judged(
    flop_per_row: float, bad: float, row: int
) -> None:
    out = tensor()
    out[row, 0] = bad
    assert error(out, tensor(), flop_per_row=flop_per_row) == math.inf


def test_a_reference_that_is_not_finite_never_passes() -> None:
    right = tensor()
    right[5] = math.nan
    assert error(right, right) == math.inf


def test_other_shapes_never_pass() -> None:
    right = tensor()
    assert error(right[:-1], right) == math.inf
    assert error(right[:, :1], right) == math.inf


def test_nothing_but_zeros_is_right_where_the_reference_is_zero() -> None:
    right = tensor() * 0
    assert error(right, right) == 0
    assert error(right + 1e-30, right) == math.inf


@pytest.mark.usefixtures("few_at_once")
def test_a_long_check_judges_some_rows_and_says_which() -> None:
    right, asked = tensor(), []

    def of(which: Any) -> Any:
        asked.extend(which.tolist())
        return right[which]

    costly = TensorReference(1000, of, flop_per_row=torch_support.MOST_FLOP["cpu"] / 100, elements_per_row=2)
    check = compare_with_reference(right, costly, tolerance=1e-6, seed=9)
    assert check.error == 0
    assert asked == spread_rows(1000, 99, 9).tolist()
    assert check.measure.endswith("over 99 of 1000 rows, one at random from each of 99 bands (seed 9)")


def test_not_too_few_rows_are_judged_and_not_too_many_where_it_is_not_all() -> None:
    costly = TensorReference(1000, lambda which: which, flop_per_row=1e15, elements_per_row=1)
    assert costly.rows_within(1.0) == torch_support.FEWEST_ROWS
    cheap = TensorReference(10**12, lambda which: which, flop_per_row=0, elements_per_row=1)
    assert cheap.rows_within(1e13) == torch_support.MOST_ROWS
    assert cheap.rows_within(1e14) == 10**12
    assert TensorReference(10, lambda which: which, flop_per_row=1e15, elements_per_row=1).rows_within(1.0) == 10


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 5000), share=st.floats(0.001, 1), seed=st.integers(0, 100))
def test_judged_rows_are_one_from_each_band(rows: int, share: float, seed: int) -> None:
    count = max(1, int(rows * share))
    chosen = spread_rows(rows, count, seed).tolist()
    assert len(set(chosen)) == count
    assert all(0 <= row < rows for row in chosen)
    assert chosen == spread_rows(rows, count, seed).tolist()
    assert all(band * rows // count <= row < (band + 1) * rows // count for band, row in enumerate(chosen))
