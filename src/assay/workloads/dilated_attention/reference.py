"""What dilated attention must give, in float64 and by another way than the one that is fast.

Merging branches by their log-sum-exp equals one softmax in which a pair of positions counts as often as branches join
it: softmax(Q·Kᵀ/√d + log M)·V, M whole numbers. Gradients are autograd's. Tensors are (batch, sequence, heads, dim).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.workloads.dilated_attention.plan import Heads
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.plan import Ladder
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class OneHead(Heads):
    """One key head out of several, with the query heads that share it; its offset is the one it has among all."""

    number: int = 0
    among: int = 1

    @classmethod
    def out_of(cls, heads: Heads, number: int) -> OneHead:
        """Return a key head by its number."""
        return cls(heads.shared_by, 1, heads.rule, number, heads.keys)

    def offset(self, key_head: int, rate: int) -> int:
        """Return its offset."""
        return Heads(self.among, self.among, self.rule).offset(self.number + key_head, rate)


def multiplicity(ladder: Ladder, heads: Heads, sequence: int, rows: Tensor, *, causal: bool) -> Tensor:
    """Return how many branches join each of some rows to each position, as (key head, row, position) of float64."""
    torch = import_torch()
    positions = torch.arange(sequence, device=rows.device)
    count = torch.zeros(heads.keys, len(rows), sequence, dtype=torch.float64, device=rows.device)
    for branch in ladder.branches:
        together = rows[:, None] // branch.segment == positions // branch.segment
        for head in range(heads.keys):
            offset = heads.offset(head, branch.rate)
            selected = [where % branch.segment % branch.rate == offset for where in (rows, positions)]
            count[head] += together & selected[0][:, None] & selected[1]
    return count * (positions <= rows[:, None]) if causal else count


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ladder: Ladder,
    heads: Heads,
    *,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Return the attention of all rows, or of some, in float64; a row that no branch joins to anything is 0.

    Autograd can go through it.
    """
    torch = import_torch()
    if rows is None:
        rows = torch.arange(q.shape[1], device=q.device)
    counts = multiplicity(ladder, heads, q.shape[1], rows, causal=causal)[None, :, None]
    if key_padding_mask is not None:
        counts = counts * ~key_padding_mask[:, None, None, None, :]
    queries = q[:, rows].double().unflatten(2, (heads.keys, heads.shared_by)).permute(0, 2, 3, 1, 4)
    keys, values = (x.double().permute(0, 2, 1, 3)[:, :, None] for x in (k, v))
    scores = (queries @ keys.mT / math.sqrt(q.shape[3])).masked_fill(counts == 0, -math.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    powers = counts * (scores - peak.masked_fill(peak == -math.inf, 0)).exp()
    total = powers.sum(-1, keepdim=True)
    out = powers / total.masked_fill(total == 0, 1) @ values
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def blockwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ladder: Ladder,
    heads: Heads,
    *,
    gradient: Tensor,
    block: int = 256,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output and, given its gradient, those of q, k and v; ``block`` rows of scores are held at a time."""
    torch = import_torch()
    keys, values = (x.detach().double().requires_grad_() for x in (k, v))
    outputs, dq = [], []
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    for rows in torch.arange(q.shape[1], device=q.device).split(block):
        queries = q.detach().double().requires_grad_()
        with torch.enable_grad():
            out = dense(
                queries, keys, values, ladder, heads, causal=causal, key_padding_mask=key_padding_mask, rows=rows
            )
            gradients = torch.autograd.grad(out, (queries, keys, values), gradient[:, rows].double())
        outputs.append(out.detach())
        dq.append(gradients[0][:, rows])
        dk += gradients[1]
        dv += gradients[2]
    return torch.cat(outputs, 1), torch.cat(dq, 1), dk, dv
