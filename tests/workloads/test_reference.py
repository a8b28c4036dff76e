from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from assay.core.errors import BadInput
from assay.workloads import numpy_support

Doubles = NDArray[np.float64]
finite = st.floats(min_value=-1e300, max_value=1e300, allow_subnormal=False)
tensors = arrays(np.float64, array_shapes(max_dims=3, max_side=5), elements=finite)
spoilers = st.sampled_from([math.nan, math.inf, -math.inf])


@settings(max_examples=60, deadline=None)
@given(values=tensors)
def test_an_array_is_no_distance_from_itself(values: Doubles) -> None:
    assert numpy_support.relative_error(values, values) == 0


@settings(max_examples=60, deadline=None)
@given(values=tensors, spoiler=spoilers, where=st.integers(min_value=0), side=st.sampled_from(["out", "ref", "both"]))
def test_nan_or_infinity_anywhere_never_passes(values: Doubles, spoiler: float, where: int, side: str) -> None:
    spoilt = values.copy()
    spoilt.flat[where % values.size] = spoiler
    out = values if side == "ref" else spoilt
    ref = values if side == "out" else spoilt
    assert numpy_support.relative_error(out, ref) == math.inf
    assert not numpy_support.check_output(out, ref, "bfloat16").passed


@settings(max_examples=40, deadline=None)
@given(exponent=st.integers(min_value=-290, max_value=290), slip=st.floats(min_value=1e-6, max_value=1e3))
def test_the_error_of_a_scaled_output_is_the_scaling_at_any_magnitude(exponent: int, slip: float) -> None:
    ref = numpy_support.draw_array("normal", (4, 4), "float64", 1) * 10.0**exponent
    assert numpy_support.relative_error(ref * (1 + slip), ref) == pytest.approx(slip, rel=1e-6)


def test_the_error_is_the_norm_of_the_difference_over_the_norm_of_the_reference() -> None:
    assert numpy_support.relative_error(np.array([3.0, 4.0, 5.0]), np.array([3.0, 4.0, 0.0])) == pytest.approx(1.0)


def test_a_wrong_shape_never_passes_even_where_it_would_broadcast() -> None:
    ref = np.ones((2, 3))
    for shape in ((3,), (1, 3), (2, 3, 1), (3, 2), ()):
        assert numpy_support.relative_error(np.ones(shape), ref) == math.inf


def test_a_reference_of_zeros_admits_only_zeros() -> None:
    zeros = np.zeros((2, 2))
    assert numpy_support.relative_error(zeros, zeros) == 0
    assert numpy_support.relative_error(np.full((2, 2), 1e-30), zeros) == math.inf


def test_a_check_says_the_error_the_tolerance_and_the_measure() -> None:
    ref = np.ones(4)
    check = numpy_support.check_output(ref * 1.1, ref, "float32")
    assert check.error == pytest.approx(0.1)
    assert check.tolerance == numpy_support.TOLERANCES["float32"]
    assert "relative error" in check.measure
    assert not check.passed
    assert numpy_support.check_output(ref, ref, "float32").passed


def test_tolerances_lie_between_the_rounding_of_their_dtype_and_that_of_the_next_coarser() -> None:
    roundings = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    tf32 = 2.0**-11
    for dtype, rounding in roundings.items():
        assert numpy_support.tolerance_of(dtype) > rounding
    assert numpy_support.tolerance_of("float64") < roundings["float32"]
    assert numpy_support.tolerance_of("float32") < tf32 / 10
    assert numpy_support.tolerance_of("float16") < roundings["bfloat16"]


def test_a_dtype_without_a_tolerance_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match=r"no tolerance for dtype 'flot32'\. Did you mean float32"):
        numpy_support.tolerance_of("flot32")


def test_references_are_float64_whatever_goes_in() -> None:
    x = numpy_support.draw_array("normal", (1, 2, 4, 8), "float32", 0)
    results = (
        numpy_support.reference_softmax(x),
        numpy_support.reference_matmul(x[0, 0], x[0, 0].T),
        numpy_support.reference_attention(x, x, x),
    )
    assert {result.dtype for result in results} == {np.dtype(np.float64)}


@settings(max_examples=40, deadline=None)
@given(x=arrays(np.float64, (3, 7), elements=st.floats(min_value=-1e6, max_value=1e6)))
def test_a_softmax_is_positive_and_sums_to_one_even_for_large_inputs(x: Doubles) -> None:
    result = numpy_support.reference_softmax(x)
    assert (result >= 0).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1)


def test_attention_with_equal_scores_is_the_mean_of_the_values_seen() -> None:
    v = numpy_support.draw_array("normal", (1, 1, 6, 3), "float64", 2)
    flat = np.zeros_like(v)
    means = np.cumsum(v, axis=2) / np.arange(1, 7)[:, None]
    np.testing.assert_allclose(numpy_support.reference_attention(flat, flat, v, causal=True), means)
    np.testing.assert_allclose(
        numpy_support.reference_attention(flat, flat, v), np.broadcast_to(means[:, :, -1:], v.shape)
    )


def test_a_causal_query_does_not_depend_on_later_keys_or_values() -> None:
    q, k, v = (numpy_support.draw_array("normal", (2, 2, 8, 4), "float64", 5, stream=stream) for stream in range(3))
    before = numpy_support.reference_attention(q, k, v, causal=True)
    k[:, :, 5:], v[:, :, 5:] = 9.0, -9.0
    after = numpy_support.reference_attention(q, k, v, causal=True)
    np.testing.assert_array_equal(before[:, :, :5], after[:, :, :5])
    assert not np.allclose(before[:, :, 5:], after[:, :, 5:])


@pytest.mark.parametrize("causal", [False, True])
def test_taking_queries_in_portions_changes_nothing(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (numpy_support.draw_array("normal", (1, 2, 11, 4), "float64", 7, stream=stream) for stream in range(3))
    whole = numpy_support.reference_attention(q, k, v, causal=causal)
    monkeypatch.setattr(numpy_support, "_QUERIES_AT_A_TIME", 4)
    np.testing.assert_allclose(numpy_support.reference_attention(q, k, v, causal=causal), whole, rtol=1e-13)


def test_references_leave_their_inputs_alone() -> None:
    q, k, v = (numpy_support.draw_array("normal", (1, 1, 5, 4), "float64", 7, stream=stream) for stream in range(3))
    kept = [x.copy() for x in (q, k, v)]
    numpy_support.reference_attention(q, k, v, causal=True)
    numpy_support.reference_softmax(q)
    for x, before in zip((q, k, v), kept, strict=True):
        np.testing.assert_array_equal(x, before)
