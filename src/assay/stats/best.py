"""The fastest of many candidates, by elimination, and how sure that is.

A race goes in rounds: the contenders are sampled once each, in random order on the same device. At planned looks,
those that surely are slower than the leader leave. It is decided when one is left, or when all that are left surely
are within a tolerance of the leader.

    race = Race.start(len(candidates))
    while not race.decided:
        race = race.after({place: time_us(candidates[place]) for place in race.contenders})
    race.standing().winner

The leader has the lowest centre plus standard error: of many, the noisiest looks best by luck. Bounds are Student's and
hold for all contenders and looks together (Bonferroni). A spike can only slow a sample, so that who leaves must have
been slow in more rounds than spikes explain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.distributions import binomial_beyond, student_quantile
from assay.stats.intervals import CONFIDENCE
from assay.stats.rounds import Noise, beside, fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from assay.stats.rounds import Fit, Samples

TOLERANCE = 0.01
FIRST_LOOK, LEAST_ROUNDS = 2, 3  # rounds before one may leave, and before several may be called equally good
GROWTH = 1.15  # of the number of rounds from look to look
EARLY = 4  # looks that are passed over in sharing out the error, so that the first do not take most of it
CROWD = 5  # contenders whose median tells for good what a round added
LOSING_SHARE = 0.05  # of the allowed error, for losing the best by elimination
STRICTER = 0.75  # of the tolerance is asked for: candidates come in crowds, and one may stand just beyond it
DRAWS, SEED = 4000, 20
RELEVANT = 10.0  # standard errors behind the winner; whoever is further behind is not drawn


@dataclass(frozen=True)
class Place:
    """How far one candidate is behind the winner, as a share of the winner's time: 0.05 is 5 % slower.

    ``low`` and ``high`` hold for all contenders and looks together. Null for one that failed or never ran.
    """

    candidate: int
    behind: float | None
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Standing:
    """Who is ahead, how sure that is, and everybody's place: the winner's first, those that failed last.

    ``probability`` is that of the winner being within the tolerance of the best, ``expected_regret`` what it is
    expected to lose against the best, as a share of its time. Without a winner they are 0 and infinite.
    """

    winner: int | None
    probability: float
    expected_regret: float
    ranking: tuple[Place, ...]


@dataclass(frozen=True, eq=False)
class Race:
    """A race as it stands; ``after`` a round it is another.

    ``rows`` has the times of each round, in logarithms of microseconds, not a number where one took no part.
    ``effects`` is what each round added to the logarithms while there was a crowd, and ``noise`` what those that left
    told about it.
    """

    n_candidates: int
    tolerance: float
    confidence: float
    contenders: tuple[int, ...]
    decided: bool
    failed: frozenset[int]
    rows: tuple[Samples, ...]
    effects: Samples
    noise: Noise

    @classmethod
    def start(cls, n_candidates: int, tolerance: float = TOLERANCE, confidence: float = CONFIDENCE) -> Race:
        """Return a race of so many candidates before its first round."""
        everybody = tuple(range(n_candidates))
        return cls(n_candidates, tolerance, confidence, everybody, not everybody, frozenset(), (), np.empty(0), Noise())

    def after(self, round_times: Mapping[int, float]) -> Race:
        """Return the race after a round, from the microseconds that each contender took.

        One that is absent, or whose time is no positive number, has failed: it is out and never wins.

        Raises:
            ValueError: A time is given for one that is not among the contenders.
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
        planned = _last_look(len(race.rows)).rounds == len(race.rows)
        return _without_the_slower(race) if planned and len(left) > 1 else race

    @property
    def logs(self) -> Samples:
        """Return the times of all rounds (rows) and candidates (columns), in logarithms of microseconds."""
        return np.array(self.rows).reshape(len(self.rows), self.n_candidates)

    def standing(self) -> Standing:
        """Return who is ahead and how sure that is, from the rounds so far; the same race gives the same answer."""
        rounds = np.isfinite(self.logs).sum(axis=0)
        ran = np.array([c for c in range(len(rounds)) if rounds[c] and c not in self.failed], dtype=np.int_)
        unplaced = tuple(Place(c, None, None, None, int(rounds[c])) for c in range(len(rounds)) if c not in ran)
        if not len(ran):
            return Standing(None, 0.0, math.inf, unplaced)
        field = _field(self, rounds)
        order = ran[np.lexsort((field.variance[ran], (field.centre + np.sqrt(field.variance))[ran]))]
        winner = int(order[0])
        gap, error, freedom = (values[order] for values in field.behind(winner))
        compared = np.where(np.isin(order, self.contenders), len(self.contenders), len(order)) - 1
        reach = np.where(order == winner, 0.0, error * _errors_away(_allowed(self, compared), freedom))
        ranks = [
            Place(int(c), math.expm1(g), math.expm1(g - r), math.expm1(g + r), int(rounds[c]))
            for c, g, r in zip(order, gap, reach, strict=True)
        ]
        near = order[gap <= RELEVANT * error]
        regret = _drawn_regret(field.centre[near], field.variance[near], field.freedom[near])
        probability = float(np.mean(regret <= STRICTER * math.log1p(self.tolerance)))
        ranking = (ranks[0], *sorted(ranks[1:], key=lambda rank: rank.behind or 0.0), *unplaced)
        return Standing(
            winner, probability * _not_lost(self, field, len(order)), float(np.expm1(regret).mean()), ranking
        )


