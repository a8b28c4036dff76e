"""Attention of blocks of queries over blocks of keys, with its log-sum-exp, and its gradients given any such sum.

Shapes: queries (batch, segment, key head, query head of it, position, dim), keys and values the same with one query
head, sums without dim. ``hidden`` is true for keys that are not seen: (batch, segment, 1, 1, 1, position).

The gradients take output and log-sum-exp of a softmax that the block may be only a part of: that is what makes a merge
of branches, or of steps of a ring, exact. PyTorch's flash attention does so too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads.parameters import one_of
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.torch_device import Tensor

BACKENDS = ("auto", "math", "flash", "cudnn", "triton")
"""``math``: products of matrices, in float64 for float64 and in float32 otherwise. ``cudnn`` and ``flash``: PyTorch's.

``triton`` is no way to compute a block, but all that a rank can do alone, forward; blocks are then computed by flash.
"""

MOST_SCORES = 2**26
"""Scores that ``math`` holds at once."""


def backend_for(wanted: str, q: Tensor, *, padded: bool) -> str:
    """Return the backend that runs; ``auto`` is flash where a GPU has it, otherwise math."""
    wanted = one_of("backend", wanted, BACKENDS)
    if wanted == "auto":
        half = q.dtype.itemsize == 2
        return "flash" if q.is_cuda and half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and not padded else "math"
    if padded and wanted != "math":
        raise BadInput(f"Padded keys are masked by the backend math, not by {wanted}.")
    if wanted == "cudnn" and not q.is_cuda:
        raise BadInput("The backend cudnn runs on a GPU, not on a CPU.")
    return wanted


def sums_dtype(dtype: Any) -> Any:
    """Return the dtype in which outputs, their log-sum-exp and gradients are summed up."""
    torch = import_torch()
    return torch.float64 if dtype == torch.float64 else torch.float32


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None, backend: str
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the scores; where no key is seen they are 0 and minus infinity."""
    if backend == "math":
        return _attend(q, k, v, causal=causal, hidden=hidden)
    out, lse = attend_flat(*(flat(x, q.shape[3]) for x in (q, k, v)), causal=causal, backend=backend)
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def attend_flat(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of (batch, head, position, dim) by a fused kernel of PyTorch's."""
    aten = import_torch().ops.aten
    if backend == "cudnn":
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[:2]  # noqa: SLF001
    elif q.is_cuda:
        out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]  # noqa: SLF001
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)  # noqa: SLF001
    return out, lse


def attend_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: tuple[Tensor, Tensor],
    *,
    causal: bool,
    hidden: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the block adds to the gradients of q, k and v, given output and log-sum-exp of the whole softmax."""
    if backend == "math":
        return _attend_backward(gradient, q, k, v, whole, causal=causal, hidden=hidden)
    out, lse = whole
    grad_out, q4, k4, v4, out4 = (flat(x, q.shape[3]) for x in (gradient.to(q.dtype), q, k, v, out.to(q.dtype)))
    flat_sums = lse.flatten(2, 3).flatten(0, 1).contiguous()
    gradients = attend_flat_backward(grad_out, q4, k4, v4, (out4, flat_sums), causal=causal, backend=backend)
    dq, dk, dv = (x.unflatten(1, q.shape[2:4]).unflatten(0, q.shape[:2]) for x in gradients)
    if q.shape[3] == 1:
        return dq, dk, dv
    return dq, dk.sum(3, keepdim=True), dv.sum(3, keepdim=True)


def attend_flat_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: tuple[Tensor, Tensor],
    *,
    causal: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of (batch, head, position, dim) by a fused kernel of PyTorch's."""
    torch, (out, lse) = import_torch(), whole
    aten, inputs, lengths = torch.ops.aten, (gradient, q, k, v, out), (None, None, q.shape[2], k.shape[2])
    if backend == "cudnn":
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        gradients = aten._scaled_dot_product_cudnn_attention_backward(  # noqa: SLF001
            *inputs, lse[..., None], seed, seed, None, *lengths, 0.0, causal
        )
    elif q.is_cuda:
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        gradients = aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
            *inputs, lse, *lengths, 0.0, causal, seed, seed[0]
        )
    else:
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, lse, 0.0, causal)  # noqa: SLF001
    dq, dk, dv = gradients[:3]
    return dq, dk, dv


def flat(x: Tensor, query_heads: int) -> Tensor:
    """Return (batch, head, position, dim), a view where strides allow; keys are repeated for heads that share them."""
    return x.expand(-1, -1, -1, query_heads, -1, -1).flatten(2, 3).flatten(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    torch, kind = import_torch(), sums_dtype(q.dtype)
    out = torch.empty(q.shape, dtype=kind, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=kind, device=q.device)
    for rows in _rows(q, k):
        scores = _scores(q, k, rows, causal=causal, hidden=hidden)
        some = scores.logsumexp(-1)
        lse[..., rows] = some
        out[..., rows, :] = _powers(scores, some) @ v.to(kind)
    return out, lse


def _attend_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: tuple[Tensor, Tensor],
    *,
    causal: bool,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    torch, kind = import_torch(), sums_dtype(q.dtype)
    out, lse = whole
    gradient, keys, values = (x.to(kind) for x in (gradient, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    dq = torch.empty(q.shape, dtype=kind, device=q.device)
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    for rows in _rows(q, k):
        weights = _powers(_scores(q, k, rows, causal=causal, hidden=hidden), lse[..., rows])
        grad_out, here = gradient[..., rows, :], q[..., rows, :].to(kind)
        within = (grad_out * out[..., rows, :]).sum(-1, keepdim=True)
        of_scores = weights * (grad_out @ values.mT - within) * scale
        dq[..., rows, :] = of_scores @ keys
        dk += (of_scores.mT @ here).sum(3, keepdim=True)
        dv += (weights.mT @ grad_out).sum(3, keepdim=True)
    return dq, dk, dv


def _rows(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Yield the queries in blocks whose scores may be held at once."""
    queries = q.shape[-2]
    block = max(1, MOST_SCORES // (math.prod(q.shape[:-2]) * k.shape[-2]))
    for start in range(0, queries, block):
        yield slice(start, min(start + block, queries))


def _scores(q: Tensor, k: Tensor, rows: slice, *, causal: bool, hidden: Tensor | None) -> Tensor:
    torch, kind = import_torch(), sums_dtype(q.dtype)
    scores = q[..., rows, :].to(kind) @ k.to(kind).mT / math.sqrt(q.shape[-1])
    if causal:
        positions = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(positions > positions[rows, None], -math.inf)
    return scores if hidden is None else scores.masked_fill(hidden, -math.inf)


def _powers(scores: Tensor, sums: Tensor) -> Tensor:
    """Return exp(scores - sums); 0 where nothing was summed."""
    return (scores - sums.masked_fill(sums == -math.inf, math.inf)[..., None]).exp()
