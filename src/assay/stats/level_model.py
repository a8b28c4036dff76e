"""Predict the next run of a series from the runs before it, with what similar series have in common.

The log time of a run is a level, an offset of its host, noise that resembles the run before by some ρ, and now and
then a spike:

    x_t = level + host + c_t (+ shift),      c_t = ρ c_{t-1} + noise

For each ρ of a grid a Kalman filter follows level, offsets and c_t, and learns their variance on the way: a Student-t
predicts the next run. A run that none of it explains is a spike, and moves nothing.

One short series determines ρ, its noise and its spike rate badly. Many of one kind give a prior: how likely each ρ is,
and the noise to expect, worth a number of own runs. The less alike they are, the less that is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray


if TYPE_CHECKING:
    Samples = NDArray[np.float64]
    Indices = NDArray[np.int64]

RHO = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.85])
"""How much a run may resemble the one before."""
RHO_PRIOR = np.array([0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06])
"""How likely each is before any history is looked at."""
PRIOR_SERIES = 3.0
"""Series' worth of weight that this has."""
ITERATIONS = 30
SPIKES, SPIKE_PRIOR_RUNS = 1.5, 40.0
"""Spikes expected in so many runs, before any is seen."""
VARIANCE_PRIOR, VARIANCE_PRIOR_SERIES = 0.1, 2.0
"""Variance of log variances from series to series, before any is seen, and how many series that is worth."""
MAX_PRIOR_RUNS = 200.0
"""Runs that what is usual for a kind may be worth at most."""


@dataclass(frozen=True)
class NoisePrior:
    """What noise is usual: worth so many runs (freedom), which add so much to the sum of squares and to the spikes."""

    freedom: Samples
    squares: Samples
    spikes: Samples

    @classmethod
    def nothing(cls, *shape: int) -> NoisePrior:
        """Return that nothing is usual."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))

    def of(self, index: Any) -> NoisePrior:
        """Return what is usual at some places."""
        return NoisePrior(self.freedom[index], self.squares[index], self.spikes[index])

    def put(self, index: int, other: NoisePrior) -> None:
        """Keep what is usual at one place."""
        self.freedom[index], self.squares[index], self.spikes[index] = other.freedom, other.squares, other.spikes


class SeriesKinds:
    """Which series are of one kind."""

    def __init__(self, kinds: Indices) -> None:
        _, self._kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._kind, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._counts = counts[:, None].astype(np.float64)

    @property
    def sizes(self) -> Samples:
        """Of each series, how many are of its kind."""
        return np.asarray(self._counts[self._kind, 0], dtype=np.float64)

    def _sum(self, values: Samples) -> Samples:
        """Return the sum over each kind's series: [kind, ρ] from [series, ρ]."""
        return np.asarray(np.add.reduceat(values[self._order], self._starts, axis=0), dtype=np.float64)

    def rho(self, fits: Samples) -> Samples:
        """Return how likely each ρ of the grid is for the kind of each series.

        Args:
            fits: How well each ρ fits each series (logs): [series, ρ].
        """
        likely = np.exp(fits - fits.max(axis=1, keepdims=True))
        weights = np.broadcast_to(RHO_PRIOR, (len(self._starts), len(RHO_PRIOR)))
        for _ in range(ITERATIONS):
            posterior = likely * weights[self._kind]
            posterior /= posterior.sum(axis=1, keepdims=True)
            weights = (self._sum(posterior) + PRIOR_SERIES * RHO_PRIOR) / (self._counts + PRIOR_SERIES)
        return np.asarray(weights[self._kind], dtype=np.float64)

    def noise(self, freedom: Samples, squares: Samples, spikes: Samples, plain: Samples) -> NoisePrior:
        """Return what noise is usual for the kind of each series: its variance after Smyth (2004), and its spikes.

        Args:
            freedom: Runs that each series' variance rests on, for each ρ: [series, ρ].
            squares: Their sums of squares.
            spikes: Spikes that each is thought to have had, with those expected before any was seen.
            plain: Runs that were none, likewise.
        """
        half = freedom / 2
        logs = np.log(squares / freedom) + 1 / freedom + 1 / (12 * half**2)
        middle = self._sum(logs) / self._counts
        by_chance = self._sum(1 / half + 1 / (2 * half**2)) / self._counts
        scatter = self._sum((logs - middle[self._kind]) ** 2) + VARIANCE_PRIOR_SERIES * (VARIANCE_PRIOR + by_chance)
        unlike = np.maximum(scatter / (self._counts - 1 + VARIANCE_PRIOR_SERIES) - by_chance, 1e-9)
        worth = np.minimum((1 + np.sqrt(1 + 2 * unlike)) / unlike, MAX_PRIOR_RUNS)
        level = np.exp(middle - 1 / worth - 1 / (3 * worth**2))
        others = self._counts - 1
        of_others = worth * others / self._counts
        share = (self._sum(spikes) - others * SPIKES) / (self._sum(spikes + plain) - others * SPIKE_PRIOR_RUNS)
        prior = NoisePrior(of_others, of_others * level, SPIKE_PRIOR_RUNS * share - SPIKES)
        return prior.of(self._kind)


HOST_SPREAD = 0.10
SPIKE_UP, SPIKE_SIZE = 0.85, 0.2
FREEDOM, MAX_FREEDOM = 4.0, 80.0
"""The scale of the noise is known as if from so many runs at first, and at most: what is long ago is forgotten."""
MIN_NOISE = 1e-3
"""Noise that is taken for granted, as a logarithm: no clock repeats better than to a thousandth."""
LEVEL_UNKNOWN = 25.0
INITIAL_RUNS = 30
"""Runs from which the first guess of level and scale is made."""
MIN_RUNS_ON_HOST = 4
"""Runs on a host among these for its own middle to count."""


