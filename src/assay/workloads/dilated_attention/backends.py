"""Backends for a rank's local work: the requested one, or on a GPU the fastest that is correct.

``PartwiseBackend`` runs a fused PyTorch kernel per part and one Triton kernel to merge them; ``FusedBackend`` runs one
Triton kernel for all branches. Both are exact forward and backward, as ``functional.forward`` without a backend is;
they differ in how often they pass over memory. Candidates are checked against float64 and raced once per shape.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import AssayError, BadInput
from assay.workloads import kernel_support
from assay.workloads.dilated_attention.attention import (
    MergedOutput,
    accumulation_dtype,
    attend_flat,
    attend_flat_backward,
    flat_part_view,
)
from assay.workloads.kernel_support import next_power_of_two
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.dilated_attention.functional import LocalBackend
    from assay.workloads.dilated_attention.schedule import AttentionHeads, BranchPart, DilatedBranch, DilationSchedule
    from assay.workloads.torch_device import Tensor

MERGE_ROWS = 32  # rows of one head per program of the merge kernel

QKV = tuple["Tensor", "Tensor", "Tensor"]


@dataclass(frozen=True)
class PartwiseBackend:
    """Each part by a fused PyTorch kernel, merged by one of our kernels."""

    parts: tuple[BranchPart, ...]  # the parts of the rank's shard
    heads: AttentionHeads  # the heads
    causal: bool  # whether a query sees only its own position and those before it
    backend: str  # backend of blocks: ``cudnn`` or ``flash``
    merges_more: bool = False  # whether more is merged afterwards, so that sums stay in float32

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> MergedOutput:
        """Return the merge of all parts, in the shapes of a call."""
        outs, lse = [], []
        for part in self.parts:
            views = [flat_part_view(x, part, self.heads.shared_by) for x in (q, k, v)]
            out, some = attend_flat(*views, causal=self.causal, backend=self.backend)
            outs.append(pack_heads(out))
            lse.append(some.float().contiguous())
        merged = MergedOutput(
            q.new_empty(q.shape, dtype=self.output_dtype(q)), q.new_empty(q.shape[:-1], dtype=import_torch().float32)
        )
        table = {**self._part_table, "shared": self.heads.shared_by}
        _launch_kernel("merge_parts", (tuple(outs), tuple(lse), *merged), q.shape, table)
        return merged

    def backward(self, gradient: Tensor, qkv: QKV, merged: MergedOutput) -> QKV:
        """Return the parts' gradients of q, k and v, from that of the output."""
        q, k, v = qkv
        dq, dk, dv = zip(*(self._part_gradients(part, gradient, qkv, merged) for part in self.parts), strict=True)
        return self._sum_parts(dq, q, self.heads.shared_by), self._sum_parts(dk, k, 1), self._sum_parts(dv, v, 1)

    def _part_gradients(self, part: BranchPart, gradient: Tensor, qkv: QKV, merged: MergedOutput) -> QKV:
        shared = self.heads.shared_by
        grad_out, q, k, v, out = (flat_part_view(x, part, shared) for x in (gradient, *qkv, merged.out))
        lse = flat_part_view(merged.lse[..., None], part, shared)[..., 0].contiguous()
        dq, dk, dv = attend_flat_backward(grad_out, q, k, v, (out, lse), causal=self.causal, backend=self.backend)
        if shared > 1:
            dk, dv = (x.unflatten(1, (-1, shared)).sum(2) for x in (dk, dv))
        return pack_heads(dq), pack_heads(dk), pack_heads(dv)

    def _sum_parts(self, gradients: tuple[Tensor, ...], like: Tensor, shared: int) -> Tensor:
        out: Tensor = like.new_empty(like.shape, dtype=self.output_dtype(like))
        table = {name: value for name, value in self._part_table.items() if name != "segments"}
        _launch_kernel("sum_parts", (gradients, out), like.shape, {**table, "shared": shared})
        return out

    def output_dtype(self, x: Tensor) -> Any:
        """Return the dtype of outputs and gradients."""
        return accumulation_dtype(x.dtype) if self.merges_more else x.dtype

    @cached_property
    def _part_table(self) -> dict[str, Any]:
        """Return the strides and positions of the parts' rows and heads."""
        return {
            "segments": tuple(part.segment for part in self.parts),
            "rates": tuple(part.rate for part in self.parts),
            "offsets": tuple(part.offset for part in self.parts),
            "starts": tuple(part.heads.start for part in self.parts),
            "steps": tuple(part.heads.step for part in self.parts),
            "counts": tuple(len(range(self.heads.keys)[part.heads]) for part in self.parts),
        }


