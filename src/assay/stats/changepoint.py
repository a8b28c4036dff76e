"""Change points: level shifts of many series, up and down, and which of them are significant.

The log time of a run is a level, an offset of its host, noise that is correlated with the run before by some ρ, and
occasionally a spike:

    x_t = level + host + c_t (+ shift),      c_t = ρ c_{t-1} + noise

For each ρ of a grid a Kalman filter tracks level, offsets and c_t, and learns their variance along the way: a Student-t
predicts the next run. A run that none of it explains is a spike, and does not change the state.

One short series determines ρ, its noise and its spike rate poorly. Many of one kind give a prior: how likely each ρ is,
and the noise to expect, worth a number of own runs. The less similar they are, the less that is worth.

"A shift since run τ" is the same prediction with one more unknown from τ on. Both predict every run after τ; how much
better the shift predicts them, with every ρ weighted by how well it fits, is the evidence. It is evaluated after each
run, as in a real history, and the alarm level is set
from simulations such that a hundred stable runs give an alarm in fewer than one of fifty series.

A series is searched up to its first shift, then from that shift on, until none is left. Each such segment gets the
probability that a stable one of its length gives as much evidence. Among a thousand stable series twenty give an
alarm, so the false-discovery rate is controlled (Benjamini and Hochberg) over all segments at once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import special

from assay.stats.numerics import median
from assay.stats.outliers import false_discovery_rates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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
        medians = np.nanmedian(on_host[frequent], axis=1, keepdims=True)
        beyond[frequent] = np.where(on[frequent] == host, first[frequent] - medians, beyond[frequent])
    scale = np.maximum(1.4826 * np.nanmedian(np.abs(beyond), axis=1), MIN_NOISE)
    mean, spread = np.zeros((*shape, 1 + hosts)), np.zeros((*shape, 1 + hosts, 1 + hosts))
    mean[..., 1] = middle[:, None]
    spread[..., 0, 0], spread[..., 1, 1] = 1.0, LEVEL_UNKNOWN
    for host in range(1, hosts):
        spread[..., 1 + host, 1 + host] = (HOST_SPREAD / scale[:, None]) ** 2
    squares = np.repeat((FREEDOM * scale**2)[:, None], len(RHO), axis=1)
    full = np.ones(shape)
    return LevelState(mean, spread, FREEDOM * full, squares, SPIKES * full, (SPIKE_PRIOR_RUNS - SPIKES) * full)


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


Direction = Literal[1, -1]
UP: Direction = 1
DOWN: Direction = -1

SHIFT_SIZES = np.log1p(np.array([0.05, 0.10, 0.22, 0.75]))
SHIFT_SIZE_PRIOR = np.array([0.44, 0.44, 0.09, 0.03])
SPREAD = np.array([0.35, 0.35, 0.35, 0.9])
"""Relative standard deviation of a shift's size around each of these four."""

HISTORY = INITIAL_RUNS
"""Minimum number of runs before a shift."""
REACH = 20
"""Runs after its start within which a shift can be detected."""
CONFIRMED_BY = 4
"""Runs needed from the shift on to detect it: two consecutive spikes are not rare."""
WANDERING_PENALTY, ALONE_PENALTY = 1.4, 2.4
"""Evidence subtracted per unit of ρ, as wandering noise looks like shifts: for a large kind, and how much more for a
series that is alone in its kind."""
ALARM = 5.9
"""Evidence, as a logarithm, from which on a shift is detected."""
MIN_RUNS_FOR_NOISE = 10
"""Runs after which the noise of a kind is learnt."""
MIN_FOLLOWED_DISTANCE, LOWEST, HIGHEST = 2.5, -2.0, 4.0
"""A candidate is evaluated where its runs together lie this many standard errors beyond the level, each clipped to the
other two values; a run as far as the last on the wrong side is a spike, and is left out."""
MAX_LEVEL_VARIANCE = 0.2
"""Variance, in units of the noise's, beyond which a host's level is too uncertain to rule out a candidate."""
MAX_FOLLOWED_TOGETHER = 3000
"""Candidates evaluated together; limits memory."""


@dataclass(frozen=True)
class ShiftEvidence:
    """For every series and run: the best evidence for a shift detected there, its first run, size and error."""

    log_odds: Samples
    first: Indices
    size: Samples
    error: Samples


@dataclass(frozen=True)
class _SeriesData:
    """Series being searched: log times, hosts, how well each ρ fits up to each run, and priors of their kind.

    ``weights`` and ``usual`` are the kind's ρ weights and noise prior, as known before each run.
    """

    logs: Samples
    names: Indices
    hosts: int
    fits: Samples
    weights: Samples
    usual: NoisePrior
    wandering: Samples


