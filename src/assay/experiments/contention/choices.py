"""How often the tuner chooses otherwise: from block to block, beside others than alone, from GPU to GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from assay.experiments.contention.options import CROWDED
from assay.experiments.contention.places import Place
from assay.stats.shares import Share, more_often

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Verdict
    from assay.experiments.contention.options import Phase
    from assay.experiments.contention.places import Choice

FEW = 0.25
"""A "no" needs to know that it is so in fewer than this share of the picks."""
CHANCE = 0.05

Picked = dict[tuple["Phase", Place], dict[int, str]]
"""The configuration that was picked, as its key, for each phase and place by block."""


@dataclass(frozen=True)
class Mismatch:
    """How often picks of a phase differ from those alone in the same block, and how often A/A picks do.

    ``only_here`` counts blocks in which the pick beside others differs though A/A agrees, ``only_same`` the reverse.
    """

    share: Share
    same: Share
    only_here: Share
    only_same: int

    @property
    def p(self) -> float:
        """How often chance alone sets the two apart so far (McNemar, exact)."""
        return more_often(self.only_here.count, self.only_same)

    @property
    def verdict(self) -> Verdict:
        """Whether company changes what is picked, more often than measuring again does."""
        if not self.only_here.n:
            return "unsure"
        if self.p <= CHANCE and self.only_here.count > self.only_same:
            return "yes"
        interval = self.only_here.interval()
        return "no" if interval is not None and interval[1] <= FEW else "unsure"


def picked(choices: Iterable[Choice]) -> Picked:
    """Return what was picked where and when; where nothing was found there is nothing to compare."""
    table: Picked = {}
    for choice in choices:
        if choice.key is not None:
            table.setdefault((choice.phase, choice.place), {})[choice.block] = choice.key
    return table


def against_alone(table: Picked, phase: Phase) -> Mismatch:
    """Return how often the picks of a phase differ from the baseline's of the same block, beside A/A."""
    share = only_here = Share(0, 0)
    same, only_same = against_again(table), 0
    for (table_phase, slot), by_block in table.items():
        if table_phase != phase:
            continue
        base, again = table.get(("baseline", slot.alone), {}), table.get(("again", slot.alone), {})
        for block, key in by_block.items():
            if block not in base:
                continue
            share += Share(int(key != base[block]), 1)
            if block in again:
                here, there = key != base[block], again[block] != base[block]
                only_here += Share(int(here and not there), 1)
                only_same += int(there and not here)
    return Mismatch(share, same, only_here, only_same)


def against_again(table: Picked) -> Share:
    """Return how often a pick alone differs from the other one alone in the same block: A/A."""
    share = Share(0, 0)
    for (phase, slot), by_block in table.items():
        if phase == "again":
            base = table.get(("baseline", slot), {})
            share = sum((Share(int(k != base[b]), 1) for b, k in by_block.items() if b in base), share)
    return share


def over_blocks(table: Picked, phase: Phase) -> Share:
    """Return how often a pick of a phase differs from that of the block before, at the same place."""
    rows = [
        [by_block[b] for b in sorted(by_block)] for (table_phase, _), by_block in table.items() if table_phase == phase
    ]
    return _changes(rows)


def over_devices(table: Picked, phase: Phase, devices: Sequence[str]) -> Share:
    """Return how often a pick of a phase differs from that of the device before, in the same block."""
    slots = {slot for p, slot in table if p == phase}
    rows = []
    for subject, worker in sorted({(slot.subject, slot.worker) for slot in slots}):
        columns = [table.get((phase, Place(subject, device, worker)), {}) for device in devices]
        blocks = sorted({block for by_block in columns for block in by_block})
        rows += [[by_block[b] for by_block in columns if b in by_block] for b in blocks]
    return _changes(rows)


def mismatches(table: Picked, phases: Sequence[Phase]) -> dict[Phase, Mismatch]:
    """Return what company does to the picks, for each phase with company of which any is known."""
    measured = {phase for phase, _ in table}
    return {phase: against_alone(table, phase) for phase in CROWDED if phase in phases and phase in measured}


def _changes(rows: Iterable[Sequence[str]]) -> Share:
    pairs = [(a, b) for row in rows for a, b in pairwise(row)]
    return Share(sum(a != b for a, b in pairs), len(pairs))
