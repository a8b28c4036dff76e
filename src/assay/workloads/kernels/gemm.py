"""Matrix product in Triton: a tile of C a program, in groups of rows so that neighbours share B in the L2 cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    even_k: tl.constexpr,
    precision: tl.constexpr,
    widen: tl.constexpr,
) -> None:
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