@dataclass(frozen=True)
class FusedTiling:
    """Queries of one period and keys per tile, warps, and pipeline stages."""

    block_q: int = 128
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3

    def fits(self, branch: DilatedBranch, period: int) -> bool:
        """Return whether no tile of a branch crosses the end of a segment."""
        return branch.segment % (period * self.block_q) == 0 and branch.kept_positions % self.block_k == 0


@dataclass(frozen=True)
class FusedBackend:
    """All branches in one of our kernels, forward; the backward pass is that of ``partwise``."""

    schedule: DilationSchedule  # the branches, with no segment longer than the rank's shard
    partwise: PartwiseBackend  # the backend of the backward pass
    tiling: FusedTiling = FusedTiling()  # the tiling of the kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> MergedOutput:
        """Return the merge of all branches, in the shapes of a call."""
        heads, causal, kind = self.partwise.heads, self.partwise.causal, self.partwise.output_dtype(q)
        flat = q.flatten(2, 3), k.squeeze(3), v.squeeze(3)
        merged = fused_forward(flat, self.schedule, heads, causal=causal, dtype=kind, tiling=self.tiling)
        return MergedOutput(*(x.unflatten(2, (heads.keys, heads.shared_by)) for x in merged))

    def backward(self, gradient: Tensor, qkv: QKV, merged: MergedOutput) -> QKV:
        """Return the gradients of q, k and v, from that of the output."""
        return self.partwise.backward(gradient, qkv, merged)


def pack_heads(x: Tensor) -> Tensor:
    """Return (batch · segment, position, head, dim) of a tensor with heads first; a copy where needed."""
    return x.transpose(1, 2).contiguous()


