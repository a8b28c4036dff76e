"""Dilated attention in Triton, all branches in one kernel: their softmax is one softmax, so nothing is left to merge.

A program has queries of one head whose positions are alike modulo the period, the least common multiple of the rates.
So each branch keeps all of them or none, and a tile of queries is as full in a branch of rate 8 as in one of rate 1:

    period 4, offset 0    rate 1   0 1 2 3 4 5 6 7 8 …
                          rate 2   0   2   4   6   8 …
                          rate 4   0       4       8 …     positions 0, 4, 8, … are in all three, 2, 6, … in two
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_kept(
    queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    rows: tl.tensor,
    step: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    output: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    kept: tl.constexpr,
    rate: tl.constexpr,
    dim: tl.constexpr,
    block_k: tl.constexpr,
    block_d: tl.constexpr,
    masked: tl.constexpr,
    causal: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> tl.tensor:
    """Add a branch's keys and values from the ``begin``-th kept one to ``end``, all relative to the maximum so far.

    ``step`` is from one kept position to the next, in elements. ``masked`` looks at each pair, for tiles that lie
    across the end of a segment or the diagonal.
    """
    lanes = tl.arange(0, block_d)[None, :]
    for start in range(begin, end, block_k):
        positions = start + tl.arange(0, block_k)
        at = positions.to(tl.int64)[:, None] * step + lanes
        if masked:
            inside = (positions[:, None] < end) & (lanes < dim)
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
        scores = tl.dot(queries, tl.trans(keys), input_precision=precision)
        if masked:
            visible = (positions[None, :] < end) & (positions[None, :] // kept == rows[:, None] // (kept * rate))
            if causal:
                visible = visible & (positions[None, :] <= rows[:, None] // rate)
            scores = tl.where(visible, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1) * scale)
        base = higher
        if masked:
            base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen yet: all powers are 0
        powers = tl.exp2(scores * scale - base[:, None])
        factor = tl.exp2(peak - base)
        total = total * factor + tl.sum(powers, 1)
        output = tl.dot(powers.to(values.dtype), values, output * factor[:, None], input_precision=precision)
        peak = higher
    return peak, total, output


@triton.jit
def fold_branch(
    queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    rows: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    before: tl.tensor,
    key_head: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    output: tl.tensor,
    segment: tl.constexpr,
    rate: tl.constexpr,
    key_heads: tl.constexpr,
    modulo: tl.constexpr,
    dim: tl.constexpr,
    block_k: tl.constexpr,
    block_d: tl.constexpr,
    aligned: tl.constexpr,
    causal: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> tl.tensor:
    """Add all that a branch joins to the rows from ``first`` to ``last``, where it keeps them.

    ``before`` counts the positions of the sequences before this one.
    """
    kept_length: tl.constexpr = segment // rate
    offset = key_head % rate if modulo else key_head // ((key_heads + rate - 1) // rate)
    if first % rate == offset:
        here = ((before + offset) * key_heads + key_head) * dim
        step = rate * key_heads * dim
        begin = first // segment * kept_length
        end = (last // segment + 1) * kept_length
        length = end - begin
        if causal:
            end = tl.minimum(end, last // rate + 1)
            length = first // rate + 1 - begin
        clear = begin
        if first // segment == last // segment:
            clear = begin + length // block_k * block_k
        peak, total, output = fold_kept(
            queries, k + here, v + here, rows, step, scale, peak, total, output, begin, clear,
            kept_length, rate, dim, block_k, block_d, False, causal, precision, widen,
        )  # fmt: skip
        if not aligned:
            peak, total, output = fold_kept(
                queries, k + here, v + here, rows, step, scale, peak, total, output, clear, end,
                kept_length, rate, dim, block_k, block_d, True, causal, precision, widen,
            )  # fmt: skip
    return peak, total, output


@triton.jit
def dilated_attention(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    sequence: tl.tensor,
    scale: tl.tensor,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    segments: tl.constexpr,
    rates: tl.constexpr,
    period: tl.constexpr,
    modulo: tl.constexpr,
    dim: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    block_d: tl.constexpr,
    aligned: tl.constexpr,
    causal: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> None:
    """Write the output, and the log-sum-exp in float32, for arrays stored as (batch, position, head, dim).

    ``scale`` is in powers of two; ``period`` divides the sequence; ``modulo`` is the rule of the heads' offsets. Rows
    that no branch keeps get 0 and minus infinity. Where all is ``aligned``, tiles end with segments and nothing is
    masked. ``widen`` multiplies in float32, for Triton's interpreter.
    """
    blocks = tl.cdiv(sequence // period, block_q)
    program = tl.program_id(0)
    head = program % heads
    block = program // heads % blocks
    residue = program // (heads * blocks) % period
    batch = (program // (heads * blocks * period)).to(tl.int64)
    key_head = head // (heads // key_heads)
    first = residue + period * block * block_q
    last = tl.minimum(first + period * (block_q - 1), sequence - period + residue)
    rows = first + period * tl.arange(0, block_q)
    lanes = tl.arange(0, block_d)[None, :]
    row_at = (batch * sequence + rows) * heads + head
    at = row_at[:, None] * dim + lanes
    inside = (rows[:, None] < sequence) & (lanes < dim)
    queries = tl.load(q + at, mask=inside, other=0.0)
    if widen:
        queries = queries.to(tl.float32)
    peak = tl.full((block_q,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((block_q,), dtype=tl.float32)
    output = tl.zeros((block_q, block_d), dtype=tl.float32)
    for branch in tl.static_range(len(segments)):
        peak, total, output = fold_branch(
            queries, k, v, rows, first, last, batch * sequence, key_head, scale, peak, total, output,
            segments[branch], rates[branch], key_heads, modulo,
            dim, block_k, block_d, aligned, causal, precision, widen,
        )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(out + at, (output / total[:, None]).to(out.dtype.element_ty), mask=inside)
    tl.store(sums + row_at, (peak + tl.log2(total)) * 0.6931471805599453, mask=rows < sequence)
