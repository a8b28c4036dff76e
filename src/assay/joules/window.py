"""Energy between two moments, whatever ran: the counter's ticks with the edges interpolated.

      tick      start     tick      tick      end       tick
    ───┼──────────╎─────────┼─── … ───┼─────────╎─────────┼───▶ time
          before  │          within             │  after

Power has a level before, within and after the window, for where a window begins something usually begins, and strays
around it. What the observations show decides how far it strays, and so how sure the edges are. Within one tick it may
stray unseen, as a load does that repeats at the sensor's own period: that is allowed for whatever they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.joules.kriging import Target, fit, integrated
from assay.joules.observations import covariance, thinned
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.joules.kriging import Fit
    from assay.joules.observations import Observations

    Array = NDArray[np.float64]

CONFIDENCE = 0.95
STRAYS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
MEMORIES_S = (0.02, 0.1, 0.5, 2.0)
"""How far power strays from its levels, as a share, and for how long; the data choose among them."""
UNSEEN, UNSEEN_MEMORY = 1.1, 0.25
"""How far power may stray within a tick without being seen, as a share of it, and for which share of the tick.

A load on for a fifth of each tick and nearly off for the rest strays by twice its mean; bounds hold for most such."""
FEWEST_INSIDE = 2
NEAR, MOST = 8, 40
"""Observations used on each side of each edge, and of all others."""


@dataclass(frozen=True)
class Spent:
    """Energy in J, with the half-width of its 95 % interval."""

    joules: float
    error_j: float


def energy_between(seen: Observations, start_s: float, end_s: float, *, period_s: float) -> Spent | None:
    """Return the energy spent between two moments; null where too few observations lie between them.

    ``period_s`` is the spacing of the ticks.
    """
    if np.sum((seen.times_s >= start_s) & (seen.times_s <= end_s)) < FEWEST_INSIDE:
        return None
    seen = thinned(seen, (start_s, end_s), NEAR, MOST)
    asked = _Asked.of(seen, start_s, end_s)
    moments = np.concatenate([seen.points_s, [start_s, end_s]])
    since = moments - float(moments.min())
    always = (UNSEEN * asked.power_w) ** 2 * integrated(since, since, UNSEEN_MEMORY * period_s)
    best: Fit | None = None
    for memory_s in MEMORIES_S:
        unit = asked.power_w**2 * integrated(since, since, memory_s)
        for stray in STRAYS:
            found = asked.krige(seen, always + stray**2 * unit)
            if best is None or found.log_likelihood > best.log_likelihood:
                best = found
    assert best is not None and best.target is not None and best.target_variance is not None  # noqa: S101, PT018
    reach = quantile(CONFIDENCE, max(2, len(seen) - asked.columns.shape[1]))
    return Spent(best.target, reach * float(np.sqrt(best.target_variance)))


@dataclass(frozen=True)
class _Asked:
    """The levels before, within and after as columns, and what is asked of them.

    Attributes:
        wanted: How often each column's coefficient is in the energy of the window.
        level_w: About the power at each point.
    """

    columns: Array
    wanted: Array
    level_w: Array
    power_w: float

    @classmethod
    def of(cls, seen: Observations, start_s: float, end_s: float) -> _Asked:
        parts = _levels(seen.points_s, start_s, end_s)
        shown = seen.operator @ parts
        kept = np.abs(shown).max(axis=0) > 1e-9
        edges = _levels(np.array([start_s, end_s]), start_s, end_s)
        wanted = (edges[1] - edges[0])[kept]
        rough = fit(shown[:, kept], seen.values, np.diag(seen.noise**2 + (0.01 * np.abs(seen.values).max()) ** 2))
        power_w = max(1e-9, float(wanted @ rough.coefficients) / (end_s - start_s))
        powers = np.full(4, power_w)
        powers[kept] = np.maximum(rough.coefficients, 0.0)
        at = seen.points_s
        level = np.where(at < start_s, powers[1], np.where(at <= end_s, powers[2], powers[3]))
        return cls(shown[:, kept], wanted, level, power_w)

    def krige(self, seen: Observations, process: Array) -> Fit:
        """Fit under a covariance of the points and the two edges."""
        edges = seen.operator @ (process[:-2, -1] - process[:-2, -2])
        own = float(process[-1, -1] + process[-2, -2] - 2 * process[-1, -2])
        target = Target(self.wanted, edges, own)
        return fit(self.columns, seen.values, covariance(seen, process[:-2, :-2], self.level_w), target)


def _levels(at_s: Array, start_s: float, end_s: float) -> Array:
    """Return a constant, and the running integral of 1 before, within and after the window, at moments."""
    before = np.minimum(at_s - start_s, 0.0)
    within = np.clip(at_s, start_s, end_s) - start_s
    after = np.maximum(at_s - end_s, 0.0)
    return np.stack([np.ones(len(at_s)), before, within, after], axis=1)
