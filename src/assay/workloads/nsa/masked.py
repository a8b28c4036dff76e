"""A branch by ``scaled_dot_product_attention`` with the mask written out: the baseline that flash kernels must beat.

The mask is made before anything is timed, as a model keeps it. The heads of a group are given the same keys in memory,
which costs nothing; ``enable_gqa`` would leave PyTorch only its slowest backend on a GPU. Which one it takes is its own
choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from assay.workloads.nsa.tensors import visible
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor

LARGEST_MASK = 2**31 - 1
"""Elements; kernels count those of one mask in 32 bits, so that longer sequences take their queries in parts."""

_MADE_AT_ONCE = 2**26
"""Elements of a mask; a few times as many bytes are held while they are made."""


@dataclass(frozen=True)
class Masked:
    """Attention of all queries to all keys, with a mask.

    Attributes:
        torch: The module.
        parts: Queries, and the mask for them: one part unless the mask would be too large.
        keys: The keys of all parts.
        values: Their values.
        shape: Of the output.
        zeroed: Queries at the beginning whose output is set to zero afterwards, as the backend does not give it.
    """

    torch: Any
    parts: tuple[tuple[Tensor, Tensor], ...]
    keys: Tensor
    values: Tensor
    shape: tuple[int, ...]
    zeroed: int = 0

    def __call__(self) -> Tensor:
        """Return the output as (batch, group, head, position, dim)."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        outputs = [attend(q, self.keys, self.values, attn_mask=mask) for q, mask in self.parts]
        out = outputs[0] if len(outputs) == 1 else self.torch.cat(outputs, 2)
        if self.zeroed:
            out[:, :, : self.zeroed] = 0
        return out.view(self.shape)


def masked(branch: Branch, given: Inputs, *, largest: int = LARGEST_MASK) -> Masked:
    """Return the call; it is made once, to see what the backend gives to queries that see nothing."""
    q, keys, values = given.by_groups()
    rows = max(1, largest // branch.keys)
    starts = range(0, branch.sequence, rows)
    parts = [slice(start, min(start + rows, branch.sequence)) for start in starts]
    where = str(q.device)
    with_masks = tuple((q[:, :, part], _mask(branch, part, where)) for part in parts)
    call = Masked(import_torch(), with_masks, keys, values, tuple(given.q.shape))
    blind = branch.blind
    if blind and bool((call()[:, :, :, :blind] != 0).any()):
        return replace(call, zeroed=blind)
    return call


def _mask(branch: Branch, part: slice, where: str) -> Tensor:
    """Return the mask of some queries, made a little at a time."""
    torch = import_torch()
    mask = torch.empty((part.stop - part.start, branch.keys), dtype=torch.bool, device=where)
    step = max(1, _MADE_AT_ONCE // branch.keys)
    for start in range(part.start, part.stop, step):
        some = slice(start, min(start + step, part.stop))
        mask[start - part.start : some.stop - part.start] = visible(branch, some, slice(None), where=where)
    return mask
