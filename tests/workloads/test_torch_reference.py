from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.workloads import numpy_support, torch_support

ALL = slice(None)


def draw(*shape: int, stream: int = 0) -> Any:
    import torch

    return torch.from_numpy(numpy_support.draw_array("normal", shape, "float64", 5, stream=stream))


@pytest.mark.parametrize("depth", [1, 2, 13])
def test_the_product_is_that_of_the_numpy_reference(depth: int) -> None:
    a, b = draw(7, depth), draw(depth, 9, stream=1)
    np.testing.assert_allclose(
        torch_support.reference_matmul_rows(a, b, ALL).numpy(),
        numpy_support.reference_matmul(a.numpy(), b.numpy()),
        rtol=1e-12,
        atol=1e-14,
    )


def test_the_softmax_is_that_of_the_numpy_reference_and_does_not_overflow() -> None:
    x = draw(6, 30) * 1e4
    np.testing.assert_allclose(
        torch_support.reference_softmax_rows(x, ALL).numpy(), numpy_support.reference_softmax(x.numpy()), rtol=1e-12
    )


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_the_numpy_reference(causal: bool) -> None:
    q, k, v = (draw(2, 3, 11, 4, stream=stream) for stream in range(3))
    found = torch_support.reference_attention_rows(q, k, v, ALL, causal=causal).permute(1, 2, 0, 3)
    expected = numpy_support.reference_attention(q.numpy(), k.numpy(), v.numpy(), causal=causal)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-13)


def test_norms_follow_their_definitions() -> None:
    x, weight, bias = draw(5, 40), draw(40, stream=1), draw(40, stream=2)
    rows = x.numpy()
    root = np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        torch_support.reference_rms_norm_rows(x, weight, 1e-5, ALL), rows / root * weight.numpy()
    )
    spread = np.sqrt(rows.var(axis=1, keepdims=True) + 1e-5)
    expected = (rows - rows.mean(axis=1, keepdims=True)) / spread * weight.numpy() + bias.numpy()
    np.testing.assert_allclose(torch_support.reference_layer_norm_rows(x, weight, bias, 1e-5, ALL), expected)


def test_some_rows_are_those_of_the_whole_and_inputs_are_left_alone() -> None:
    import torch

    q, k, v = (draw(1, 2, 9, 4, stream=stream) for stream in range(3))
    kept = [x.clone() for x in (q, k, v)]
    whole = torch_support.reference_attention_rows(q, k, v, ALL, causal=True)
    for which in (slice(3, 7), torch.tensor([0, 4, 8])):
        some = torch_support.reference_attention_rows(q, k, v, which, causal=True)
        torch.testing.assert_close(some, whole[which], rtol=1e-13, atol=1e-13)
    assert all(x.equal(before) for x, before in zip((q, k, v), kept, strict=True))
