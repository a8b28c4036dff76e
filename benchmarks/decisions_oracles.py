"""Detectors that are told what no real one can know: how large the noise is, how it goes on, and what spikes look like.

They do not know the level, nor when a step comes, nor how large it is. Each gives after every run the largest
likelihood ratio of a step up in one of the last runs; its alarm level is set by simulation to the rate of false alarms
that is allowed, which no real detector can do either.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.decisions_noise import (
    HOSTS,
    HOSTS_APART,
    MEMORY,
    NOISE,
    SERIES,
    SPIKE_FROM,
    SPIKE_RATE,
    SPIKE_TO,
    History,
    stable,
)

if TYPE_CHECKING:
    from benchmarks.decisions_noise import Family, Places, Samples

SILENT = 30
"""Runs before the first that may be called a step."""
REACH = 20
"""Runs that a step may lie back."""
ALLOWED = 0.02
"""False alarms, as a share of stable series."""
CALIBRATED_ON = 20_000


def _firsts(run: int) -> Places:
    """Return the runs at which a step may have begun that is looked at after a run: two runs at least show it."""
    return np.arange(max(SILENT, run - REACH + 1), run)


def _best(logs: Samples) -> Samples:
    return np.full(logs.shape, -np.inf)


def _related(logs: Samples, rho: float) -> Samples:
    """Return the statistic for noise that resembles the run before: level and step by generalised least squares."""
    result, fresh = _best(logs), np.sqrt(1 - rho**2)
    left = np.concatenate([logs[:, :1] * fresh, logs[:, 1:] - rho * logs[:, :-1]], axis=1)
    level = np.concatenate([[fresh], np.full(logs.shape[1] - 1, 1 - rho)])
    level_left, level_level, sums = np.cumsum(level * left, axis=1), np.cumsum(level**2), np.cumsum(left, axis=1)
    for run in range(SILENT + 1, logs.shape[1]):
        first = _firsts(run)
        after = run - first
        step_step, step_level = 1 + after * (1 - rho) ** 2, (1 - rho) + after * (1 - rho) ** 2
        step_left = left[:, first] + (1 - rho) * (sums[:, [run]] - sums[:, first])
        share = step_level / level_level[run]
        score = (step_left - share * level_left[:, [run]]) / np.sqrt(step_step - share * step_level)
        result[:, run] = (score / (NOISE * fresh)).max(axis=1)
    return result


def _on_hosts(logs: Samples, hosts: Places) -> Samples:
    """Return the statistic for hosts whose offsets are normal with a known spread."""
    result, there = _best(logs), hosts[..., None] == np.arange(HOSTS)
    count, total = np.cumsum(there, axis=1).astype(float), np.cumsum(there * logs[..., None], axis=1)
    for run in range(SILENT + 1, logs.shape[1]):
        first = _firsts(run)
        n, s = count[:, [run]], total[:, [run]]
        since, since_s = n - count[:, first - 1], s - total[:, first - 1]
        weight = HOSTS_APART**2 / (NOISE**2 + HOSTS_APART**2 * n)
        level_level, level_x = (n - weight * n * n).sum(-1), (s - weight * n * s).sum(-1)
        step_level, step_x = (since - weight * n * since).sum(-1), (since_s - weight * since * s).sum(-1)
        step_step = (since - weight * since * since).sum(-1)
        score = (step_x - step_level / level_level * level_x) / np.sqrt(step_step - step_level**2 / level_level)
        result[:, run] = score.max(axis=1) / NOISE
    return result


SPIKES = np.linspace(np.log(SPIKE_FROM), np.log(SPIKE_TO), 25)
LEVELS = NOISE * np.linspace(-0.5, 0.5, 11)
STEPS = np.log1p(np.array([0.03, 0.05, 0.07, 0.10, 0.13, 0.17]))


def _likely(error: Samples) -> Samples:
    """Return the log likelihood of runs that are so far from their level, spikes and all, but for a constant."""
    spiked = np.zeros_like(error)
    for spike in SPIKES:
        spiked += np.exp(-0.5 * ((error - spike) / NOISE) ** 2)
    plain = np.exp(-0.5 * (error / NOISE) ** 2)
    return np.asarray(np.log((1 - SPIKE_RATE) * plain + SPIKE_RATE * spiked / len(SPIKES) + 1e-300))


def _spiked(logs: Samples) -> Samples:
    """Return the statistic for noise with spikes: the best level and step of a grid."""
    result = _best(logs)
    before = np.stack([np.cumsum(_likely(logs - level), axis=1) for level in LEVELS], axis=-1)
    raised = (LEVELS[:, None] + STEPS).ravel()
    after = np.stack([np.cumsum(_likely(logs - level), axis=1) for level in raised], axis=-1)
    after = after.reshape(*logs.shape, len(LEVELS), len(STEPS))
    for run in range(SILENT + 1, logs.shape[1]):
        earlier = _firsts(run) - 1
        stepped = before[:, earlier, :, None] + after[:, [run]] - after[:, earlier]
        result[:, run] = stepped.max(axis=(1, 2, 3)) - before[:, run].max(axis=1)
    return result


def statistic(family: Family, history: History) -> Samples:
    """Return what an oracle of a family makes of every run."""
    if family == "sticky hosts":
        return _on_hosts(history.logs, history.hosts)
    if family == "spikes":
        return _spiked(history.logs)
    return _related(history.logs, MEMORY if family == "AR(1) 0.6" else 0.0)


def alarm_level(family: Family, series: int = CALIBRATED_ON) -> float:
    """Return the level at which the allowed share of stable series, used for nothing else, gives an alarm."""
    rng = np.random.default_rng(zlib.crc32(f"oracle | {family}".encode()))
    most = [statistic(family, stable(family, rng)).max(axis=1) for _ in range(series // SERIES)]
    return float(np.quantile(np.concatenate(most), 1 - ALLOWED))
