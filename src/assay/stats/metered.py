"""What several processes say of a number that a sensor read in each: joules per token, watts.

One process is one draw, and what differs between processes is seen in their spread. How far the sensor may be off in
a window is known beside it, and repeating does not show all of that: its lag is the same in every window. So the
interval has two parts that add in squares: Student's t over the processes, and the sensor's own bound, once, as if it
were off in every window alike. What of its error differs from window to window is then in both, which makes the
interval wider than it must be, and never too narrow.

Windows that the sensor knows better count for more, as far as processes are alike (DerSimonian and Laird; the spread
is that of Hartung and Knapp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

DEVIATIONS = 1.96
"""Standard deviations in half of a sensor's interval."""


@dataclass(frozen=True)
class Draw:
    """What one process gave; ``share`` is how far its sensor may be off, half an interval over the value."""

    value: float
    share: float | None = None


@dataclass(frozen=True)
class Typical:
    """The typical process: its value, the interval, and how it was found. Without ends too little is known."""

    value: float
    low: float | None
    high: float | None
    method: str


def typical(draws: Sequence[Draw], confidence: float = CONFIDENCE) -> Typical:
    """Return what one or more processes say."""
    if len(draws) == 1:
        return _of_one(draws[0])
    values = np.array([draw.value for draw in draws])
    relative = bool(values.min() > 0)
    shares = np.array([draw.share for draw in draws if draw.share is not None])
    known = relative and len(shares) == len(draws)
    scaled = np.log(values) if relative else values
    weights = _weights(scaled, shares / DEVIATIONS) if known else np.full(len(draws), 1.0)
    weights = weights / weights.sum()
    centre = float(weights @ scaled)
    spread = math.sqrt(float(weights @ (scaled - centre) ** 2) / (len(draws) - 1))
    half = quantile(confidence, len(draws) - 1) * spread
    how = f"{'geometric ' if relative else ''}mean of {len(draws)} processes, Student's t over them"
    if known:
        half = math.hypot(half, float(weights @ shares))
        how += ", and the sensor's own interval once, added in squares"
    ends = (centre, centre - half, centre + half)
    value, low, high = (math.exp(end) for end in ends) if relative else ends
    return Typical(value, low, high, how)


def _of_one(draw: Draw) -> Typical:
    if draw.share is None:
        return Typical(draw.value, None, None, "one process; too little for an interval")
    off = abs(draw.value) * draw.share
    return Typical(draw.value, draw.value - off, draw.value + off, "one process, the sensor's own interval")


def _weights(logs: Samples, errors: Samples) -> Samples:
    """Return how much each process counts: as much as it is known, once what differs between processes is added."""
    if errors.min() <= 0:
        return np.full(len(logs), 1.0)
    precise = 1 / errors**2
    centre = float(precise @ logs) / precise.sum()
    strays = float(precise @ (logs - centre) ** 2) - (len(logs) - 1)
    scale = float(precise.sum() - (precise**2).sum() / precise.sum())
    between = max(0.0, strays / scale)
    return np.asarray(1 / (errors**2 + between), dtype=np.float64)
