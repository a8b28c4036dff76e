"""The flash kernels of PyTorch or of the package ``flash_attn``, and whether they can run here.

The kernels take (batch, position, head, dim) in any strides, with fewer heads of keys than of queries. Their causal
mask ends in the last key for the last query: query i of s attends to key j of n where j ≤ i + n − s. A query without
keys gives zeros.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.torch_device import Tensor

FlashAttend: TypeAlias = "Callable[[Tensor, Tensor, Tensor, int], Tensor]"
"""Causal attention of q, k, v, over at most this many keys left of the last one; negative: all."""

KERNELS = ("aten", "flash_attn")
FLASH_DTYPES = ("float16", "bfloat16")
LARGEST_HEAD, HEAD_STEP = 256, 8
LEAST_CAPABILITY = (8, 0)

_FLASH_MARK = "flash_fwd"
_PYTORCH_MARK = "pytorch_flash"
"""Parts of the names of flash kernels, and of those from PyTorch."""

_MISSING_MESSAGES = ("USE_FLASH_ATTENTION", "FlashAttention", "Could not run", "no kernel image")
"""PyTorch's messages for the lack of flash kernels."""


def check_head_dim(head_dim: int) -> None:
    """Refuse a head dimension that flash kernels do not support."""
    if head_dim % HEAD_STEP or head_dim > LARGEST_HEAD:
        raise BadInput(
            f"Flash kernels take heads of a multiple of {HEAD_STEP} up to {LARGEST_HEAD} elements, not of {head_dim}."
        )


def check_capability(gpu: str, capability: tuple[int, int]) -> None:
    """Refuse a GPU that is too old for flash kernels."""
    if tuple(capability) < LEAST_CAPABILITY:
        least, actual = (".".join(map(str, version)) for version in (LEAST_CAPABILITY, capability))
        raise MachineCannot(f"Flash kernels need a GPU of compute capability {least} or later; {gpu} has {actual}.")


def load_flash_kernel(kernel: str) -> FlashAttend:
    """Return attention by the flash kernels of PyTorch (``aten``) or of the package ``flash_attn``."""
    if kernel == "aten":
        return partial(_call_aten, import_torch().ops.aten)
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        raise MachineCannot(
            f"The package flash_attn cannot be imported here ({error}); kernel=aten takes PyTorch's own flash kernels."
        ) from error
    return partial(_call_package, flash_attn_func)


def _call_aten(aten: Any, q: Tensor, k: Tensor, v: Tensor, left: int) -> Tensor:
    return aten._flash_attention_forward(  # noqa: SLF001 - no public function supports a window
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, window_size_left=left, window_size_right=0
    )[0]


def _call_package(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, left: int) -> Tensor:
    return attend(q, k, v, causal=True, window_size=(left, 0))


def try_flash_call(call: Callable[[], Tensor]) -> None:
    """Make one call; raise if there are no flash kernels for it here."""
    try:
        call()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if type(error).__name__ == "OutOfMemoryError" or not any(words in reason for words in _MISSING_MESSAGES):
            raise
        raise MachineCannot(f"There are no flash kernels for this here: {reason[:200].rstrip('.')}.") from error


def check_kernel_used(kernel: str, kernels: tuple[str, ...]) -> str | None:
    """Return the flash kernels that ran; raise if none or other ones did; null where nothing was recorded."""
    if not kernels:
        return None
    flash = [name for name in kernels if _FLASH_MARK in name]
    used = None if not flash else "aten" if all(_PYTORCH_MARK in name for name in flash) else "flash_attn"
    if used != kernel:
        others = "no flash kernel among those that ran" if used is None else f"those that ran are of {used}"
        raise TrialFailed(f"attention was to run by the flash kernels of {kernel}, but {others}")
    return "flash" if kernel == "aten" else kernel
