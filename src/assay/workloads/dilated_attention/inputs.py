"""Whether tensors are what attention takes, or in one sentence why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.workloads.torch_device import Tensor


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse what is not (batch, sequence, heads, dim) of one dtype and device."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise BadInput(f"{name} has {x.ndim} axes, not the four of (batch, sequence, heads, dim).")
        if 0 in x.shape:
            raise BadInput(f"{name} of shape {tuple(x.shape)} is empty.")
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise BadInput(f"q is {q.dtype} on {q.device}, but {name} is {x.dtype} on {x.device}.")
    if not q.is_floating_point():
        raise BadInput(f"Attention is of floating-point numbers, not of {q.dtype}.")
    if k.shape != v.shape:
        raise BadInput(f"k has shape {tuple(k.shape)} but v has {tuple(v.shape)}.")
    if (q.shape[0], q.shape[1], q.shape[3]) != (k.shape[0], k.shape[1], k.shape[3]):
        raise BadInput(f"q of shape {tuple(q.shape)} and k of {tuple(k.shape)} differ in more than their heads.")


def check_mask(mask: Tensor | None, shape: tuple[int, int]) -> None:
    """Refuse a mask of keys that is not one truth value to each position of each whole sequence."""
    if mask is not None and (tuple(mask.shape) != shape or str(mask.dtype) != "torch.bool"):
        raise BadInput(
            f"key_padding_mask is of shape {shape} and dtype bool, not {tuple(mask.shape)} and {mask.dtype}."
        )
