"""Series of runs of known truth: log times with 3 % of noise that do not change, or step up at a known run.

Four families: independent noise; noise in which a run resembles the one before (AR(1), 0.6); now and then a spike
(5 % of runs, 10 to 50 % slower); and three hosts that differ by 5 %, of which one is kept for ten runs on average.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from scipy import signal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Places = NDArray[np.int64]

Family = Literal["independent", "AR(1) 0.6", "spikes", "sticky hosts"]
FAMILIES: tuple[Family, ...] = get_args(Family)

NOISE, MEMORY = 0.03, 0.6
SPIKE_RATE, SPIKE_FROM, SPIKE_TO = 0.05, 1.1, 1.5
HOSTS, HOSTS_APART, HOST_KEPT = 3, 0.05, 0.9
RUNS, CHANGED_AT = 100, 60
SERIES = 50
"""Series of one family that make a history, and are judged together."""


@dataclass(frozen=True)
class History:
    """Series as rows: log times, and the host that each run was on."""

    logs: Samples
    hosts: Places

    def upto(self, runs: int) -> History:
        """Return what is known after so many runs."""
        return History(self.logs[:, :runs], self.hosts[:, :runs])


def stable(family: Family, rng: np.random.Generator, series: int = SERIES, runs: int = RUNS) -> History:
    """Return series that do not change."""
    shape = (series, runs)
    shocks, hosts = rng.standard_normal(shape), np.zeros(shape, dtype=np.int64)
    if family == "AR(1) 0.6":
        shocks[:, 1:] *= np.sqrt(1 - MEMORY**2)
        shocks = np.asarray(signal.lfilter([1.0], [1.0, -MEMORY], shocks), dtype=np.float64)
    logs = NOISE * shocks
    if family == "spikes":
        hit = rng.random(shape) < SPIKE_RATE
        logs = logs + hit * rng.uniform(np.log(SPIKE_FROM), np.log(SPIKE_TO), shape)
    if family == "sticky hosts":
        hosts = _stays(rng, series, runs)
        logs = logs + np.take_along_axis(HOSTS_APART * rng.standard_normal((series, HOSTS)), hosts, axis=1)
    return History(logs, hosts)


def _stays(rng: np.random.Generator, series: int, runs: int) -> Places:
    """Return hosts that are kept from run to run, or left for one of the others."""
    moves = np.where(rng.random((series, runs)) < HOST_KEPT, 0, rng.integers(1, HOSTS, (series, runs)))
    moves[:, 0] = rng.integers(0, HOSTS, series)
    return np.asarray(np.cumsum(moves, axis=1) % HOSTS, dtype=np.int64)


def history(family: Family, change: float, number: int) -> History:
    """Return one history, always the same one for its number; with a change it ends where that must have been told."""
    rng = np.random.default_rng(zlib.crc32(f"history | {family} | {change:g} | {number}".encode()))
    made = stable(family, rng)
    if change:
        made.logs[:, CHANGED_AT:] += np.log1p(change)
        return made.upto(CHANGED_AT + WITHIN[change])
    return made


WITHIN = {0.10: 5, 0.05: 15}
"""Runs, the first slower one among them, in which a step up of a size must be told."""
