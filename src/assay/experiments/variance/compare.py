"""What two groups of results say about each kernel that both have: times, spread, picks, agreement of devices."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.variance.effects import ratio, spread, spread_ratio
from assay.experiments.variance.matching import by_work
from assay.experiments.variance.older_format import key_of
from assay.experiments.variance.picks import Picks, picks_of
from assay.stats.shares import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Estimate
    from assay.experiments.variance.effects import ByStratum, Spread
    from assay.experiments.variance.older_format import Older


@dataclass(frozen=True)
class Times:
    """Best times in milliseconds, their geometric mean on each side, and the ratio; null: no time on that side."""

    baseline_ms: float | None
    concurrent_ms: float | None
    results: tuple[int, int]
    ratio: Estimate | None


@dataclass(frozen=True)
class Spreads:
    """How much repeats of the same configuration scatter from process to process, and samples within a process.

    Null where no configuration was timed twice: times of different configurations have no variance to speak of.
    """

    baseline: Spread | None
    concurrent: Spread | None
    ratio: Estimate | None
    samples: tuple[float | None, float | None]
    samples_ratio: Estimate | None


@dataclass(frozen=True)
class Agreement:
    """How far devices of one group are apart: the slowest's time over the fastest's; how often picks are the same."""

    devices: int
    slowest: str
    fastest: str
    apart: float
    same_pick: Share | None


@dataclass(frozen=True)
class Kernel:
    """All that is said of one kernel."""

    name: str
    times: Times
    spreads: Spreads
    picks: Picks
    agreements: tuple[Agreement | None, Agreement | None]


def compare(baseline: Sequence[Older], concurrent: Sequence[Older]) -> tuple[Kernel, ...]:
    """Return every kernel of which both groups measured the same work, in the order of the baseline."""
    first, second = by_work(baseline), by_work(concurrent)
    return tuple(_kernel(mine[0].kernel, mine, second[work]) for work, mine in first.items() if work in second)


def _kernel(name: str, baseline: list[Older], concurrent: list[Older]) -> Kernel:
    return Kernel(
        name=name,
        times=times_of(baseline, concurrent),
        spreads=spreads_of(baseline, concurrent),
        picks=picks_of(baseline, concurrent),
        agreements=(agreement_of(baseline), agreement_of(concurrent)),
    )


def times_of(baseline: list[Older], concurrent: list[Older]) -> Times:
    """Return the best times of both sides and how they differ."""
    first, second = best_times(baseline), best_times(concurrent)
    return Times(
        baseline_ms=_typical(first),
        concurrent_ms=_typical(second),
        results=(sum(map(len, first.values())), sum(map(len, second.values()))),
        ratio=ratio(first, second),
    )


def best_times(group: Iterable[Older]) -> ByStratum:
    """Return the time of the best configuration in each tuning by device; of what was not tuned, its time."""
    times_by_device: ByStratum = defaultdict(list)
    for older in group:
        picked = [pick.time_ms for pick in older.picks if pick.time_ms is not None]
        timed = older.timed[0].times_ms if older.timed and not picked else ()
        times_by_device[older.device or ""] += [*picked, *timed]
    return {device: times for device, times in times_by_device.items() if times}


def _typical(by_device: ByStratum) -> float | None:
    """Return the geometric mean over devices of their geometric means."""
    levels = [float(np.mean(np.log(times))) for times in by_device.values()]
    return math.exp(float(np.mean(levels))) if levels else None


def spreads_of(baseline: list[Older], concurrent: list[Older]) -> Spreads:
    """Return how much repeats scatter on both sides."""
    first, second = spread(repeats(baseline)), spread(repeats(concurrent))
    scatter = [_scatter(group) for group in (baseline, concurrent)]
    return Spreads(
        baseline=first,
        concurrent=second,
        ratio=spread_ratio(first, second),
        samples=(_typical(scatter[0]), _typical(scatter[1])),
        samples_ratio=ratio(scatter[0], scatter[1]),
    )


def repeats(group: Iterable[Older]) -> dict[str, list[list[float]]]:
    """Return, for each device, the times of everything that is the same there: who timed it, the configuration."""
    by_device: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for older in group:
        for entry in older.timed:
            if entry.config is not None or entry.by is not None:
                by_device[older.device or ""][f"{entry.by} {key_of(entry.config)}"] += entry.times_ms
    return {device: list(things.values()) for device, things in by_device.items()}


def _scatter(group: Iterable[Older]) -> ByStratum:
    cvs_by_device: ByStratum = defaultdict(list)
    for older in group:
        for entry in older.timed:
            cvs_by_device[older.device or ""] += entry.cvs
    return {device: cvs for device, cvs in cvs_by_device.items() if cvs}


def agreement_of(group: list[Older]) -> Agreement | None:
    """Return how far the devices of a group are apart; null for fewer than two that are known."""
    levels = {d: math.exp(float(np.mean(np.log(t)))) for d, t in best_times(group).items() if d}
    if len(levels) < 2:
        return None
    slowest, fastest = max(levels, key=levels.__getitem__), min(levels, key=levels.__getitem__)
    return Agreement(len(levels), slowest, fastest, levels[slowest] / levels[fastest], _same_picks(group))


def _same_picks(group: list[Older]) -> Share | None:
    """Return of how many pairs of devices the picks, tuning by tuning, are the same."""
    picks: dict[str, list[str]] = defaultdict(list)
    for older in group:
        picks[older.device or ""] += [key_of(pick.config) for pick in older.picks if pick.config is not None]
    pairs = [pair for a, b in combinations(picks.values(), 2) for pair in zip(a, b, strict=False)]
    return Share(sum(a == b for a, b in pairs), len(pairs)) if pairs else None
