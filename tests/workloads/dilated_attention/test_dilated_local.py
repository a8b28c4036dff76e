from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.workloads.dilated_attention import attention, dilated_attention
from assay.workloads.dilated_attention.attention import flat_part_view, part_view
from assay.workloads.dilated_attention.schedule import (
    OFFSETS,
    AttentionHeads,
    DilationSchedule,
    UncoveredRowsWarning,
    branch_parts,
)
from assay.workloads.dilated_attention.verify import blockwise_attention, dense_attention, multiplicity
from tests.workloads.dilated_attention.world import Case, drawn, options_of

LADDER = Case((4, 12, 24), (1, 2, 4))


def both(case: Case) -> tuple[list[Any], list[Any]]:
    """Return output and gradients, ours and the dense reference's."""
    import torch

    (q, k, v, gradient), mask = drawn(case)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    ours = dilated_attention(*inputs, **options_of(case), key_padding_mask=mask)
    ladder, heads = (
        DilationSchedule.of(case.segments, case.rates),
        AttentionHeads.of(case.heads, case.kv_heads, case.offset),
    )
    right = dense_attention(q, k, v, ladder, heads, causal=case.causal, key_padding_mask=mask)
    return tuple([out, *torch.autograd.grad(out, inputs, gradient.to(out.dtype))] for out in (ours, right))  # type: ignore[return-value]


def worst(found: list[Any], right: list[Any]) -> tuple[float, float]:
    """Return the largest error of the output and of the gradients."""
    errors = [float((a - b).detach().abs().max()) for a, b in zip(found, right, strict=True)]
    return errors[0], max(errors[1:])


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sequence = draw(st.sampled_from([1, 6, 8, 12, 24, 30, 32]))
    segments = draw(st.lists(st.sampled_from(divisors(sequence)), min_size=1, max_size=4))
    rates = [draw(st.sampled_from(divisors(segment))) for segment in segments]
    kv_heads = draw(st.integers(1, 5))
    return Case(
        tuple(segments),
        tuple(rates),
        sequence=sequence,
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        dim=draw(st.sampled_from([1, 3, 8])),
        causal=draw(st.booleans()),
        offset=draw(st.sampled_from(OFFSETS)),
        padded=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::assay.workloads.dilated_attention.schedule.UncoveredRowsWarning")
@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_ladder_is_what_the_dense_reference_says(case: Case) -> None:
    forward, backward = worst(*both(case))
    assert forward <= 1e-12
    assert backward <= 1e-11


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flash_attention_fed_with_the_merge_is_exact_too(kv_heads: int, *, causal: bool) -> None:
    forward, backward = worst(
        *both(Case(**{**vars(LADDER), "backend": "flash", "causal": causal, "kv_heads": kv_heads}))
    )
    assert forward <= 1e-12
    assert backward <= 1e-11


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-5), ("bfloat16", 0.05), ("float16", 0.01)])
def test_smaller_dtypes_are_as_near_as_they_can_be(dtype: str, near: float) -> None:
    ours, right = both(Case(**{**vars(LADDER), "dtype": dtype, "causal": True}))
    assert max(worst(ours, right)) <= near
    assert {str(x.dtype) for x in ours} == {f"torch.{dtype}"}


def test_scores_in_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_SCORES", 100)
    forward, backward = worst(*both(Case(**{**vars(LADDER), "causal": True, "padded": True})))
    assert forward <= 1e-12
    assert backward <= 1e-11


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_detached_weights_leave_output_and_values_and_differ_in_queries_and_keys(backend: str) -> None:
    ours, right = both(Case(**{**vars(LADDER), "detached_weights": True, "backend": backend}))
    apart = [float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(ours, right, strict=True)]
    assert max(apart[0], apart[3]) <= 1e-12
    assert min(apart[1], apart[2]) > 0.05


def test_with_one_branch_detached_weights_are_exact() -> None:
    forward, backward = worst(*both(Case((24,), (1,), detached_weights=True)))
    assert forward <= 1e-12
    assert backward <= 1e-11


def test_one_branch_over_everything_is_plain_attention() -> None:
    import torch

    (q, k, v, _), _ = drawn(Case((24,), (1,)))
    plain = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    ours = dilated_attention(q, k, v, (24,), (1,), causal=True)
    torch.testing.assert_close(ours, plain.transpose(1, 2), rtol=1e-12, atol=1e-12)


def test_rows_that_nothing_joins_are_zero_and_have_no_gradient() -> None:
    with pytest.warns(UncoveredRowsWarning):
        (out, of_q, *_), _ = both(Case((4, 8), (2, 4), sequence=8, heads=1, kv_heads=1))
    assert not out[:, 1::2].any()
    assert not of_q[:, 1::2].any()
    assert out[:, ::2].all()


def test_what_all_keys_hide_is_zero() -> None:
    import torch

    (q, k, v, _), _ = drawn(Case((8,), (1,), sequence=8))
    q.requires_grad_()
    out = dilated_attention(q, k, v, (8,), (1,), key_padding_mask=torch.ones(2, 8, dtype=torch.bool))
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


@pytest.mark.parametrize("rule", OFFSETS)
def test_parts_are_views_that_copy_nothing(rule: str) -> None:
    import torch

    x = torch.arange(2 * 24 * 4 * 8.0).reshape(2, 24, 4, 1, 8)
    for part in branch_parts(DilationSchedule.of(LADDER.segments, LADDER.rates), AttentionHeads(4, 4, rule), 24):
        seen, at_once = part_view(x, part), flat_part_view(x, part, 1)
        for each in (seen, attention.flatten_heads(seen, 1), at_once):
            assert each.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert torch.equal(at_once, attention.flatten_heads(seen, 1))
        other = x.transpose(0, 1).contiguous().transpose(0, 1)
        assert torch.equal(flat_part_view(other, part, 1), at_once)


