"""Whether a series of runs has become slower, told as early as it can be without crying wolf.

A run's log time is a level, an offset of the host it ran on, noise that resembles the run before by an unknown ρ, and
now and then a spike:

    x_t = level + host + c_t (+ step, from some run on),      c_t = ρ c_{t-1} + noise

For each ρ of a grid a Kalman filter follows level, offsets and c_t, their variance learnt on the way (a Student-t
predicts the next run); a run that none of it explains is a spike, and moves nothing. "A step since run τ" is the same
filter with one unknown more from τ on. Both predict every run after τ; how much better the step predicts them, all ρ
weighed by how well they fit, is the evidence. It is looked at after each run, as it would be in a real history, and
the alarm level is set from simulations such that a hundred stable runs give an alarm in less than one of fifty series.

A history holds many series of one kind: how much runs resemble each other, which one short series says badly, is
learnt from all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

RHO = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.85])
RHO_BEFORE = np.array([0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06])
SHARED = 3.0
"""Series' worth of weight that the grid has by itself, before the history is looked at."""
STEPS = np.log1p(np.array([0.05, 0.10, 0.22]))
STEPS_BEFORE = np.array([0.45, 0.45, 0.10])
SPREAD = 0.35
"""Of a step's size: how far it may be from those three."""
HOST_SPREAD = 0.10
SPIKES, SPIKES_SEEN = 1.5, 40.0
"""Spikes expected in so many runs, before any is seen."""
SPIKE_UP, SPIKE_SIZE = 0.85, 0.2
FREEDOM, MOST_FREEDOM = 4.0, 80.0
"""The scale of the noise is known as if from so many runs at first, and at most: what is long ago is forgotten."""
LEVEL_UNKNOWN = 25.0

HISTORY = 30
"""Runs before the first that may be called a step."""
REACH = 20
"""Runs that a step may lie back."""
CONFIRMED_BY = 3
"""Runs from the step on before it is told: two spikes in a row are not rare."""
ALARM = 6.9
"""Evidence, as a logarithm, from which on a step is told."""


@dataclass(frozen=True)
class Step:
    """A step up: its first run, the run at which it could be told, and its size as a logarithm with its interval."""

    first: int
    told: int
    size: float
    low: float
    high: float
    evidence: float


@dataclass(frozen=True)
class _State:
    """What is known after some runs, for every series and ρ (and step): arrays over those, matrices last."""

    mean: Samples
    spread: Samples
    freedom: Samples
    squares: Samples
    spikes: Samples
    plain: Samples

    def of(self, index: object) -> _State:
        """Return the states at some places."""
        return _State(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def _predicted(state: _State, rho: Samples, seen: Samples, value: Samples) -> tuple[Samples, _State]:
    """Return how well a run was predicted (log density), and what is known after it; a NaN run was not there.

    Args:
        state: Before the run.
        rho: How much a run resembles the one before.
        seen: Which unknowns add up to what is seen of this run, 1 or 0.
        value: Log times.
    """
    here = np.isfinite(value)
    mean, spread = state.mean.copy(), state.spread.copy()
    mean[..., 0] *= rho
    spread[..., 0, :] *= rho[..., None]
    spread[..., :, 0] *= rho[..., None]
    spread[..., 0, 0] += 1 - rho**2
    error = np.where(here, value - (mean * seen).sum(-1), 0.0)
    towards = (spread * seen[..., None, :]).sum(-1)
    width = (towards * seen).sum(-1)
    core = _student(error, width * state.squares / state.freedom, state.freedom)
    share = state.spikes / (state.spikes + state.plain)
    as_core, as_spike = np.log1p(-share) + core, np.log(share) + _spike(error)
    density = np.logaddexp(as_core, as_spike)
    trust = np.where(here, np.exp(as_core - density), 0.0)
    gain = towards / width[..., None]
    freedom = state.freedom + trust
    squares = state.squares + trust * error**2 / width
    forget = np.minimum(1.0, MOST_FREEDOM / freedom)
    after = _State(
        mean + (trust * error)[..., None] * gain,
        spread - trust[..., None, None] * gain[..., :, None] * towards[..., None, :],
        freedom * forget,
        squares * forget,
        state.spikes + np.where(here, 1 - trust, 0.0),
        state.plain + trust,
    )
    return np.where(here, density, 0.0), after


def _student(error: Samples, variance: Samples, freedom: Samples) -> Samples:
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2)
    tail = (freedom + 1) / 2 * np.log1p(error**2 / (freedom * variance))
    return np.asarray(constant - 0.5 * np.log(freedom * np.pi * variance) - tail, dtype=np.float64)


