"""Energy between two moments, whatever ran: the counter's ticks with the edges interpolated.

      tick      start     tick      tick      end       tick
    ───┼──────────╎─────────┼─── … ───┼─────────╎─────────┼───▶ time
          before  │          within             │  after

Power has a level and strays around it, and it may jump at both edges, for where a window begins something often begins.
What the observations show decides how far it strays and whether it jumps, and so how sure the edges are: a ramp that
goes on through an edge is told from a load that begins there. Within one tick it may stray unseen, as a load does that
repeats at the sensor's own period: that is allowed for whatever they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
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
"""How far power strays from its level, as a share, and for how long; the data choose among them."""
JUMPS = (0.0, 1.0)
"""How far power jumps at the edges, as a share of it and a standard deviation; likewise."""
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
    steps = np.maximum(moments[:, None] - [start_s, end_s], 0.0)
    jumping = [always + (jump * asked.power_w) ** 2 * (steps @ steps.T) for jump in JUMPS]
    best: Fit | None = None
    for memory_s, stray in product(MEMORIES_S, STRAYS):
        strays = (stray * asked.power_w) ** 2 * integrated(since, since, memory_s)
        for jumps in jumping:
            found = asked.krige(seen, jumps + strays)
            if best is None or found.log_likelihood > best.log_likelihood:
                best = found
    assert best is not None and best.target is not None and best.target_variance is not None  # noqa: S101, PT018
    reach = quantile(CONFIDENCE, max(2, len(seen) - asked.columns.shape[1] - steps.shape[1]))
    return Spent(best.target, reach * float(np.sqrt(best.target_variance)))


@dataclass(frozen=True)
class _Asked:
    """What the energy is a sum of beside what strays, and what is asked of it.

    Attributes:
        columns: Where the energy begins, and its level, as the observations show them; what they do not is left out.
        wanted: How often each column's coefficient is in the energy of the window.
        level_w: About the power at each point.
    """

    columns: Array
    wanted: Array
    level_w: Array
    power_w: float

    @classmethod
    def of(cls, seen: Observations, start_s: float, end_s: float) -> _Asked:
        level_w, power_w = _roughly(seen, start_s, end_s)
        at = seen.points_s - start_s
        shown = seen.operator @ np.stack([np.ones(len(at)), at], axis=1)
        kept = _shown(shown)
        return cls(shown[:, kept], np.array([0.0, end_s - start_s])[kept], level_w, power_w)

    def krige(self, seen: Observations, process: Array) -> Fit:
        """Fit under a covariance of the points and the two edges."""
        edges = seen.operator @ (process[:-2, -1] - process[:-2, -2])
        own = float(process[-1, -1] + process[-2, -2] - 2 * process[-1, -2])
        target = Target(self.wanted, edges, own)
        return fit(self.columns, seen.values, covariance(seen, process[:-2, :-2], self.level_w), target)


def _shown(columns: Array) -> NDArray[np.bool_]:
    return np.asarray(np.abs(columns).max(axis=0) > 1e-9)


def _roughly(seen: Observations, start_s: float, end_s: float) -> tuple[Array, float]:
    """Return about the power at each point, and that of the window, in W: a level before, within and after it."""
    shown = seen.operator @ _levels(seen.points_s, start_s, end_s)
    kept = _shown(shown)
    rough = fit(shown[:, kept], seen.values, np.diag(seen.noise**2 + (0.01 * np.abs(seen.values).max()) ** 2))
    found = np.zeros(4)
    found[kept] = rough.coefficients
    power_w = max(1e-9, float(found[2]))
    powers = np.where(kept, np.maximum(found, 0.0), power_w)
    at = seen.points_s
    return np.where(at < start_s, powers[1], np.where(at <= end_s, powers[2], powers[3])), power_w


def _levels(at_s: Array, start_s: float, end_s: float) -> Array:
    """Return a constant, and the running integral of 1 before, within and after the window, at moments."""
    before = np.minimum(at_s - start_s, 0.0)
    within = np.clip(at_s, start_s, end_s) - start_s
    after = np.maximum(at_s - end_s, 0.0)
    return np.stack([np.ones(len(at_s)), before, within, after], axis=1)
