"""Thresholds decided where the truth is known: curves of speed-ups, noise, Assay's two ways, and simple rules.

A pair is two lognormal times, each with the noise of a sample; each process adds an offset of its own to each size.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from assay.core.plan import Subject
from assay.experiments.threshold.answers import build_answer
from assay.experiments.threshold.cells import PathTimes, PointMeasurement, PointObservations, judge_threshold
from assay.experiments.threshold.options import GROWTH, MAX_BLOCKS, ROUNDS, GridPoint, Threshold
from assay.experiments.threshold.plan import choose_next_points
from assay.stats.crossover import (
    SpeedupBound,
    bound_speedup,
    decide_threshold,
    next_look,
    next_size,
    variance_between_processes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.stats.crossover import ThresholdKind

    Speedups = tuple[float, ...]

MARGIN, SIZES = 1.2, 8
REPEATS, CHUNK = 1000, 125
SAMPLES = 20
"""Pairs at each size for the simple rules that take several."""
PLAIN_US = 100.0


def _rising(steepness: float, lowest: float, highest: float) -> Callable[[np.random.Generator], Speedups]:
    """A speed-up that grows by a factor a size and crosses the margin anywhere between two places."""

    def drawn(rng: np.random.Generator) -> Speedups:
        crossing = rng.uniform(lowest, highest)
        return tuple(MARGIN * steepness ** (size - crossing) for size in range(SIZES))

    return drawn


def _always(*speedups: float) -> Callable[[np.random.Generator], Speedups]:
    return lambda _: speedups if len(speedups) == SIZES else speedups * SIZES


CURVES: dict[str, Callable[[np.random.Generator], Speedups]] = {
    "never, ×0.7": _always(0.7),
    "flat at ×1.0": _always(1.0),
    "flat at ×1.15": _always(1.15),
    "slow, ×1.1 a size": _rising(1.1, 1, 6),
    "medium, ×1.4 a size": _rising(1.4, 1, 6),
    "steep, ×2 a size": _rising(2.0, 1, 6),
    "steep, all sizes clear": _rising(2.0, -1, 0),
    "steep, only the last clears": _rising(2.0, 6, 7),
    "always, ×2.5": _always(2.5),
    "fails again in the middle": _always(2.0, 2.0, 2.0, 0.6, 2.0, 3.0, 3.0, 3.0),
}
STEEP = tuple(name for name in CURVES if name.startswith("steep"))
NOISES = {"10 %": (0.10, 0.0), "20 %": (0.20, 0.0), "10 %, processes 5 %": (0.10, 0.05)}
"""Of a sample, and of a process at a size: standard deviations of logarithms."""


@dataclass(frozen=True)
class World:
    """A machine on which the speed-up at each size is known."""

    speedups: Speedups
    noise: float
    between: float
    rng: np.random.Generator

    def process(self, place: int, pairs: int) -> PathTimes:
        """Return what one process measures at a size."""
        faster = self.speedups[place] * math.exp(self.rng.normal(0, self.between))
        reference, fast = np.exp(self.rng.normal(0, self.noise, (2, pairs)))
        return PathTimes(PLAIN_US * reference, PLAIN_US / faster * fast)


@dataclass(frozen=True)
class Outcome:
    """What a rule says: the place from which on all clear the margin, from where that may be, and the pairs it took."""

    kind: ThresholdKind
    low: int
    place: int
    pairs: int


def truth(speedups: Speedups) -> int:
    """Return the place from which on all sizes clear the margin; as many as there are if the last does not."""
    place = len(speedups)
    while place > 0 and speedups[place - 1] >= MARGIN:
        place -= 1
    return place


def _point(size: int) -> GridPoint:
    subject = Subject(workload="known", impl="known", params={"n": size})
    return GridPoint(size=size, params={"n": size}, reference=subject, fast=subject)


THRESHOLD = Threshold(
    name="known", key="known", never=-1, margin=MARGIN, axis="n", points=tuple(map(_point, range(SIZES)))
)


def as_run(world: World) -> Outcome:
    """Return what ``assay threshold run`` would answer: its own choice of sizes, process after process."""
    seen = [PointObservations() for _ in world.speedups]
    for number in range(MAX_BLOCKS):
        places = choose_next_points([judge_threshold(THRESHOLD, seen, "cautious")])
        for _, place in places:
            taken = PointMeasurement(
                f"look-{number + 1}", {"call": world.process(place, ROUNDS * GROWTH ** max(0, number - 1))}
            )
            seen[place] = replace(seen[place], measurements=(*seen[place].measurements, taken))
        if not places:
            break
    found = build_answer(judge_threshold(THRESHOLD, seen, "cautious"), "cautious").location
    pairs = sum(len(logs) for each in seen for logs in each.logs("call"))
    place = SIZES if found.size is None else int(found.size)
    low = place if found.decision == "disable" else int(found.low or 0)
    return Outcome(found.decision, low, place, pairs)


def look_by_look(world: World) -> Outcome:
    """Return what the statistics alone would answer: one size after another, each look a process of its own."""
    logs: list[list[Any]] = [[] for _ in world.speedups]
    bounds: list[SpeedupBound | None] = [None] * SIZES
    while (place := next_size(bounds)) is not None:
        taken = sum(map(len, logs[place]))
        logs[place].append(world.process(place, next_look(taken) - taken).logs)
        bounds[place] = bound_speedup(logs[place], MARGIN, variance_between_processes(logs))
    found = decide_threshold(bounds)
    return Outcome(found.kind, found.low, found.index, sum(len(each) for cell in logs for each in cell))


def _smallest(clears: list[bool], pairs: int) -> Outcome:
    """Return the smallest size that clears, whatever the larger ones do."""
    place = clears.index(True) if any(clears) else SIZES
    return Outcome("threshold" if place < SIZES else "disable", place, place, pairs)


def one_number(world: World) -> Outcome:
    """Return the smallest size at which the ratio of one number a side reaches the margin."""
    ratios = [float(np.exp(world.process(place, 1).logs[0])) for place in range(SIZES)]
    return _smallest([ratio >= MARGIN for ratio in ratios], SIZES)


def medians(world: World) -> Outcome:
    """Return the smallest size at which the ratio of the medians of 20 reaches the margin."""
    sides = [world.process(place, SAMPLES) for place in range(SIZES)]
    ratios = [float(np.median(each.reference_us) / np.median(each.fast_us)) for each in sides]
    return _smallest([ratio >= MARGIN for ratio in ratios], SAMPLES * SIZES)


def own_intervals(world: World) -> Outcome:
    """Return the smallest size whose own 95 % t interval, of 20 pairs, lies above the margin."""
    wide = float(stats.t.ppf(0.975, SAMPLES - 1)) / math.sqrt(SAMPLES)
    logs = [world.process(place, SAMPLES).logs for place in range(SIZES)]
    lows = [float(each.mean() - wide * each.std(ddof=1)) for each in logs]
    return _smallest([low > math.log(MARGIN) for low in lows], SAMPLES * SIZES)


AS_RUN, LOOK_BY_LOOK = "Assay, as it runs", "Assay, look by look"
RULES: dict[str, Callable[[World], Outcome]] = {
    AS_RUN: as_run,
    LOOK_BY_LOOK: look_by_look,
    "one number a side": one_number,
    "medians of 20": medians,
    "own 95 % intervals": own_intervals,
}


def simulate(curve: str, noise: str, chunk: int, repeats: int = CHUNK) -> dict[str, dict[str, Any]]:
    """Return by rule how often each outcome came ("truth kind low place"), and the pairs of all repeats together."""
    seed = zlib.crc32(f"threshold | {curve} | {noise} | {chunk}".encode())
    curves, *chances = (np.random.default_rng([seed, number]) for number in range(1 + len(RULES)))
    kept: dict[str, dict[str, Any]] = {rule: {"counts": Counter(), "pairs": 0} for rule in RULES}
    for _ in range(repeats):
        speedups = CURVES[curve](curves)
        for (rule, decided), rng in zip(RULES.items(), chances, strict=True):
            found = decided(World(speedups, *NOISES[noise], rng))
            kept[rule]["counts"][f"{truth(speedups)} {found.kind} {found.low} {found.place}"] += 1
            kept[rule]["pairs"] += found.pairs
    return kept
