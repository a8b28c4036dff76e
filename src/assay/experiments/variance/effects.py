"""How two groups differ when each was measured on several devices, and devices differ from each other anyway."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from assay.core.results import Estimate
from assay.stats.intervals import CONFIDENCE
from assay.stats.ratios import pooled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ByStratum = dict[str, list[float]]
"""Positive numbers by what they share: the device, the configuration."""


class Spread(NamedTuple):
    """The coefficient of variation of repeats of the same thing, and the degrees of freedom it is known with."""

    cv: float
    freedom: int


def ratio(baseline: ByStratum, concurrent: ByStratum) -> Estimate | None:
    """Return how many times the baseline the other group is, each stratum held against itself; null without any.

    Logarithms of the numbers are a level for each stratum, plus the same difference between the groups in all, plus
    noise: least squares, Student's t. Where no stratum has both groups, all numbers are taken as one.
    """
    shared = [s for s in baseline if baseline[s] and concurrent.get(s)]
    if shared:
        groups = [(baseline[s], concurrent[s]) for s in shared]
    else:
        groups = [([v for vs in baseline.values() for v in vs], [v for vs in concurrent.values() for v in vs])]
    pooled_level = pooled(groups)
    if pooled_level is None:
        return None
    n, ends = sum(len(a) + len(b) for a, b in groups), pooled_level.interval()
    where = f"{len(groups)} {'device' if len(groups) == 1 else 'devices'}" if shared else "devices that differ"
    return Estimate(
        value=pooled_level.value,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit="×",
        scope="run" if ends is not None else "process",
        method=f"log-ratio over {n} results on {where}, {'least squares' if ends is not None else 'too few to tell'}",
        n=n,
    )


def spread(repeats: Mapping[str, Sequence[Sequence[float]]]) -> Spread | None:
    """Return how much the same thing scatters when it is timed again; null where nothing was timed twice.

    ``repeats`` has, for each device, the times of each thing that was timed there. Things that were timed in the same
    processes share what these processes add: a device tells no more than it had processes beyond the first.
    """
    several = {d: [np.log(times) for times in things if len(times) > 1] for d, things in repeats.items()}
    freedom = sum(max(map(len, logs)) - 1 for logs in several.values() if logs)
    if not freedom:
        return None
    everything = [values for logs in several.values() for values in logs]
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in everything)
    return Spread(math.sqrt(math.expm1(squares / sum(len(values) - 1 for values in everything))), freedom)


def spread_ratio(baseline: Spread | None, concurrent: Spread | None) -> Estimate | None:
    """Return how many times as much the other group scatters; null where one of them does not tell or not scatter."""
    if baseline is None or concurrent is None or baseline.cv == 0 or concurrent.cv == 0:
        return None
    value, tail = concurrent.cv / baseline.cv, (1 - CONFIDENCE) / 2
    freedoms = (concurrent.freedom, baseline.freedom)
    low, high = (value / math.sqrt(float(special.fdtri(*freedoms, p))) for p in (1 - tail, tail))
    return Estimate(
        value=value,
        low=low,
        high=high,
        unit="×",
        scope="run",
        method=f"ratio of variances of logarithms, F with {freedoms[0]} and {freedoms[1]} degrees of freedom",
        n=sum(freedoms) + 2,
    )
