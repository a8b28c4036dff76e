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

from assay.core.values import Subject
from assay.experiments.threshold.answers import build_answer
from assay.experiments.threshold.cells import PathTimes, PointMeasurement, PointObservations, judge_threshold
from assay.experiments.threshold.plan import choose_next_points
from assay.experiments.threshold.spec import GROWTH, MAX_BLOCKS, ROUNDS, GridPoint, Threshold
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

    def sample(rng: np.random.Generator) -> Speedups:
        crossing = rng.uniform(lowest, highest)
        return tuple(MARGIN * steepness ** (size - crossing) for size in range(SIZES))

    return sample


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

    def process(self, index: int, pairs: int) -> PathTimes:
        """Return what one process measures at a size."""
        faster = self.speedups[index] * math.exp(self.rng.normal(0, self.between))
        reference, fast = np.exp(self.rng.normal(0, self.noise, (2, pairs)))
        return PathTimes(PLAIN_US * reference, PLAIN_US / faster * fast)


@dataclass(frozen=True)
class Outcome:
    """What a rule says: the place from which on all clear the margin, from where that may be, and the pairs it took."""

    kind: ThresholdKind
    low: int
    index: int
    pairs: int


def truth(speedups: Speedups) -> int:
    """Return the place from which on all sizes clear the margin; as many as there are if the last does not."""
    position = len(speedups)
    while position > 0 and speedups[position - 1] >= MARGIN:
        position -= 1
    return position


def _point(size: int) -> GridPoint:
    subject = Subject(workload="known", impl="known", params={"n": size})
    return GridPoint(size=size, params={"n": size}, reference=subject, fast=subject)


THRESHOLD = Threshold(
    name="known", key="known", never=-1, margin=MARGIN, axis="n", points=tuple(map(_point, range(SIZES)))
)


def as_run(world: World) -> Outcome:
    """Return what ``assay threshold run`` would answer: its own choice of sizes, process after process."""
    observed = [PointObservations() for _ in world.speedups]
    for number in range(MAX_BLOCKS):
        positions = choose_next_points([judge_threshold(THRESHOLD, observed, "cautious")])
        for _, position in positions:
            measurement = PointMeasurement(
                f"look-{number + 1}", {"call": world.process(position, ROUNDS * GROWTH ** max(0, number - 1))}
            )
            observed[position] = replace(
                observed[position], measurements=(*observed[position].measurements, measurement)
            )
        if not positions:
            break
    result = build_answer(judge_threshold(THRESHOLD, observed, "cautious"), "cautious").location
    pairs = sum(len(logs) for log in observed for logs in log.logs("call"))
    position = SIZES if result.size is None else int(result.size)
    low = position if result.decision == "disable" else int(result.low or 0)
    return Outcome(result.decision, low, position, pairs)


def look_by_look(world: World) -> Outcome:
    """Return what the statistics alone would answer: one size after another, each look a process of its own."""
    logs: list[list[Any]] = [[] for _ in world.speedups]
    bounds: list[SpeedupBound | None] = [None] * SIZES
    while (position := next_size(bounds)) is not None:
        samples = sum(map(len, logs[position]))
        logs[position].append(world.process(position, next_look(samples) - samples).logs)
        bounds[position] = bound_speedup(logs[position], MARGIN, variance_between_processes(logs))
    result = decide_threshold(bounds)
    return Outcome(result.kind, result.low, result.index, sum(len(entry) for cell in logs for entry in cell))


def _smallest(clears: list[bool], pairs: int) -> Outcome:
    """Return the smallest size that clears, whatever the larger ones do."""
    position = clears.index(True) if any(clears) else SIZES
    return Outcome("threshold" if position < SIZES else "disable", position, position, pairs)


def one_number(world: World) -> Outcome:
    """Return the smallest size at which the ratio of one number a side reaches the margin."""
    ratios = [float(np.exp(world.process(index, 1).logs[0])) for index in range(SIZES)]
    return _smallest([ratio >= MARGIN for ratio in ratios], SIZES)


def medians(world: World) -> Outcome:
    """Return the smallest size at which the ratio of the medians of 20 reaches the margin."""
    sides = [world.process(index, SAMPLES) for index in range(SIZES)]
    ratios = [float(np.median(side.reference_us) / np.median(side.fast_us)) for side in sides]
    return _smallest([ratio >= MARGIN for ratio in ratios], SAMPLES * SIZES)


def own_intervals(world: World) -> Outcome:
    """Return the smallest size whose own 95 % t interval, of 20 pairs, lies above the margin."""
    wide = float(stats.t.ppf(0.975, SAMPLES - 1)) / math.sqrt(SAMPLES)
    logs = [world.process(index, SAMPLES).logs for index in range(SIZES)]
    lows = [float(log.mean() - wide * log.std(ddof=1)) for log in logs]
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
    saved: dict[str, dict[str, Any]] = {rule: {"counts": Counter(), "pairs": 0} for rule in RULES}
    for _ in range(repeats):
        speedups = CURVES[curve](curves)
        for (rule, decided), rng in zip(RULES.items(), chances, strict=True):
            result = decided(World(speedups, *NOISES[noise], rng))
            saved[rule]["counts"][f"{truth(speedups)} {result.kind} {result.low} {result.index}"] += 1
            saved[rule]["pairs"] += result.pairs
    return saved
