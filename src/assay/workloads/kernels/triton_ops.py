"""Triton kernels of the operators: matrix product, attention, softmax and RMS norm.

GEMM computes a tile of C per program, in groups of rows so that neighbours share B in the L2 cache. Attention never
holds all scores: online softmax over tiles, one block of queries per program. Softmax and RMS norm take some rows per
program, in one block where they fit, else in a loop over blocks of columns.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, m: tl.tensor, n: tl.tensor, k: tl.tensor,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr, even_k: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
) -> None:  # fmt: skip
    """Write A·B into C, all stored by rows; ``even_k`` says that block_k divides k.

    Rows and columns past the edge are taken from the front again and not stored. ``widen`` multiplies in float32,
    for Triton's interpreter, which cannot multiply bfloat16.
    """
    tiles_m = tl.cdiv(m, block_m)
    per_group = group_m * tl.cdiv(n, block_n)
    program = tl.program_id(0)
    first = program // per_group * group_m
    height = tl.minimum(tiles_m - first, group_m)
    rows = (first + program % per_group % height) * block_m + tl.arange(0, block_m)
    cols = program % per_group // height * block_n + tl.arange(0, block_n)
    inner = tl.arange(0, block_k)
    a_at = a + (rows % m).to(tl.int64)[:, None] * k + inner[None, :]
    b_at = b + inner.to(tl.int64)[:, None] * n + (cols % n)[None, :]
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for start in range(0, k, block_k):
        if even_k:
            tile_a = tl.load(a_at)
            tile_b = tl.load(b_at)
        else:
            tile_a = tl.load(a_at, mask=inner[None, :] < k - start, other=0.0)
            tile_b = tl.load(b_at, mask=inner[:, None] < k - start, other=0.0)
        if widen:
            tile_a = tile_a.to(tl.float32)
            tile_b = tile_b.to(tl.float32)
        total = tl.dot(tile_a, tile_b, total, input_precision=precision)
        a_at += block_k
        b_at += block_k * n
    c_at = c + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def fold_block(
    queries: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, sequence: tl.tensor, scale: tl.tensor,
    peak: tl.tensor, total: tl.tensor, output: tl.tensor, begin: tl.tensor, end: tl.tensor,
    dim: tl.constexpr, block_k: tl.constexpr, block_d: tl.constexpr, masked: tl.constexpr, causal: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
) -> tl.tensor:  # fmt: skip
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
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, sequence: tl.tensor, scale: tl.tensor,
    dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr, block_d: tl.constexpr, causal: tl.constexpr,
    precision: tl.constexpr, widen: tl.constexpr,
) -> None:  # fmt: skip
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
    peak, total, output = fold_block(
        queries, k + here, v + here, rows, sequence, scale, peak, total, output, 0, clear,
        dim, block_k, block_d, False, causal, precision, widen,
    )  # fmt: skip
    peak, total, output = fold_block(
        queries, k + here, v + here, rows, sequence, scale, peak, total, output, clear, end,
        dim, block_k, block_d, True, causal, precision, widen,
    )  # fmt: skip
    tl.store(out + at, (output / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax(
    x: tl.tensor, out: tl.tensor, rows: tl.tensor, cols: tl.tensor,
    block_rows: tl.constexpr, block_cols: tl.constexpr, whole: tl.constexpr,
) -> None:  # fmt: skip
    """Write the softmax of each row of x, stored by rows; ``whole`` says that one block holds all columns.

    A program that reaches past the last row does the last row again.
    """
    row = tl.minimum(tl.program_id(0) * block_rows + tl.arange(0, block_rows), rows - 1)
    lanes = tl.arange(0, block_cols)[None, :]
    at = row.to(tl.int64)[:, None] * cols + lanes
    if whole:
        tile = tl.load(x + at, mask=lanes < cols, other=-float("inf")).to(tl.float32)
        powers = tl.exp(tile - tl.max(tile, 1)[:, None])
        powers = powers / tl.sum(powers, 1)[:, None]
        tl.store(out + at, powers.to(out.dtype.element_ty), mask=lanes < cols)
    else:
        peak = tl.full((block_rows,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((block_rows,), dtype=tl.float32)
        for start in range(0, cols, block_cols):
            tile = tl.load(x + at + start, mask=lanes < cols - start, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(peak, tl.max(tile, 1))
            total = total * tl.exp(peak - higher) + tl.sum(tl.exp(tile - higher[:, None]), 1)
            peak = higher
        for start in range(0, cols, block_cols):
            tile = tl.load(x + at + start, mask=lanes < cols - start, other=0.0).to(tl.float32)
            powers = tl.exp(tile - peak[:, None]) / total[:, None]
            tl.store(out + at + start, powers.to(out.dtype.element_ty), mask=lanes < cols - start)


@triton.jit
def rms_norm(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, rows: tl.tensor, cols: tl.tensor, eps: tl.tensor,
    block_rows: tl.constexpr, block_cols: tl.constexpr, whole: tl.constexpr,
) -> None:  # fmt: skip
    """Write the weighted norm of each row of x, stored by rows; ``whole`` says that one block holds all columns.

    A program that reaches past the last row does the last row again.
    """
    row = tl.minimum(tl.program_id(0) * block_rows + tl.arange(0, block_rows), rows - 1)
    lanes = tl.arange(0, block_cols)[None, :]
    at = row.to(tl.int64)[:, None] * cols + lanes
    if whole:
        tile = tl.load(x + at, mask=lanes < cols, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(tile * tile, 1) / cols + eps)
        factor = tl.load(weight + lanes, mask=lanes < cols, other=0.0).to(tl.float32)
        tl.store(out + at, (tile * scale[:, None] * factor).to(out.dtype.element_ty), mask=lanes < cols)
    else:
        squares = tl.zeros((block_rows, block_cols), dtype=tl.float32)
        for start in range(0, cols, block_cols):
            tile = tl.load(x + at + start, mask=lanes < cols - start, other=0.0).to(tl.float32)
            squares += tile * tile
        scale = tl.rsqrt(tl.sum(squares, 1) / cols + eps)
        for start in range(0, cols, block_cols):
            inside = lanes < cols - start
            tile = tl.load(x + at + start, mask=inside, other=0.0).to(tl.float32)
            factor = tl.load(weight + lanes + start, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + at + start, (tile * scale[:, None] * factor).to(out.dtype.element_ty), mask=inside)
