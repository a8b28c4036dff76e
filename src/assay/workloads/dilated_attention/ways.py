"""Which way a rank takes for what it does alone: the one asked for, or on a GPU the fastest that is right here."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import AssayError, BadInput
from assay.workloads import triton_common
from assay.workloads.dilated_attention.fused import ByParts, OneKernel, Tiling, check_kernels
from assay.workloads.dilated_attention.reference import blockwise, dense
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.job import Own
    from assay.workloads.dilated_attention.plan import Heads, Ladder, Part
    from assay.workloads.torch_device import Tensor

    Given = tuple[Tensor, Tensor, Tensor]

PICK_S = 1.0
"""About how long the ways are raced, once for each shape; their first calls, which may compile, come on top."""

SOME_ROWS, MOST_ROWS = 64, 16384
BY_PARTS = ("cudnn", "flash")
FURTHEST_OFF = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
"""The furthest that a row may be from float64, over the largest element: some roundings of the dtype."""

TILINGS = (Tiling(128, 64, 4, 3), Tiling(128, 64, 4, 4), Tiling(128, 128, 4, 3), Tiling(128, 64, 8, 3))
"""Of the kernel of ours: the best of those tried on a Hopper first, and one for heads of more elements."""


@dataclass(frozen=True)
class Shape:
    """What decides which way is the fastest, beside the GPU and the dtype."""

    ladder: Ladder
    heads: Heads
    parts: tuple[Part, ...]
    causal: bool
    goes_on: bool

    @property
    def known_by(self) -> tuple[Ladder, Heads, bool, bool]:
        """What tells it from others of the same tensors."""
        return self.ladder, self.heads, self.causal, self.goes_on

    def by_parts(self, backend: str) -> ByParts:
        """Return the way of a kernel for each part."""
        return ByParts(self.parts, self.heads, self.causal, backend, self.goes_on)

    def one_kernel(self, tiling: Tiling, backward: str) -> OneKernel:
        """Return the way of one kernel for all of it."""
        return OneKernel(self.ladder, self.by_parts(backward), tiling)


def asked_for(backend: str, q: Tensor, shape: Shape) -> Own | None:
    """Return the way of a backend that was asked for; null: parts are computed and merged one by one."""
    if backend == "triton":
        check_kernels(q, backend)
        return shape.one_kernel(TILINGS[0], "flash")
    if backend not in {"cudnn", "flash"} or not triton_common.installed():
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
    return bool(q.is_cuda and half and shaped and triton_common.installed() and not triton_common.interpreted())


def fastest(given: Given, shape: Shape) -> Own:
    """Return the fastest way that is right for these tensors, raced once for each shape and kept in this process.

    While a CUDA graph is captured nothing can be raced, and PyTorch's flash attention is taken.
    """
    torch, (q, k, v) = import_torch(), given
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    key = (torch.cuda.get_device_name(q.device), q.dtype, tuple(q.shape), tuple(k.shape), *shape.known_by, backward)
    if key not in _kept:
        if torch.cuda.is_current_stream_capturing():
            return shape.by_parts("flash")
        with torch.no_grad():
            _kept[key] = raced((q.detach(), k.detach(), v.detach()), shape, backward=backward)
    return _kept[key]


_kept: dict[Any, Own] = {}
_races: list[dict[str, Any]] = []


def chosen() -> list[dict[str, Any]]:
    """Return what was raced in this process so far: for which shape, who won, and the times of all."""
    return list(_races)


def candidates(shape: Shape, *, backward: bool) -> dict[str, Own]:
    """Return the ways that are raced, by name."""
    backends: dict[str, Own] = {backend: shape.by_parts(backend) for backend in BY_PARTS}
    for tiling in TILINGS:
        name = f"triton {tiling.block_q} x {tiling.block_k}, {tiling.num_warps} warps, {tiling.num_stages} ahead"
        for after in BY_PARTS if backward else BY_PARTS[:1]:
            backends[f"{name}; backward {after}" if backward else name] = shape.one_kernel(tiling, after)
    return backends


def raced(given: Given, shape: Shape, *, backward: bool) -> Own:
    """Return the fastest of the ways that run here and are right."""
    from assay.timing.pick import pick

    backends = candidates(shape, backward=backward)
    grad_out = _drawn_like(given[0])
    calls = {
        name: partial(one_call, backend, given, grad_out if backward else None) for name, backend in backends.items()
    }
    reference = Truth.of(given, shape, grad_out if backward else None)
    try:
        picked = pick(calls, check=reference.told_by, device=str(given[0].device), cache="warm", budget_s=PICK_S)
    except AssayError as error:
        warnings.warn(f"No way to compute dilated attention was found to be right and raced: {error}", stacklevel=4)
        return shape.by_parts("flash")
    race = {
        "shape": list(given[0].shape),
        "dtype": str(given[0].dtype).removeprefix("torch."),
        "backward": backward,
        "winner": picked.winner,
        "time_us": {candidate.name: candidate.time_us for candidate in picked.ranking},
    }
    _races.append(race)
    return backends[picked.winner]


def _drawn_like(x: Tensor) -> Tensor:
    """Return random numbers that leave the random numbers of whoever called alone."""
    torch = import_torch()
    source = torch.Generator(device=x.device).manual_seed(0)
    return torch.randn(x.shape, generator=source, dtype=torch.float32, device=x.device).to(x.dtype)


def one_call(way: Own, given: Given, above: Tensor | None) -> tuple[Tensor, ...]:
    """Return the output and, given the gradient of it, those of q, k and v."""
    merged = way.forward(*given)
    rounded = merged._replace(out=merged.out.to(given[0].dtype))
    return (rounded.out,) if above is None else (rounded.out, *way.backward(above, given, rounded))


@dataclass(frozen=True)
class Truth:
    """What must be found for the first sequence, as far as its longest segment reaches: some rows, or all of them."""

    rows: Tensor
    wanted: tuple[Tensor, ...]
    furthest: float

    @classmethod
    def of(cls, given: Given, shape: Shape, above: Tensor | None) -> Self:
        """Return it in float64: all rows and gradients where that is soon done, otherwise some rows of the output."""
        torch = import_torch()
        span = max(part.segment for part in shape.parts)
        q, k, v = (x[:1, :span].flatten(2, 3) for x in given)
        furthest = FURTHEST_OFF[str(q.dtype).removeprefix("torch.")]
        if above is None or span > MOST_ROWS:
            rows = torch.linspace(0, span - 1, min(span, SOME_ROWS), device=q.device).long()
            return cls(rows, (dense(q, k, v, shape.ladder, shape.heads, causal=shape.causal, rows=rows),), furthest)
        gradient = above[:1, :span].flatten(2, 3)
        expected = blockwise(q, k, v, shape.ladder, shape.heads, gradient=gradient, causal=shape.causal)
        return cls(torch.arange(span, device=q.device), expected, furthest)

    def told_by(self, found: Any) -> bool:
        """Return whether a way's output, and its gradients, are what they must be."""
        pairs = zip(self.wanted, found, strict=False)
        return all(self._near(expected, output[:1].flatten(2, 3)[:, self.rows].double()) for expected, output in pairs)

    def _near(self, wanted: Tensor, found: Tensor) -> bool:
        return bool((found - wanted).abs().max() <= self.furthest * wanted.abs().max())
