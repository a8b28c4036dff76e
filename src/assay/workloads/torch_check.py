"""Compare a tensor with its float64 reference: all of it, or rows spread over all of it where that would take long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Check
from assay.workloads.reference import MEASURE
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_reference import Which

MOST_FLOP = {"cuda": 4e11, "cpu": 5e9}
"""What a check may take, by kind of device: well under a second."""

FLOP_PER_ELEMENT = 100.0
"""What an element read and written counts for beside the arithmetic."""

FEWEST_ROWS, MOST_ROWS = 64, 2**20
"""How many rows are judged where it is not all of them."""

_ELEMENTS_AT_ONCE = 2**25
"""256 MiB of float64."""


@dataclass(frozen=True)
class Truth:
    """The reference of an output, by its rows, which are the first axis.

    Attributes:
        rows: How many there are.
        of: Returns some of them in float64.
        flop_per_row: Floating-point operations to compute one.
        elements_per_row: Float64 elements held while one is computed.
    """

    rows: int
    of: Callable[[Which], Tensor]
    flop_per_row: float
    elements_per_row: float

    def rows_within(self, flop: float) -> int:
        """Return how many rows are judged for so many operations: all, or not too few and not too many."""
        cost = self.flop_per_row + FLOP_PER_ELEMENT * self.elements_per_row
        affordable = max(FEWEST_ROWS, int(flop / cost))
        return self.rows if affordable >= self.rows else min(affordable, MOST_ROWS)


def compare(out: Tensor, truth: Truth, *, tolerance: float, seed: int) -> Check:
    """Return the relative error of an output, and which rows it was taken over where not over all.

    A wrong shape, and a NaN or an infinity anywhere, give infinity, which no tolerance admits.
    """
    count = truth.rows_within(MOST_FLOP[out.device.type])
    if count == truth.rows:
        return Check(error=_error(out, truth, None), tolerance=tolerance, measure=MEASURE)
    chosen = spread(truth.rows, count, seed)
    measure = f"{MEASURE} over {count} of {truth.rows} rows, one at random from each of {count} bands (seed {seed})"
    error = _error(out, truth, chosen) if _is_finite(out) else math.inf
    return Check(error=error, tolerance=tolerance, measure=measure)


def spread(rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return one random row out of each of ``count`` equal bands of the rows, in order."""
    edges = np.arange(count + 1, dtype=np.int64) * rows // count
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def _is_finite(out: Tensor) -> bool:
    step = max(1, _ELEMENTS_AT_ONCE // max(1, out[0].numel()))
    return all(bool(part.isfinite().all()) for part in out.split(step))


def _error(out: Tensor, truth: Truth, chosen: NDArray[np.int64] | None) -> float:
    if out.shape[0] != truth.rows:
        return math.inf
    difference = norm = 0.0
    for which in _parts(truth, chosen, out.device):
        right = truth.of(which)
        values = out[which].double()
        if values.shape != right.shape:
            return math.inf
        difference += float((values - right).square().sum())
        norm += float(right.square().sum())
    if norm == 0:
        return 0.0 if difference == 0 else math.inf
    error = math.sqrt(difference / norm)
    return error if math.isfinite(error) else math.inf


def _parts(truth: Truth, chosen: NDArray[np.int64] | None, device: object) -> Iterator[Which]:
    """Yield the rows to judge, as many at a time as memory allows."""
    step = max(1, int(_ELEMENTS_AT_ONCE / truth.elements_per_row))
    if chosen is None:
        for start in range(0, truth.rows, step):
            yield slice(start, start + step)
    else:
        yield from import_torch().from_numpy(chosen).to(device).split(step)
