"""How far dilated attention in half precision is from float64, beside dense attention of the same dtype."""

from __future__ import annotations

from typing import Any

from benchmarks.attention_rivals import DIM, HEADS, RATES, SEGMENTS

Tensor = Any
NAMES = ("output", "dq", "dk", "dv")


def distances(dtype: str, *, causal: bool, sequence: int, device: str = "cuda") -> dict[str, list[float]]:
    """Return the largest distances from float64, ours and dense attention's, of the output and each gradient."""
    import torch

    from assay.workloads.dilated_attention import dilated_attention
    from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule
    from assay.workloads.dilated_attention.verify import blockwise_attention, multiplicity

    torch.manual_seed(3)
    shape = (1, sequence, HEADS, DIM)
    q, k, v, above = (torch.randn(shape, device=device).to(getattr(torch, dtype)) for _ in range(4))
    ladder, heads = DilationSchedule.of(SEGMENTS, RATES), AttentionHeads.of(HEADS, HEADS, "modulo")
    right = blockwise_attention(q, k, v, ladder, heads, gradient=above, causal=causal)
    rows = torch.arange(sequence, device=device)
    bias = torch.cat(
        [multiplicity(ladder, heads, sequence, some, causal=causal).log().to(q.dtype) for some in rows.split(512)],
        1,
    )

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        views = [x.transpose(1, 2) for x in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(*views, attn_mask=bias[None]).transpose(1, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dilated_attention(q, k, v, SEGMENTS, RATES, causal=causal)

    results: dict[str, list[float]] = {}
    for name, function in (("ours", ours), ("dense", dense)):
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = function(*inputs)
        tensors = (out, *torch.autograd.grad(out, inputs, above))
        results[name] = [float((x.detach().double() - y).abs().max()) for x, y in zip(tensors, right, strict=True)]
    return results
