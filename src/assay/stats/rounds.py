"""What each of several candidates takes, from rounds in which each was sampled once.

The logarithm of a sample is the candidate's own time, plus what slowed the whole round, plus noise. What slowed the
round is shared and cancels in comparisons. Samples far beyond the noise (spikes) are left out. How noisy one candidate
is, is learnt from all of them, as they share an instrument: a few rounds of one alone say little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.longrun import OUTLIER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Mask = NDArray[np.bool_]

# What is believed before the first sample, and how firmly: as if that many samples had said so.
USUAL_NOISE, USUAL_DEGREES = 0.02, 4.0  # of a sample's logarithm
USUAL_SPIKES, USUAL_SAMPLES = 1.0, 10.0
USUAL_UNLIKENESS, UNLIKENESS_COUNT = 1 / 3, 10.0  # squared coefficient of variation of the candidates' variances
NOISIEST = 4.0  # times the noise of all that one candidate may have; what strays further is spikes
FINEST = 1e-4  # noise; no timer is finer
MEMORIES = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])  # correlation of a candidate's noise from round to round
USUAL_MEMORIES = np.array([0.4, 0.2, 0.14, 0.1, 0.08, 0.05, 0.03])  # how likely each is


@dataclass(frozen=True)
class Noise:
    """What samples told about noise: squares of log-times with their degrees of freedom, and spikes among samples."""

    squares: float = 0.0
    degrees: float = 0.0
    spikes: int = 0
    samples: int = 0

    def __add__(self, other: Noise) -> Noise:
        return Noise(
            self.squares + other.squares,
            self.degrees + other.degrees,
            self.spikes + other.spikes,
            self.samples + other.samples,
        )

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom that the variance is known with."""
        return USUAL_DEGREES + self.degrees

    @property
    def variance(self) -> float:
        """Return the variance of a sample's logarithm."""
        return (USUAL_DEGREES * USUAL_NOISE**2 + self.squares) / self.freedom

    @property
    def spike_rate(self) -> float:
        """Return the share of samples that are spikes."""
        return (USUAL_SPIKES + self.spikes) / (USUAL_SAMPLES + self.samples)


@dataclass(frozen=True)
class Fit:
    """Candidates beside each other, one column each; all in logarithms of time.

    ``variance`` is that of the centre, known with ``freedom`` degrees of freedom; ``effects`` is what each round adds;
    ``memory`` is how many times memory from round to round makes the variance of a mean larger.
    """

    centre: Samples
    variance: Samples
    freedom: Samples
    effects: Samples
    noise: tuple[Noise, ...]
    memory: float


def fit(logs: Samples, present: Samples, effects: Samples, known: Noise) -> Fit:
    """Return the candidates' times from rounds (rows) that each of them (columns) took part in.

    ``present`` is how many candidates each round had. ``effects`` is what the first rounds add, found when all that
    were present could be asked; ``known`` is what those that are no longer present told about the noise.
    """
    # Taking out what a round adds takes out part of the noise as well: half of it where two were asked, all of one's.
    free = 1 - 1 / np.append(present[: len(effects)], np.full(len(logs) - len(effects), logs.shape[1]))
    steps = _steps(logs)
    parts = _take_apart(logs, free, effects, steps, known)
    n, flat = parts.clean.sum(axis=0), logs - parts.effects[:, None]
    centre = np.where(n > 0, np.where(parts.clean, flat, 0.0).sum(axis=0) / np.maximum(n, 1), parts.levels)
    residuals = np.where(parts.clean, flat - centre, 0.0)
    squares, degrees = (residuals**2).sum(axis=0), np.maximum(n - 1, 0) * free.mean()
    noise = tuple(
        Noise(float(s), float(d), int(k), len(logs)) for s, d, k in zip(squares, degrees, parts.spikes, strict=True)
    )
    shared, alike, memory = sum(noise, known), _alike(squares, degrees), _memory(residuals, float(free.mean()))
    own = (alike * shared.variance + squares) / (alike + degrees)
    variance = memory * own / np.maximum(n, 1) + _between_steps(steps, own)
    return Fit(centre, variance, np.minimum(alike + degrees, shared.freedom), parts.effects, noise, memory)


