"""Dilated attention in Triton: all branches in one kernel, and the merge of parts computed one by one.

In the fused kernel a program has queries of one head whose positions are equal modulo the period, the least common
multiple of the rates. So each branch keeps all of them or none, and a tile of queries is as full in a branch of rate 8
as in one of rate 1:

    period 4, offset 0    rate 1   0 1 2 3 4 5 6 7 8 …
                          rate 2   0   2   4   6   8 …
                          rate 4   0       4       8 …     positions 0, 4, 8, … are in all three, 2, 6, … in two

The merge kernels combine the outputs of parts in one pass over memory, and sum their gradients in one. A part holds
the rows that some heads keep in one branch, packed: row p of the sequence is its row p // rate. A program has some rows
of one head, so that a part has the head or not, and of its rows those with p % rate = offset.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_kept(
    queries: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, step: tl.tensor, scale: tl.tensor, peak: tl.tensor,
    total: tl.tensor, output: tl.tensor, begin: tl.tensor, end: tl.tensor,
    kept_length: tl.constexpr, rate: tl.constexpr, dim: tl.constexpr, block_k: tl.constexpr, block_d: tl.constexpr,
    masked: tl.constexpr, causal: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
) -> tl.tensor:  # fmt: skip
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
            visible = (positions[None, :] < end) & (
                positions[None, :] // kept_length == rows[:, None] // (kept_length * rate)
            )
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
    queries: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, first: tl.tensor, last: tl.tensor,
    before: tl.tensor, key_head: tl.tensor, scale: tl.tensor, peak: tl.tensor, total: tl.tensor, output: tl.tensor,
    segment: tl.constexpr, rate: tl.constexpr, key_heads: tl.constexpr, modulo: tl.constexpr, dim: tl.constexpr,
    block_k: tl.constexpr, block_d: tl.constexpr, aligned: tl.constexpr, causal: tl.constexpr, precision: tl.constexpr,
    widen: tl.constexpr,
) -> tl.tensor:  # fmt: skip
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
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, sums: tl.tensor, sequence: tl.tensor, scale: tl.tensor,
    heads: tl.constexpr, key_heads: tl.constexpr, segments: tl.constexpr, rates: tl.constexpr, period: tl.constexpr,
    modulo: tl.constexpr, dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr, block_d: tl.constexpr,
    aligned: tl.constexpr, causal: tl.constexpr, precision: tl.constexpr, widen: tl.constexpr,
) -> None:  # fmt: skip
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


@triton.jit
def merge_parts(
    outs: tl.tensor, sums: tl.tensor, out: tl.tensor, merged: tl.tensor, sequence: tl.tensor,
    heads: tl.constexpr, shared: tl.constexpr, segments: tl.constexpr, rates: tl.constexpr, offsets: tl.constexpr,
    starts: tl.constexpr, steps: tl.constexpr, counts: tl.constexpr, dim: tl.constexpr, block_d: tl.constexpr,
    block: tl.constexpr,
) -> None:  # fmt: skip
    """Write Σ αᵢ·Oᵢ, α the softmax over parts of their log-sum-exp, and the log-sum-exp of all, in float32.

    ``outs`` are (batch · segment, kept row, head, dim), ``sums`` (batch · segment, head, kept row) in float32; ``out``
    is (batch, position, head, dim) and ``merged`` the same without dim. ``shared`` query heads have a key head, and
    ``starts``, ``steps`` and ``counts`` are of key heads.
    """
    program = tl.program_id(0)
    head = program % heads
    blocks = tl.cdiv(sequence, block)
    batch = (program // heads // blocks).to(tl.int64)
    rows = program // heads % blocks * block + tl.arange(0, block)
    lanes = tl.arange(0, block_d)[None, :]
    peak = tl.full((block,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((block,), dtype=tl.float32)
    output = tl.zeros((block, block_d), dtype=tl.float32)
    for part in tl.static_range(len(rates)):
        key_offset = head // shared - starts[part]
        if (key_offset >= 0) & (key_offset % steps[part] == 0) & (key_offset // steps[part] < counts[part]):
            local = key_offset // steps[part] * shared + head % shared
            mine: tl.constexpr = counts[part] * shared
            selected = (rows % rates[part] == offsets[part]) & (rows < sequence)
            segment = batch * (sequence // segments[part]) + rows // segments[part]
            at_sum = (segment * mine + local) * (segments[part] // rates[part]) + rows % segments[part] // rates[part]
            some = tl.load(sums[part] + at_sum, mask=selected, other=-float("inf"))
            at = (batch * (sequence // rates[part]) + rows // rates[part]) * mine + local
            inside = selected[:, None] & (lanes < dim)
            values = tl.load(outs[part] + at[:, None] * dim + lanes, mask=inside, other=0.0).to(tl.float32)
            higher = tl.maximum(peak, some)
            base = tl.where(higher == -float("inf"), 0.0, higher)
            old = tl.exp(peak - base)
            new = tl.exp(some - base)
            output = output * old[:, None] + values * new[:, None]
            total = total * old + new
            peak = higher
    row_at = (batch * sequence + rows) * heads + head
    divisor = tl.where(total == 0.0, 1.0, total)
    at = row_at[:, None] * dim + lanes
    whole = (output / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + at, whole, mask=(rows[:, None] < sequence) & (lanes < dim))
    tl.store(merged + row_at, peak + tl.log(divisor), mask=rows < sequence)


@triton.jit
def sum_parts(
    parts_gradients: tl.tensor, out: tl.tensor, sequence: tl.tensor,
    heads: tl.constexpr, shared: tl.constexpr, rates: tl.constexpr, offsets: tl.constexpr, starts: tl.constexpr,
    steps: tl.constexpr, counts: tl.constexpr, dim: tl.constexpr, block_d: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """Write the sum of what the parts have for each row of each head, 0 where none has anything.

    ``parts_gradients`` are (batch · segment, kept row, head, dim), ``out`` is (batch, position, head, dim).
    """
    program = tl.program_id(0)
    head = program % heads
    blocks = tl.cdiv(sequence, block)
    batch = (program // heads // blocks).to(tl.int64)
    rows = program // heads % blocks * block + tl.arange(0, block)
    lanes = tl.arange(0, block_d)[None, :]
    output = tl.zeros((block, block_d), dtype=tl.float32)
    for part in tl.static_range(len(rates)):
        key_offset = head // shared - starts[part]
        if (key_offset >= 0) & (key_offset % steps[part] == 0) & (key_offset // steps[part] < counts[part]):
            local = key_offset // steps[part] * shared + head % shared
            mine: tl.constexpr = counts[part] * shared
            selected = (rows % rates[part] == offsets[part]) & (rows < sequence)
            at = (batch * (sequence // rates[part]) + rows // rates[part]) * mine + local
            inside = selected[:, None] & (lanes < dim)
            output += tl.load(parts_gradients[part] + at[:, None] * dim + lanes, mask=inside, other=0.0).to(tl.float32)
    at = ((batch * sequence + rows) * heads + head)[:, None] * dim + lanes
    tl.store(out + at, output.to(out.dtype.element_ty), mask=(rows[:, None] < sequence) & (lanes < dim))
