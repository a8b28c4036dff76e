"""Which points to measure in the next process.

Starting a process takes longer than timing most points, so that each looks at several:

    first     the largest size, the smallest, and some between        ●───────●───────●───────●
    then      what lies between the largest that fails and the        ✗───────✗──●─●──?───────✓
              smallest that clears, and what is still open; while
              that is the largest of all, nothing else
    last      once more those that carry the answer: what differs                  ✗──✓
              between processes is not seen in one
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.experiments.threshold.options import FEWEST_BLOCKS
from assay.stats.crossover import LOOKS, next_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.threshold.cells import Cell, Judged

COARSE = 5
"""Sizes that are looked at first."""
FRESH = 6
"""Sizes between a failing and a clearing one that are looked at in one process."""
SETTLED = 4
"""Sizes at least that two processes look at, where there are so many, so that what differs between them is seen."""


def places(judged: Judged) -> list[int]:
    """Return the places of the cells to look at next, the largest first; none where it is decided."""
    cells = judged.cells
    if not judged.measured:
        return spread(range(len(cells)), COARSE)[::-1]
    decision, chosen = judged.decision, set[int]()
    following = next_place([cell.decisive for cell in cells])
    if following is not None:
        stretch = (
            range(following, decision.place) if following == len(cells) - 1 else range(decision.low, decision.place)
        )
        chosen |= set(spread([index for index in stretch if cells[index].decisive is None], FRESH))
        chosen |= {index for index in stretch if _can_close(cells[index])}
    chosen |= _unsettled(judged)
    return sorted(chosen, reverse=True)


def _can_close(cell: Cell) -> bool:
    """Return whether a cell is open, and more pairs may close it."""
    bound = cell.decisive
    return bound is not None and bound.state == "open" and bound.pairs < LOOKS[-1]


def _unsettled(judged: Judged) -> set[int]:
    """Return the cells that need a second process: both sides of the answer, the largest, and some near the margin.

    On the largest every answer rests, also that of another margin later.
    """
    cells, decision = judged.cells, judged.decision
    measured = [index for index, cell in enumerate(cells) if cell.decisive is not None and cell.processes]
    carrying = [index for index in {decision.place, decision.low - 1, len(cells) - 1} if index in measured]
    settled = {index for index in measured if cells[index].processes >= FEWEST_BLOCKS}
    chosen = {index for index in carrying if index not in settled}
    others = sorted((index for index in measured if index not in settled | chosen), key=lambda p: distance(judged, p))
    lacking = SETTLED - len(settled) - len(chosen)
    return chosen | set(others[: max(0, lacking)])


def distance(judged: Judged, place: int) -> float:
    """Return how far a cell's mean is from the margin, as the logarithm of a ratio."""
    bound = judged.cells[place].decisive
    return math.inf if bound is None else abs(bound.mean - math.log(judged.threshold.margin))


def spread(among: Sequence[int], most: int) -> list[int]:
    """Return so many of some places at the most, the ends among them, the others evenly between."""
    count = len(among)
    if count <= most:
        return list(among)
    return sorted({among[round(step * (count - 1) / (most - 1))] for step in range(most)})


def points(judged: Judged, place: int) -> list[int]:
    """Return the points of a cell that are worth a look: those that fail where one does, all that are not closed."""
    numbers = judged.cells[place].points
    failing = [n for n in numbers if (bound := judged.points[n].decisive) is not None and bound.state == "fails"]
    if failing:
        return [n for n in failing if judged.points[n].seen.cannot is None]
    return [n for n in numbers if _worth(judged, n)] or list(numbers)


def _worth(judged: Judged, number: int) -> bool:
    point = judged.points[number]
    bound = point.decisive
    return bound is None or bound.state == "open" or point.processes < FEWEST_BLOCKS
