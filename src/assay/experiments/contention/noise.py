"""The noise budget: where the spread of a single timing comes from, as parts that add up in squares.

    log time − its level in quiet  =  within the process  +  from start to start  +  drift  +  neighbours  +  rest

Each part is a standard deviation of log time; neighbours are a shift, and count with its size. What sampling error
alone would show is taken off each part. The rest is what these parts do not explain together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.effects import differences
from assay.experiments.contention.options import CROWDED, QUIET
from assay.stats.intervals import effective_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.experiments.contention.cells import Layout
    from assay.experiments.contention.effects import Table
    from assay.experiments.contention.options import Phase
    from assay.experiments.contention.places import Cell, Place

    Samples = NDArray[np.float64]

PARTS = {
    "within": "within a process",
    "starts": "from start to start",
    "drift": "by drift over the run",
    "neighbours": "by neighbours",
    "rest": "rest",
}
"""The parts in words."""


@dataclass(frozen=True)
class Budget:
    """Variances of log time by part, in one condition; ``total`` is the mean square distance from quiet."""

    condition: str
    parts: dict[str, float]
    total: float

    def spread(self, part: str) -> float:
        """Return a part as a standard deviation, as a share of the time."""
        return math.expm1(math.sqrt(self.parts[part]))

    @property
    def largest(self) -> str:
        """The part that adds most."""
        return max((part for part in self.parts if part != "rest"), key=lambda part: self.parts[part])


def budgets(layout: Layout, quantity: str) -> list[Budget]:
    """Return the budget of a timing alone, and of one in each phase with company, as far as they were measured."""
    cells = [cell for cell in layout.cells if cell.quantity == quantity]
    table: Table = {}
    for cell in cells:
        table.setdefault((cell.phase, cell.place), {})[cell.block] = float(cell.logs.mean())
    drift = _drift([cell for cell in cells if cell.phase in QUIET])
    conditions: dict[str, tuple[Phase, ...]] = {"alone": QUIET, **{phase: (phase,) for phase in CROWDED}}
    candidates = [_budget(cells, table, name, phases, drift) for name, phases in conditions.items()]
    return [budget for budget in candidates if budget is not None]


@dataclass(frozen=True)
class _Drift:
    """A straight line through the levels in quiet over the run: per second, and the variance it adds."""

    per_s: float = 0.0
    variance: float = 0.0
    middle_s: float = 0.0

    def at(self, second: float) -> float:
        return self.per_s * (second - self.middle_s)


def _drift(cells: Sequence[Cell]) -> _Drift:
    """Return the drift that quiet cells show beyond what their scatter would by chance."""
    slots = sorted({cell.place for cell in cells})
    freedom = len(cells) - len(slots) - 1
    if freedom < 1:
        return _Drift()
    index = np.array([slots.index(cell.place) for cell in cells])
    levels, times = np.array([cell.logs.mean() for cell in cells]), np.array([cell.at_s for cell in cells])
    y, t = (_centred(values, index, len(slots)) for values in (levels, times))
    weight = float(t @ t)
    if weight == 0:
        return _Drift()
    slope = float(t @ y) / weight
    error = float(np.sum((y - slope * t) ** 2)) / freedom / weight
    real = max(0.0, slope**2 - error)
    return _Drift(math.copysign(math.sqrt(real), slope), real * weight / len(t), float(times.mean()))


def _centred(values: Samples, index: NDArray[np.int_], groups: int) -> Samples:
    means = np.array([values[index == group].mean() for group in range(groups)])
    return np.asarray(values - means[index], dtype=np.float64)


def _budget(
    cells: Sequence[Cell], table: Table, condition: str, phases: tuple[Phase, ...], drift: _Drift
) -> Budget | None:
    quiet = {slot: level for _, slot in table if (level := _quiet(table, slot)) is not None}
    mine = [cell for cell in cells if cell.phase in phases and cell.place in quiet]
    if not mine:
        return None
    parts = {
        "within": float(np.mean([cell.logs.var() for cell in mine])),
        "starts": _starts(mine, drift),
        "drift": drift.variance,
        "neighbours": _neighbours(table, phases[0]) if phases[0] in CROWDED else 0.0,
    }
    total = float(np.mean([np.mean((cell.logs - quiet[cell.place]) ** 2) for cell in mine]))
    return Budget(condition, {**parts, "rest": max(0.0, total - sum(parts.values()))}, total)


def _quiet(table: Table, place: Place) -> float | None:
    """Return a place's level alone, over all blocks; null where it was never measured."""
    levels = [level for phase in QUIET for level in table.get((phase, place.alone), {}).values()]
    return float(np.mean(levels)) if levels else None


def _starts(cells: Sequence[Cell], drift: _Drift) -> float:
    """Return the variance of processes about the mean of their place and phase, less what sampling explains."""
    groups: dict[tuple[Place, Phase], list[float]] = {}
    for cell in cells:
        groups.setdefault((cell.place, cell.phase), []).append(float(cell.logs.mean()) - drift.at(cell.at_s))
    several = [np.array(levels) for levels in groups.values() if len(levels) > 1]
    if not several:
        return 0.0
    freedom = sum(len(levels) - 1 for levels in several)
    scatter = sum(float(np.sum((levels - levels.mean()) ** 2)) for levels in several) / freedom
    by_chance = float(np.mean([cell.logs.var() / effective_size(cell.samples) for cell in cells]))
    return max(0.0, scatter - by_chance)


def _neighbours(table: Table, phase: Phase) -> float:
    """Return the mean square shift against quiet, less what the scatter of blocks would show without one."""
    shifts = []
    for slot in sorted({slot for table_phase, slot in table if table_phase == phase}):
        logs = np.array(list(differences(table, phase, slot).values()))
        if len(logs):
            chance = float(logs.var(ddof=1)) / len(logs) if len(logs) > 1 else 0.0
            shifts.append(max(0.0, float(logs.mean()) ** 2 - chance))
    return float(np.mean(shifts)) if shifts else 0.0
