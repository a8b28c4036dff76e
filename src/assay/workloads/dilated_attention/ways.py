"""Which way a rank takes for what it does alone: the one asked for, or on a GPU the fastest that is right here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, BadInput
from assay.workloads import triton_common
from assay.workloads.dilated_attention.fused import ByParts, OneKernel, Tiling, check_kernels
from assay.workloads.dilated_attention.reference import dense
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.job import Own
    from assay.workloads.dilated_attention.merge import Merged
    from assay.workloads.dilated_attention.plan import Heads, Ladder, Part
    from assay.workloads.torch_device import Tensor

    Given = tuple[Tensor, Tensor, Tensor]

LANES = 4
PICK_S = 1.0
"""About how long the ways are raced, once for each shape; their first calls, which may compile, come on top."""

ROWS_CHECKED = 64
FURTHEST_OFF = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
"""The furthest that a row may be from float64, over the largest element: some roundings of the dtype."""

TILINGS = (Tiling(128, 128, 8, 2), Tiling(128, 64, 8, 3), Tiling(128, 64, 4, 3))


@dataclass(frozen=True)
class Shape:
    """What decides which way is the fastest, beside the GPU and the dtype."""

    ladder: Ladder
    heads: Heads
    parts: tuple[Part, ...]
    causal: bool
    goes_on: bool

    def by_parts(self, backend: str, lanes: int = LANES) -> ByParts:
        """Return the way of a kernel for each part."""
        return ByParts(self.parts, self.heads, self.causal, backend, self.goes_on, lanes)

    def one_kernel(self, tiling: Tiling, backward: str) -> OneKernel:
        """Return the way of one kernel for all of it."""
        return OneKernel(self.ladder, self.by_parts(backward), tiling)


def asked_for(backend: str, q: Tensor, shape: Shape) -> Own | None:
    """Return the way of a backend that was asked for; null: parts are computed and merged one by one."""
    if backend == "triton":
        check_kernels(q, backend)
        return shape.one_kernel(TILINGS[0], "flash")
    if backend not in {"cudnn", "flash"} or find_spec("triton") is None:
        return None
    try:
        check_kernels(q, backend)
    except BadInput:
        return None
    return shape.by_parts(backend)


def can_race(q: Tensor) -> bool:
    """Return whether ways can be raced for a tensor: on a GPU, in a dtype that its fused kernels have."""
    half = str(q.dtype).removeprefix("torch.") in FURTHEST_OFF
    shaped = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return bool(q.is_cuda and half and shaped and find_spec("triton") is not None and not triton_common.interpreted())


def fastest(given: Given, shape: Shape) -> Own:
    """Return the fastest way that is right for these tensors, raced once for each shape and kept in this process.

    While a CUDA graph is captured nothing can be raced, and PyTorch's flash attention is taken.
    """
    torch, (q, k, v) = import_torch(), given
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    key = (torch.cuda.get_device_name(q.device), q.dtype, tuple(q.shape), tuple(k.shape), shape, backward)
    if key not in _kept:
        if torch.cuda.is_current_stream_capturing():
            return shape.by_parts("flash")
        with torch.no_grad():
            _kept[key] = _raced((q.detach(), k.detach(), v.detach()), shape, backward=backward)
    return _kept[key]


_kept: dict[Any, Own] = {}


def candidates(shape: Shape) -> dict[str, Own]:
    """Return the ways that are raced, by name."""
    ways: dict[str, Own] = {
        f"{backend}, {lanes} stream{'s' if lanes > 1 else ''}": shape.by_parts(backend, lanes)
        for backend in ("cudnn", "flash")
        for lanes in (1, LANES)
    }
    for tiling in TILINGS:
        ways[f"triton {tiling.block_q} x {tiling.block_k}, {tiling.num_warps} warps"] = shape.one_kernel(
            tiling, "cudnn"
        )
    return ways


def _raced(given: Given, shape: Shape, *, backward: bool) -> Own:
    from assay.timing.pick import pick

    ways = candidates(shape)
    calls = {name: partial(_one_call, way, given, backward=backward) for name, way in ways.items()}
    right = partial(is_right, given, shape)
    try:
        found = pick(calls, check=right, device=str(given[0].device), cache="warm", budget_s=PICK_S)
    except AssayError:
        return shape.by_parts("flash")
    return ways[found.winner]


def _one_call(way: Own, given: Given, *, backward: bool) -> Merged:
    merged = way.forward(*given)
    if backward:
        way.backward(merged.out.to(given[0].dtype), given, replace_out(merged, given[0]))
    return merged


def replace_out(merged: Merged, q: Tensor) -> Merged:
    """Return a merge with its output as it is kept for the backward pass."""
    return merged._replace(out=merged.out.to(q.dtype))


def is_right(given: Given, shape: Shape, merged: Merged) -> bool:
    """Return whether some rows of the first sequence are what they must be, in float64."""
    torch = import_torch()
    q, k, v = (x[:1] for x in given)
    span = max(part.segment for part in shape.parts)
    rows = torch.linspace(0, span - 1, min(span, ROWS_CHECKED), device=q.device).long()
    whole = (q.flatten(2, 3)[:, :span], k.squeeze(3)[:, :span], v.squeeze(3)[:, :span])
    wanted = dense(*whole, shape.ladder, shape.heads, causal=shape.causal, rows=rows)
    found = merged.out[:1].flatten(2, 3)[:, rows].double()
    furthest = FURTHEST_OFF[str(q.dtype).removeprefix("torch.")]
    return bool((found - wanted).abs().max() <= furthest * wanted.abs().max())
