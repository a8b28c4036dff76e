"""How much longer the fixed configuration takes beside others, and how much more its repeats spread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.effects import compare_all
from assay.stats.blocks import ratio_of

if TYPE_CHECKING:
    from assay.experiments.contention.cells import Layout
    from assay.experiments.contention.effects import Comparison, Table
    from assay.experiments.contention.options import Phase
    from assay.experiments.contention.places import Place
    from assay.stats.blocks import Ratio

Comparisons = dict["Phase", "Comparison"]


def slowdowns(layout: Layout, phases: tuple[Phase, ...], quantity: str, minimum_effect: float) -> Comparisons:
    """Return the time of each phase over that alone."""
    return compare_all(level_table(layout, quantity), phases, minimum_effect)


def spreads(layout: Layout, phases: tuple[Phase, ...], quantity: str, minimum_effect: float) -> Comparisons:
    """Return the coefficient of variation of repeats in each phase over that alone."""
    return compare_all(cv_table(layout, quantity), phases, minimum_effect)


def level_table(layout: Layout, quantity: str) -> Table:
    """Return the logarithm of the mean time of every cell."""
    table: Table = {}
    for cell in layout.cells:
        if cell.quantity == quantity:
            table.setdefault((cell.phase, cell.place), {})[cell.block] = cell.level
    return table


def median_table(layout: Layout, quantity: str) -> Table:
    """Return the logarithm of the median time of every cell."""
    table: Table = {}
    for cell in layout.cells:
        if cell.quantity == quantity:
            table.setdefault((cell.phase, cell.place), {})[cell.block] = float(np.median(cell.logs))
    return table


def cv_table(layout: Layout, quantity: str) -> Table:
    """Return the logarithm of the coefficient of variation of every cell whose repeats vary at all."""
    table: Table = {}
    for cell in layout.cells:
        if cell.quantity == quantity and (cv := cell.cv):
            table.setdefault((cell.phase, cell.place), {})[cell.block] = math.log(cv)
    return table


def typical(table: Table, phase: Phase, place: Place) -> Ratio | None:
    """Return the typical value of a place in a phase over its blocks, with its interval; null where none is known."""
    return ratio_of(list(table.get((phase, place), {}).values()))
