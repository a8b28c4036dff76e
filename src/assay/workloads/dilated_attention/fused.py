"""What a rank does alone, fast: kernels of others for each part and one of ours to merge them, or one for everything.

Both are exact forward and backward, as the plain way in ``job.py`` is; they differ in how often memory is passed over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput
from assay.workloads import triton_common
from assay.workloads.dilated_attention.blocks import attend_flat, attend_flat_backward, sums_dtype
from assay.workloads.dilated_attention.merge import Merged, flat_view
from assay.workloads.torch_device import import_torch
from assay.workloads.triton_common import power_of_two

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.plan import Branch, Heads, Ladder, Part
    from assay.workloads.torch_device import Tensor

ROWS = 32
"""Rows of one head to a program that merges."""

Given = tuple["Tensor", "Tensor", "Tensor"]


@dataclass(frozen=True)
class ByParts:
    """Each part by a fused kernel of PyTorch's, all merged by one of ours.

    Attributes:
        parts: The parts of what the rank has.
        heads: The heads.
        causal: Whether a query sees only its own position and those before it.
        backend: What computes blocks: ``cudnn`` or ``flash``.
        goes_on: More is merged in afterwards, so that sums stay in float32.
    """

    parts: tuple[Part, ...]
    heads: Heads
    causal: bool
    backend: str
    goes_on: bool = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Merged:
        """Return the merge of all parts, in the shapes of a job."""
        outs, lse = [], []
        for part in self.parts:
            views = [flat_view(x, part, self.heads.shared_by) for x in (q, k, v)]
            out, some = attend_flat(*views, causal=self.causal, backend=self.backend)
            outs.append(packed(out))
            lse.append(some.float().contiguous())
        torch = import_torch()
        out = torch.empty(q.shape, dtype=self._kind(q), device=q.device)
        merged = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        table = {**self._table, "shared": self.heads.shared_by}
        _launch("merge_parts", (tuple(outs), tuple(lse), out, merged), q.shape, table)
        return Merged(out, merged)

    def backward(self, gradient: Tensor, given: Given, merged: Merged) -> Given:
        """Return the gradients of q, k and v that the parts give, from that of the output."""
        q, k, v = given
        gradients = [self._of_part(part, gradient, given, merged) for part in self.parts]
        dq, dk, dv = zip(*gradients, strict=True)
        return (
            self._summed(dq, q, self.heads.shared_by),
            self._summed(dk, k, 1),
            self._summed(dv, v, 1),
        )

    def _of_part(self, part: Part, gradient: Tensor, given: Given, merged: Merged) -> Given:
        shared = self.heads.shared_by
        grad_out, q, k, v, out = (flat_view(x, part, shared) for x in (gradient, *given, merged.out))
        lse = flat_view(merged.sums[..., None], part, shared)[..., 0].contiguous()
        dq, dk, dv = attend_flat_backward(grad_out, q, k, v, (out, lse), causal=self.causal, backend=self.backend)
        if shared > 1:
            dk, dv = (x.unflatten(1, (-1, shared)).sum(2) for x in (dk, dv))
        return packed(dq), packed(dk), packed(dv)

    def _summed(self, found: tuple[Tensor, ...], like: Tensor, shared: int) -> Tensor:
        out: Tensor = import_torch().empty(like.shape, dtype=self._kind(like), device=like.device)
        table = {name: value for name, value in self._table.items() if name != "segments"}
        _launch("sum_parts", (found, out), like.shape, {**table, "shared": shared})
        return out

    def _kind(self, x: Tensor) -> Any:
        return sums_dtype(x.dtype) if self.goes_on else x.dtype

    @cached_property
    def _table(self) -> dict[str, Any]:
        """Where the parts' rows and heads lie."""
        return {
            "segments": tuple(part.segment for part in self.parts),
            "rates": tuple(part.rate for part in self.parts),
            "offsets": tuple(part.offset for part in self.parts),
            "starts": tuple(part.heads.start for part in self.parts),
            "steps": tuple(part.heads.step for part in self.parts),
            "counts": tuple(len(range(self.heads.keys)[part.heads]) for part in self.parts),
        }


@dataclass(frozen=True)
class Tiling:
    """Queries of one period and keys to a tile, the warps that work on it, and how many are loaded ahead."""

    block_q: int = 128
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3

    def fits(self, branch: Branch, period: int) -> bool:
        """Return whether no tile of a branch lies across the end of a segment."""
        return branch.segment % (period * self.block_q) == 0 and branch.kept % self.block_k == 0


@dataclass(frozen=True)
class OneKernel:
    """All branches in one kernel of ours, forward; backward as ``after`` does it.

    Attributes:
        ladder: The branches, no segment longer than what the rank has.
        after: The way backward.
        tiling: How the kernel is cut up.
    """

    ladder: Ladder
    after: ByParts
    tiling: Tiling = Tiling()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Merged:
        """Return the merge of all branches, in the shapes of a job."""
        heads = self.after.heads
        kind = sums_dtype(q.dtype) if self.after.goes_on else q.dtype
        flat = q.flatten(2, 3), k.squeeze(3), v.squeeze(3)
        merged = fused_forward(flat, self.ladder, heads, causal=self.after.causal, dtype=kind, tiling=self.tiling)
        return Merged(*(x.unflatten(2, (heads.keys, heads.shared_by)) for x in merged))

    def backward(self, gradient: Tensor, given: Given, merged: Merged) -> Given:
        """Return the gradients of q, k and v, from that of the output."""
        return self.after.backward(gradient, given, merged)


def check_kernels(q: Tensor, backend: str) -> None:
    """Refuse what our kernels cannot do."""
    name = str(q.dtype).removeprefix("torch.")
    if name not in triton_common.DTYPES:
        raise BadInput(f"The backend {backend} takes {', '.join(triton_common.DTYPES)}, not {name}.")
    if q.device.type not in triton_common.device_kinds():
        raise BadInput(f"The backend {backend} runs on a GPU, not on {q.device.type}.")


def packed(x: Tensor) -> Tensor:
    """Return (batch · segment, position, head, dim) of what has heads before positions; a copy where need be."""
    return x.transpose(1, 2).contiguous()


def _launch(kernel: str, args: tuple[Any, ...], shape: Sequence[int], table: dict[str, Any]) -> None:
    batch, sequence, keys, shared, dim = shape
    heads, blocks = keys * shared, -(-sequence // ROWS)
    fixed = {"heads": heads, "dim": dim, "block_d": power_of_two(dim), "block": ROWS}
    triton_common.kernel(kernel, "dilated_merge")[(batch * blocks * heads,)](*args, sequence, **fixed, **table)


def fused_forward(
    given: Given,
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
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    period = math.lcm(*(branch.rate for branch in ladder.branches))
    blocks = -(-sequence // (period * tiling.block_q))
    triton_common.kernel("dilated_attention")[(batch * heads.queries * period * blocks,)](
        q,
        k,
        v,
        out,
        lse,
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
        aligned=not causal and all(tiling.fits(branch, period) for branch in ladder.branches),
        causal=causal,
        precision="ieee",
        widen=triton_common.interpreted(),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return Merged(out, lse)
