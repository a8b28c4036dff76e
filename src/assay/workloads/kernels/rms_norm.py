"""Root-mean-square norm of each row in Triton: some rows a program, at once where they fit, else in two passes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    cols: tl.tensor,
    eps: tl.tensor,
    block_rows: tl.constexpr,
    block_cols: tl.constexpr,
    whole: tl.constexpr,
) -> None:
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