def beside(logs: Samples, fitted: Fit, known: Noise) -> tuple[float, float]:
    """Return centre and its variance of a candidate that took part in the first rounds of a fit only."""
    flat, noise = logs - fitted.effects[: len(logs)], sum(fitted.noise, known).variance
    level = float(np.sort(flat)[(len(flat) - 1) // 2])
    inliers = flat[np.abs(flat - level) <= OUTLIER * math.sqrt(noise)]
    return float(inliers.mean()), 2 * fitted.memory * noise / len(
        inliers
    )  # as much again as its own: the rounds' effects


@dataclass(frozen=True)
class _Parts:
    """Samples taken apart: the candidates' levels, what each round adds, which samples are clean, spikes by column."""

    levels: Samples
    effects: Samples
    clean: Mask
    spikes: NDArray[np.int_]


def _take_apart(logs: Samples, free: Samples, effects: Samples, steps: Samples, known: Noise) -> _Parts:
    """Return levels, effects and outliers, in two passes: effects are better without outliers, and these with them."""
    n_given, count = len(effects), logs.shape[1]
    clean, effects = np.ones(logs.shape, dtype=bool), np.append(effects, np.zeros(len(logs) - n_given))
    if count > 1:
        # The lower of two is no spike: the other one is found to have it, and not half of it each.
        strays = logs - effects[:, None] - _low_medians(logs - effects[:, None], clean)
        effects[n_given:] = np.sort(strays[n_given:], axis=1)[:, (count - 1) // 2]
    for _ in range(2):
        levels = _low_medians(logs - effects[:, None], clean)
        strays = (logs - effects[:, None] - levels) / np.sqrt(np.where(free > 0, free, 1.0))[:, None]
        usual = _spread(strays, float(free.mean()), known)
        spread = np.maximum(np.clip(_own_spread(strays), usual, NOISIEST * usual), steps)
        far = np.abs(strays) > OUTLIER * spread
        clean = ~far
        if count > 1:
            lone = clean.sum(axis=1) == 1
            clean[n_given:][lone[n_given:]] = False  # a sample that nothing is beside says nothing
        effects[n_given:] = _row_medians(logs[n_given:] - levels, clean[n_given:])
    return _Parts(levels, effects, clean, (far & (strays > 0)).sum(axis=0))


def _low_medians(values: Samples, clean: Mask) -> Samples:
    """Return the lower median of each column, over what is clean: of two samples the one that is no spike."""
    ordered = np.sort(np.where(clean, values, np.inf), axis=0)
    middle = np.maximum(clean.sum(axis=0) - 1, 0) // 2
    lower_medians = ordered[middle, np.arange(values.shape[1])]
    return np.asarray(np.where(np.isfinite(lower_medians), lower_medians, values.min(axis=0)), dtype=np.float64)


def _row_medians(values: Samples, clean: Mask) -> Samples:
    """Return the median of each row, over what is clean; 0 where nothing is."""
    ordered = np.sort(np.where(clean, values, np.inf), axis=1)
    rows, count = np.arange(len(values)), np.maximum(clean.sum(axis=1), 1)
    row_medians = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    return np.asarray(np.where(clean.any(axis=1), row_medians, 0.0), dtype=np.float64)


def _spread(strays: Samples, left: float, known: Noise) -> float:
    """Return the standard deviation of all samples, from the median step between rounds and from what is known.

    They are averaged as logarithms: among few that are left because of their spikes, the median step is a spike.
    """
    steps = np.sort(np.abs(np.diff(strays, axis=0)), axis=None)
    if not len(steps):
        return math.sqrt(known.variance)
    typical, weight = float(steps[(len(steps) - 1) // 2]) / 0.6745 / math.sqrt(2), len(steps) * left
    logs = known.freedom * math.log(known.variance) + weight * 2 * math.log(max(typical, FINEST))
    return math.exp(logs / (known.freedom + weight) / 2)


def _own_spread(strays: Samples) -> Samples:
    """Return the standard deviation of each column by the lower median distance from its lower median."""
    return np.asarray(1.4826 * np.sort(np.abs(strays), axis=0)[(len(strays) - 1) // 2], dtype=np.float64)


def _steps(logs: Samples) -> Samples:
    """Return a timer's step as a share of each column's times; 0 where times do not repeat, and so show no steps."""
    changes = np.abs(np.diff(np.exp(logs), axis=0))
    level = np.exp(logs.min(axis=0))
    moved = changes > 1e-9 * level  # what moves by less is the same time, rounded
    if moved.all() or not moved.any():
        return np.zeros(logs.shape[1])
    return np.asarray(changes[moved].min() / level, dtype=np.float64)


def _between_steps(steps: Samples, variance: Samples) -> Samples:
    """Return the variance of where a mean lies between a timer's steps; noise wider than the steps averages it out.

    Rounding a Gaussian of standard deviation σ to steps of Δ moves its mean by at most Δ/π exp(-2π²σ²/Δ²).
    """
    wide = np.maximum(variance - steps**2 / 12, 0.0) / np.maximum(steps, 1e-12) ** 2
    return np.asarray((steps / math.pi) ** 2 / 2 * np.exp(-4 * math.pi**2 * wide), dtype=np.float64)


def _alike(squares: Samples, degrees: Samples) -> float:
    """Return how many degrees of freedom the noise of all is worth as a statement about the noise of one.

    Where variances scatter like a scaled inverse χ² of d degrees of freedom, their squared coefficient of variation
    is 2 / (d - 4).
    """
    unlike, informative = USUAL_UNLIKENESS, degrees > 0
    count = int(informative.sum())
    if count > 1 and squares.any():
        variances, by_chance = squares[informative] / degrees[informative], 2 / float(degrees[informative].mean())
        unlikeness = (float(variances.var(ddof=1) / variances.mean() ** 2) - by_chance) / (1 + by_chance)
        unlike = (UNLIKENESS_COUNT * unlike + count * max(unlikeness, 0.0)) / (UNLIKENESS_COUNT + count)
    return 4 + 2 / unlike


def _memory(residuals: Samples, free: float) -> float:
    """Return how many times memory from round to round makes the variance of a mean larger than it seems."""
    rounds, count = residuals.shape
    power = float((residuals**2).sum())
    if rounds < 2:
        return 1.0
    neighbours, larger = _remembering(rounds)
    likely = USUAL_MEMORIES
    if power > 0:
        correlation = float((residuals[1:] * residuals[:-1]).sum()) / power
        likely = likely * np.exp(-((correlation - neighbours) ** 2) * rounds * count * free / 2)
    return float(likely @ larger / likely.sum())


@cache
def _remembering(rounds: int) -> tuple[Samples, Samples]:
    """Return what each memory does to so many rounds: correlation of neighbouring residuals, and larger variance.

    The residuals are from the mean of the rounds, which hides part of the memory and of the variance.
    """
    powers = MEMORIES[:, None] ** np.arange(rounds)
    sums = np.cumsum(powers, axis=1)
    rows = (sums + sums[:, ::-1] - 1) / rounds  # mean of each row of the correlation matrix
    mean = rows.mean(axis=1)
    left = rounds * (1 - mean)
    neighbours = (rounds - 1) * (MEMORIES + mean) - rows[:, 1:].sum(axis=1) - rows[:, :-1].sum(axis=1)
    return neighbours / left, mean * rounds * (rounds - 1) / left
