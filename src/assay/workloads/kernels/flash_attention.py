"""Attention in Triton without ever holding all its scores: online softmax over tiles, a block of queries a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold(
    queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    rows: tl.tensor,
    sequence: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    output: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    dim: tl.constexpr,
    block_k: tl.constexpr,
    block_d: tl.constexpr,
    masked: tl.constexpr,
    causal: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> tl.tensor:
    """Add the keys and values from ``begin`` to ``end`` to the sums, all relative to the maximum so far.

    ``masked`` looks at each pair of query and key; tiles that lie wholly inside need not.
    """
    lanes = tl.arange(0, block_d)[None, :]
    for start in range(begin, end, block_k):
        positions = start + tl.arange(0, block_k)
        at = positions.to(tl.int64)[:, None] * dim + lanes
        if masked:
            inside = (positions[:, None] < sequence) & (lanes < dim)
            keys = tl.load(k + at, mask=inside, other=0.0)
            values = tl.load(v + at, mask=inside, other=0.0)
        elif block_d != dim:
            keys = tl.load(k + at, mask=lanes < dim, other=0.0)
            values = tl.load(v + at, mask=lanes < dim, other=0.0)
        else:
            keys = tl.load(k + at)
            values = tl.load(v + at)
        if widen:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision=precision) * scale
        if masked:
            visible = positions[None, :] < sequence
            if causal:
                visible = visible & (positions[None, :] <= rows[:, None])
            scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        powers = tl.exp2(scores - higher[:, None])
        factor = tl.exp2(peak - higher)
        total = total * factor + tl.sum(powers, 1)
        output = tl.dot(powers.to(values.dtype), values, output * factor[:, None], input_precision=precision)
        peak = higher
    return peak, total, output


@triton.jit
def flash_attention(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    sequence: tl.tensor,
    scale: tl.tensor,
    dim: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    block_d: tl.constexpr,
    causal: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> None:
    """Write softmax(q·kᵀ·scale, in powers of two)·v for arrays stored as (head, position, dim).

    block_d is the power of two that holds dim. ``widen`` multiplies in float32, for Triton's interpreter, which
    cannot multiply bfloat16.
    """
    blocks = tl.cdiv(sequence, block_q)
    first = tl.program_id(0) % blocks * block_q
    here = (tl.program_id(0) // blocks).to(tl.int64) * sequence * dim
    rows = first + tl.arange(0, block_q)
    lanes = tl.arange(0, block_d)[None, :]
    at = here + rows.to(tl.int64)[:, None] * dim + lanes
    inside = (rows[:, None] < sequence) & (lanes < dim)
    queries = tl.load(q + at, mask=inside, other=0.0)
    if widen:
        queries = queries.to(tl.float32)
    peak = tl.full((block_q,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((block_q,), dtype=tl.float32)
    output = tl.zeros((block_q, block_d), dtype=tl.float32)
    if causal:
        clear = first // block_k * block_k
        end = tl.minimum(first + block_q, sequence)
    else:
        clear = sequence // block_k * block_k
        end = sequence
    peak, total, output = fold(
        queries, k + here, v + here, rows, sequence, scale, peak, total, output, 0, clear,
        dim, block_k, block_d, False, causal, precision, widen,
    )  # fmt: skip
    peak, total, output = fold(
        queries, k + here, v + here, rows, sequence, scale, peak, total, output, clear, end,
        dim, block_k, block_d, True, causal, precision, widen,
    )  # fmt: skip
    tl.store(out + at, (output / total[:, None]).to(out.dtype.element_ty), mask=inside)
