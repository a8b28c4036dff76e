"""The answer to one threshold: a size with its interval, never, or that it cannot be told; and why, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.threshold.checked import parity_of
from assay.experiments.threshold.options import FEWEST_BLOCKS, TIMES
from assay.experiments.threshold.words import PARITY, in_words, reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar
    from assay.experiments.threshold.cells import Cell, Judged
    from assay.experiments.threshold.checked import Checked
    from assay.experiments.threshold.options import DecideOn, Time
    from assay.stats.crossover import Decision, Kind

    Size = int | float


@dataclass(frozen=True)
class Place:
    """Where a threshold is by one time: the size, and the smallest and the largest it may be.

    ``low`` and ``high`` are null where nothing is known of that side; all are where it is never. ``fails`` is the
    largest size that surely fails.
    """

    decision: Kind
    size: Size | None = None
    low: Size | None = None
    high: Size | None = None
    fails: Size | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one threshold.

    Attributes:
        place: Where it is by what is decided on.
        value: What to write; null where nothing is to be written.
        by_time: Where it is by each time that was taken.
        ranges: Stretches of sizes that clear the margin, where one that fails lies between them; otherwise none.
        parity: Whether the fast path gave what its reference gives.
        why: The reasons, in sentences.
    """

    judged: Judged
    place: Place
    value: Scalar
    by_time: dict[Time, Place]
    ranges: tuple[tuple[Size, Size], ...]
    parity: Checked
    why: tuple[str, ...]

    @property
    def name(self) -> str:
        """The threshold's name."""
        return self.judged.threshold.name

    @property
    def key(self) -> str:
        """Where the answer is written."""
        return self.judged.threshold.key

    @property
    def headline(self) -> str:
        """The answer in a few words."""
        if self.parity != "passed":
            return f"{self.name}: nothing is recommended, as parity {PARITY[self.parity]}"
        return f"{self.name}: {in_words(self.place)}"


def answer(judged: Judged, decide_on: DecideOn) -> Answer:
    """Return the answer that is known so far."""
    parity, alone = parity_of(judged), _alone(judged)
    location = _place(judged.cells, judged.decision, unsettled=bool(alone))
    by_time = {
        time: _place(judged.cells, decision, unsettled=bool(alone))
        for time in TIMES
        if (decision := judged.by_time[time]) is not None
    }
    ranges = _ranges(judged.cells, judged.decision)
    value: Scalar = None
    if parity == "passed":
        value = {"threshold": location.size, "disable": judged.threshold.never, "unsure": None}[location.decision]
    why = reasons(judged, location, decide_on, parity=parity, alone=alone, ranges=ranges)
    return Answer(judged, location, value, by_time, ranges, parity, why)


def _alone(judged: Judged) -> list[Cell]:
    """Return the cells that carry the answer and that only one process measured."""
    cells, decision = judged.cells, judged.decision
    carrying = [cells[index] for index in (decision.low - 1, decision.place) if 0 <= index < len(cells)]
    return [cell for cell in carrying if cell.decisive is not None and cell.processes < FEWEST_BLOCKS]


def _place(cells: Sequence[Cell], decision: Decision, *, unsettled: bool) -> Place:
    if unsettled or all(cell.decisive is None for cell in cells):
        return Place("unsure")
    fails = cells[decision.low - 1].size if decision.low else None
    if decision.kind == "disable":
        return Place("disable", fails=fails)
    low = cells[decision.low].size
    if decision.kind == "unsure":
        return Place("unsure", low=low if decision.low else None, fails=fails)
    return Place("threshold", cells[decision.place].size, low, cells[decision.place].size, fails)


def _ranges(cells: Sequence[Cell], decision: Decision) -> tuple[tuple[Size, Size], ...]:
    """Return the stretches that clear the margin where a size that surely fails lies above one of them."""
    if all(last >= decision.low for _, last in decision.cleared):
        return ()
    return tuple((cells[first].size, cells[last].size) for first, last in decision.cleared)
