"""Softmax of each row in Helion: some rows a program, their columns at once or in a loop, as it is configured."""

from __future__ import annotations

import helion
import helion.language as hl
import torch


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
