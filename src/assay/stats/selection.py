"""Select the fastest of many candidates by elimination (racing), with the probability that it is the fastest.

A race runs in rounds: each contender is sampled once, in random order on the same device. At planned looks, those that
are significantly slower than the leader are eliminated. It is decided when one is left, or when all that are left are
significantly within a tolerance of the leader.

    race = Race.start(len(candidates))
    while not race.decided:
        race = race.after({candidate: time_us(candidates[candidate]) for candidate in race.contenders})
    race.standing().winner

The leader has the lowest center plus standard error: among many, the noisiest looks best by luck. Bounds are Student's
and hold for all contenders and looks together (Bonferroni). A spike can only slow a sample, so a candidate is
eliminated only after it was slow in more rounds than spikes explain.

The logarithm of a sample is the candidate's own time, plus what slowed the whole round, plus noise. The round's effect
is shared and cancels in comparisons. Samples far beyond the noise (spikes) are left out. The noise of one candidate is
learned from all of them, as they share an instrument: a few rounds of a single one say little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import OUTLIER_SCALES, binomial_beyond, student_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Mask = NDArray[np.bool_]

# Priors, and their weights as a number of samples.
USUAL_NOISE, USUAL_DEGREES = 0.02, 4.0  # of a sample's logarithm
USUAL_SPIKES, USUAL_SAMPLES = 1.0, 10.0
USUAL_UNLIKENESS, UNLIKENESS_COUNT = 1 / 3, 10.0  # squared coefficient of variation of the candidates' variances
MAX_RELATIVE_NOISE = 4.0  # maximum noise of one candidate relative to that of all; larger deviations are spikes
MIN_NOISE = 1e-4  # noise; no timer is finer
MEMORIES = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])  # correlation of a candidate's noise between rounds
USUAL_MEMORIES = np.array([0.4, 0.2, 0.14, 0.1, 0.08, 0.05, 0.03])  # how likely each is


@dataclass(frozen=True)
class NoiseStats:
    """Evidence on noise from samples: sum of squares of log-times, its degrees of freedom, and spikes among samples."""

    squares: float = 0.0
    degrees: float = 0.0
    spikes: int = 0
    samples: int = 0

    def __add__(self, other: NoiseStats) -> NoiseStats:
        squares, degrees = self.squares + other.squares, self.degrees + other.degrees
        return NoiseStats(squares, degrees, self.spikes + other.spikes, self.samples + other.samples)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance."""
        return USUAL_DEGREES + self.degrees

    @property
    def variance(self) -> float:
        """Variance of a sample's logarithm."""
        return (USUAL_DEGREES * USUAL_NOISE**2 + self.squares) / self.freedom

    @property
    def spike_rate(self) -> float:
        """Share of samples that are spikes."""
        return (USUAL_SPIKES + self.spikes) / (USUAL_SAMPLES + self.samples)


@dataclass(frozen=True)
class RoundFit:
    """A fit of several candidates, one column each; all in logarithms of time.

    ``variance`` is that of the centre, with ``freedom`` degrees of freedom; ``effects`` is what each round adds;
    ``memory`` is the factor by which correlation between rounds increases the variance of a mean.
    """

    centre: Samples
    variance: Samples
    freedom: Samples
    effects: Samples
    noise: tuple[NoiseStats, ...]
    memory: float


