"""Helion kernels of the operators: matrix product and softmax.

GEMM computes a tile of C per program, summed in float32 over tiles of the inner axis; softmax takes some rows per
program, their columns at once or in a loop, depending on the configuration.
"""

from __future__ import annotations

import helion
import helion.language as hl
import torch


@helion.kernel()
def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return A·B, of the dtype of A."""
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, cols in hl.tile([m, n]):
        total = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            total = torch.addmm(total, a[rows, inner], b[inner, cols])
        out[rows, cols] = total.to(a.dtype)
    return out


@helion.kernel()
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row of x, computed in float32."""
    rows, _ = x.size()
    out = torch.empty_like(x)
    for some in hl.tile(rows):
        values = x[some, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[some, :] = (powers / torch.sum(powers, dim=1, keepdim=True)).to(x.dtype)
    return out
