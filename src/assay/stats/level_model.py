"""Predict the next run of a series from the runs before it, with what similar series have in common.

The log time of a run is a level, an offset of its host, noise that is correlated with the run before by some ρ, and
occasionally a spike:

    x_t = level + host + c_t (+ shift),      c_t = ρ c_{t-1} + noise

For each ρ of a grid a Kalman filter tracks level, offsets and c_t, and learns their variance along the way: a Student-t
predicts the next run. A run that none of it explains is a spike, and does not change the state.

One short series determines ρ, its noise and its spike rate poorly. Many of one kind give a prior: how likely each ρ is,
and the noise to expect, worth a number of own runs. The less similar they are, the less that is worth.
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
"""Possible correlations of a run with the one before."""
RHO_PRIOR = np.array([0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06])
"""How likely each is before any history is seen."""
PRIOR_SERIES = 3.0
"""Weight of this prior, in series."""
ITERATIONS = 30
SPIKES, SPIKE_PRIOR_RUNS = 1.5, 40.0
"""Spikes expected in this many runs, before any are seen."""
VARIANCE_PRIOR, VARIANCE_PRIOR_SERIES = 0.1, 2.0
"""Variance of log variances between series, before any are seen, and the weight of that in series."""
MAX_PRIOR_RUNS = 200.0
"""Maximum weight of a kind's noise prior, in runs."""


@dataclass(frozen=True)
class NoisePrior:
    """A noise prior: its weight in runs (freedom), and what it adds to the sum of squares and to the spikes."""

    freedom: Samples
    squares: Samples
    spikes: Samples

    @classmethod
    def nothing(cls, *shape: int) -> NoisePrior:
        """Return a prior without information."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape))

    def of(self, index: Any) -> NoisePrior:
        """Return the prior at some indices."""
        return NoisePrior(self.freedom[index], self.squares[index], self.spikes[index])

    def put(self, index: int, other: NoisePrior) -> None:
        """Set the prior at one index."""
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
        """Number of series of the same kind, for each series."""
        return np.asarray(self._counts[self._kind, 0], dtype=np.float64)

    def _sum(self, values: Samples) -> Samples:
        """Return the sum over each kind's series: [kind, ρ] from [series, ρ]."""
        return np.asarray(np.add.reduceat(values[self._order], self._starts, axis=0), dtype=np.float64)

    def rho(self, fits: Samples) -> Samples:
        """Return how likely each ρ of the grid is for the kind of each series.

        Args:
            fits: Log-likelihood of each ρ for each series: [series, ρ].
        """
        likely = np.exp(fits - fits.max(axis=1, keepdims=True))
        weights = np.broadcast_to(RHO_PRIOR, (len(self._starts), len(RHO_PRIOR)))
        for _ in range(ITERATIONS):
            posterior = likely * weights[self._kind]
            posterior /= posterior.sum(axis=1, keepdims=True)
            weights = (self._sum(posterior) + PRIOR_SERIES * RHO_PRIOR) / (self._counts + PRIOR_SERIES)
        return np.asarray(weights[self._kind], dtype=np.float64)

    def noise(self, freedom: Samples, squares: Samples, spikes: Samples, plain: Samples) -> NoisePrior:
        """Return the noise prior for the kind of each series: its variance after Smyth (2004), and its spikes.

        Args:
            freedom: Degrees of freedom of each series' variance, for each ρ: [series, ρ].
            squares: Their sums of squares.
            spikes: Estimated number of spikes of each, including those expected beforehand.
            plain: Estimated number of other runs, likewise.
        """
        half = freedom / 2
        logs = np.log(squares / freedom) + 1 / freedom + 1 / (12 * half**2)
        middle = self._sum(logs) / self._counts
        by_chance = self._sum(1 / half + 1 / (2 * half**2)) / self._counts
        scatter = self._sum((logs - middle[self._kind]) ** 2) + VARIANCE_PRIOR_SERIES * (VARIANCE_PRIOR + by_chance)
        variation = np.maximum(scatter / (self._counts - 1 + VARIANCE_PRIOR_SERIES) - by_chance, 1e-9)
        worth = np.minimum((1 + np.sqrt(1 + 2 * variation)) / variation, MAX_PRIOR_RUNS)
        level = np.exp(middle - 1 / worth - 1 / (3 * worth**2))
        others = self._counts - 1
        of_others = worth * others / self._counts
        share = (self._sum(spikes) - others * SPIKES) / (self._sum(spikes + plain) - others * SPIKE_PRIOR_RUNS)
        prior = NoisePrior(of_others, of_others * level, SPIKE_PRIOR_RUNS * share - SPIKES)
        return prior.of(self._kind)


