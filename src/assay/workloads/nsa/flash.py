"""A branch by flash kernels, in forms that they know.

sliding     One call: causal, with a window of ``window`` − 1 keys to the left.

compressed  A query sees one token more every ``stride`` queries: a staircase, and no mask that the kernels know.
            Queries whose places differ by the stride, though, see one token more each:

            query   0  1  2  3  4  5  6  7  8  9 10 11       stride 4, block 4
            sees    0  0  0  1  1  1  1  2  2  2  2  3
                       └───────────┴───────────┴──           every fourth query: a plain causal mask

  columns   So the queries are laid out in ``stride`` columns, each a sequence of its own over the same tokens, by
            strides alone; before, they are copied behind some rows of padding, so that columns begin together.
  groups    Or those that see as much are sequences of one call of variable length, all over the tokens from the
            first on. Nothing is copied, but most of a kernel's tile is empty: 16 of 128 rows hold queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from assay.workloads.nsa import kernels
from assay.workloads.nsa.branches import Sliding
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.nsa.branches import Branch, Compressed
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor

WAYS = ("columns", "groups")


def flash(branch: Branch, given: Inputs, *, kernel: str, way: str) -> Callable[[], Tensor]:
    """Return the call, tried out once, or say why this GPU or this PyTorch cannot make it."""
    cuda = import_torch().cuda
    kernels.refuse_old(cuda.get_device_name(given.q.device), cuda.get_device_capability(given.q.device))
    if isinstance(branch, Sliding):
        call = sliding(branch, given, kernels.by(kernel))
    elif way == "columns":
        call = columns(branch, given, kernels.by(kernel))
    else:
        call = groups(branch, given, import_torch().ops.aten._flash_attention_forward)  # noqa: SLF001
    kernels.try_out(call)
    return call


def sliding(branch: Sliding, given: Inputs, attend: kernels.Attend) -> Callable[[], Tensor]:
    """Return the call of the sliding branch."""
    q, k, v = given.by_positions()
    left, heads = branch.window - 1, (branch.groups, branch.heads)

    def call() -> Tensor:
        return attend(q, k, v, left).transpose(1, 2).unflatten(1, heads)

    return call


@dataclass(frozen=True)
class Layout:
    """How the queries of the compressed branch are laid out in columns.

    Attributes:
        before: Rows of padding, so that the first query that sees something is in the first column.
        rows: Rows of all columns, the last perhaps not full: as many more than tokens as rows see nothing.
    """

    before: int
    rows: int

    @classmethod
    def of(cls, branch: Compressed) -> Layout:
        """Return the layout for a branch."""
        before = -(branch.block - 1) % branch.stride
        return cls(before, -(-(before + branch.sequence) // branch.stride))


def columns(branch: Compressed, given: Inputs, attend: kernels.Attend) -> Callable[[], Tensor]:
    """Return the call of the compressed branch by columns; what the padding gives is never looked at."""
    layout, dim = Layout.of(branch), branch.head_dim
    q = given.q.flatten(0, 2)
    heads, padded = q.shape[0], layout.rows * branch.stride
    own, whole = slice(layout.before, layout.before + branch.sequence), given.q.shape[:3]
    k, v = (x.flatten(0, 1).transpose(0, 1).expand(branch.stride, -1, -1, -1) for x in (given.k, given.v))

    def call() -> Tensor:
        at = q
        if padded != branch.sequence:
            at = q.new_empty((heads, padded, dim))
            at[:, own] = q
        out = attend(at.view(heads, layout.rows, branch.stride, dim).permute(2, 1, 0, 3), k, v, -1)
        return out.permute(2, 1, 0, 3).reshape(heads, padded, dim)[:, own].unflatten(0, whole)

    return call


def groups(branch: Compressed, given: Inputs, attend: Callable[..., Any]) -> Callable[[], Tensor]:
    """Return the call of the compressed branch by groups of queries that see as much.

    ``attend`` is PyTorch's operator for sequences of variable length. All of them begin at the first token.
    """
    torch = import_torch()
    q, k, v = (x.flatten(0, -3).transpose(0, 1) for x in (given.q, given.k, given.v))
    edges = [0, *range(branch.block - 1, branch.sequence, branch.stride), branch.sequence]
    longest, whole = max(after - before for before, after in pairwise(edges)), given.q.shape[:3]
    queries = torch.tensor(edges, dtype=torch.int32, device=q.device)
    tokens = torch.arange(len(edges) - 1, dtype=torch.int32, device=q.device)
    starts = torch.zeros_like(queries)

    def call() -> Tensor:
        out = attend(q, k, v, queries, starts, longest, branch.keys, 0.0, False, False, seqused_k=tokens)[0]
        return out.transpose(0, 1).unflatten(0, whole)

    return call
