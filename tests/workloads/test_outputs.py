"""What two functions return, compared."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.workloads import parity
from assay.workloads.parity import compare_outputs

if TYPE_CHECKING:
    from assay.core.results import Parity

VALUES = np.random.default_rng(0).standard_normal((40, 30))


def of(right: Any, found: Any, **options: Any) -> Parity:
    return compare_outputs(lambda: right, lambda: found, **options)


def test_the_same_numbers_pass_with_no_error() -> None:
    found = of(VALUES, VALUES.copy())
    assert found.passed is True
    assert (found.mean_error, found.max_error) == (0.0, 0.0)
    assert (found.rows_checked, found.rows) == (1200, 1200)
    assert found.deterministic is True
    assert found.dense_max_error is None
    assert found.measure == "absolute error against output of the reference, 1e-12 of whose size is allowed"


def test_errors_of_rounding_pass_and_larger_ones_do_not() -> None:
    assert of(VALUES, VALUES.astype(np.float32)).passed
    assert of(VALUES, VALUES.astype(np.float16)).passed
    found = of(VALUES.astype(np.float32), (VALUES * 1.001).astype(np.float32))
    assert found.passed is False
    assert found.reason is not None
    assert "its mean error of" in found.reason


def test_one_wrong_element_of_many_is_found() -> None:
    spoilt = VALUES.astype(np.float32)
    spoilt[3, 4] += 0.01
    found = of(VALUES.astype(np.float32), spoilt)
    assert found.passed is False
    assert found.reason is not None
    assert "its largest error of" in found.reason


def test_a_function_may_say_how_far_it_may_be_off() -> None:
    assert of(VALUES, VALUES * 1.001, tolerance=2e-3).passed
    assert not of(VALUES, VALUES * 1.01, tolerance=2e-3).passed


def test_tensors_are_compared_in_every_dtype_and_with_arrays() -> None:
    import torch

    right = torch.from_numpy(VALUES)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert of(right, right.to(dtype)).passed, dtype
    assert of(VALUES, right.T.contiguous().T).passed
    assert not of(right, right.roll(1)).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_of_the_fast_function_fails_and_one_of_the_reference_checks_nothing(value: float) -> None:
    spoilt = VALUES.copy()
    spoilt[-1, -1] = value
    fast = of(VALUES, spoilt)
    assert (fast.passed, fast.reason) == (False, "its output has a NaN or an infinity")
    reference = of(spoilt, VALUES)
    assert (reference.passed, reference.reason) == (None, "the output of the reference has a NaN or an infinity")


def test_whole_numbers_and_truth_values_must_be_the_same() -> None:
    assert of(np.arange(5), np.arange(5)).passed
    assert not of(np.arange(5), np.array([0, 1, 2, 3, 5])).passed
    assert of(7, 7).passed
    assert not of(np.array([True, False]), np.array([True, True])).passed


def test_of_several_arrays_the_first_wrong_one_is_told_or_the_nearest_to_its_limits() -> None:
    right = (VALUES, VALUES.astype(np.float32))
    fine = of(right, [VALUES, (VALUES * (1 + 1e-7)).astype(np.float32)])
    assert fine.passed
    assert "output 2 of the reference" in fine.measure
    wrong = of(right, (VALUES * 2, VALUES.astype(np.float32)))
    assert wrong.passed is False
    assert "output 1 of the reference" in wrong.measure


@pytest.mark.parametrize(
    ("right", "found", "reason"),
    [
        (VALUES, None, "the fast function returns nothing, which is no number, array or dense tensor"),
        ("text", VALUES, "the reference returns a str, which is no number, array or dense tensor"),
        (VALUES, {"out": VALUES}, "the fast function returns a dict, which is no number, array or dense tensor"),
        (VALUES, VALUES.astype(complex), "the fast function returns elements of complex128, which are not compared"),
        ((VALUES, VALUES), VALUES, "the reference returns 2 arrays, the fast function 1"),
        ((), (), "the reference returns 0 arrays, the fast function 0"),
        (VALUES[:0], VALUES[:0], "both functions return arrays without elements"),
    ],
)
def test_what_cannot_be_compared_is_not_checked_which_is_not_passed(right: Any, found: Any, reason: str) -> None:
    told = of(right, found)
    assert told.passed is None
    assert told.reason == reason


def test_another_shape_is_another_result() -> None:
    told = of(VALUES, VALUES.T)
    assert told.passed is False
    assert told.reason == "its output has the shape (30, 40), that of the reference (40, 30)"


def test_an_output_that_is_written_into_again_is_kept_apart_and_changes_are_told() -> None:
    kept, count = VALUES.copy(), itertools.count()

    def fast() -> Any:
        kept[0, 0] = VALUES[0, 0] * (1 + 1e-14 * next(count))
        return kept

    told = compare_outputs(lambda: VALUES, fast)
    assert told.passed
    assert told.deterministic is False


def test_long_outputs_are_compared_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of(VALUES.astype(np.float32), VALUES.astype(np.float16))
    monkeypatch.setattr(parity, "_ELEMENTS_AT_ONCE", 7)
    parts = of(VALUES.astype(np.float32), VALUES.astype(np.float16))
    assert parts.mean_error == pytest.approx(whole.mean_error)
    assert parts.max_error == whole.max_error
