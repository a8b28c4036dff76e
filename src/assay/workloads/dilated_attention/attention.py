"""Attention of blocks of queries over blocks of keys with its log-sum-exp, its gradients, and the merge of parts.

Shapes: queries (batch, segment, key head, query head of it, position, dim), keys and values the same with one query
head, log-sum-exp without dim. ``hidden`` is true for masked keys: (batch, segment, 1, 1, 1, position).

The gradients take output and log-sum-exp of a softmax of which the block may be only a part: that is what makes a
merge of branches, or of steps of a ring, exact. PyTorch's flash attention does the same. Parts are strided views, and
their merge is a softmax over log-sum-exps, one part at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from assay.core.errors import BadInput
from assay.workloads.parameters import check_choice
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.dilated_attention.schedule import BranchPart
    from assay.workloads.torch_device import Tensor

BACKENDS = ("auto", "math", "flash", "cudnn", "triton")
"""``math``: matrix products, in float64 for float64 and in float32 otherwise. ``cudnn`` and ``flash``: PyTorch's.

``triton`` does not compute single blocks, but all local work forward; blocks are then computed by flash.
"""

MAX_SCORES = 2**26  # largest number of scores that ``math`` holds at once


def resolve_backend(requested: str, q: Tensor, *, padded: bool) -> str:
    """Return the backend that runs; ``auto`` is flash where a GPU has it, otherwise math."""
    requested = check_choice("backend", requested, BACKENDS)
    if requested == "auto":
        half = q.dtype.itemsize == 2
        return "flash" if q.is_cuda and half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and not padded else "math"
    if padded and requested != "math":
        raise BadInput(f"Padded keys are masked by the backend math, not by {requested}.")
    if requested == "cudnn" and not q.is_cuda:
        raise BadInput("The backend cudnn runs on a GPU, not on a CPU.")
    return requested


def accumulation_dtype(dtype: Any) -> Any:
    """Return the dtype for sums of outputs, log-sum-exp and gradients."""
    torch = import_torch()
    return torch.float64 if dtype == torch.float64 else torch.float32


def attend_block(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None, backend: str
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the scores; without keys they are 0 and minus infinity."""
    if backend == "math":
        return _attend_math(q, k, v, causal=causal, hidden=hidden)
    out, lse = attend_flat(*(flatten_heads(x, q.shape[3]) for x in (q, k, v)), causal=causal, backend=backend)
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def attend_flat(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, backend: str) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of (batch, head, position, dim) by a fused PyTorch kernel."""
    aten = import_torch().ops.aten
    if backend == "cudnn":
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)[:2]  # noqa: SLF001
    elif q.is_cuda:
        out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]  # noqa: SLF001
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)  # noqa: SLF001
    return out, lse


def attend_flat_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: tuple[Tensor, Tensor], *, causal: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of (batch, head, position, dim) by a fused PyTorch kernel."""
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