@dataclass(frozen=True)
class _Field:
    """Candidates beside each other in logarithms of time; infinitely far behind where one never ran."""

    centre: Samples
    variance: Samples
    freedom: Samples
    noise: Noise
    rounds: int

    def behind(self, one: int) -> tuple[Samples, Samples, Samples]:
        """Return how far everybody is behind one, with standard errors and degrees of freedom."""
        return (
            self.centre - self.centre[one],
            np.sqrt(self.variance + self.variance[one]),
            np.minimum(self.freedom, self.freedom[one]),
        )


@dataclass(frozen=True)
class _Look:
    """A planned look: after how many rounds, and which share of the allowed error it may spend."""

    rounds: int
    share: float


@cache
def _last_look(rounds: int) -> _Look:
    """Return the last look that is planned for so many rounds or fewer, or the first of all."""
    size, index = FIRST_LOOK, 1
    while (larger := max(size + 1, int(size * GROWTH))) <= rounds:
        size, index = larger, index + 1
    return _Look(size, (EARLY + 1) / ((index + EARLY) * (index + EARLY + 1)))


def _allowed(race: Race, compared: int | NDArray[np.int_]) -> Samples:
    """Return how often one bound of so many may fail at the last look."""
    share = _last_look(len(race.rows)).share
    return np.asarray((1 - race.confidence) * share / np.maximum(compared, 1), dtype=np.float64)


def _errors_away(allowed: Samples, freedom: Samples) -> Samples:
    """Return how many standard errors away a bound lies that may fail so often: Student's t."""
    allowed, freedom = np.broadcast_arrays(allowed, freedom)
    return np.array([-student_quantile(*pair) for pair in zip(allowed.tolist(), freedom.tolist(), strict=True)])


def _without_the_slower(race: Race) -> Race:
    """Return the race without contenders that surely are slower than the leader; decided where the rest is close."""
    columns = np.array(race.contenders)
    logs = race.logs[:, columns]
    fitted = _fit(race, columns)
    field = _Field(fitted.centre, fitted.variance, fitted.freedom, sum(fitted.noise, race.noise), len(logs))
    lead = int(np.argmin(field.centre + np.sqrt(field.variance)))
    gap, error, freedom = field.behind(lead)
    allowed = _allowed(race, len(columns) - 1)
    reach = error * _errors_away(allowed, freedom)
    slow_rounds = (logs - fitted.effects[:, None] > field.centre[lead] + gap / 2).sum(axis=0)
    by_spikes = [binomial_beyond(n - 1, len(logs), field.noise.spike_rate) for n in slow_rounds.tolist()]
    no_spikes = np.array(by_spikes) <= LOSING_SHARE * _allowed(race, 1)
    out = no_spikes & (gap > error * _errors_away(LOSING_SHARE * allowed, freedom))
    close = (no_spikes | (gap <= reach)) & (gap - reach > -math.log1p(race.tolerance))
    close[lead] = True
    left = tuple(int(c) for c in columns[~out])
    return replace(
        race,
        contenders=left,
        decided=race.decided or len(left) == 1 or (len(logs) >= LEAST_ROUNDS and bool((out | close).all())),
        effects=fitted.effects if len(columns) >= CROWD else race.effects,
        noise=sum((fitted.noise[i] for i in np.flatnonzero(out)), race.noise),
    )


def _fit(race: Race, columns: NDArray[np.int_]) -> Fit:
    """Return the fit of candidates that took part in the same rounds."""
    logs = race.logs
    logs = logs[np.isfinite(logs[:, columns]).all(axis=1)]
    return fit(logs[:, columns], np.isfinite(logs).sum(axis=1), race.effects[: len(logs)], race.noise)


def _field(race: Race, rounds: NDArray[np.int_]) -> _Field:
    """Return everybody that ran: the contenders, or those of the most rounds, together, and the others beside them."""
    full = np.array(race.contenders) if race.contenders else np.flatnonzero(rounds == rounds.max())
    fitted, logs = _fit(race, full), race.logs
    noise = sum(fitted.noise, race.noise)
    centre, variance = np.full(len(rounds), math.inf), np.full(len(rounds), math.inf)
    freedom = np.full(len(rounds), noise.freedom)
    centre[full], variance[full], freedom[full] = fitted.centre, fitted.variance, fitted.freedom
    for c in set(np.flatnonzero(rounds)) - set(full):
        centre[c], variance[c] = beside(logs[: rounds[c], c], fitted, race.noise)
    return _Field(centre, variance, freedom, noise, int(rounds.max()))


def _drawn_regret(centre: Samples, variance: Samples, freedom: Samples) -> Samples:
    """Return draws of how far the first is behind the best, in logarithms, with Student's tails."""
    rng, shape = np.random.default_rng(SEED), (DRAWS, len(centre))
    strays = rng.standard_normal(shape) * np.sqrt(freedom / rng.chisquare(freedom, shape))
    times = centre + np.sqrt(variance) * strays
    return np.asarray(times[:, 0] - times.min(axis=1), dtype=np.float64)


def _not_lost(race: Race, field: _Field, placed: int) -> float:
    """Return the probability that the best neither left by mistake nor hides behind spikes in half of its rounds."""
    if placed == 1:
        return 1.0
    half = field.rounds - (field.rounds - 1) // 2
    hidden = binomial_beyond(half - 1, field.rounds, field.noise.spike_rate)
    return (1 - hidden) * (1 - LOSING_SHARE * (1 - race.confidence))