@dataclass(frozen=True)
class _ShiftCandidates:
    """Possible shifts: in which series, at which run, and the state before it."""

    row: Indices
    first: Indices
    state: LevelState

    def of(self, index: Any) -> _ShiftCandidates:
        """Return the candidates at some indices."""
        return _ShiftCandidates(self.row[index], self.first[index], self.state.of(index))


class ShiftSearch:
    """A search over series: the evidence for a shift after each run of each, in each direction."""

    def __init__(
        self,
        logs: Samples,
        hosts: Indices | None = None,
        kinds: Indices | None = None,
        *,
        directions: Sequence[Direction] = (UP,),
    ) -> None:
        """Search the series.

        Args:
            logs: Log times, a series per row, padded with NaN.
            hosts: Host of each run, from 0; null: one host.
            kinds: Kind of each series, from 0; null: all of one kind.
            directions: Shifts up, shifts down, or both.
        """
        names = np.zeros(logs.shape, dtype=np.int64) if hosts is None else hosts
        of_kind = np.zeros(len(logs), dtype=np.int64) if kinds is None else kinds
        self._series, candidates = _learn_series(logs, names, SeriesKinds(of_kind), directions)
        self._begun = dict(zip(directions, candidates, strict=True))
        self.evidence: dict[Direction, ShiftEvidence] = {
            direction: _empty_evidence(logs.shape) for direction in directions
        }
        parts = [(direction, part) for direction, steps in self._begun.items() for part in _split_candidates(steps)]
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            futures = [
                threads.submit(_record_evidence, self.evidence[direction], part, direction, self._series)
                for direction, part in parts
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def beginnings(self, row: int, direction: Direction, run: int) -> tuple[Indices, Samples]:
        """Return the possible first runs of a shift, given a series up to a run, and the probability of each."""
        steps = self._begun[direction]
        near = (steps.row == row) & (steps.first <= run - CONFIRMED_BY + 1) & (steps.first > run - REACH)
        candidates = steps.of(near)
        odds = np.full(len(candidates.row), -np.inf)
        for look in _follow_shifts(candidates, direction, self._series):
            here = look.there & (look.run == run)
            odds[here] = look.odds[here]
        return candidates.first, np.asarray(special.softmax(odds), dtype=np.float64)


def _split_candidates(candidates: _ShiftCandidates) -> Iterator[_ShiftCandidates]:
    """Split candidates so that no series is in two parts: the parts are evaluated in parallel."""
    order = np.argsort(candidates.row, kind="stable")
    starts = np.flatnonzero(np.diff(candidates.row[order], prepend=-1))
    cuts = [0]
    for start in starts[1:]:
        if start - cuts[-1] >= MAX_FOLLOWED_TOGETHER:
            cuts.append(int(start))
    for low, high in pairwise([*cuts, len(order)]):
        if high > low:
            yield candidates.of(order[low:high])


def _empty_evidence(shape: tuple[int, ...]) -> ShiftEvidence:
    return ShiftEvidence(np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64), np.zeros(shape), np.zeros(shape))


def _learn_series(
    logs: Samples, names: Indices, kinds: SeriesKinds, directions: Sequence[Direction]
) -> tuple[_SeriesData, list[_ShiftCandidates]]:
    """Return the state of the series before each run, and the candidates for shifts."""
    count = int(names.max()) + 1 if names.size else 1
    rows, runs = logs.shape
    state, rho = initial_state(logs, names, count), np.broadcast_to(RHO, (rows, len(RHO)))
    fits, weights = np.zeros((runs + 1, rows, len(RHO))), np.zeros((runs, rows, len(RHO)))
    usual = NoisePrior.nothing(runs + REACH, rows, len(RHO))
    followed_rows: list[list[Indices]] = [[] for _ in directions]
    states: list[list[LevelState]] = [[] for _ in directions]
    for run in range(runs):
        if run >= MIN_RUNS_FOR_NOISE:
            usual.put(run + REACH, kinds.noise(state.freedom, state.squares, state.spikes, state.plain))
        if run >= HISTORY:
            weights[run] = np.log(kinds.rho(fits[run]))
            ahead = slice(run, run + REACH)
            beyond, uncertain = _standardized_distances(
                state, usual.of(run), fits[run], logs[:, ahead], names[:, ahead]
            )
            for index, direction in enumerate(directions):
                followed_rows[index].append(np.flatnonzero(_worth_following(direction * beyond, uncertain)))
                states[index].append(state.of(followed_rows[index][-1]))
        design = design_matrix(names[:, run], count)[:, None, :]
        density, state = update_state(state, usual.of(run), rho, design, logs[:, run, None])
        fits[run + 1] = fits[run] + density
    series = _SeriesData(
        logs, names, count, fits, weights, usual, WANDERING_PENALTY + ALONE_PENALTY / np.sqrt(kinds.sizes)
    )
    return series, [_collect_candidates(*collected) for collected in zip(followed_rows, states, strict=True)]