HOST_SPREAD = 0.10
SPIKE_UP, SPIKE_SIZE = 0.85, 0.2
FREEDOM, MAX_FREEDOM = 4.0, 80.0
"""Initial and maximum degrees of freedom of the noise scale: old runs are gradually forgotten."""
MIN_NOISE = 1e-3
"""Minimum noise, as a logarithm: no clock repeats better than to a thousandth."""
LEVEL_UNKNOWN = 25.0
INITIAL_RUNS = 30
"""Runs from which the initial level and scale are estimated."""
MIN_RUNS_ON_HOST = 4
"""Runs on a host among these for its own median to be used."""


@dataclass(frozen=True)
class LevelState:
    """Filter state after some runs, for every series and ρ (and shift): array axes first, vectors and matrices last.

    The unknowns are c, the level, the offset of each host but the first, and the shift where there is one.
    """

    mean: Samples
    spread: Samples
    freedom: Samples
    squares: Samples
    spikes: Samples
    plain: Samples

    def of(self, index: Any) -> LevelState:
        """Return the state at some indices."""
        return LevelState(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: list[LevelState]) -> LevelState:
        """Return several states concatenated."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def variance(self, usual: NoisePrior) -> Samples:
        """Return the variance of the noise."""
        variance = (self.squares + usual.squares) / (self.freedom + usual.freedom)
        return np.asarray(np.maximum(variance, MIN_NOISE**2), dtype=np.float64)


def initial_state(logs: Samples, names: Indices, hosts: int) -> LevelState:
    """Return the state before the first run: level and scale from the first runs, and nothing else.

    Args:
        logs: Log times, a series per row, padded with NaN; no row is empty.
        names: Host of each run.
        hosts: Number of hosts.
    """
    shape = (len(logs), len(RHO))
    first, on = logs[:, :INITIAL_RUNS], names[:, :INITIAL_RUNS]
    middle = np.nanmedian(first, axis=1)
    beyond = first - middle[:, None]
    for host in range(hosts):
        on_host = np.where(on == host, first, np.nan)
        frequent = np.isfinite(on_host).sum(axis=1) >= MIN_RUNS_ON_HOST
        beyond[frequent] = np.where(
            on[frequent] == host, first[frequent] - _row_medians(on_host[frequent]), beyond[frequent]
        )
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
    state: LevelState, usual: NoisePrior, rho: Samples, design: Samples, value: Samples
) -> tuple[Samples, LevelState]:
    """Return how well a run was predicted (log density), and the state after it; NaN means there was no run.

    Args:
        state: The state before the run.
        usual: The noise prior of its kind.
        rho: Correlation of a run with the one before.
        design: Which unknowns add up to the observed value of this run, 1 or 0.
        value: Log times.
    """
    measured = np.isfinite(value)
    mean, spread = state.mean.copy(), state.spread.copy()
    mean[..., 0] *= rho
    spread[..., 0, :] *= rho[..., None]
    spread[..., :, 0] *= rho[..., None]
    spread[..., 0, 0] += 1 - rho**2
    error = np.where(measured, value - (mean * design).sum(-1), 0.0)
    towards = (spread * design[..., None, :]).sum(-1)
    width = (towards * design).sum(-1)
    core = _student_log_density(error, width * state.variance(usual), state.freedom + usual.freedom)
    share = (state.spikes + usual.spikes) / (state.spikes + state.plain)
    as_core, as_spike = np.log1p(-share) + core, np.log(share) + _spike_log_density(error)
    density = np.logaddexp(as_core, as_spike)
    trust = np.where(measured, np.exp(as_core - density), 0.0)
    gain = towards / width[..., None]
    freedom = state.freedom + trust
    squares = state.squares + trust * error**2 / width
    forget = np.minimum(1.0, MAX_FREEDOM / freedom)
    updated = LevelState(
        mean + (trust * error)[..., None] * gain,
        spread - trust[..., None, None] * gain[..., :, None] * towards[..., None, :],
        freedom * forget,
        squares * forget,
        state.spikes + np.where(measured, 1 - trust, 0.0),
        state.plain + trust,
    )
    return np.where(measured, density, 0.0), updated


def _student_log_density(error: Samples, variance: Samples, freedom: Samples) -> Samples:
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2)
    tail = (freedom + 1) / 2 * np.log1p(error**2 / (freedom * variance))
    return np.asarray(constant - 0.5 * np.log(freedom * np.pi * variance) - tail, dtype=np.float64)


def _spike_log_density(error: Samples) -> Samples:
    side = np.where(error > 0, np.log(SPIKE_UP), np.log(1 - SPIKE_UP))
    return np.asarray(side - np.log(SPIKE_SIZE) - np.abs(error) / SPIKE_SIZE, dtype=np.float64)
