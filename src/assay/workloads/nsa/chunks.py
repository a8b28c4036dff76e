"""A branch on a CPU without the keys that nobody sees: some queries at a time, over the keys that these see together.

PyTorch's flash attention for CPUs knows no window, so that each chunk has a mask of its own, a small one. The masks are
made before anything is timed, as those of the baseline are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.workloads.nsa.branches import Sliding
from assay.workloads.nsa.tensors import visible
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor

FEWEST, MOST = 64, 512
"""Queries of a chunk: as many as the window is long where that is between these, so that half of its work is of use."""

COMPRESSED = 128
"""Queries of a chunk of the compressed branch, which sees all tokens up to its end."""


@dataclass(frozen=True)
class Chunks:
    """Attention of chunks of queries: their queries, keys, values and mask, null where all is seen."""

    torch: Any
    chunks: tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], ...]
    blind: Tensor
    shape: tuple[int, ...]

    def __call__(self) -> Tensor:
        """Return the output as (batch, group, head, position, dim)."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        outputs = [attend(q, k, v, attn_mask=mask) for q, k, v, mask in self.chunks]
        return self.torch.cat((self.torch.zeros_like(self.blind), *outputs), 2).view(self.shape)


def chunked(branch: Branch, given: Inputs, *, step: int | None = None) -> Chunks:
    """Return the call; a chunk has ``step`` queries, or as many as suit the branch."""
    q, k, v = given.by_groups()
    first, end = branch.seen()
    masks: dict[bytes, Tensor | None] = {}
    chunks = []
    if step is None:
        step = min(MOST, max(FEWEST, branch.window)) if isinstance(branch, Sliding) else COMPRESSED
    for start in range(branch.blind, branch.sequence, step):
        rows = slice(start, min(start + step, branch.sequence))
        keys = slice(int(first[rows].min()), int(end[rows].max()))
        alike = (first[rows] - keys.start).tobytes() + (end[rows] - keys.start).tobytes()
        if alike not in masks:
            mask = visible(branch, rows, keys, where=str(q.device))
            masks[alike] = None if bool(mask.all()) else mask
        chunks.append((q[:, :, rows], k[:, :, keys], v[:, :, keys], masks[alike]))
    return Chunks(import_torch(), tuple(chunks), q[:, :, : branch.blind], tuple(given.q.shape))
