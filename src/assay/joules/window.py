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
from scipy import linalg

from assay.joules.kriging import Target, fit, integrated
from assay.joules.observations import averaged, sensor_covariance, thinned
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
EDGES = 2
TINY = 1e-9
"""Below this a column is not shown."""
FEWEST_INSIDE = 4
"""Ticks in a window below which nothing is said of it: the edges would be all there is."""
NEAR, MOST = 8, 40
"""Observations used on each side of each edge, and of all others."""
MOST_AVERAGED = 600
"""Power readings that are averaged at most; of more, evenly spread ones."""


@dataclass(frozen=True)
class Model:
    """How power strayed, as the data chose it: shares of the power, and for how long it remembers itself."""

    stray: float
    memory_s: float
    jump: float


@dataclass(frozen=True)
class Spent:
    """Energy in J with the half-width of its 95 % interval, and the model under which the data were most likely."""

    joules: float
    error_j: float
    model: Model
    power_w: float


def energy_between(seen: Observations, start_s: float, end_s: float, *, period_s: float) -> Spent | None:
    """Return the energy spent between two moments; null where too few observations lie between them.

    ``period_s`` is the spacing of the ticks.
    """
    if np.sum((seen.times_s >= start_s) & (seen.times_s <= end_s)) < FEWEST_INSIDE:
        return None
    seen = _reduced(seen, start_s, end_s)
    level_w, power_w = _roughly(seen, start_s, end_s)
    target = _Asked.of(seen, start_s, end_s, level_w)
    parts = _Process.of(seen, start_s, end_s, period_s)
    best: tuple[Fit, Model] | None = None
    for memory_s, stray, jump in product(MEMORIES_S, STRAYS, JUMPS):
        fitted = target.krige(seen, parts.covariance(Model(stray, memory_s, jump), power_w))
        if best is None or fitted.log_likelihood > best[0].log_likelihood:
            best = fitted, Model(stray, memory_s, jump)
    assert best is not None and best[0].target is not None  # noqa: S101, PT018 - there are several models to choose from
    return Spent(best[0].target, target.error_j(seen, best[0]), best[1], power_w)


def expected_error_j(
    seen: Observations, start_s: float, end_s: float, *, period_s: float, model: Model, power_w: float
) -> float:
    """Return the half-width that observations at such moments would have, whatever their values, under a model."""
    seen = _reduced(seen, start_s, end_s)
    target = _Asked.of(seen, start_s, end_s, np.full(len(seen.points_s), power_w))
    parts = _Process.of(seen, start_s, end_s, period_s, (model.memory_s,))
    return target.error_j(seen, target.krige(seen, parts.covariance(model, power_w)))


def _reduced(seen: Observations, start_s: float, end_s: float) -> Observations:
    """Return few enough observations to compute with: a counter's thinned, power readings in averages."""
    counts = np.abs(seen.operator.sum(axis=1)) > TINY
    if counts.any():
        return thinned(seen, (start_s, end_s), NEAR, MOST)
    few = thinned(seen, (start_s, end_s), NEAR, MOST_AVERAGED)
    return averaged(few, (start_s, end_s), NEAR, MOST)


@dataclass(frozen=True)
class _Asked:
    """What the energy is a sum of beside what strays, and what is asked of it.

    Attributes:
        columns: Where the energy begins, and its level, as the observations show them; what they do not is left out.
        wanted: How often each column's coefficient is in the energy of the window.
        sensor: The covariance of the observations that is the sensor's own.
    """

    columns: Array
    wanted: Array
    sensor: Array

    @classmethod
    def of(cls, seen: Observations, start_s: float, end_s: float, level_w: Array) -> _Asked:
        at = seen.points_s - start_s
        shown = seen.operator @ np.stack([np.ones(len(at)), at], axis=1)
        visible = _shown(shown)
        return cls(shown[:, visible], np.array([0.0, end_s - start_s])[visible], sensor_covariance(seen, level_w))

    def krige(self, seen: Observations, process: Array) -> Fit:
        """Fit under a covariance of the observations and the two edges."""
        edges = process[:-2, -1] - process[:-2, -2]
        own = float(process[-1, -1] + process[-2, -2] - 2 * process[-1, -2])
        return fit(self.columns, seen.values, process[:-2, :-2] + self.sensor, Target(self.wanted, edges, own))

    def error_j(self, seen: Observations, found: Fit) -> float:
        """Return the half-width of the interval of a fit."""
        reach = quantile(CONFIDENCE, max(2, len(seen) - self.columns.shape[1] - EDGES))
        return reach * float(np.sqrt(found.target_variance or 0.0))


@dataclass(frozen=True)
class _Process:
    """Covariances of the observations and the two edges, in s²: of what strays unseen, of jumps, of each memory."""

    unseen: Array
    jumps: Array
    strays: dict[float, Array]

    @classmethod
    def of(
        cls,
        seen: Observations,
        start_s: float,
        end_s: float,
        period_s: float,
        memories_s: tuple[float, ...] = MEMORIES_S,
    ) -> _Process:
        moments = np.concatenate([seen.points_s, [start_s, end_s]])
        since = moments - float(moments.min())
        shown = linalg.block_diag(seen.operator, np.eye(EDGES))
        steps = shown @ np.maximum(moments[:, None] - [start_s, end_s], 0.0)
        strays = {memory_s: shown @ integrated(since, since, memory_s) @ shown.T for memory_s in memories_s}
        unseen = shown @ integrated(since, since, UNSEEN_MEMORY * period_s) @ shown.T
        return cls(unseen, steps @ steps.T, strays)

    def covariance(self, model: Model, power_w: float) -> Array:
        """Return the covariance in J² under a model, at about so much power."""
        shares = UNSEEN**2 * self.unseen + model.jump**2 * self.jumps + model.stray**2 * self.strays[model.memory_s]
        return np.asarray(power_w**2 * shares, dtype=np.float64)


def _shown(columns: Array) -> NDArray[np.bool_]:
    return np.asarray(np.abs(columns).max(axis=0) > TINY)


def _roughly(seen: Observations, start_s: float, end_s: float) -> tuple[Array, float]:
    """Return about the power at each point, and that of the window, in W: a level before, within and after it."""
    shown = seen.operator @ _levels(seen.points_s, start_s, end_s)
    visible = _shown(shown)
    rough = fit(shown[:, visible], seen.values, np.diag(seen.noise**2 + (0.01 * np.abs(seen.values).max()) ** 2))
    level_powers_w = np.zeros(4)
    level_powers_w[visible] = rough.coefficients
    power_w = max(1e-9, float(level_powers_w[2]))
    powers = np.where(visible, np.maximum(level_powers_w, 0.0), power_w)
    at = seen.points_s
    return np.where(at < start_s, powers[1], np.where(at <= end_s, powers[2], powers[3])), power_w


def _levels(at_s: Array, start_s: float, end_s: float) -> Array:
    """Return a constant, and the running integral of 1 before, within and after the window, at moments."""
    before = np.minimum(at_s - start_s, 0.0)
    within = np.clip(at_s, start_s, end_s) - start_s
    after = np.maximum(at_s - end_s, 0.0)
    return np.stack([np.ones(len(at_s)), before, within, after], axis=1)