def _spike(error: Samples) -> Samples:
    side = np.where(error > 0, np.log(SPIKE_UP), np.log(1 - SPIKE_UP))
    return np.asarray(side - np.log(SPIKE_SIZE) - np.abs(error) / SPIKE_SIZE, dtype=np.float64)


def _begin(logs: Samples, hosts: int) -> _State:
    """Return what is known before the first run: a scale from the first runs, and nothing else."""
    shape = (len(logs), len(RHO))
    first = logs[:, :HISTORY]
    middle = np.nanmedian(first, axis=1)
    scale = 1.4826 * np.nanmedian(np.abs(first - middle[:, None]), axis=1)
    scale = np.maximum(scale, 1e-6)
    mean, spread = np.zeros((*shape, 1 + hosts)), np.zeros((*shape, 1 + hosts, 1 + hosts))
    mean[..., 1] = middle[:, None]
    spread[..., 0, 0], spread[..., 1, 1] = 1.0, LEVEL_UNKNOWN
    for host in range(1, hosts):
        spread[..., 1 + host, 1 + host] = (HOST_SPREAD / scale[:, None]) ** 2
    squares = np.repeat((FREEDOM * scale**2)[:, None], len(RHO), axis=1)
    full = np.ones(shape)
    return _State(mean, spread, FREEDOM * full, squares, SPIKES * full, (SPIKES_SEEN - SPIKES) * full)


def _with_step(state: _State) -> _State:
    """Return the same knowledge with a step of unknown size beginning now, for each of the likely sizes."""
    steps, old = len(STEPS), state.mean.shape[-1]
    sigma = np.sqrt(state.squares / state.freedom)
    shape = (*state.freedom.shape, steps)
    mean, spread = np.zeros((*shape, old + 1)), np.zeros((*shape, old + 1, old + 1))
    mean[..., :old], mean[..., old] = state.mean[..., None, :], STEPS
    spread[..., :old, :old] = state.spread[..., None, :, :]
    spread[..., old, old] = (SPREAD * STEPS / sigma[..., None]) ** 2
    rest = (
        np.repeat(each[..., None], steps, axis=-1) for each in (state.freedom, state.squares, state.spikes, state.plain)
    )
    return _State(mean, spread, *rest)


def shared_rho(fits: Samples) -> Samples:
    """Return how likely each ρ of the grid is for series of one kind, from how well each fits each series (logs)."""
    likely = np.exp(fits - fits.max(axis=1, keepdims=True))
    weights = RHO_BEFORE.copy()
    for _ in range(30):
        each = likely * weights
        each /= each.sum(axis=1, keepdims=True)
        weights = (each.sum(axis=0) + SHARED * RHO_BEFORE) / (len(fits) + SHARED)
    return np.asarray(weights, dtype=np.float64)


def _log_sum(values: Samples) -> Samples:
    flat = values.reshape(len(values), -1)
    return np.asarray(special.logsumexp(flat, axis=1), dtype=np.float64)


@dataclass(frozen=True)
class _Walked:
    """All series walked once without a step: their log times and hosts, and how well each ρ fitted up to each run."""

    logs: Samples
    names: Places
    hosts: int
    fits: Samples


@dataclass(frozen=True)
class Evidence:
    """For every series and run: the best evidence for a step that is told there, its first run, size and error."""

    log_odds: Samples
    first: Places
    size: Samples
    error: Samples


