"""How often it is right by chance: seeded worlds without an effect, and with one that must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.experiments.contention.effects import compare_phases
from assay.experiments.contention.layout import ContentionLayout, LayoutCell, WorkerSlot
from assay.experiments.contention.options import PHASES
from assay.stats.ratios import Proportion

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from assay.experiments.contention.effects import PhaseComparisons

PLACES = [WorkerSlot(0, device, worker) for device in ("cpu:0", "cpu:1") for worker in (0, 1)]


def noise(chance: Generator, kind: str, spread: float) -> float:
    """Return how far one process strays: evenly, now and then far, or to the slow side."""
    if kind == "gaussian":
        return float(chance.normal(0, spread))
    if kind == "bursts":
        return float(chance.normal(0, spread) + (chance.random() < 0.15) * 6 * spread)
    return float(spread * chance.standard_t(3))


def judged(chance: Generator, blocks: int, kind: str, spread: float = 0.06, slower: float = 1.0) -> PhaseComparisons:
    """Return the verdicts on one world of two workers on each of two devices."""
    cells: list[LayoutCell] = []
    for block in range(1, blocks + 1):
        hour = chance.normal(0, 0.1)
        for phase in PHASES:
            factor = slower if phase == "naive" else 1.0
            for place in PLACES if phase in {"naive", "isolated"} else [p for p in PLACES if p.worker == 0]:
                level = np.exp(hour + noise(chance, kind, spread)) * 100 * factor
                samples: NDArray[np.float64] = np.full(8, level)
                cells.append(LayoutCell(place, block, phase, "call_us", samples, 0.0, f"{block}{phase}{place}"))
    return compare_phases(ContentionLayout(tuple(cells), (), (), (), "call_us").table("call_us"), PHASES, 0.01)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "blocks"), [("gaussian", 3), ("gaussian", 8), ("bursts", 4), ("heavy tails", 6)])
def test_no_effect_is_called_one_in_at_most_five_of_a_hundred_worlds(kind: str, blocks: int) -> None:
    chance = np.random.default_rng(blocks)
    worlds = [judged(chance, blocks, kind) for _ in range(100)]
    for phase in ("naive", "isolated", "again"):
        together = Proportion(sum(world[phase].overall.verdict == "yes" for world in worlds), len(worlds))
        anywhere = Proportion(
            sum(any(e.verdict == "yes" for e in world[phase].slots.values()) for world in worlds), len(worlds)
        )
        for share in (together, anywhere):
            interval = share.interval()
            assert interval is not None
            assert share.count <= 0.05 * share.n
            assert interval[1] <= 0.12


@pytest.mark.parametrize("kind", ["gaussian", "bursts", "heavy tails"])
def test_twice_the_time_is_found_in_three_blocks(kind: str) -> None:
    chance = np.random.default_rng(1)
    worlds = [judged(chance, 3, kind, slower=2.0) for _ in range(50)]
    assert sum(world["naive"].overall.verdict == "yes" for world in worlds) >= 47
    assert not any(world["naive"].overall.verdict == "no" for world in worlds)


@pytest.mark.full
@pytest.mark.parametrize("blocks", [3, 8])
def test_intervals_of_the_slowdown_hold_the_truth_in_about_95_of_100_worlds(blocks: int) -> None:
    chance = np.random.default_rng(blocks)
    held = 0
    for _ in range(200):
        ratio = judged(chance, blocks, "gaussian", slower=1.5)["naive"].overall.ratio
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 1.5 <= ratio.high
    assert 0.91 * 200 <= held <= 0.99 * 200
