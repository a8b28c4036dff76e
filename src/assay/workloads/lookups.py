"""Which rows of a table are looked up: evenly, or a few of them far more often than the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from assay.workloads.data import Shape
    from assay.workloads.torch_device import Tensor

INDICES = ("uniform", "zipf")
LARGEST_ALPHA = 4.0
_STREAM = 1


def check_alpha(alpha: object) -> float:
    """Return the exponent of Zipf's law, a number above 0."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= LARGEST_ALPHA:
        raise BadInput(f"alpha is a number above 0 and at most {LARGEST_ALPHA:g}, not {alpha!r}.")
    return float(alpha)


def look_up(indices: str, rows: int, shape: Shape, seed: int, *, alpha: float, where: str) -> Tensor:
    """Return the numbers of the rows to look up, drawn by the host and so the same on every device."""
    generator = np.random.default_rng([seed, _STREAM])
    if indices == "uniform":
        return import_torch().from_numpy(generator.integers(0, rows, shape, dtype=np.int64)).to(where)
    return _zipf(rows, generator.random(math.prod(shape)), alpha, where).view(shape)


def _zipf(rows: int, drawn: np.ndarray[tuple[int], np.dtype[np.float64]], alpha: float, where: str) -> Tensor:
    """Return rows by Zipf's law: the r-th most wanted one is wanted 1/r^alpha times as often as the first.

    The most wanted ones are scattered over the table, as they are in a hashed one.
    """
    torch = import_torch()
    cumulative = torch.arange(1, rows + 1, dtype=torch.float64, device=where).pow_(-alpha).cumsum_(0)
    ranks = torch.searchsorted(cumulative, torch.from_numpy(drawn).to(where) * cumulative[-1]).clamp_(max=rows - 1)
    return ranks.mul_(_step(rows)).remainder_(rows)


def _step(rows: int) -> int:
    """Return a step near the golden section of the rows that reaches every row before any row twice."""
    step = max(1, int(rows * 0.6180339887498949))
    while math.gcd(step, rows) != 1:
        step += 1
    return step
