"""Whether GPUs under load have become steady: clocks and temperatures over time go in, a judgement comes out.

A sensor of whole degrees shows a slow drift only as a step now and then: a window without one, or in which it jumps
back and forth, is steady. A clock under a power cap jumps about; its mean over half a window is compared with that over
the other half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import GpuMoment

WINDOW_S = 20.0
"""So far back is looked, or as far as there is."""
SHORTEST_S = 3.0
FEWEST = 5
MOST_DRIFT_C = 1.0
"""A minute."""
RESOLUTION_C = 1.0
MOST_CLOCK_CHANGE = 0.01

Point = tuple[float, float]
"""When, in seconds, and what was read."""


@dataclass(frozen=True)
class Drift:
    """How fast a temperature moves, in °C a minute, and how well that is known; one rounding can put it off further."""

    slope_c: float
    error_c: float


@dataclass
class Trace:
    """What was read of one GPU; null readings are left out."""

    temperature: list[Point] = field(default_factory=list)
    clock: list[Point] = field(default_factory=list)

    def add(self, t_s: float, seen: GpuMoment) -> None:
        """Take a reading."""
        if seen.temperature_c is not None:
            self.temperature.append((t_s, float(seen.temperature_c)))
        if seen.sm_mhz is not None:
            self.clock.append((t_s, float(seen.sm_mhz)))

    def unsteady(self) -> str | None:
        """Return what is not steady yet; null where all that can be read is."""
        if not self.temperature and not self.clock:
            return "neither temperature nor clock can be read"
        problems = [unsteady_heat(self.temperature), unsteady_clock(self.clock)]
        return "; ".join(problem for problem in problems if problem is not None) or None


def window(points: Sequence[Point]) -> list[Point]:
    """Return the last points, as far back as is looked."""
    return [point for point in points if point[0] >= points[-1][0] - WINDOW_S]


def unsteady_heat(points: Sequence[Point]) -> str | None:
    """Return why a temperature is not steady; null where it is, or none was read."""
    if not points:
        return None
    drift = drift_of(points)
    if drift is None:
        return "it was not watched for long enough"
    low_c, high_c = _extent(window(points))
    if high_c - low_c < RESOLUTION_C:
        return None
    if abs(drift.slope_c) <= MOST_DRIFT_C and drift.error_c <= MOST_DRIFT_C:
        return None
    return f"its temperature moves by {drift.slope_c:+.1f} ± {drift.error_c:.1f} °C a minute"


def drift_of(points: Sequence[Point]) -> Drift | None:
    """Return how fast a temperature moves, from a line through its last points; null where there are too few.

    What rounding to whole degrees does to it counts in its error, also where all points are the same.
    """
    recent = window(points) if points else []
    if len(recent) < FEWEST or recent[-1][0] - recent[0][0] < SHORTEST_S:
        return None
    mean_t = math.fsum(t for t, _ in recent) / len(recent)
    mean_c = math.fsum(c for _, c in recent) / len(recent)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in recent)
    slope = math.fsum((t - mean_t) * (c - mean_c) for t, c in recent) / spread
    rest = math.fsum((c - mean_c - slope * (t - mean_t)) ** 2 for t, c in recent) / (len(recent) - 2)
    return Drift(60 * slope, 60 * math.sqrt(max(rest, RESOLUTION_C**2 / 12) / spread))


def unsteady_clock(points: Sequence[Point]) -> str | None:
    """Return why a clock is not steady; null where it is, or none was read."""
    if not points:
        return None
    recent = window(points)
    if len(recent) < FEWEST or recent[-1][0] - recent[0][0] < SHORTEST_S:
        return "it was not watched for long enough"
    halves = recent[: len(recent) // 2], recent[len(recent) // 2 :]
    before, after = (math.fsum(mhz for _, mhz in half) / len(half) for half in halves)
    allowed = max(MOST_CLOCK_CHANGE * before, 2 * math.hypot(*(_error(half) for half in halves)))
    if abs(after - before) <= allowed:
        return None
    return f"its SM clock went from {before:.0f} to {after:.0f} MHz"


def _error(points: Sequence[Point]) -> float:
    """Return how well a mean is known, from how much neighbours differ: a slow change is no noise."""
    differences = [(later[1] - earlier[1]) ** 2 for earlier, later in pairwise(points)]
    if not differences:
        return 0.0
    return math.sqrt(math.fsum(differences) / len(differences) / 2 / len(points))


def _extent(points: Sequence[Point]) -> tuple[float, float]:
    values = [value for _, value in points]
    return min(values), max(values)
