"""What company does to a number that each cell has: held against quiet block by block, and against A/A.

The number is the logarithm of anything that multiplies: a time, a coefficient of variation, a regret. The same
functions judge all of them, so that a verdict means the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.contention.options import CROWDED, QUIET
from assay.stats.blocks import by_chance, judge, ratio_of, together
from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Verdict
    from assay.experiments.contention.options import Phase
    from assay.experiments.contention.places import Place
    from assay.stats.blocks import Ratio

Table = dict[tuple["Phase", "Place"], dict[int, float]]
"""A logarithm for each phase and place, by block."""


@dataclass(frozen=True)
class Effect:
    """A condition over quiet: the ratio over blocks, what A/A shows over as many, and what follows."""

    ratio: Ratio | None
    floor: float | None
    verdict: Verdict

    @property
    def estimate(self) -> Estimate | None:
        """The ratio as an estimate; null where nothing was measured."""
        if self.ratio is None:
            return None
        return Estimate(
            value=self.ratio.value,
            low=self.ratio.low,
            high=self.ratio.high,
            unit="×",
            scope="run",
            method=f"geometric mean over {self.ratio.blocks} blocks, Student's t on the logarithms of their ratios",
            n=self.ratio.blocks,
        )


@dataclass(frozen=True)
class Comparison:
    """One phase against quiet: all places together, and each by itself."""

    phase: Phase
    overall: Effect
    places: dict[Place, Effect]


def differences(table: Table, phase: Phase, place: Place) -> dict[int, float]:
    """Return a phase's logarithm less that of quiet, by block; of "again" less that of baseline: A/A."""
    here = table.get((phase, place), {})
    if phase == "again":
        before = table.get(("baseline", place), {})
        return {block: value - before[block] for block, value in here.items() if block in before}
    quiet = [table.get((quiet_phase, place.alone), {}) for quiet_phase in QUIET]
    return {
        block: value - float(np.mean(levels))
        for block, value in here.items()
        if (levels := [by_block[block] for by_block in quiet if block in by_block])
    }


def compare(table: Table, phase: Phase, minimum_effect: float) -> Comparison:
    """Return what a phase does to the number, at all places together and at each.

    A place is called different by an interval of its own level only where all together are; otherwise its interval must
    hold for all places at once. So what is called different by chance stays as rare as if there were one place.
    """
    slots = sorted({slot for table_phase, slot in table if table_phase == phase})
    by_place = {slot: differences(table, phase, slot) for slot in slots}
    same = {slot: differences(table, "again", slot) for slot in sorted({p.alone for p in slots})}
    overall = effect_of(_together(by_place), _together(same), minimum_effect)
    effects: dict[Place, Effect] = {}
    for slot, by_block in by_place.items():
        alike = [v for other, values in same.items() if other.subject == slot.subject for v in values.values()]
        confidence = CONFIDENCE if overall.verdict == "yes" else 1 - (1 - CONFIDENCE) / len(slots)
        effects[slot] = effect_of(list(by_block.values()), alike, minimum_effect, confidence)
    return Comparison(phase, overall, effects)


def compare_all(table: Table, phases: Sequence[Phase], minimum_effect: float) -> dict[Phase, Comparison]:
    """Return what each phase with company does, and A/A; phases of which nothing is known are left out."""
    compared = [phase for phase in (*CROWDED, "again") if phase in phases]
    measured = {phase for phase, _ in table}
    return {phase: compare(table, phase, minimum_effect) for phase in compared if phase in measured}


def _together(by_place: Mapping[Place, Mapping[int, float]]) -> list[float]:
    blocks = sorted({block for values in by_place.values() for block in values})
    return together([[values.get(block) for block in blocks] for values in by_place.values()])


def effect_of(
    logs: Sequence[float], same: Sequence[float], minimum_effect: float, confidence: float = CONFIDENCE
) -> Effect:
    """Return what logarithms of ratios, one a block, say beside those of A/A.

    The interval is at the usual level; "yes" needs it to hold at ``confidence``.
    """
    ratio, strict = ratio_of(logs), ratio_of(logs, confidence)
    floor = by_chance(same, len(logs))
    plain, sure = judge(ratio, floor, minimum_effect), judge(strict, floor, minimum_effect)
    return Effect(ratio, floor, "unsure" if plain == "yes" and sure != "yes" else plain)