def attend_block_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: tuple[Tensor, Tensor], *,
    causal: bool, hidden: Tensor | None, backend: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what the block adds to the gradients of q, k and v, given output and log-sum-exp of the whole softmax."""
    if backend == "math":
        return _attend_math_backward(gradient, q, k, v, whole, causal=causal, hidden=hidden)
    out, lse = whole
    tensors = (gradient.to(q.dtype), q, k, v, out.to(q.dtype))
    grad_out, q4, k4, v4, out4 = (flatten_heads(x, q.shape[3]) for x in tensors)
    flat_sums = lse.flatten(2, 3).flatten(0, 1).contiguous()
    gradients = attend_flat_backward(grad_out, q4, k4, v4, (out4, flat_sums), causal=causal, backend=backend)
    dq, dk, dv = (x.unflatten(1, q.shape[2:4]).unflatten(0, q.shape[:2]) for x in gradients)
    if q.shape[3] == 1:
        return dq, dk, dv
    return dq, dk.sum(3, keepdim=True), dv.sum(3, keepdim=True)


def flatten_heads(x: Tensor, query_heads: int) -> Tensor:
    """Return (batch, head, position, dim), a view where strides allow; keys are repeated for heads that share them."""
    return x.expand(-1, -1, -1, query_heads, -1, -1).flatten(2, 3).flatten(0, 1)


def _attend_math(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    kind = accumulation_dtype(q.dtype)
    out, lse = q.new_empty(q.shape, dtype=kind), q.new_empty(q.shape[:-1], dtype=kind)
    for rows in _row_blocks(q, k):
        scores = _scores(q, k, rows, causal=causal, hidden=hidden)
        some = scores.logsumexp(-1)
        lse[..., rows] = some
        out[..., rows, :] = _exp_scores(scores, some) @ v.to(kind)
    return out, lse


def _attend_math_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: tuple[Tensor, Tensor], *,
    causal: bool, hidden: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kind, (out, lse) = accumulation_dtype(q.dtype), whole
    gradient, keys, values = (x.to(kind) for x in (gradient, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv = q.new_empty(q.shape, dtype=kind), keys.new_zeros(keys.shape), values.new_zeros(values.shape)
    for rows in _row_blocks(q, k):
        weights = _exp_scores(_scores(q, k, rows, causal=causal, hidden=hidden), lse[..., rows])
        grad_out, here = gradient[..., rows, :], q[..., rows, :].to(kind)
        within = (grad_out * out[..., rows, :]).sum(-1, keepdim=True)
        of_scores = weights * (grad_out @ values.mT - within) * scale
        dq[..., rows, :] = of_scores @ keys
        dk += (of_scores.mT @ here).sum(3, keepdim=True)
        dv += (weights.mT @ grad_out).sum(3, keepdim=True)
    return dq, dk, dv


def _row_blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Yield the queries in blocks whose scores fit the limit."""
    queries = q.shape[-2]
    block = max(1, MAX_SCORES // (math.prod(q.shape[:-2]) * k.shape[-2]))
    for start in range(0, queries, block):
        yield slice(start, min(start + block, queries))


def _scores(q: Tensor, k: Tensor, rows: slice, *, causal: bool, hidden: Tensor | None) -> Tensor:
    torch, kind = import_torch(), accumulation_dtype(q.dtype)
    scores = q[..., rows, :].to(kind) @ k.to(kind).mT / math.sqrt(q.shape[-1])
    if causal:
        positions = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(positions > positions[rows, None], -math.inf)
    return scores if hidden is None else scores.masked_fill(hidden, -math.inf)


def _exp_scores(scores: Tensor, lse: Tensor) -> Tensor:
    """Return exp(scores - lse); 0 where the log-sum-exp is minus infinity."""
    return (scores - lse.masked_fill(lse == -math.inf, math.inf)[..., None]).exp()


class MergedOutput(NamedTuple):
    """An output (batch, position, key head, query head of it, dim) and the log-sum-exp of the scores behind it."""

    out: Tensor
    lse: Tensor

    @classmethod
    def empty(cls, q: Tensor) -> Self:
        """Return the merge of no parts: 0, and minus infinity."""
        kind = accumulation_dtype(q.dtype)
        return cls(q.new_zeros(q.shape, dtype=kind), q.new_full(q.shape[:-1], -math.inf, dtype=kind))

    def at(self, part: BranchPart) -> MergedOutput:
        """Return views of a part's rows, in block shape."""
        return MergedOutput(part_view(self.out, part), part_view(self.lse[..., None], part)[..., 0])

    def add(self, out: Tensor, lse: Tensor) -> None:
        """Merge an output of the same rows in, in place: O ← O + α·(Oᵢ - O), α = exp(sumᵢ) / (exp(sum) + exp(sumᵢ))."""
        share = (lse - self.lse).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).sigmoid()
        self.out.lerp_(out.to(self.out.dtype), share[..., None].to(self.out.dtype))
        self.lse.copy_(self.lse.logaddexp(lse.to(self.lse.dtype)))

    def share_of(self, other: MergedOutput) -> Tensor:
        """Return the weight of another merge in this one, 0 where nothing was merged."""
        return (other.lse - self.lse.masked_fill(self.lse == -math.inf, math.inf)).exp()


def part_view(x: Tensor, part: BranchPart) -> Tensor:
    """Return a part of (batch, position, key head, query head, dim) in block shape, without a copy."""
    return _split_segments(x, part)[:, :, :, part.offset, part.heads].permute(0, 1, 3, 4, 2, 5)


def flat_part_view(x: Tensor, part: BranchPart, query_heads: int) -> Tensor:
    """Return a part as (batch · segment, head, position, dim): that of ``part_view``, in one step where possible."""
    batch, length, heads, shared, dim = x.shape
    if query_heads > 1 or shared > 1 or not x.is_contiguous():
        return flatten_heads(part_view(x, part), query_heads)
    chosen = range(heads)[part.heads]
    row = heads * dim
    size = (batch * length // part.segment, len(chosen), part.segment // part.rate, dim)
    stride = (part.segment * row, chosen.step * dim, part.rate * row, 1)
    return x.as_strided(size, stride, x.storage_offset() + part.offset * row + chosen.start * dim)


def packed_part_view(x: Tensor, part: BranchPart) -> Tensor:
    """Return a part of packed keys or values (batch, kept position, key head, dim) in the shape of blocks."""
    return x[:, None, :, part.heads].permute(0, 1, 3, 2, 4)[:, :, :, None]


def mask_part_view(mask: Tensor | None, part: BranchPart) -> Tensor | None:
    """Return a part of a mask of keys (batch, position) in the shape of blocks' ``hidden``."""
    if mask is None:
        return None
    return _split_segments(mask, part)[..., part.offset][:, :, None, None, None]


def _split_segments(x: Tensor, part: BranchPart) -> Tensor:
    """Return (batch, position, …) as (batch, segment, kept position, offset, …), without a copy."""
    return x.unflatten(1, (x.shape[1] // part.segment, part.segment // part.rate, part.rate))
