"""Noise of known truth: what times on a real machine look like, with medians that can be written down.

Every family is lognormal noise of 3 % around a path of centres. The truth of a window is the median of the
distribution its samples were drawn from, given that path: for a drift the middle of the path, for two levels
the median of their mixture at the shares this window had.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import optimize, signal, special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

Family = Literal["independent", "spikes", "AR(1) 0.6", "drift", "two levels"]
FAMILIES: tuple[Family, ...] = ("independent", "spikes", "AR(1) 0.6", "drift", "two levels")

NOISE = 0.03
MEMORY = 0.6
SPIKE_RATE, SPIKE_FROM, SPIKE_TO = 0.02, 1.5, 5.0
DRIFT = 0.03  # over the window
LEVELS_APART = 0.10
DWELL_LOW, DWELL_HIGH = 80, 40  # samples, on average


Slow = Literal["random walk", "dwell 50–500", "thermal decay", "dwell", "wave"]
"""Paths that move slowly: over the window, for 50 to 500 samples, or for a sixteenth to a quarter of the window."""
WALKED = 0.10  # standard deviation of a walk's end, of the level
SLOW_WAVE = 0.05  # amplitude
SHORTEST, LONGEST = 1 / 16, 1 / 4  # dwell or period, as a share of the window
COOLED, FASTEST, SLOWEST = 0.10, 0.05, 0.5  # how far a decay goes; its time constants, as shares of the window


def related(rng: np.random.Generator, rho: float, *shape: int) -> Samples:
    """Return rows of standard normal noise in which neighbours correlate by ``rho``."""
    shocks = rng.standard_normal(shape)
    shocks[:, 1:] *= np.sqrt(1 - rho**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -rho], shocks), dtype=np.float64)


def switching(rng: np.random.Generator, repeats: int, n: int) -> Samples:
    """Return rows of 0 and 1: which level a clock that forgets when it last switched is on."""
    draws = rng.random((repeats, n))
    level = np.empty((repeats, n))
    level[:, 0] = draws[:, 0] < DWELL_HIGH / (DWELL_LOW + DWELL_HIGH)
    for i in range(1, n):
        leave = draws[:, i] < np.where(level[:, i - 1] > 0, 1 / DWELL_HIGH, 1 / DWELL_LOW)
        level[:, i] = np.where(leave, 1 - level[:, i - 1], level[:, i - 1])
    return level


def dwelling(rng: np.random.Generator, repeats: int, n: int, shortest: float, longest: float) -> Samples:
    """Return rows of 0 and 1: a clock that stays on a level for between so many samples, each number as likely."""
    level = np.empty((repeats, n))
    for row in level:
        at, high = -int(rng.uniform(0, longest)), bool(rng.integers(2))
        while at < n:
            end = at + max(1, round(rng.uniform(shortest, longest)))
            row[max(at, 0) : max(end, 0)] = high
            at, high = end, not high
    return level


def slow_path(family: Slow, rng: np.random.Generator, repeats: int, n: int) -> Samples:
    """Return the logarithms of levels that move slowly, a row a window."""
    time = np.arange(n) / n
    if family == "random walk":
        return np.asarray(np.cumsum(rng.standard_normal((repeats, n)), axis=1) * WALKED / math.sqrt(n))
    if family == "dwell 50–500":
        return math.log1p(LEVELS_APART) * dwelling(rng, repeats, n, 50, 500)
    if family == "dwell":
        return math.log1p(LEVELS_APART) * dwelling(rng, repeats, n, SHORTEST * n, LONGEST * n)
    if family == "wave":
        periods, phases = rng.uniform(SHORTEST, LONGEST, (repeats, 1)), rng.random((repeats, 1))
        return np.asarray(SLOW_WAVE * np.sin(2 * math.pi * (time / periods + phases)))
    return np.asarray(-COOLED * np.exp(-time / rng.uniform(FASTEST, SLOWEST, (repeats, 1))))


def median_around(path: Samples) -> float:
    """Return the median of lognormal noise around a path, which is what a window's median is."""
    ends = float(path.min()) - NOISE, float(path.max()) + NOISE
    return math.exp(float(optimize.brentq(lambda m: float(special.ndtr((m - path) / NOISE).mean()) - 0.5, *ends)))


def centres(family: Family, rng: np.random.Generator, repeats: int, n: int) -> Samples:
    """Return the logarithms of the centres that the samples of each row scatter around."""
    if family == "drift":
        return np.tile(DRIFT * ((np.arange(n) + 0.5) / n - 0.5), (repeats, 1))
    if family == "two levels":
        return math.log1p(LEVELS_APART) * switching(rng, repeats, n)
    return np.zeros((repeats, n))


def noisy(family: Family, rng: np.random.Generator, around: Samples) -> Samples:
    """Return samples scattered around the centres (logarithms) of each row."""
    rho = MEMORY if family == "AR(1) 0.6" else 0.0
    logs = around + NOISE * related(rng, rho, *around.shape)
    if family == "spikes":
        size = rng.uniform(math.log(SPIKE_FROM), math.log(SPIKE_TO), around.shape)
        logs = logs + size * (rng.random(around.shape) < SPIKE_RATE)
    return np.exp(logs)


def draw(family: Family, rng: np.random.Generator, repeats: int, n: int) -> tuple[Samples, Samples]:
    """Return rows of samples with medians around 1, and the logarithms of their centres."""
    around = centres(family, rng, repeats, n)
    return noisy(family, rng, around), around


def truth(family: Family, around: Samples) -> float:
    """Return the median of the distribution that a window with these centres was drawn from."""
    normal = NormalDist()
    if family == "spikes":
        return math.exp(NOISE * normal.inv_cdf(0.5 / (1 - SPIKE_RATE)))
    if family != "two levels":
        return math.exp(float(around.mean()))
    gap = math.log1p(LEVELS_APART)
    share = float(np.mean(around > 0))

    def excess(log_median: float) -> float:
        return (1 - share) * normal.cdf(log_median / NOISE) + share * normal.cdf((log_median - gap) / NOISE) - 0.5

    return math.exp(float(optimize.brentq(excess, -gap, 2 * gap)))


def pairs(family: Family, rng: np.random.Generator, repeats: int, n: int, ratio: float) -> tuple[Samples, Samples]:
    """Return rows of times of a first and a second thing, measured in turns in one stream, order drawn per pair.

    The path of centres (the clock, the drift) is the machine's, so that both share it; memory runs through the
    stream of samples as they were taken.
    """
    stream, _ = draw(family, rng, repeats, 2 * n)
    halves = stream.reshape(repeats, n, 2)
    swap = rng.random((repeats, n)) < 0.5
    first = np.where(swap, halves[:, :, 1], halves[:, :, 0])
    second = np.where(swap, halves[:, :, 0], halves[:, :, 1])
    return first, ratio * second


def pairs_of_own_memory(
    family: Family, rng: np.random.Generator, repeats: int, n: int, ratio: float
) -> tuple[Samples, Samples]:
    """Return rows of times of two things that each have their noise to themselves: nothing cancels in the ratio."""
    return draw(family, rng, repeats, n)[0], ratio * draw(family, rng, repeats, n)[0]
