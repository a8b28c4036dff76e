"""The forward pass of all branches in one Triton kernel of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads import triton_common
from assay.workloads.dilated_attention.blocks import sums_dtype
from assay.workloads.dilated_attention.merge import Merged
from assay.workloads.torch_device import import_torch
from assay.workloads.triton_common import power_of_two

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.plan import Heads, Ladder
    from assay.workloads.torch_device import Tensor


@dataclass(frozen=True)
class Tiling:
    """Queries of one period and keys to a tile, the warps that work on it, and how many are loaded ahead."""

    block_q: int = 128
    block_k: int = 64
    num_warps: int = 8
    num_stages: int = 3


def check_fused(q: Tensor) -> None:
    """Refuse what the kernel cannot do."""
    name = str(q.dtype).removeprefix("torch.")
    if name not in triton_common.DTYPES:
        raise BadInput(f"The backend triton takes {', '.join(triton_common.DTYPES)}, not {name}.")
    if q.device.type not in triton_common.device_kinds():
        raise BadInput(f"The backend triton runs on a GPU, not on {q.device.type}.")


def own(ladder: Ladder, heads: Heads, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, merged_on: bool) -> Merged:
    """Return the merge of all branches, in the shapes of a job; ``merged_on`` keeps float32 for what is to come."""
    kind = sums_dtype(q.dtype) if merged_on else q.dtype
    out, sums = fused_forward((q.flatten(2, 3), k.squeeze(3), v.squeeze(3)), ladder, heads, causal=causal, dtype=kind)
    apart = (heads.keys, heads.shared_by)
    return Merged(out.unflatten(2, apart), sums.unflatten(2, apart))


def fused_forward(
    given: tuple[Tensor, Tensor, Tensor],
    ladder: Ladder,
    heads: Heads,
    *,
    causal: bool,
    dtype: Any = None,
    tiling: Tiling | None = None,
) -> Merged:
    """Return output, in a dtype of choice, and log-sum-exp of q, k and v, each (batch, sequence, heads, dim)."""
    torch, tiling = import_torch(), tiling or Tiling()
    q, k, v = (x.contiguous() for x in given)
    batch, sequence, _, dim = q.shape
    out = torch.empty_like(q, dtype=dtype or q.dtype)
    sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    period = math.lcm(*(branch.rate for branch in ladder.branches))
    blocks = -(-sequence // (period * tiling.block_q))
    triton_common.kernel("dilated_attention")[(batch * heads.queries * period * blocks,)](
        q,
        k,
        v,
        out,
        sums,
        sequence,
        math.log2(math.e) / math.sqrt(dim),
        heads=heads.queries,
        key_heads=heads.keys,
        segments=tuple(branch.segment for branch in ladder.branches),
        rates=tuple(branch.rate for branch in ladder.branches),
        period=period,
        modulo=heads.rule == "modulo",
        dim=dim,
        block_d=power_of_two(dim),
        block_q=tiling.block_q,
        block_k=tiling.block_k,
        causal=causal,
        precision="ieee",
        widen=triton_common.interpreted(),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return Merged(out, sums)