def _launch_kernel(kernel: str, args: tuple[Any, ...], shape: Sequence[int], table: dict[str, Any]) -> None:
    batch, sequence, keys, shared, dim = shape
    heads, blocks = keys * shared, -(-sequence // MERGE_ROWS)
    fixed = {"heads": heads, "dim": dim, "block_d": next_power_of_two(dim), "block": MERGE_ROWS}
    launch = kernel_support.load_kernel(kernel, "dilated_attention")[(batch * blocks * heads,)]
    launch(*args, sequence, **fixed, **table)


def fused_forward(
    qkv: QKV,
    schedule: DilationSchedule,
    heads: AttentionHeads,
    *,
    causal: bool,
    dtype: Any = None,
    tiling: FusedTiling | None = None,
) -> MergedOutput:
    """Return output, in the given dtype, and log-sum-exp of q, k and v, each (batch, sequence, heads, dim)."""
    torch, tiling = import_torch(), tiling or FusedTiling()
    q, k, v = (x.contiguous() for x in qkv)
    batch, sequence, _, dim = q.shape
    out = torch.empty_like(q, dtype=dtype or q.dtype)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    segments, rates = zip(*((branch.segment, branch.rate) for branch in schedule.branches), strict=True)
    period = math.lcm(*rates)
    blocks = -(-sequence // (period * tiling.block_q))
    kernel = kernel_support.load_kernel("dilated_attention", "dilated_attention")
    kernel[(batch * heads.queries * period * blocks,)](
        *(q, k, v, out, lse, sequence, math.log2(math.e) / math.sqrt(dim)),
        heads=heads.queries,
        key_heads=heads.keys,
        segments=segments,
        rates=rates,
        period=period,
        modulo=heads.rule == "modulo",
        dim=dim,
        block_d=next_power_of_two(dim),
        aligned=not causal and all(tiling.fits(branch, period) for branch in schedule.branches),
        causal=causal,
        precision="ieee",
        widen=kernel_support.is_triton_interpreted(),
        **asdict(tiling),
    )
    return MergedOutput(out, lse)


RACE_S = 1.0  # approximate duration of a race of backends, once per shape, without their first calls, which may compile

CHECKED_ROWS, MAX_DENSE_ROWS = 64, 16384
PARTWISE_KERNELS = ("cudnn", "flash")
MAX_ERROR = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Largest error of a row against float64, relative to the largest element: some roundings of the dtype."""

TILINGS = tuple(FusedTiling(128, *more) for more in ((64, 4, 3), (64, 4, 4), (128, 4, 3), (64, 8, 3)))
"""Tilings of our kernel: first the best of those tried on a Hopper GPU, then one for larger heads."""


@dataclass(frozen=True)
class CallShape:
    """What determines the fastest backend, beside the GPU and the dtype."""

    schedule: DilationSchedule
    heads: AttentionHeads
    parts: tuple[BranchPart, ...]
    causal: bool
    merges_more: bool

    def partwise(self, backend: str) -> PartwiseBackend:
        """Return the backend with a kernel per part."""
        return PartwiseBackend(self.parts, self.heads, self.causal, backend, self.merges_more)

    def fused(self, tiling: FusedTiling, backward: str) -> FusedBackend:
        """Return the backend with one kernel for all branches."""
        return FusedBackend(self.schedule, self.partwise(backward), tiling)


def requested_backend(backend: str, q: Tensor, shape: CallShape) -> LocalBackend | None:
    """Return a requested backend; null: parts are computed and merged one by one."""
    name, dtypes = str(q.dtype).removeprefix("torch."), kernel_support.TRITON_DTYPES
    has_device = q.device.type in kernel_support.triton_device_kinds()
    if backend == "triton":
        if name not in dtypes:
            raise BadInput(f"The backend {backend} takes {', '.join(dtypes)}, not {name}.")
        if not has_device:
            raise BadInput(f"The backend {backend} runs on a GPU, not on {q.device.type}.")
        if name not in MAX_ERROR and q.device.type == "cuda" and q.requires_grad:
            raise BadInput(
                f"The backend {backend} has no backward pass in {name}: it takes that of flash attention, which needs "
                "bfloat16 or float16. Use one of these, or the backend math."
            )
        return shape.fused(TILINGS[0], "flash")
    if backend not in {"cudnn", "flash"} or not kernel_support.is_triton_installed():
        return None
    return shape.partwise(backend) if name in dtypes and has_device else None


def can_race_backends(q: Tensor) -> bool:
    """Return whether backends can be raced for a tensor: on a GPU, in a dtype of the fused kernels."""
    half = str(q.dtype).removeprefix("torch.") in MAX_ERROR
    shaped = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    compiled = kernel_support.is_triton_installed() and not kernel_support.is_triton_interpreted()
    return bool(q.is_cuda and half and shaped and compiled)


def fastest_backend(qkv: QKV, shape: CallShape) -> LocalBackend:
    """Return the fastest correct backend for these tensors, raced once per shape and cached in this process.

    While a CUDA graph is captured nothing can be raced, and PyTorch's flash attention is used.
    """
    torch, (q, k, v) = import_torch(), qkv
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in qkv)
    tensors = torch.cuda.get_device_name(q.device), q.dtype, tuple(q.shape), tuple(k.shape)
    key = (*tensors, shape.schedule, shape.heads, shape.causal, shape.merges_more, backward)
    if key not in _fastest:
        if torch.cuda.is_current_stream_capturing():
            return shape.partwise("flash")
        with torch.no_grad():
            _fastest[key] = race_backends((q.detach(), k.detach(), v.detach()), shape, backward=backward)
    return _fastest[key]


_fastest: dict[Any, LocalBackend] = {}
_races: list[dict[str, Any]] = []


def past_races() -> list[dict[str, Any]]:
    """Return the races of this process so far: shape, winner, and all times."""
    return list(_races)


def backend_candidates(shape: CallShape, *, backward: bool) -> dict[str, LocalBackend]:
    """Return the backends to race, by name."""
    backends: dict[str, LocalBackend] = {backend: shape.partwise(backend) for backend in PARTWISE_KERNELS}
    for tiling in TILINGS:
        name = f"triton {tiling.block_q} x {tiling.block_k}, {tiling.num_warps} warps, {tiling.num_stages} ahead"
        for after in PARTWISE_KERNELS if backward else PARTWISE_KERNELS[:1]:
            backends[f"{name}; backward {after}" if backward else name] = shape.fused(tiling, after)
    return backends


def race_backends(qkv: QKV, shape: CallShape, *, backward: bool) -> LocalBackend:
    """Return the fastest of the backends that run here and are correct."""
    from assay.timing.pick import pick

    torch, q = import_torch(), qkv[0]
    backends = backend_candidates(shape, backward=backward)
    source = torch.Generator(device=q.device).manual_seed(0)  # leaves the caller's random state alone
    random = torch.randn(q.shape, generator=source, dtype=torch.float32, device=q.device).to(q.dtype)
    grad_out = random if backward else None
    calls = {name: partial(call_backend, backend, qkv, grad_out) for name, backend in backends.items()}
    reference = BackendReference.of(qkv, shape, grad_out)
    try:
        picked = pick(calls, check=reference.accepts, device=str(q.device), cache="warm", budget_s=RACE_S)
    except AssayError as error:
        warnings.warn(f"No backend of dilated attention was found to be correct and raced: {error}", stacklevel=4)
        return shape.partwise("flash")
    race = {
        "shape": list(q.shape),
        "dtype": str(q.dtype).removeprefix("torch."),
        "backward": backward,
        "winner": picked.winner,
        "time_us": {candidate.name: candidate.time_us for candidate in picked.ranking},
    }
    _races.append(race)
    return backends[picked.winner]


def call_backend(backend: LocalBackend, qkv: QKV, grad_out: Tensor | None) -> tuple[Tensor, ...]:
    """Return the output and, given its gradient, those of q, k and v."""
    merged = backend.forward(*qkv)
    rounded = merged._replace(out=merged.out.to(qkv[0].dtype))
    return (rounded.out,) if grad_out is None else (rounded.out, *backend.backward(grad_out, qkv, rounded))


@dataclass(frozen=True)
class BackendReference:
    """The reference for the first sequence up to its longest segment: some rows, or all of them."""

    rows: Tensor
    expected: tuple[Tensor, ...]
    max_error: float

    @classmethod
    def of(cls, qkv: QKV, shape: CallShape, grad_out: Tensor | None) -> Self:
        """Compute it in float64: all rows and gradients where that is cheap, otherwise some rows of the output."""
        from assay.workloads.dilated_attention.verify import blockwise_attention, dense_attention

        torch, branches = import_torch(), (shape.schedule, shape.heads)
        span = max(part.segment for part in shape.parts)
        q, k, v = (x[:1, :span].flatten(2, 3) for x in qkv)
        furthest = MAX_ERROR[str(q.dtype).removeprefix("torch.")]
        if grad_out is None or span > MAX_DENSE_ROWS:
            rows = torch.linspace(0, span - 1, min(span, CHECKED_ROWS), device=q.device).long()
            return cls(rows, (dense_attention(q, k, v, *branches, causal=shape.causal, rows=rows),), furthest)
        gradient = grad_out[:1, :span].flatten(2, 3)
        expected = blockwise_attention(q, k, v, *branches, gradient=gradient, causal=shape.causal)
        return cls(torch.arange(span, device=q.device), expected, furthest)

    def accepts(self, outputs: Any) -> bool:
        """Return whether a backend's output and gradients match."""
        pairs = [
            (expected, output[:1].flatten(2, 3)[:, self.rows].double())
            for expected, output in zip(self.expected, outputs, strict=False)
        ]
        return all(bool((out - right).abs().max() <= self.max_error * right.abs().max()) for right, out in pairs)