def evidence(logs: Samples, hosts: Places | None = None) -> Evidence:
    """Return the evidence for a step up after each run of each series.

    Args:
        logs: Log times, a series a row; NaN where a series has ended or a run is missing.
        hosts: Which host each run was on, from 0; null: one host.
    """
    series, runs = logs.shape
    names = np.zeros(logs.shape, dtype=np.int64) if hosts is None else hosts
    count = int(names.max()) + 1 if names.size else 1
    state, rho = _begin(logs, count), np.broadcast_to(RHO, (series, len(RHO)))
    fits = np.zeros((runs + 1, series, len(RHO)))
    before: list[_State] = []
    for run in range(runs):
        before.append(state)
        density, state = _predicted(state, rho, _seen(names[:, run], count)[:, None, :], logs[:, run, None])
        fits[run + 1] = fits[run] + density
    found = Evidence(
        np.full(logs.shape, -np.inf),
        np.full(logs.shape, -1, dtype=np.int64),
        np.zeros(logs.shape),
        np.zeros(logs.shape),
    )
    walked = _Walked(logs, names, count, fits)
    for first in range(HISTORY, runs):
        _follow(found, first, before[first], walked)
    return found


def _seen(names: Places, count: int) -> Samples:
    """Return which unknowns make up a run on a host: c, the level, and the host's offset if it is not the first."""
    seen = np.zeros((len(names), 1 + count))
    seen[:, :2] = 1.0
    for host in range(1, count):
        seen[:, 1 + host] = names == host
    return seen


def _follow(found: Evidence, first: int, state: _State, walked: _Walked) -> None:
    """Follow a step that begins at a run for as long as it may lie back, and keep where it is the best told."""
    logs, fits = walked.logs, walked.fits
    weights = np.log(shared_rho(fits[first]))
    stepped, rho = _with_step(state), np.broadcast_to(RHO[:, None], (len(logs), len(RHO), len(STEPS)))
    total = np.repeat((fits[first] + weights)[..., None], len(STEPS), axis=2) + np.log(STEPS_BEFORE)
    for run in range(first, min(first + REACH, logs.shape[1])):
        seen = np.concatenate([_seen(walked.names[:, run], walked.hosts), np.ones((len(logs), 1))], axis=1)
        density, stepped = _predicted(stepped, rho, seen[:, None, None, :], logs[:, run, None, None])
        total = total + density
        if run - first + 1 < CONFIRMED_BY:
            continue
        odds = _log_sum(total) - _log_sum(fits[run + 1] + weights)
        better = odds > found.log_odds[:, run]
        found.log_odds[better, run] = odds[better]
        found.first[better, run] = first
        size, error = _size(stepped, total)
        found.size[better, run], found.error[better, run] = size[better], error[better]


def _size(state: _State, total: Samples) -> tuple[Samples, Samples]:
    """Return a step's size and its standard error, over all ρ and sizes as likely as they are."""
    weight = np.exp(total - total.max(axis=(1, 2), keepdims=True))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    each, variance = state.mean[..., -1], state.spread[..., -1, -1] * state.squares / state.freedom
    size = (weight * each).sum(axis=(1, 2))
    spread = (weight * (variance + (each - size[:, None, None]) ** 2)).sum(axis=(1, 2))
    return size, np.sqrt(spread)


def first_steps(logs: Samples, hosts: Places | None = None, alarm: float = ALARM) -> list[Step | None]:
    """Return for each series its first step up; null where none is told."""
    found = evidence(logs, hosts)
    steps: list[Step | None] = []
    for row in range(len(logs)):
        told = np.flatnonzero(found.log_odds[row] > alarm)
        if not len(told):
            steps.append(None)
            continue
        run = int(told[0])
        size, error = float(found.size[row, run]), float(found.error[row, run])
        odds = float(found.log_odds[row, run])
        steps.append(Step(int(found.first[row, run]), run, size, size - 1.96 * error, size + 1.96 * error, odds))
    return steps


def together(series: Sequence[Samples]) -> Samples:
    """Return series of different lengths as rows, the shorter ones filled with NaN."""
    longest = max((len(each) for each in series), default=0)
    rows = np.full((len(series), longest), np.nan)
    for row, each in zip(rows, series, strict=True):
        row[: len(each)] = each
    return rows
