"""Softmax of each row in Triton: some rows a program, at once where they fit, else online over blocks of columns."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(
    x: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    cols: tl.tensor,
    block_rows: tl.constexpr,
    block_cols: tl.constexpr,
    whole: tl.constexpr,
) -> None:
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