def fit_rounds(logs: Samples, present: Samples, effects: Samples, prior: NoiseStats) -> RoundFit:
    """Return the candidates' times from rounds (rows) in which each of them (columns) was sampled.

    ``present`` is the number of candidates in each round. ``effects`` is what the first rounds add, estimated when all
    present candidates were available; ``prior`` is the evidence on noise from those no longer present.
    """
    # Removing a round's effect also removes part of the noise: half of it with two candidates, all of it with one.
    free = 1 - 1 / np.append(present[: len(effects)], np.full(len(logs) - len(effects), logs.shape[1]))
    steps = _timer_steps(logs)
    levels, effects, clean, spikes = _decompose(logs, free, effects, steps, prior)
    n, flat = clean.sum(axis=0), logs - effects[:, None]
    centre = np.where(n > 0, np.where(clean, flat, 0.0).sum(axis=0) / np.maximum(n, 1), levels)
    residuals = np.where(clean, flat - centre, 0.0)
    squares, degrees = (residuals**2).sum(axis=0), np.maximum(n - 1, 0) * free.mean()
    noise = tuple(
        NoiseStats(float(s), float(d), int(k), len(logs)) for s, d, k in zip(squares, degrees, spikes, strict=True)
    )
    shared, pooled_freedom = sum(noise, prior), _pooled_freedom(squares, degrees)
    memory = _memory_inflation(residuals, float(free.mean()))
    own = (pooled_freedom * shared.variance + squares) / (pooled_freedom + degrees)
    variance = memory * own / np.maximum(n, 1) + _rounding_variance(steps, own)
    centre_freedom = np.minimum(pooled_freedom + degrees, shared.freedom)
    return RoundFit(centre, variance, centre_freedom, effects, noise, memory)


