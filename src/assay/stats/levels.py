"""What the next run of a series should read, from the runs before it.

A run's log time is a level, an offset of the host it ran on, noise that resembles the run before by some ρ, and now
and then a spike:

    x_t = level + host + c_t (+ step),      c_t = ρ c_{t-1} + noise

For each ρ of a grid a Kalman filter follows level, offsets and c_t, their variance learnt on the way: a Student-t
predicts the next run. A run that none of it explains is a spike, and moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from assay.stats.kinds import RHO, SPIKES, SPIKES_SEEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats.kinds import Usual

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

HOST_SPREAD = 0.10
SPIKE_UP, SPIKE_SIZE = 0.85, 0.2
FREEDOM, MOST_FREEDOM = 4.0, 80.0
"""The scale of the noise is known as if from so many runs at first, and at most: what is long ago is forgotten."""
QUIETEST = 1e-3
"""Noise that is taken for granted, as a logarithm: no clock repeats better than to a thousandth."""
LEVEL_UNKNOWN = 25.0
BEGINNING = 30
"""Runs from which the first guess of level and scale is made."""
FEWEST_ON_HOST = 4
"""Runs on a host among these for its own middle to count."""


@dataclass(frozen=True)
class Known:
    """What is known after some runs, for every series and ρ (and step): arrays over those, vectors and matrices last.

    The unknowns are c, the level, the offset of each host but the first, and the step where there is one.
    """

    mean: Samples
    spread: Samples
    freedom: Samples
    squares: Samples
    spikes: Samples
    plain: Samples

    def of(self, index: Any) -> Known:
        """Return what is known at some places."""
        return Known(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: list[Known]) -> Known:
        """Return what is known of several, one behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def variance(self, usual: Usual) -> Samples:
        """Return the variance of the noise."""
        variance = (self.squares + usual.squares) / (self.freedom + usual.freedom)
        return np.asarray(np.maximum(variance, QUIETEST**2), dtype=np.float64)


def begin(logs: Samples, names: Places, hosts: int) -> Known:
    """Return what is known before the first run: level and scale from the first runs, and nothing else.

    Args:
        logs: Log times, a series a row, NaN behind its end; no row is empty.
        names: On which host each run was.
        hosts: How many hosts there are.
    """
    shape = (len(logs), len(RHO))
    first, on = logs[:, :BEGINNING], names[:, :BEGINNING]
    middle = np.nanmedian(first, axis=1)
    beyond = first - middle[:, None]
    for host in range(hosts):
        its = np.where(on == host, first, np.nan)
        often = np.isfinite(its).sum(axis=1) >= FEWEST_ON_HOST
        beyond[often] = np.where(on[often] == host, first[often] - _middle(its[often]), beyond[often])
    scale = np.maximum(1.4826 * np.nanmedian(np.abs(beyond), axis=1), QUIETEST)
    mean, spread = np.zeros((*shape, 1 + hosts)), np.zeros((*shape, 1 + hosts, 1 + hosts))
    mean[..., 1] = middle[:, None]
    spread[..., 0, 0], spread[..., 1, 1] = 1.0, LEVEL_UNKNOWN
    for host in range(1, hosts):
        spread[..., 1 + host, 1 + host] = (HOST_SPREAD / scale[:, None]) ** 2
    squares = np.repeat((FREEDOM * scale**2)[:, None], len(RHO), axis=1)
    full = np.ones(shape)
    return Known(mean, spread, FREEDOM * full, squares, SPIKES * full, (SPIKES_SEEN - SPIKES) * full)


def _middle(values: Samples) -> Samples:
    return np.asarray(np.nanmedian(values, axis=1, keepdims=True), dtype=np.float64)


def seen(names: Places, count: int) -> Samples:
    """Return which unknowns make up a run on a host: c, the level, and the host's offset if it is not the first."""
    design = np.zeros((len(names), 1 + count))
    design[:, :2] = 1.0
    for host in range(1, count):
        design[:, 1 + host] = names == host
    return design


def after(known: Known, usual: Usual, rho: Samples, made_of: Samples, value: Samples) -> tuple[Samples, Known]:
    """Return how well a run was predicted (log density), and what is known after it; a NaN run was not there.

    Args:
        known: Before the run.
        usual: What noise is usual for its kind.
        rho: How much a run resembles the one before.
        made_of: Which unknowns add up to what is seen of this run, 1 or 0.
        value: Log times.
    """
    here = np.isfinite(value)
    mean, spread = known.mean.copy(), known.spread.copy()
    mean[..., 0] *= rho
    spread[..., 0, :] *= rho[..., None]
    spread[..., :, 0] *= rho[..., None]
    spread[..., 0, 0] += 1 - rho**2
    error = np.where(here, value - (mean * made_of).sum(-1), 0.0)
    towards = (spread * made_of[..., None, :]).sum(-1)
    width = (towards * made_of).sum(-1)
    core = _student(error, width * known.variance(usual), known.freedom + usual.freedom)
    share = (known.spikes + usual.spikes) / (known.spikes + known.plain)
    as_core, as_spike = np.log1p(-share) + core, np.log(share) + _spike(error)
    density = np.logaddexp(as_core, as_spike)
    trust = np.where(here, np.exp(as_core - density), 0.0)
    gain = towards / width[..., None]
    freedom = known.freedom + trust
    squares = known.squares + trust * error**2 / width
    forget = np.minimum(1.0, MOST_FREEDOM / freedom)
    then = Known(
        mean + (trust * error)[..., None] * gain,
        spread - trust[..., None, None] * gain[..., :, None] * towards[..., None, :],
        freedom * forget,
        squares * forget,
        known.spikes + np.where(here, 1 - trust, 0.0),
        known.plain + trust,
    )
    return np.where(here, density, 0.0), then


def _student(error: Samples, variance: Samples, freedom: Samples) -> Samples:
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2)
    tail = (freedom + 1) / 2 * np.log1p(error**2 / (freedom * variance))
    return np.asarray(constant - 0.5 * np.log(freedom * np.pi * variance) - tail, dtype=np.float64)


def _spike(error: Samples) -> Samples:
    side = np.where(error > 0, np.log(SPIKE_UP), np.log(1 - SPIKE_UP))
    return np.asarray(side - np.log(SPIKE_SIZE) - np.abs(error) / SPIKE_SIZE, dtype=np.float64)
