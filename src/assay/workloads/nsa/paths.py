"""Paths to compute a branch: flash kernels, an explicit mask, and chunks of queries on a CPU.

masked      ``scaled_dot_product_attention`` with the mask written out, the baseline. The mask is made before anything
            is timed, as a model keeps it. The heads of a group get the same keys in memory, which costs nothing;
            ``enable_gqa`` would leave PyTorch only its slowest backend on a GPU.

chunks      On a CPU, where flash attention knows no window, some queries at a time over the keys they attend to, each
            chunk with a small mask of its own.

flash       sliding: one call, causal, with a window of ``window`` − 1 keys to the left.

            compressed: a query attends to one token more every ``stride`` queries: a staircase, which is no mask that
            the kernels know. Queries whose positions differ by the stride, though, attend to one token more each:

            query   0  1  2  3  4  5  6  7  8  9 10 11       stride 4, block 4
            keys    0  0  0  1  1  1  1  2  2  2  2  3
                       └───────────┴───────────┴──           every fourth query: a plain causal mask

  columns   So the queries are laid out in ``stride`` columns, each a sequence of its own over the same tokens, by
            strides alone; before, they are copied behind some rows of padding, so that columns begin together.
  groups    Or those with equally many keys are sequences of one call of variable length, all over the tokens from the
            first on. Nothing is copied, but most of a kernel's tile is empty: 16 of 128 rows hold queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads.base import one_line
from assay.workloads.nsa.branches import SlidingBranch, visible_mask
from assay.workloads.torch_device import FLASH_CAPABILITY, import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.nsa.branches import Branch, BranchInputs, CompressedBranch
    from assay.workloads.torch_device import Tensor

LAYOUTS = ("columns", "groups")


def flash_call(branch: Branch, inputs: BranchInputs, *, kernel: str, layout: str) -> Callable[[], Tensor]:
    """Return the call after one test; raise if this GPU or this PyTorch does not support it."""
    torch, device = import_torch(), inputs.q.device
    capability = torch.cuda.get_device_capability(device)
    if tuple(capability) < FLASH_CAPABILITY:
        gpu = torch.cuda.get_device_name(device)
        least, actual = (".".join(map(str, version)) for version in (FLASH_CAPABILITY, capability))
        raise MachineCannot(f"Flash kernels need a GPU of compute capability {least} or later; {gpu} has {actual}.")
    if isinstance(branch, SlidingBranch):
        call = flash_sliding(branch, inputs, load_flash_kernel(kernel))
    elif layout == "columns":
        call = flash_by_columns(branch, inputs, load_flash_kernel(kernel))
    else:
        call = flash_by_groups(branch, inputs, torch.ops.aten._flash_attention_forward)  # noqa: SLF001
    try_flash_call(call)
    return call


def flash_sliding(branch: SlidingBranch, inputs: BranchInputs, attend: FlashAttend) -> Callable[[], Tensor]:
    """Return the call of the sliding branch."""
    q, k, v = inputs.by_positions()
    left, heads = branch.window - 1, (branch.groups, branch.heads)

    def call() -> Tensor:
        return attend(q, k, v, left).transpose(1, 2).unflatten(1, heads)

    return call


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of the queries of the compressed branch in columns."""

    before: int  # rows of padding, so that the first query with keys is in the first column
    rows: int  # rows of all columns, the last perhaps incomplete: the tokens plus the rows without keys

    @classmethod
    def of(cls, branch: CompressedBranch) -> ColumnLayout:
        """Return the layout for a branch."""
        before = -(branch.block - 1) % branch.stride
        return cls(before, -(-(before + branch.sequence) // branch.stride))


def flash_by_columns(branch: CompressedBranch, inputs: BranchInputs, attend: FlashAttend) -> Callable[[], Tensor]:
    """Return the call of the compressed branch by columns; the output of the padding is ignored."""
    layout, dim = ColumnLayout.of(branch), branch.head_dim
    q = inputs.q.flatten(0, 2)
    heads, padded = q.shape[0], layout.rows * branch.stride
    own, whole = slice(layout.before, layout.before + branch.sequence), inputs.q.shape[:3]
    k, v = (x.flatten(0, 1).transpose(0, 1).expand(branch.stride, -1, -1, -1) for x in (inputs.k, inputs.v))

    def call() -> Tensor:
        at = q
        if padded != branch.sequence:
            at = q.new_empty((heads, padded, dim))
            at[:, own] = q
        out = attend(at.view(heads, layout.rows, branch.stride, dim).permute(2, 1, 0, 3), k, v, -1)
        return out.permute(2, 1, 0, 3).reshape(heads, padded, dim)[:, own].unflatten(0, whole)

    return call


def flash_by_groups(branch: CompressedBranch, inputs: BranchInputs, attend: Callable[..., Any]) -> Callable[[], Tensor]:
    """Return the call of the compressed branch by groups of queries with equally many keys.

    ``attend`` is PyTorch's operator for sequences of variable length. All of them begin at the first token.
    """
    torch = import_torch()
    q, k, v = (x.flatten(0, -3).transpose(0, 1) for x in (inputs.q, inputs.k, inputs.v))
    edges = [0, *range(branch.block - 1, branch.sequence, branch.stride), branch.sequence]
    longest, whole = max(after - before for before, after in pairwise(edges)), inputs.q.shape[:3]
    queries = torch.tensor(edges, dtype=torch.int32, device=q.device)
    tokens = torch.arange(len(edges) - 1, dtype=torch.int32, device=q.device)
    starts = torch.zeros_like(queries)

    def call() -> Tensor:
        out = attend(q, k, v, queries, starts, longest, branch.keys, 0.0, False, False, seqused_k=tokens)[0]
        return out.transpose(0, 1).unflatten(0, whole)

    return call


LARGEST_MASK = 2**31 - 1  # elements of one mask, which kernels count in 32 bits; longer sequences split their queries
_MASK_ELEMENTS_AT_ONCE = 2**26  # elements of a mask built at a time, with a few times as many bytes of temporary memory


@dataclass(frozen=True)
class MaskedCall:
    """Attention of all queries to all keys, with a mask."""

    torch: Any  # the module
    parts: tuple[tuple[Tensor, Tensor], ...]  # queries and their masks: one part unless the mask would be too large
    keys: Tensor  # the keys of all parts
    values: Tensor  # their values
    shape: tuple[int, ...]  # shape of the output
    zeroed: int = 0  # queries at the beginning whose output is set to zero afterwards, as the backend does not give it

    def __call__(self) -> Tensor:
        """Return the output as (batch, group, head, position, dim)."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        outputs = [attend(q, self.keys, self.values, attn_mask=mask) for q, mask in self.parts]
        out = outputs[0] if len(outputs) == 1 else self.torch.cat(outputs, 2)
        if self.zeroed:
            out[:, :, : self.zeroed] = 0
        return out.view(self.shape)


def masked_call(branch: Branch, inputs: BranchInputs, *, largest: int = LARGEST_MASK) -> MaskedCall:
    """Return the call, after one test of the backend's output for queries without keys."""
    q, keys, values = inputs.by_groups()
    rows = max(1, largest // branch.keys)
    parts = [slice(start, min(start + rows, branch.sequence)) for start in range(0, branch.sequence, rows)]
    with_masks = tuple((q[:, :, part], _build_mask(branch, part, str(q.device))) for part in parts)
    call = MaskedCall(import_torch(), with_masks, keys, values, tuple(inputs.q.shape))
    blind = branch.queries_without_keys
    if blind and bool((call()[:, :, :, :blind] != 0).any()):
        return replace(call, zeroed=blind)
    return call


def _build_mask(branch: Branch, part: slice, where: str) -> Tensor:
    """Return the mask of some queries, built in pieces."""
    torch = import_torch()
    mask = torch.empty((part.stop - part.start, branch.keys), dtype=torch.bool, device=where)
    step = max(1, _MASK_ELEMENTS_AT_ONCE // branch.keys)
    for start in range(part.start, part.stop, step):
        some = slice(start, min(start + step, part.stop))
        mask[start - part.start : some.stop - part.start] = visible_mask(branch, some, slice(None), where=where)
    return mask


MIN_QUERIES, MAX_QUERIES = 64, 512
"""Queries of a chunk: as many as the window is long where that is between these, so that half of its work is of use."""

COMPRESSED_QUERIES = 128  # queries per chunk of the compressed branch, which attends to all tokens up to its end


@dataclass(frozen=True)
class ChunkedCall:
    """Attention of chunks of queries: their queries, keys, values and mask; null: no mask."""

    torch: Any
    chunks: tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], ...]
    without_keys: Tensor
    shape: tuple[int, ...]

    def __call__(self) -> Tensor:
        """Return the output as (batch, group, head, position, dim)."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        outputs = [attend(q, k, v, attn_mask=mask) for q, k, v, mask in self.chunks]
        return self.torch.cat((self.torch.zeros_like(self.without_keys), *outputs), 2).view(self.shape)


def chunked_call(branch: Branch, inputs: BranchInputs, *, step: int | None = None) -> ChunkedCall:
    """Return the call; a chunk has ``step`` queries, or as many as suit the branch."""
    q, k, v = inputs.by_groups()
    first, end = branch.key_range()
    masks: dict[bytes, Tensor | None] = {}
    chunks = []
    if step is None:
        window = branch.window if isinstance(branch, SlidingBranch) else COMPRESSED_QUERIES
        step = min(MAX_QUERIES, max(MIN_QUERIES, window))
    for start in range(branch.queries_without_keys, branch.sequence, step):
        rows = slice(start, min(start + step, branch.sequence))
        keys = slice(int(first[rows].min()), int(end[rows].max()))
        alike = (first[rows] - keys.start).tobytes() + (end[rows] - keys.start).tobytes()
        if alike not in masks:
            mask = visible_mask(branch, rows, keys, where=str(q.device))
            masks[alike] = None if bool(mask.all()) else mask
        chunks.append((q[:, :, rows], k[:, :, keys], v[:, :, keys], masks[alike]))
    return ChunkedCall(import_torch(), tuple(chunks), q[:, :, : branch.queries_without_keys], tuple(inputs.q.shape))


FlashAttend: TypeAlias = "Callable[[Tensor, Tensor, Tensor, int], Tensor]"
"""Causal attention of q, k, v, over at most this many keys left of the last one; negative: all."""

KERNELS = ("aten", "flash_attn")
FLASH_DTYPES = ("float16", "bfloat16")
LARGEST_HEAD, HEAD_STEP = 256, 8

_FLASH_MARK = "flash_fwd"
_PYTORCH_MARK = "pytorch_flash"  # parts of the names of flash kernels, and of those from PyTorch

_MISSING_MESSAGES = ("USE_FLASH_ATTENTION", "FlashAttention", "Could not run", "no kernel image")
"""PyTorch's messages for the lack of flash kernels."""


def check_head_dim(head_dim: int) -> None:
    """Refuse a head dimension that flash kernels do not support."""
    if head_dim % HEAD_STEP or head_dim > LARGEST_HEAD:
        raise BadInput(
            f"Flash kernels take heads of a multiple of {HEAD_STEP} up to {LARGEST_HEAD} elements, not of {head_dim}."
        )


def load_flash_kernel(kernel: str) -> FlashAttend:
    """Return attention by the flash kernels of PyTorch (``aten``) or of the package ``flash_attn``."""
    if kernel == "aten":
        forward = import_torch().ops.aten._flash_attention_forward  # noqa: SLF001 - no public one has a window

        def call_aten(q: Tensor, k: Tensor, v: Tensor, left: int) -> Tensor:
            lengths, no_dropout, causal, no_debug_mask = (None, None, q.shape[1], k.shape[1]), 0.0, True, False
            window = {"window_size_left": left, "window_size_right": 0}
            return forward(q, k, v, *lengths, no_dropout, causal, no_debug_mask, **window)[0]

        return call_aten
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        raise MachineCannot(
            f"The package flash_attn cannot be imported here ({error}); kernel=aten takes PyTorch's own flash kernels."
        ) from error
    return lambda q, k, v, left: flash_attn_func(q, k, v, causal=True, window_size=(left, 0))


def try_flash_call(call: Callable[[], Tensor]) -> None:
    """Make one call; raise if there are no flash kernels for it here."""
    try:
        call()
    except RuntimeError as error:
        # PyTorch reports missing kernels by plain RuntimeErrors, of which only the message tells them apart
        if type(error).__name__ == "OutOfMemoryError" or not any(text in str(error) for text in _MISSING_MESSAGES):
            raise
        raise MachineCannot(f"There are no flash kernels for this here: {one_line(error).rstrip('.')}.") from error


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
