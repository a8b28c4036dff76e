"""Check a fast path of a branch against float64, beside masked attention in the same dtype.

Queries are checked in blocks, so that neither scores nor masks of all of them are ever held. Up to ``ALL_UP_TO``
queries all are checked; of longer sequences so many, in blocks spread over all of it by the seed, the first and the
last among them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from assay.workloads.nsa.branches import queries_first, visible_mask
from assay.workloads.parity import REPEATS, OutputErrors, compare_with_limits, max_error_limit, mean_error_limit
from assay.workloads.torch_device import import_torch
from assay.workloads.torch_support import TensorReference, spread_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Parity
    from assay.workloads.nsa.branches import Branch, BranchInputs
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import RowSelection


def exact_output(branch: Branch, inputs: BranchInputs, which: RowSelection) -> Tensor:
    """Return the output of some queries, as (query, batch, group, head, dim); zeros for those that see nothing."""
    torch = import_torch()
    device = inputs.q.device
    chosen = which if isinstance(which, slice) else which.cpu().numpy()
    first, end = (torch.from_numpy(bounds[chosen]).to(device)[:, None] for bounds in branch.key_range())
    q = inputs.q[:, :, :, which].double()
    low, high = int(first.min()), int(end.max())
    if high <= low:
        return torch.zeros_like(q).permute(3, 0, 1, 2, 4)
    k, v = (x[:, :, None, low:high].double() for x in (inputs.k, inputs.v))
    scores = q @ k.mT / math.sqrt(branch.head_dim)
    positions = torch.arange(low, high, device=device)
    scores.masked_fill_((positions < first) | (positions >= end), -math.inf)
    most = scores.amax(-1, keepdim=True)
    powers = (scores - most.masked_fill(most == -math.inf, 0.0)).exp()
    sums = powers.sum(-1, keepdim=True)
    out = powers @ v / sums.masked_fill(sums == 0, 1.0)
    return out.permute(3, 0, 1, 2, 4)


def branch_reference(branch: Branch, inputs: BranchInputs) -> TensorReference:
    """Return what the output must be; its rows are the queries, each of every head."""
    scores = branch.all_heads * branch.keys
    return TensorReference(
        branch.sequence,
        partial(exact_output, branch, inputs),
        flop_per_row=4.0 * scores * branch.head_dim,
        elements_per_row=scores,
    )


ALL_UP_TO = 2**14
"""Queries."""

SCORES_AT_ONCE = 2**23
"""64 MiB of float64, a few of which are held."""

LARGEST_BLOCK = 512
"""Queries."""


@dataclass
class ErrorSums:
    """Absolute errors, summed up as they come."""

    total: float = 0.0
    largest: float = 0.0
    reference_squares: float = 0.0
    count: int = 0

    def add(self, output: Tensor, expected: Tensor) -> None:
        """Add how far some of an output is from what it must be."""
        errors = (output.double() - expected).abs()
        self.total += float(errors.sum())
        worst = float(errors.max())
        self.largest = worst if worst > self.largest or math.isnan(worst) else self.largest
        self.reference_squares += float(expected.square().sum())
        self.count += errors.numel()

    @property
    def mean(self) -> float:
        """The mean error."""
        return self.total / self.count

    @property
    def size(self) -> float:
        """The root mean square of what was to be found."""
        return math.sqrt(self.reference_squares / self.count)


def measure_parity(branch: Branch, inputs: BranchInputs, call: Callable[[], Tensor], *, seed: int) -> Parity:
    """Return how a call's output compares with float64, and with masked attention in the same dtype."""
    out = call()
    chosen = query_blocks(branch, seed)
    checked = sum(rows.stop - rows.start for rows in chosen)
    measure = f"absolute error against float64, beside masked attention in {branch.dtype}"
    if checked < branch.sequence:
        measure += f", over {checked} of {branch.sequence} queries in {len(chosen)} blocks (seed {seed})"
    own, dense = ErrorSums(), ErrorSums()
    output = queries_first(out)
    for rows in chosen:
        reference = exact_output(branch, inputs, rows)
        own.add(output[rows], reference)
        dense.add(masked_attention(branch, inputs, rows), reference)
    finite = all(bool(part.isfinite().all()) for part in output.split(LARGEST_BLOCK))
    return compare_with_limits(
        OutputErrors(own.mean, own.largest, checked, branch.sequence, finite),
        measure=measure,
        mean_limit=mean_error_limit(branch.dtype),
        max_limit=max_error_limit(branch.dtype, dense.largest, own.size),
        dense_max_error=dense.largest,
        deterministic=all(same_bits(out, call()) for _ in range(REPEATS)),
    )


def query_blocks(branch: Branch, seed: int) -> list[slice]:
    """Return the blocks of queries that are looked at, in order."""
    size = LARGEST_BLOCK
    while size > 1 and size * branch.span(size) * branch.all_heads > SCORES_AT_ONCE:
        size //= 2
    starts = range(0, branch.sequence, size)
    chosen = set(range(len(starts)))
    if branch.sequence > ALL_UP_TO:
        chosen = {0, len(starts) - 1, *spread_rows(len(starts), ALL_UP_TO // size, seed).tolist()}
    return [slice(starts[index], min(starts[index] + size, branch.sequence)) for index in sorted(chosen)]


def masked_attention(branch: Branch, inputs: BranchInputs, rows: slice) -> Tensor:
    """Return masked attention of some queries in their own dtype, as (query, batch, group, head, dim)."""
    torch = import_torch()
    first, end = (positions[rows] for positions in branch.key_range())
    keys = slice(int(first.min()), int(end.max()))
    q, k, v = inputs.by_groups()
    if keys.stop <= keys.start:
        out = torch.zeros_like(q[:, :, rows])
    else:
        mask = visible_mask(branch, rows, keys, where=str(q.device))
        out = torch.nn.functional.scaled_dot_product_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask)
        out[:, :, : int((end <= first).sum())] = 0
    return queries_first(out.unflatten(0, (branch.batch, branch.groups)))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits, whichever way they lie in memory."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    as_bytes = import_torch().uint8
    return bool(one.contiguous().view(as_bytes).equal(other.contiguous().view(as_bytes)))
