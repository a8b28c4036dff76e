"""Matrix product in Helion: a tile of C a program, summed in float32 over tiles of the inner axis."""

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
