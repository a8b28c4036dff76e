"""The outputs of parts of dilated attention, merged in one pass over memory; and their gradients, summed in one.

A part holds the rows that some heads keep in one branch, packed: row p of the sequence is its row p // rate. A program
has some rows of one head, so that a part has the head or not, and of its rows those with p % rate = offset.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_parts(
    outs: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    merged: tl.tensor,
    sequence: tl.tensor,
    heads: tl.constexpr,
    shared: tl.constexpr,
    segments: tl.constexpr,
    rates: tl.constexpr,
    offsets: tl.constexpr,
    starts: tl.constexpr,
    steps: tl.constexpr,
    counts: tl.constexpr,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block: tl.constexpr,
) -> None:
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
    founds: tl.tensor,
    out: tl.tensor,
    sequence: tl.tensor,
    heads: tl.constexpr,
    shared: tl.constexpr,
    rates: tl.constexpr,
    offsets: tl.constexpr,
    starts: tl.constexpr,
    steps: tl.constexpr,
    counts: tl.constexpr,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write the sum of what the parts have for each row of each head, 0 where none has anything.

    ``founds`` are (batch · segment, kept row, head, dim), ``out`` is (batch, position, head, dim).
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
            output += tl.load(founds[part] + at[:, None] * dim + lanes, mask=inside, other=0.0).to(tl.float32)
    at = ((batch * sequence + rows) * heads + head)[:, None] * dim + lanes
    tl.store(out + at, output.to(out.dtype.element_ty), mask=(rows[:, None] < sequence) & (lanes < dim))