def estimate_dropped(logs: Samples, fitted: RoundFit, prior: NoiseStats) -> tuple[float, float]:
    """Return centre and its variance of a candidate that took part only in the first rounds of a fit."""
    flat, noise = logs - fitted.effects[: len(logs)], sum(fitted.noise, prior).variance
    level = float(np.sort(flat)[(len(flat) - 1) // 2])
    inliers = flat[np.abs(flat - level) <= OUTLIER_SCALES * math.sqrt(noise)]
    # As much again as its own variance: the rounds' effects.
    return float(inliers.mean()), 2 * fitted.memory * noise / len(inliers)


def _decompose(
    logs: Samples, free: Samples, effects: Samples, steps: Samples, prior: NoiseStats
) -> tuple[Samples, Samples, Mask, NDArray[np.int_]]:
    """Return the candidates' levels, the rounds' effects, which samples are clean, and each candidate's spikes.

    In two passes: each of effects and outliers improves the other.
    """
    n_given, count = len(effects), logs.shape[1]
    clean, effects = np.ones(logs.shape, dtype=bool), np.append(effects, np.zeros(len(logs) - n_given))
    if count > 1:
        # The lower of two is no spike: the other one gets all of it, rather than each of them half.
        deviations = logs - effects[:, None] - _low_medians(logs - effects[:, None], clean)
        effects[n_given:] = np.sort(deviations[n_given:], axis=1)[:, (count - 1) // 2]
    for _ in range(2):
        levels = _low_medians(logs - effects[:, None], clean)
        deviations = (logs - effects[:, None] - levels) / np.sqrt(np.where(free > 0, free, 1.0))[:, None]
        usual = _spread(deviations, float(free.mean()), prior)
        spread = np.maximum(np.clip(_own_spread(deviations), usual, MAX_RELATIVE_NOISE * usual), steps)
        outliers = np.abs(deviations) > OUTLIER_SCALES * spread
        clean = ~outliers
        if count > 1:
            alone = clean.sum(axis=1) == 1
            clean[n_given:][alone[n_given:]] = False  # a sample without another one to compare with is no evidence
        effects[n_given:] = _row_medians(logs[n_given:] - levels, clean[n_given:])
    return levels, effects, clean, (outliers & (deviations > 0)).sum(axis=0)


def _low_medians(values: Samples, clean: Mask) -> Samples:
    """Return the lower median of each column over clean samples: of two samples the one that is no spike."""
    ordered = np.sort(np.where(clean, values, np.inf), axis=0)
    middle = np.maximum(clean.sum(axis=0) - 1, 0) // 2
    lower_medians = ordered[middle, np.arange(values.shape[1])]
    return np.asarray(np.where(np.isfinite(lower_medians), lower_medians, values.min(axis=0)), dtype=np.float64)


def _row_medians(values: Samples, clean: Mask) -> Samples:
    """Return the median of each row over clean samples; 0 where there are none."""
    ordered = np.sort(np.where(clean, values, np.inf), axis=1)
    rows, count = np.arange(len(values)), np.maximum(clean.sum(axis=1), 1)
    row_medians = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
    return np.asarray(np.where(clean.any(axis=1), row_medians, 0.0), dtype=np.float64)


def _spread(deviations: Samples, left: float, prior: NoiseStats) -> float:
    """Return the standard deviation of all samples, from the median step between rounds and from the prior.

    They are averaged as logarithms: among the few candidates left because of spikes, the median step is a spike.
    """
    steps = np.sort(np.abs(np.diff(deviations, axis=0)), axis=None)
    if not len(steps):
        return math.sqrt(prior.variance)
    typical, weight = float(steps[(len(steps) - 1) // 2]) / 0.6745 / math.sqrt(2), len(steps) * left
    logs = prior.freedom * math.log(prior.variance) + weight * 2 * math.log(max(typical, MIN_NOISE))
    return math.exp(logs / (prior.freedom + weight) / 2)


def _own_spread(deviations: Samples) -> Samples:
    """Return the standard deviation of each column, from the lower median distance from its lower median."""
    return np.asarray(1.4826 * np.sort(np.abs(deviations), axis=0)[(len(deviations) - 1) // 2], dtype=np.float64)


def _timer_steps(logs: Samples) -> Samples:
    """Return the timer's step as a share of each column's times; 0 where times do not repeat, so no steps show."""
    changes = np.abs(np.diff(np.exp(logs), axis=0))
    level = np.exp(logs.min(axis=0))
    moved = changes > 1e-9 * level  # smaller changes are the same time, rounded
    if moved.all() or not moved.any():
        return np.zeros(logs.shape[1])
    return np.asarray(changes[moved].min() / level, dtype=np.float64)


def _rounding_variance(steps: Samples, variance: Samples) -> Samples:
    """Return the variance of where a mean lies between a timer's steps; noise wider than the steps averages it out.

    Rounding a Gaussian of standard deviation σ to steps of Δ moves its mean by at most Δ/π exp(-2π²σ²/Δ²).
    """
    wide = np.maximum(variance - steps**2 / 12, 0.0) / np.maximum(steps, 1e-12) ** 2
    return np.asarray((steps / math.pi) ** 2 / 2 * np.exp(-4 * math.pi**2 * wide), dtype=np.float64)


def _pooled_freedom(squares: Samples, degrees: Samples) -> float:
    """Return how many degrees of freedom the noise of all is worth as an estimate of the noise of one.

    Where variances are distributed as a scaled inverse χ² with d degrees of freedom, their squared coefficient of
    variation is 2 / (d - 4).
    """
    variation, informative = USUAL_UNLIKENESS, degrees > 0
    count = int(informative.sum())
    if count > 1 and squares.any():
        variances, by_chance = squares[informative] / degrees[informative], 2 / float(degrees[informative].mean())
        unlikeness = (float(variances.var(ddof=1) / variances.mean() ** 2) - by_chance) / (1 + by_chance)
        variation = (UNLIKENESS_COUNT * variation + count * max(unlikeness, 0.0)) / (UNLIKENESS_COUNT + count)
    return 4 + 2 / variation


def _memory_inflation(residuals: Samples, free: float) -> float:
    """Return the factor by which correlation between rounds increases the variance of a mean."""
    rounds, count = residuals.shape
    power = float((residuals**2).sum())
    if rounds < 2:
        return 1.0
    neighbours, larger = _memory_effects(rounds)
    likely = USUAL_MEMORIES
    if power > 0:
        correlation = float((residuals[1:] * residuals[:-1]).sum()) / power
        likely = likely * np.exp(-((correlation - neighbours) ** 2) * rounds * count * free / 2)
    return float(likely @ larger / likely.sum())


@cache
def _memory_effects(rounds: int) -> tuple[Samples, Samples]:
    """Return the effect of each memory over ``rounds``: correlation of adjacent residuals, and variance factor.

    The residuals are from the mean of the rounds, which hides part of the correlation and of the variance.
    """
    powers = MEMORIES[:, None] ** np.arange(rounds)
    sums = np.cumsum(powers, axis=1)
    rows = (sums + sums[:, ::-1] - 1) / rounds  # mean of each row of the correlation matrix
    mean = rows.mean(axis=1)
    left = rounds * (1 - mean)
    neighbours = (rounds - 1) * (MEMORIES + mean) - rows[:, 1:].sum(axis=1) - rows[:, :-1].sum(axis=1)
    return neighbours / left, mean * rounds * (rounds - 1) / left


TOLERANCE = 0.01
FIRST_LOOK, MIN_ROUNDS = 2, 3  # rounds before one may be eliminated, and before several may be called equally good
GROWTH = 1.15  # of the number of rounds from look to look
SKIPPED_LOOKS = 4  # looks skipped when the error is divided, so that the first ones do not get most of it
MIN_CROWD = 5  # contenders whose median determines a round's effect for good
LOSING_SHARE = 0.05  # share of the allowed error for eliminating the best
TOLERANCE_SHARE = 0.75  # share of the tolerance required: with many close candidates, one may lie just beyond it
DRAWS, SEED = 4000, 20
RELEVANT = 10.0  # standard errors behind the winner; candidates further behind are not drawn


@dataclass(frozen=True)
class CandidateRank:
    """How far one candidate is behind the winner, as a share of the winner's time: 0.05 is 5 % slower.

    ``low`` and ``high`` hold for all contenders and looks together. Null for one that failed or never ran.
    """

    candidate: int
    behind: float | None
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class RaceStanding:
    """The leader, its probability, and the ranking: the winner first, failed ones last.

    ``probability`` is that of the winner being within the tolerance of the best, ``expected_regret`` its expected loss
    against the best, as a share of its time. Without a winner they are 0 and infinite.
    """

    winner: int | None
    probability: float
    expected_regret: float
    ranking: tuple[CandidateRank, ...]


@dataclass(frozen=True, eq=False)
class Race:
    """The immutable state of a race; ``after`` a round returns the next one.

    ``rows`` has the times of each round, in logarithms of microseconds, NaN where a candidate took no part. ``effects``
    is what each round added to the logarithms while there were enough contenders, and ``noise`` the evidence on it from
    those eliminated.
    """

    n_candidates: int
    tolerance: float
    confidence: float
    contenders: tuple[int, ...]
    decided: bool
    failed: frozenset[int]
    rows: tuple[Samples, ...]
    effects: Samples
    noise: NoiseStats

    @classmethod
    def start(cls, n_candidates: int, tolerance: float = TOLERANCE, confidence: float = CONFIDENCE) -> Race:
        """Return a race before its first round."""
        all_of_them, nothing = tuple(range(n_candidates)), frozenset[int]()
        decided = n_candidates == 0
        return cls(n_candidates, tolerance, confidence, all_of_them, decided, nothing, (), np.empty(0), NoiseStats())

    def after(self, round_times: Mapping[int, float]) -> Race:
        """Return the race after a round, from the microseconds that each contender took.

        One that is absent, or whose time is not a positive number, has failed: it is out and never wins.

        Raises:
            ValueError: A time is given for a candidate that is not a contender.
        """
        unexpected = round_times.keys() - set(self.contenders)
        if unexpected:
            raise ValueError(f"not among the contenders: {sorted(unexpected)}")
        row = np.full(self.n_candidates, math.nan)
        for candidate, time_us in round_times.items():
            row[candidate] = math.log(time_us) if 0 < time_us < math.inf else math.nan
        left = tuple(candidate for candidate in self.contenders if not math.isnan(row[candidate]))
        race = replace(
            self,
            contenders=left,
            decided=self.decided or len(left) <= 1,
            failed=self.failed | (set(self.contenders) - set(left)),
            rows=(*self.rows, row),
        )
        planned = _last_look(len(race.rows))[0] == len(race.rows)
        return _eliminate_slower(race) if planned and len(left) > 1 else race

    @property
    def logs(self) -> Samples:
        """Return the times of all rounds (rows) and candidates (columns), in logarithms of microseconds."""
        return np.array(self.rows).reshape(len(self.rows), self.n_candidates)

    def standing(self) -> RaceStanding:
        """Return the leader and its probability from the rounds so far; deterministic for the same race."""
        rounds = np.isfinite(self.logs).sum(axis=0)
        ran = np.array([c for c in range(len(rounds)) if rounds[c] and c not in self.failed], dtype=np.int_)
        unplaced = tuple(CandidateRank(c, None, None, None, int(rounds[c])) for c in range(len(rounds)) if c not in ran)
        if not len(ran):
            return RaceStanding(None, 0.0, math.inf, unplaced)
        field = _estimate_contenders(self, rounds)
        order = ran[np.lexsort((field.variance[ran], (field.centre + np.sqrt(field.variance))[ran]))]
        winner = int(order[0])
        gap, error, freedom = (values[order] for values in field.behind(winner))
        compared = np.where(np.isin(order, self.contenders), len(self.contenders), len(order)) - 1
        reach = np.where(order == winner, 0.0, error * _critical_t(_allowed_error(self, compared), freedom))
        ranks = [
            CandidateRank(int(c), math.expm1(g), math.expm1(g - r), math.expm1(g + r), int(rounds[c]))
            for c, g, r in zip(order, gap, reach, strict=True)
        ]
        near = order[gap <= RELEVANT * error]
        regret = _sample_regret(field.centre[near], field.variance[near], field.freedom[near])
        probability = float(np.mean(regret <= TOLERANCE_SHARE * math.log1p(self.tolerance)))
        ranking = (ranks[0], *sorted(ranks[1:], key=lambda rank: rank.behind or 0.0), *unplaced)
        probability *= _probability_not_lost(self, field, len(order))
        return RaceStanding(winner, probability, float(np.expm1(regret).mean()), ranking)


@dataclass(frozen=True)
class _ContenderEstimates:
    """Estimates of several candidates in logarithms of time; infinitely far behind where one never ran."""

    centre: Samples
    variance: Samples
    freedom: Samples
    noise: NoiseStats
    rounds: int

    def behind(self, one: int) -> tuple[Samples, Samples, Samples]:
        """Return how far all candidates are behind one, with standard errors and degrees of freedom."""
        error, freedom = np.sqrt(self.variance + self.variance[one]), np.minimum(self.freedom, self.freedom[one])
        return self.centre - self.centre[one], error, freedom


@cache
def _last_look(rounds: int) -> tuple[int, float]:
    """Return the last look planned at or before a number of rounds, or the first, and its share of the error."""
    size, index = FIRST_LOOK, 1
    while (larger := max(size + 1, int(size * GROWTH))) <= rounds:
        size, index = larger, index + 1
    return size, (SKIPPED_LOOKS + 1) / ((index + SKIPPED_LOOKS) * (index + SKIPPED_LOOKS + 1))


def _allowed_error(race: Race, compared: int | NDArray[np.int_]) -> Samples:
    """Return the allowed error probability of one bound of several at the last look."""
    _, share = _last_look(len(race.rows))
    return np.asarray((1 - race.confidence) * share / np.maximum(compared, 1), dtype=np.float64)


def _critical_t(allowed: Samples, freedom: Samples) -> Samples:
    """Return the distance of a bound in standard errors, given its allowed error probability: Student's t."""
    allowed, freedom = np.broadcast_arrays(allowed, freedom)
    return np.array([-student_quantile(*pair) for pair in zip(allowed.tolist(), freedom.tolist(), strict=True)])


def _eliminate_slower(race: Race) -> Race:
    """Return the race without contenders significantly slower than the leader; decided where the rest is close."""
    columns = np.array(race.contenders)
    logs = race.logs[:, columns]
    fitted = _fit_race(race, columns)
    noise = sum(fitted.noise, race.noise)
    field = _ContenderEstimates(fitted.centre, fitted.variance, fitted.freedom, noise, len(logs))
    lead = int(np.argmin(field.centre + np.sqrt(field.variance)))
    gap, error, freedom = field.behind(lead)
    allowed = _allowed_error(race, len(columns) - 1)
    reach = error * _critical_t(allowed, freedom)
    slow_rounds = (logs - fitted.effects[:, None] > field.centre[lead] + gap / 2).sum(axis=0)
    by_spikes = [binomial_beyond(n - 1, len(logs), field.noise.spike_rate) for n in slow_rounds.tolist()]
    no_spikes = np.array(by_spikes) <= LOSING_SHARE * _allowed_error(race, 1)
    leaving = no_spikes & (gap > error * _critical_t(LOSING_SHARE * allowed, freedom))
    close = (no_spikes | (gap <= reach)) & (gap - reach > -math.log1p(race.tolerance))
    close[lead] = True
    left = tuple(int(c) for c in columns[~leaving])
    return replace(
        race,
        contenders=left,
        decided=race.decided or len(left) == 1 or (len(logs) >= MIN_ROUNDS and bool((leaving | close).all())),
        effects=fitted.effects if len(columns) >= MIN_CROWD else race.effects,
        noise=sum((fitted.noise[i] for i in np.flatnonzero(leaving)), race.noise),
    )


def _fit_race(race: Race, columns: NDArray[np.int_]) -> RoundFit:
    """Return the fit of candidates that took part in the same rounds."""
    logs = race.logs
    logs = logs[np.isfinite(logs[:, columns]).all(axis=1)]
    return fit_rounds(logs[:, columns], np.isfinite(logs).sum(axis=1), race.effects[: len(logs)], race.noise)


def _estimate_contenders(race: Race, rounds: NDArray[np.int_]) -> _ContenderEstimates:
    """Return estimates of all that ran: contenders, or those with most rounds, jointly, the others relative to them."""
    full = np.array(race.contenders) if race.contenders else np.flatnonzero(rounds == rounds.max())
    fitted, logs = _fit_race(race, full), race.logs
    noise = sum(fitted.noise, race.noise)
    centre, variance = np.full(len(rounds), math.inf), np.full(len(rounds), math.inf)
    freedom = np.full(len(rounds), noise.freedom)
    centre[full], variance[full], freedom[full] = fitted.centre, fitted.variance, fitted.freedom
    for c in set(np.flatnonzero(rounds)) - set(full):
        centre[c], variance[c] = estimate_dropped(logs[: rounds[c], c], fitted, race.noise)
    return _ContenderEstimates(centre, variance, freedom, noise, int(rounds.max()))


def _sample_regret(centre: Samples, variance: Samples, freedom: Samples) -> Samples:
    """Return draws of how far the first is behind the best, in logarithms, with Student's tails."""
    rng, shape = np.random.default_rng(SEED), (DRAWS, len(centre))
    deviations = rng.standard_normal(shape) * np.sqrt(freedom / rng.chisquare(freedom, shape))
    times = centre + np.sqrt(variance) * deviations
    return np.asarray(times[:, 0] - times.min(axis=1), dtype=np.float64)


def _probability_not_lost(race: Race, field: _ContenderEstimates, placed: int) -> float:
    """Return the probability that the best was neither eliminated by mistake nor hidden by many spikes."""
    if placed == 1:
        return 1.0
    half = field.rounds - (field.rounds - 1) // 2
    hidden = binomial_beyond(half - 1, field.rounds, field.noise.spike_rate)
    return (1 - hidden) * (1 - LOSING_SHARE * (1 - race.confidence))