def _collect_candidates(rows: list[Indices], states: list[LevelState]) -> _ShiftCandidates:
    nothing = np.array([], dtype=np.int64)
    if not rows:
        return _ShiftCandidates(nothing, nothing, LevelState(*(np.zeros((0,)),) * 6))
    firsts = [np.full(len(row), HISTORY + offset) for offset, row in enumerate(rows)]
    return _ShiftCandidates(np.concatenate(rows), np.concatenate(firsts), LevelState.joined(states))


def _standardized_distances(
    state: LevelState, usual: NoisePrior, fits: Samples, logs: Samples, names: Indices
) -> tuple[Samples, NDArray[np.bool_]]:
    """Return how far runs are from their prediction, in units of the noise, and where that is uncertain.

    Args:
        state: The state before these runs.
        usual: The noise prior of their kinds.
        fits: How well each ρ fits so far; the best is used.
        logs: Log times of these runs.
        names: Their hosts.
    """
    rows = np.arange(len(logs))
    best_rho = (rows, fits.argmax(axis=1))
    best, noise = state.of(best_rho), np.sqrt(state.of(best_rho).variance(usual.of(best_rho)))
    design = design_matrix(names.ravel(), state.mean.shape[-1] - 1).reshape(*names.shape, -1)
    design[..., 0] = 0.0
    level = np.einsum("rtk,rk->rt", design, best.mean)
    uncertain = np.einsum("rtk,rkl,rtl->rt", design, best.spread, design) > MAX_LEVEL_VARIANCE
    return np.asarray((logs - level) / noise[:, None], dtype=np.float64), uncertain