def test_the_reference_in_blocks_is_the_reference() -> None:
    import torch

    case = Case(**{**vars(LADDER), "causal": True, "padded": True, "kv_heads": 2})
    (q, k, v, gradient), mask = drawn(case)
    ladder, heads = DilationSchedule.of(case.segments, case.rates), AttentionHeads.of(4, 2, "modulo")
    found = blockwise_attention(q, k, v, ladder, heads, gradient=gradient, block=7, causal=True, key_padding_mask=mask)
    for ours, right in zip(found, both(case)[1], strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


def test_multiplicity_counts_the_branches_that_join_two_positions() -> None:
    import torch

    count = multiplicity(DilationSchedule.of((2, 4), (1, 2)), AttentionHeads(2, 2), 4, torch.arange(4), causal=False)
    assert count[0].tolist() == [[2, 1, 1, 0], [1, 1, 0, 0], [1, 0, 2, 1], [0, 0, 1, 1]]
    assert count[1].tolist() == [[1, 1, 0, 0], [1, 2, 0, 1], [0, 0, 1, 1], [0, 1, 1, 2]]


def ones(*shape: int, **options: Any) -> Any:
    import torch

    return torch.ones(*shape, **options)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"q": (2, 8, 4)}, r"^q has 3 axes, not the four of \(batch, sequence, heads, dim\)\.$"),
        ({"q": (0, 8, 4, 4)}, r"^q of shape \(0, 8, 4, 4\) is empty\.$"),
        ({"k": (2, 8, 2, 4)}, r"^k has shape \(2, 8, 2, 4\) but v has \(2, 8, 4, 4\)\.$"),
        ({"q": (2, 4, 4, 4)}, r"^q of shape \(2, 4, 4, 4\) and k of \(2, 8, 4, 4\) differ in more than their heads\.$"),
        ({"q": (2, 8, 6, 4)}, r"^6 query heads cannot share 4 key heads evenly\.$"),
        ({"mask": (2, 4)}, r"^key_padding_mask is of shape \(2, 8\) and dtype bool, not \(2, 4\) and torch.bool\.$"),
        ({"dropout": 0.5}, r"^Dropout of 0\.5 is refused"),
        ({"backend": "fast"}, r"^backend is one of auto, math, flash, cudnn, triton, not 'fast'\."),
        ({"backend": "cudnn"}, r"^The backend cudnn runs on a GPU, not on a CPU\.$"),
        ({"backend": "triton"}, r"^The backend triton runs on a GPU, not on cpu\.$"),
        ({"backend": "flash", "mask": (2, 8)}, r"^Padded keys are masked by the backend math, not by flash\.$"),
        ({"segments": (16,)}, r"^A sequence of 8 is not divisible by the segment length 16\.$"),
    ],
)
def test_what_cannot_be_attended_to_is_refused_in_one_sentence(changed: dict[str, Any], says: str) -> None:
    import torch

    q, k, v = (ones(*changed.pop(name, (2, 8, 4, 4))) for name in ("q", "k", "v"))
    mask = changed.pop("mask", None)
    hidden = None if mask is None else ones(*mask, dtype=torch.bool)
    with pytest.raises(BadInput, match=says):
        dilated_attention(q, k, v, changed.pop("segments", (8,)), (1,), key_padding_mask=hidden, **changed)


def test_tensors_of_whole_numbers_or_of_several_dtypes_are_refused() -> None:
    import torch

    x = ones(1, 8, 1, 4)
    with pytest.raises(BadInput, match=r"^q is torch.float32 on cpu, but k is torch.float64 on cpu\.$"):
        dilated_attention(x, x.double(), x, (8,), (1,))
    whole = x.to(torch.int64)
    with pytest.raises(BadInput, match=r"^Attention is of floating-point numbers, not of torch.int64\.$"):
        dilated_attention(whole, whole, whole, (8,), (1,))


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_inputs_and_gradients_may_lie_in_memory_as_they_like(backend: str) -> None:
    import torch

    (q, k, v, _), _ = drawn(LADDER)
    options = options_of(Case(**{**vars(LADDER), "backend": backend}))
    strewn = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    found = []
    for tensors in ([q, k, v], strewn):
        inputs = [x.detach().requires_grad_() for x in tensors]
        out = dilated_attention(*inputs, **options)
        found.append([out, *torch.autograd.grad(out.sum(), inputs)])
    assert max(worst(*found)) <= 1e-13


def test_our_kernel_refuses_a_backward_pass_in_float32_on_a_gpu_as_that_is_flash_attentions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from types import SimpleNamespace
    from typing import cast

    from assay.workloads import kernel_support
    from assay.workloads.dilated_attention import backends

    monkeypatch.setattr(kernel_support, "triton_device_kinds", lambda: ("cuda",))
    shape = cast("Any", SimpleNamespace(fused=lambda tiling, backward: (tiling, backward)))

    def resolve(dtype: str, *, grad: bool) -> object:
        q = SimpleNamespace(dtype=f"torch.{dtype}", device=SimpleNamespace(type="cuda"), requires_grad=grad)
        return backends.requested_backend("triton", q, shape)

    with pytest.raises(BadInput, match=r"no backward pass in float32"):
        resolve("float32", grad=True)
    assert resolve("float32", grad=False) == resolve("bfloat16", grad=True) == (backends.TILINGS[0], "flash")