@dataclass(frozen=True)
class LevelState:
    """What is known after some runs, for every series and ρ (and step): arrays over those, vectors and matrices last.

    The unknowns are c, the level, the offset of each host but the first, and the step where there is one.
    """

    mean: Samples
    spread: Samples
    freedom: Samples
    squares: Samples
    spikes: Samples
    plain: Samples

    def of(self, index: Any) -> LevelState:
        """Return what is known at some places."""
        return LevelState(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: list[LevelState]) -> LevelState:
        """Return what is known of several, one behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def variance(self, usual: NoisePrior) -> Samples:
        """Return the variance of the noise."""
        variance = (self.squares + usual.squares) / (self.freedom + usual.freedom)
        return np.asarray(np.maximum(variance, MIN_NOISE**2), dtype=np.float64)


def initial_state(logs: Samples, names: Indices, hosts: int) -> LevelState:
    """Return what is known before the first run: level and scale from the first runs, and nothing else.

    Args:
        logs: Log times, a series a row, NaN behind its end; no row is empty.
        names: On which host each run was.
        hosts: How many hosts there are.
    """
    shape = (len(logs), len(RHO))
    first, on = logs[:, :INITIAL_RUNS], names[:, :INITIAL_RUNS]
    middle = np.nanmedian(first, axis=1)
    beyond = first - middle[:, None]
    for host in range(hosts):
        its = np.where(on == host, first, np.nan)
        often = np.isfinite(its).sum(axis=1) >= MIN_RUNS_ON_HOST
        beyond[often] = np.where(on[often] == host, first[often] - _row_medians(its[often]), beyond[often])
    scale = np.maximum(1.4826 * np.nanmedian(np.abs(beyond), axis=1), MIN_NOISE)
    mean, spread = np.zeros((*shape, 1 + hosts)), np.zeros((*shape, 1 + hosts, 1 + hosts))
    mean[..., 1] = middle[:, None]
    spread[..., 0, 0], spread[..., 1, 1] = 1.0, LEVEL_UNKNOWN
    for host in range(1, hosts):
        spread[..., 1 + host, 1 + host] = (HOST_SPREAD / scale[:, None]) ** 2
    squares = np.repeat((FREEDOM * scale**2)[:, None], len(RHO), axis=1)
    full = np.ones(shape)
    return LevelState(mean, spread, FREEDOM * full, squares, SPIKES * full, (SPIKE_PRIOR_RUNS - SPIKES) * full)


def _row_medians(values: Samples) -> Samples:
    return np.asarray(np.nanmedian(values, axis=1, keepdims=True), dtype=np.float64)


def design_matrix(names: Indices, count: int) -> Samples:
    """Return which unknowns make up a run on a host: c, the level, and the host's offset if it is not the first."""
    design = np.zeros((len(names), 1 + count))
    design[:, :2] = 1.0
    for host in range(1, count):
        design[:, 1 + host] = names == host
    return design


def update_state(
    state: LevelState, usual: NoisePrior, rho: Samples, made_of: Samples, value: Samples
) -> tuple[Samples, LevelState]:
    """Return how well a run was predicted (log density), and what is known after it; a NaN run was not there.

    Args:
        state: Before the run.
        usual: What noise is usual for its kind.
        rho: How much a run resembles the one before.
        made_of: Which unknowns add up to what is seen of this run, 1 or 0.
        value: Log times.
    """
    here = np.isfinite(value)
    mean, spread = state.mean.copy(), state.spread.copy()
    mean[..., 0] *= rho
    spread[..., 0, :] *= rho[..., None]
    spread[..., :, 0] *= rho[..., None]
    spread[..., 0, 0] += 1 - rho**2
    error = np.where(here, value - (mean * made_of).sum(-1), 0.0)
    towards = (spread * made_of[..., None, :]).sum(-1)
    width = (towards * made_of).sum(-1)
    core = _student_log_density(error, width * state.variance(usual), state.freedom + usual.freedom)
    share = (state.spikes + usual.spikes) / (state.spikes + state.plain)
    as_core, as_spike = np.log1p(-share) + core, np.log(share) + _spike_log_density(error)
    density = np.logaddexp(as_core, as_spike)
    trust = np.where(here, np.exp(as_core - density), 0.0)
    gain = towards / width[..., None]
    freedom = state.freedom + trust
    squares = state.squares + trust * error**2 / width
    forget = np.minimum(1.0, MAX_FREEDOM / freedom)
    then = LevelState(
        mean + (trust * error)[..., None] * gain,
        spread - trust[..., None, None] * gain[..., :, None] * towards[..., None, :],
        freedom * forget,
        squares * forget,
        state.spikes + np.where(here, 1 - trust, 0.0),
        state.plain + trust,
    )
    return np.where(here, density, 0.0), then


def _student_log_density(error: Samples, variance: Samples, freedom: Samples) -> Samples:
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2)
    tail = (freedom + 1) / 2 * np.log1p(error**2 / (freedom * variance))
    return np.asarray(constant - 0.5 * np.log(freedom * np.pi * variance) - tail, dtype=np.float64)


def _spike_log_density(error: Samples) -> Samples:
    side = np.where(error > 0, np.log(SPIKE_UP), np.log(1 - SPIKE_UP))
    return np.asarray(side - np.log(SPIKE_SIZE) - np.abs(error) / SPIKE_SIZE, dtype=np.float64)