def _worth_following(beyond: Samples, uncertain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a shift may start with the first of some runs, given how far they are in its direction."""
    counted = np.where(uncertain & np.isfinite(beyond), HIGHEST, np.clip(beyond, LOWEST, HIGHEST))
    weight = np.where(beyond < -HIGHEST, 0.0, np.where(np.isfinite(beyond), 1.0, np.nan))
    runs = np.maximum(np.cumsum(weight, axis=1), 1.0)
    together = (np.cumsum(weight * counted, axis=1) / np.sqrt(runs))[:, CONFIRMED_BY - 1 :]
    worth = np.where(np.isfinite(together), together, -np.inf) > MIN_FOLLOWED_DISTANCE
    return np.isfinite(beyond[:, 0]) & worth.any(axis=1)


def _with_shift(state: LevelState, usual: NoisePrior, direction: Direction) -> LevelState:
    """Return the state with a shift of unknown size starting now, for each of the likely sizes."""
    steps, old = len(SHIFT_SIZES), state.mean.shape[-1]
    shape = (*state.freedom.shape, steps)
    mean, spread = np.zeros((*shape, old + 1)), np.zeros((*shape, old + 1, old + 1))
    mean[..., :old], mean[..., old] = state.mean[..., None, :], direction * SHIFT_SIZES
    spread[..., :old, :old] = state.spread[..., None, :, :]
    spread[..., old, old] = (SPREAD * SHIFT_SIZES) ** 2 / state.variance(usual)[..., None]
    rest = (state.freedom, state.squares, state.spikes, state.plain)
    return LevelState(mean, spread, *(np.repeat(part[..., None], steps, axis=-1) for part in rest))


@dataclass(frozen=True)
class _ShiftState:
    """The state of candidates after one more run: which run, whether it exists, the evidence, and the sizes."""

    run: Indices
    there: NDArray[np.bool_]
    odds: Samples
    state: LevelState
    usual: NoisePrior
    total: Samples


def _follow_shifts(candidates: _ShiftCandidates, direction: Direction, series: _SeriesData) -> Iterator[_ShiftState]:
    """Follow candidates over the runs in which they can be detected, and yield their state after each run."""
    row, first = candidates.row, candidates.first
    state = _with_shift(candidates.state, series.usual.of((first, row)), direction)
    rho = np.broadcast_to(RHO[:, None], state.freedom.shape)
    weights = series.weights[first, row]
    total = (series.fits[first, row] + weights)[..., None] + np.log(SHIFT_SIZE_PRIOR)
    wandering = series.wandering[row] * (special.softmax(series.fits[first, row] + weights, axis=1) @ RHO)
    for since in range(REACH):
        run = np.minimum(first + since, series.logs.shape[1] - 1)
        value = np.where(first + since == run, series.logs[row, run], np.nan)
        design = np.concatenate([design_matrix(series.names[row, run], series.hosts), np.ones((len(row), 1))], axis=1)
        usual = series.usual.of((run, row)).of((..., None))
        density, state = update_state(state, usual, rho, design[:, None, None, :], value[:, None, None])
        total = total + density
        if since + 1 < CONFIRMED_BY:
            continue
        odds = _log_sum(total) - _log_sum(series.fits[run + 1, row] + weights) - wandering
        yield _ShiftState(run, np.isfinite(value), odds, state, usual, total)


def _record_evidence(
    evidence: ShiftEvidence, candidates: _ShiftCandidates, direction: Direction, series: _SeriesData
) -> None:
    """Follow candidates, and record where each is the best one."""
    row, first = candidates.row, candidates.first
    for look in _follow_shifts(candidates, direction, series):
        better = np.flatnonzero(look.there & (look.odds > evidence.log_odds[row, look.run]))
        size, error = _estimate_size(look.state.of(better), look.usual.of(better), look.total[better])
        # A large shift is preceded by an apparent one in the other direction, a run too early.
        right = direction * size > 0
        better, size, error = better[right], size[right], error[right]
        at = row[better], look.run[better]
        evidence.log_odds[at], evidence.first[at], evidence.size[at] = look.odds[better], first[better], size
        evidence.error[at] = error


def _log_sum(values: Samples) -> Samples:
    flat = values.reshape(len(values), -1)
    return np.asarray(special.logsumexp(flat, axis=1), dtype=np.float64)


def _estimate_size(state: LevelState, usual: NoisePrior, total: Samples) -> tuple[Samples, Samples]:
    """Return a shift's size and its standard error, averaged over all ρ and sizes by their probability."""
    weight = np.exp(total - total.max(axis=(1, 2), keepdims=True))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    sizes, variance = state.mean[..., -1], state.spread[..., -1, -1] * state.variance(usual)
    size = (weight * sizes).sum(axis=(1, 2))
    spread = (weight * (variance + (sizes - size[:, None, None]) ** 2)).sum(axis=(1, 2))
    return size, np.sqrt(spread)


MIN_RUNS = HISTORY + CONFIRMED_BY
"""Minimum length of a series to be searched."""
FALSE_DISCOVERY_RATE = 0.05
"""Maximum share of significant shifts that may be false."""
TAIL_AT_ALARM, TAIL_FALLS = 0.02, 0.8
"""Probability that a hundred stable runs exceed the alarm level in one direction, and its rate of decay with further
evidence. Simulated series of all kinds of noise lie below this."""
SIMULATED_RUNS = 100
BEGAN_WITHIN = 0.95
LAST_RUNS = 10
"""Runs at the end of a segment that define its current level."""


@dataclass(frozen=True)
class LevelShift:
    """A level shift of a series; runs are indices into it, sizes are logarithms of ratios.

    Attributes:
        direction: Up or down.
        first: The most likely first run after the shift; it lies in ``first_low`` to ``first_high``.
        detected_at: The run at which it could first be detected.
        size: How far the level moved; with 95 % probability between ``low`` and ``high``.
        left: Distance from the old level at the end of the segment; near 0 where the shift was reverted.
        evidence: As a logarithm.
        chance: Probability that a stable segment of this length gives as much.
        significant: Whether it is significant among all the series searched.
    """

    direction: Direction
    first: int
    first_low: int
    first_high: int
    detected_at: int
    size: float
    low: float
    high: float
    left: float
    evidence: float
    chance: float
    significant: bool = False


RUN_NAMES = ("first", "first_low", "first_high", "detected_at")


def pad_rows(series: Sequence[NDArray[np.generic]], fill: float) -> NDArray[np.float64]:
    """Return series of different lengths as rows, padded with ``fill``."""
    rows = np.full((len(series), max((len(values) for values in series), default=0)), fill)
    for row, values in zip(rows, series, strict=True):
        row[: len(values)] = values
    return rows


def false_alarm_probability(evidence: float, runs: int) -> float:
    """Return the probability that a stable segment of ``runs`` runs gives this evidence, for shifts up or down."""
    one = min(1.0, TAIL_AT_ALARM * float(np.exp(-TAIL_FALLS * (evidence - ALARM))))
    looks = max(runs - MIN_RUNS + 1, 1) / (SIMULATED_RUNS - MIN_RUNS + 1)
    return float(-np.expm1(2 * looks * np.log1p(-min(one, 1 - 1e-12))))


def find_level_shifts(
    logs: Sequence[Samples],
    hosts: Sequence[Indices] | None = None,
    kinds: Sequence[int] | None = None,
    *,
    fdr: float = FALSE_DISCOVERY_RATE,
) -> list[list[LevelShift]]:
    """Return the level shifts of each series in order.

    Args:
        logs: For each series the log times of its runs, all finite.
        hosts: For each series the host of each run, from 0; null: one host.
        kinds: Kind of each series; null: all of one kind.
        fdr: False-discovery rate: maximum share of significant shifts that may be false.
    """
    names = [np.zeros(len(runs), dtype=np.int64) for runs in logs] if hosts is None else hosts
    of_kind = np.zeros(len(logs), dtype=np.int64) if kinds is None else np.asarray(kinds, dtype=np.int64)
    shifts: list[list[LevelShift]] = [[] for _ in logs]
    quiet: list[float] = []
    segments = [(index, 0) for index, runs in enumerate(logs) if len(runs) >= MIN_RUNS]  # series, and its first run
    while segments:
        next_segments: list[tuple[int, int]] = []
        counts = np.array([names[series][start:].max() for series, start in segments])
        for count in np.unique(counts):
            part = [segment for segment, highest_host in zip(segments, counts, strict=True) if highest_host == count]
            search = ShiftSearch(
                pad_rows([logs[series][start:] for series, start in part], np.nan),
                pad_rows([names[series][start:] for series, start in part], 0).astype(np.int64),
                of_kind[[series for series, _ in part]],
                directions=(UP, DOWN),
            )
            for row, (series, start) in enumerate(part):
                values = logs[series][start:]
                step = _first_shift(search, row, values)
                if step is None:
                    largest = max(float(evidence.log_odds[row].max()) for evidence in search.evidence.values())
                    quiet.append(false_alarm_probability(largest, len(values)))
                    continue
                runs = {name: getattr(step, name) + start for name in RUN_NAMES}
                shifts[series].append(replace(step, **runs))
                if len(values) - step.first >= MIN_RUNS:
                    next_segments.append((series, start + step.first))
        segments = next_segments
    return _control_false_discoveries(shifts, quiet, fdr)


def _first_shift(search: ShiftSearch, row: int, values: Samples) -> LevelShift | None:
    """Return the first shift detected in a segment, estimated with the runs after it; null where there is none."""
    alarms = {
        direction: np.flatnonzero(shift_evidence.log_odds[row] > ALARM)
        for direction, shift_evidence in search.evidence.items()
    }
    first_alarms = ((int(at[0]), direction) for direction, at in alarms.items() if len(at))
    detected_at, direction = min(first_alarms, default=(-1, UP))
    if detected_at < 0:
        return None
    shift_evidence = search.evidence[direction]
    best = detected_at + int(np.argmax(shift_evidence.log_odds[row, detected_at : detected_at + REACH]))
    first, size, error = (
        int(shift_evidence.first[row, best]),
        float(shift_evidence.size[row, best]),
        float(shift_evidence.error[row, best]),
    )
    firsts, likely = search.beginnings(row, direction, best)
    low, high = _credible_runs(firsts, likely)
    end = values[first:][-LAST_RUNS:]
    evidence = float(shift_evidence.log_odds[row, best])
    return LevelShift(
        direction=direction,
        first=first,
        first_low=min(low, first),
        first_high=max(high, first),
        detected_at=detected_at,
        size=size,
        low=size - 1.96 * error,
        high=size + 1.96 * error,
        left=median(end) - median(values[max(0, first - HISTORY) : first]),
        evidence=evidence,
        chance=false_alarm_probability(evidence, len(values)),
    )


def _credible_runs(firsts: Indices, likely: Samples) -> tuple[int, int]:
    """Return the credible range of a shift's first run: the fewest runs that hold nearly all the probability."""
    order = np.argsort(-likely, kind="stable")
    needed = int(np.searchsorted(np.cumsum(likely[order]), BEGAN_WITHIN)) + 1
    chosen = firsts[order[:needed]]
    return int(chosen.min()), int(chosen.max())


def _control_false_discoveries(
    shifts: list[list[LevelShift]], quiet: list[float], fdr: float
) -> list[list[LevelShift]]:
    """Mark which shifts are significant among all segments that were searched."""
    chances = [step.chance for steps in shifts for step in steps]
    if not chances:
        return shifts
    adjusted = iter(false_discovery_rates(np.array([*chances, *quiet])))
    return [[replace(step, significant=bool(next(adjusted) <= fdr)) for step in steps] for steps in shifts]
