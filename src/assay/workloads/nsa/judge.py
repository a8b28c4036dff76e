"""Whether a fast path of a branch may stand for it: against float64, beside masked attention in the same dtype.

Queries are looked at in blocks, so that neither scores nor masks of all of them are ever held. Up to ``ALL_UP_TO``
queries all are looked at; of longer sequences so many, in blocks spread over all of it by the seed, the first and the
last among them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.workloads.nsa.reference import right
from assay.workloads.nsa.tensors import queries_first, visible
from assay.workloads.parity import REPEATS, Seen, judged, max_limit, mean_limit
from assay.workloads.torch_check import spread
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Parity
    from assay.workloads.nsa.branches import Branch
    from assay.workloads.nsa.tensors import Inputs
    from assay.workloads.torch_device import Tensor

ALL_UP_TO = 2**14
"""Queries."""

SCORES_AT_ONCE = 2**23
"""64 MiB of float64, a few of which are held."""

LARGEST_BLOCK = 512
"""Queries."""


@dataclass
class Errors:
    """Absolute errors, summed up as they come."""

    total: float = 0.0
    largest: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, found: Tensor, right: Tensor) -> None:
        """Add how far some of an output is from what it must be."""
        errors = (found.double() - right).abs()
        self.total += float(errors.sum())
        worst = float(errors.max())
        self.largest = worst if worst > self.largest or math.isnan(worst) else self.largest
        self.squares += float(right.square().sum())
        self.count += errors.numel()

    @property
    def mean(self) -> float:
        """The mean error."""
        return self.total / self.count

    @property
    def size(self) -> float:
        """The root mean square of what was to be found."""
        return math.sqrt(self.squares / self.count)


def parity(branch: Branch, given: Inputs, call: Callable[[], Tensor], *, seed: int) -> Parity:
    """Return how a call's output compares with float64, and with masked attention in the same dtype."""
    out = call()
    chosen = blocks(branch, seed)
    checked = sum(rows.stop - rows.start for rows in chosen)
    measure = f"absolute error against float64, beside masked attention in {branch.dtype}"
    if checked < branch.sequence:
        measure += f", over {checked} of {branch.sequence} queries in {len(chosen)} blocks (seed {seed})"
    own, dense = Errors(), Errors()
    output = queries_first(out)
    for rows in chosen:
        reference = right(branch, given, rows)
        own.add(output[rows], reference)
        dense.add(plain(branch, given, rows), reference)
    finite = all(bool(part.isfinite().all()) for part in output.split(LARGEST_BLOCK))
    return judged(
        Seen(own.mean, own.largest, checked, branch.sequence, finite),
        measure=measure,
        mean_limit=mean_limit(branch.dtype),
        max_limit=max_limit(branch.dtype, dense.largest, own.size),
        dense_max_error=dense.largest,
        deterministic=all(same_bits(out, call()) for _ in range(REPEATS)),
    )


def blocks(branch: Branch, seed: int) -> list[slice]:
    """Return the blocks of queries that are looked at, in order."""
    size = LARGEST_BLOCK
    while size > 1 and size * branch.span(size) * branch.all_heads > SCORES_AT_ONCE:
        size //= 2
    starts = range(0, branch.sequence, size)
    chosen = set(range(len(starts)))
    if branch.sequence > ALL_UP_TO:
        chosen = {0, len(starts) - 1, *spread(len(starts), ALL_UP_TO // size, seed).tolist()}
    return [slice(starts[index], min(starts[index] + size, branch.sequence)) for index in sorted(chosen)]


def plain(branch: Branch, given: Inputs, rows: slice) -> Tensor:
    """Return masked attention of some queries in their own dtype, as (query, batch, group, head, dim)."""
    torch = import_torch()
    first, end = (positions[rows] for positions in branch.seen())
    keys = slice(int(first.min()), int(end.max()))
    q, k, v = given.by_groups()
    if keys.stop <= keys.start:
        out = torch.zeros_like(q[:, :, rows])
    else:
        mask = visible(branch, rows, keys, where=str(q.device))
        out = torch.nn.functional.scaled_dot_product_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask)
        out[:, :, : int((end <= first).sum())] = 0
    return queries_first(out.unflatten(0, (branch.batch, branch.groups)))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits, whichever way they lie in memory."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    as_bytes = import_torch().uint8
    return bool(one.contiguous().view(as_bytes).equal(other.contiguous().view(as_bytes)))
