"""The caps that give the most work under a budget, what is lost by them, and what an equal split would give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.stats.concave import share_out
from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.experiments.power.budget.curves import Curve
    from assay.stats.concave import Concave

FEWEST = 2
"""Repeats from which on there is an interval."""


@dataclass(frozen=True)
class Sure:
    """A number with its interval over repeats; no ends where nothing was measured twice."""

    value: float
    low: float | None
    high: float | None
    repeats: int


@dataclass(frozen=True)
class Share:
    """What one GPU gets: watts that count, the cap in whole watts, calls a second, and the share of its full rate."""

    curve: Curve
    watts: float
    cap_w: float
    rate: float
    share: float


@dataclass(frozen=True)
class Plan:
    """Who gets how much. Watts without ``overhead_w`` are the GPUs'; ``needed_w`` is what they take without caps.

    ``equal_w`` is what an equal split gives to each, null where it is below what some GPU was measured at.
    """

    watts: float
    overhead_w: float
    shares: tuple[Share, ...]
    least_w: float
    needed_w: float
    loss: Sure
    equal_w: float | None
    against_equal: Sure | None

    @property
    def binds(self) -> bool:
        """Whether the budget is less than the GPUs would take."""
        return self.watts - self.overhead_w < self.needed_w - 1e-6

    @property
    def spent_w(self) -> float:
        """The watts that are counted for all GPUs."""
        return sum(share.watts for share in self.shares)

    @property
    def capped_w(self) -> float:
        """What all caps add up to: the GPUs draw no more, whatever they run."""
        return sum(share.cap_w for share in self.shares)


def plan_of(curves: Sequence[Curve], watts: float, overhead_w: float = 0.0, min_share: float | None = None) -> Plan:
    """Return the split that gives the most calls a second.

    Raises:
        BadInput: Nothing is left beside the overhead.
        MachineCannot: The budget is below the lowest caps that were measured, or below the least share for each.
    """
    left = watts - overhead_w
    if left <= 0:
        raise BadInput(f"--overhead {overhead_w:g} leaves nothing of --watts {watts:g} for the GPUs.")
    lows = [_least(curve, min_share) for curve in curves]
    watts_per_gpu = share_out([curve.fit for curve in curves], left, lows)
    if watts_per_gpu is None:
        least = sum(lows) + overhead_w
        why = "at the lowest caps that were measured"
        if min_share is not None:
            why = f"with at least {100 * min_share:g} % of its full rate for each"
        raise MachineCannot(
            f"{watts:g} W are too few for {len(curves)} GPU{'s'[: len(curves) != 1]}: {why} they take "
            f"{math.ceil(least - 1e-6)} W{f', {overhead_w:g} W of overhead included' if overhead_w else ''}."
        )
    shares = tuple(
        Share(curve, w, curve.cap(w), curve.fit.at(w), curve.fit.at(w) / curve.full)
        for curve, w in zip(curves, watts_per_gpu, strict=True)
    )
    equal_share_w = left / len(curves)
    fair = all(equal_share_w >= curve.fit.low - 1e-9 for curve in curves)
    return Plan(
        watts=watts,
        overhead_w=overhead_w,
        shares=shares,
        least_w=sum(curve.fit.low for curve in curves) + overhead_w,
        needed_w=sum(curve.fit.top for curve in curves),
        loss=_sure(curves, lambda fits: _loss(fits, watts_per_gpu), low=0.0),
        equal_w=equal_share_w if fair else None,
        against_equal=_sure(curves, lambda fits: _gain(fits, watts_per_gpu, equal_share_w)) if fair else None,
    )


def _least(curve: Curve, min_share: float | None) -> float:
    if min_share is None:
        return curve.fit.low
    return curve.fit.reaches(min_share * curve.full) or curve.fit.low


def total(fits: Sequence[Concave], given: Sequence[float]) -> float:
    """Return the calls a second of all."""
    return sum(fit.at(watts) for fit, watts in zip(fits, given, strict=True))


def _loss(fits: Sequence[Concave], given: Sequence[float]) -> float:
    return 1 - total(fits, given) / sum(fit.y[-1] for fit in fits)


def _gain(fits: Sequence[Concave], given: Sequence[float], each: float) -> float:
    return total(fits, given) / total(fits, [each] * len(fits)) - 1


def _sure(curves: Sequence[Curve], of: Callable[[Sequence[Concave]], float], *, low: float | None = None) -> Sure:
    """Return a number of all curves, with Student's t over what each repeat alone gives."""
    value = of([curve.fit for curve in curves])
    repeats = min(len(curve.repeats) for curve in curves)
    if repeats < FEWEST:
        return Sure(value, None, None, repeats)
    alone = np.array([of([curve.repeats[repeat] for curve in curves]) for repeat in range(repeats)])
    half = quantile(CONFIDENCE, repeats - 1) * float(alone.std(ddof=1)) / math.sqrt(repeats)
    bottom = value - half if low is None else max(low, value - half)
    return Sure(value, bottom, value + half, repeats)


def frontier(curves: Sequence[Curve], points: int = 40) -> list[tuple[float, float, float | None]]:
    """Return for budgets from the least to what is needed: watts, the share of the full work, and of an equal split."""
    fits = [curve.fit for curve in curves]
    full = sum(fit.y[-1] for fit in fits)
    least, most = sum(fit.low for fit in fits), sum(fit.top for fit in fits)
    rows = []
    for watts in np.linspace(least, most, points if most > least else 1):
        watts_per_gpu = share_out(fits, float(watts)) or [fit.low for fit in fits]
        equal_w = float(watts) / len(fits)
        fair = total(fits, [equal_w] * len(fits)) / full if all(equal_w >= fit.low - 1e-9 for fit in fits) else None
        rows.append((float(watts), total(fits, watts_per_gpu) / full, fair))
    return rows
