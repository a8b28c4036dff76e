"""What the branches mean, written down plainly: loops over queries in float64, one head after another.

Also what flash kernels do, for tests without a GPU: the same masks and forms, computed slowly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.workloads.nsa.branches import Branch, BranchInputs, SlidingBranch, make_inputs

if TYPE_CHECKING:
    from assay.core.values import Scalar


def keys_seen(branch: Branch, t: int) -> list[int]:
    """Return the keys that query t sees, by the words of the definition."""
    if isinstance(branch, SlidingBranch):
        return list(range(max(0, t - branch.window + 1), t + 1))
    return [j for j in range(branch.sequence) if j * branch.stride + branch.block <= t + 1]


def attention(branch: Branch, given: BranchInputs) -> Any:
    """Return the output as (batch, group, head, position, dim)."""
    q, k, v = (x.double().numpy() for x in (given.q, given.k, given.v))
    out = np.zeros_like(q)
    for b, g, h in np.ndindex(q.shape[:3]):
        for t in range(branch.sequence):
            seen = keys_seen(branch, t)
            if seen:
                scores = k[b, g, seen] @ q[b, g, h, t] / math.sqrt(branch.head_dim)
                powers = np.exp(scores - scores.max())
                out[b, g, h, t] = powers @ v[b, g, seen] / powers.sum()
    return out


def made(branch: Branch, distribution: Scalar = "normal", *, seed: int = 0) -> BranchInputs:
    """Return inputs of a branch on a CPU."""
    return make_inputs(branch, distribution, where="cpu", seed=seed)


def flash_kernel(q: Any, k: Any, v: Any, left: int) -> Any:
    """Attend as a causal flash kernel does: (batch, position, head, dim), aligned at the end, empty rows are zeros."""
    import torch

    queries, keys = q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (k, v))
    last = torch.arange(queries)[:, None] + keys - queries
    places = torch.arange(keys)
    seen = (places <= last) & ((places >= last - left) | (left < 0))
    out = torch.empty_like(q)
    out.copy_(_attend(q.transpose(1, 2), k, v, seen).transpose(1, 2))
    return out


def varlen_kernel(
    q: Any, k: Any, v: Any, queries: Any, starts: Any, longest: int, most: int, *told: Any, seqused_k: Any
) -> tuple[Any]:
    """Attend as the kernel for sequences of variable length does: (position, head, dim), without a mask."""
    import torch

    assert told == (0.0, False, False)
    assert queries.dtype == starts.dtype == seqused_k.dtype == torch.int32
    assert len(queries) == len(starts) == len(seqused_k) + 1
    assert int(seqused_k.max()) == most
    out = torch.full_like(q, math.nan)
    for i, keys in enumerate(seqused_k.tolist()):
        rows, start = slice(int(queries[i]), int(queries[i + 1])), int(starts[i])
        assert rows.stop - rows.start <= longest
        each = q.shape[1] // k.shape[1]
        k_own, v_own = (x[start : start + keys].repeat_interleave(each, 1).transpose(0, 1) for x in (k, v))
        all_of_them = torch.ones(1, keys, dtype=torch.bool)
        out[rows] = _attend(q[rows].transpose(0, 1), k_own, v_own, all_of_them).transpose(0, 1)
    return (out,)


def _attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v
