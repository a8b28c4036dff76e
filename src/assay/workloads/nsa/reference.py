"""What a branch must give, in float64: some queries at a time, each over the keys that these see together."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from assay.workloads.torch_check import Truth
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_reference import Which


def right(branch: Branch, given: Inputs, which: Which) -> Tensor:
    """Return the output of some queries, as (query, batch, group, head, dim); zeros for those that see nothing."""
    torch = import_torch()
    device = given.q.device
    chosen = which if isinstance(which, slice) else which.cpu().numpy()
    first, end = (torch.from_numpy(bounds[chosen]).to(device)[:, None] for bounds in branch.seen())
    q = given.q[:, :, :, which].double()
    low, high = int(first.min()), int(end.max())
    if high <= low:
        return torch.zeros_like(q).permute(3, 0, 1, 2, 4)
    k, v = (x[:, :, None, low:high].double() for x in (given.k, given.v))
    scores = q @ k.mT / math.sqrt(branch.head_dim)
    positions = torch.arange(low, high, device=device)
    scores.masked_fill_((positions < first) | (positions >= end), -math.inf)
    most = scores.amax(-1, keepdim=True)
    powers = (scores - most.masked_fill(most == -math.inf, 0.0)).exp()
    sums = powers.sum(-1, keepdim=True)
    out = powers @ v / sums.masked_fill(sums == 0, 1.0)
    return out.permute(3, 0, 1, 2, 4)


def truth(branch: Branch, given: Inputs) -> Truth:
    """Return what the output must be; its rows are the queries, each of every head."""
    scores = branch.all_heads * branch.keys
    return Truth(
        branch.sequence,
        partial(right, branch, given),
        flop_per_row=4.0 * scores * branch.head_dim,
        elements_per_row=scores,
    )
