"""Races between candidates whose true times are known, counted: for the tests in small, for the benchmark in full."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.selection import TOLERANCE, Race
from tests.stats.noise_families import MEMORY, centres, related

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Rounds = Callable[[tuple[int, ...]], dict[int, float]]

Field = Literal["close", "tuning", "spread", "crowds", "equal", "one ahead", "10 % ahead"]
RaceNoise = Literal["independent", "spikes", "uneven", "AR(1) 0.6", "drift", "two levels"]
USUAL_FIELDS: tuple[Field, ...] = ("close", "tuning", "spread", "crowds")
RACE_NOISES: tuple[RaceNoise, ...] = ("independent", "spikes", "uneven", "AR(1) 0.6", "drift", "two levels")
LIMITS = (4, 8, 16, 32)  # rounds a budget allows
LEAST_NOISE, MOST_NOISE = 0.005, 0.05
BINS = (0.5, 0.8, 0.95)  # of the stated probability


def true_logs(kind: Field, rng: np.random.Generator, count: int) -> Samples:
    """Return the logarithms of the candidates' true times as multiples of the best's."""
    ahead = np.minimum(np.arange(count), 1.0)
    logs = {
        "close": 0.02 * rng.standard_normal(count),
        "tuning": rng.exponential(0.3, count),
        "spread": rng.uniform(0, math.log(30), count),
        "crowds": rng.choice([0.0, 0.005, 0.02, 0.05, 0.1, 0.5], count),
        "equal": np.zeros(count),
        "one ahead": math.log1p(2 * TOLERANCE) * ahead,
        "10 % ahead": math.log1p(0.1) * ahead,
    }[kind]
    return np.asarray(logs - logs.min(), dtype=np.float64)


def rounds_of(
    family: RaceNoise, rng: np.random.Generator, truth: Samples, limit: int, noise: float, *, shared: bool
) -> Rounds:
    """Return what gives the microseconds of a round: noise in one stream of samples, or to each candidate its own."""
    count = len(truth)
    rows, length = (1, count * limit) if shared else (count, limit)
    rho = MEMORY if family == "AR(1) 0.6" else 0.0
    path = centres(family, rng, rows, length) if family in {"drift", "two levels"} else np.zeros((rows, length))
    path = path + noise * related(rng, rho, rows, length)
    if family == "spikes":
        spiked = rng.random(path.shape) < rng.uniform(0.01, 0.1)
        path = path + spiked * rng.uniform(math.log(2), math.log(10), path.shape)
    scale = np.exp(rng.uniform(math.log(LEAST_NOISE), math.log(MOST_NOISE), count)) / noise
    taken = {"samples": 0, "rounds": 0}

    def next_round(contenders: tuple[int, ...]) -> dict[int, float]:
        at, turn = taken["samples"], taken["rounds"]
        places = rng.permutation(len(contenders))
        strays = [path[0, at + places[i]] if shared else path[c, turn] for i, c in enumerate(contenders)]
        if family == "uneven":
            strays = [stray * scale[c] for stray, c in zip(strays, contenders, strict=True)]
        taken["samples"], taken["rounds"] = at + len(contenders), turn + 1
        return {c: 100 * math.exp(truth[c] + stray) for c, stray in zip(contenders, strays, strict=True)}

    return next_round


@dataclass
class Races:
    """What came of races: how often each thing happened, and what was stated of what.

    ``stated`` adds up the stated probabilities in each bin of them, ``counts`` has "in 0.95" for the races in a bin and
    "right 0.95" for those whose winner was within the tolerance. Regrets are in hundredths of a percent, the expected
    ones added up, as are the samples.
    """

    counts: Counter[str] = field(default_factory=Counter)
    stated: dict[str, float] = field(default_factory=dict)
    regrets: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    expected_regret: float = 0.0
    samples: int = 0


def race(
    kind: Field, family: RaceNoise, count: int, rng: np.random.Generator, *, limit: int, noise: float, shared: bool
) -> tuple[Race, Samples, int]:
    """Return a race after its last round, the logarithms of the true times, and how many samples it took."""
    truth = true_logs(kind, rng, count)[rng.permutation(count)]
    next_round = rounds_of(family, rng, truth, limit, noise, shared=shared)
    running, samples = Race.start(count), 0
    for _ in range(limit):
        samples += len(running.contenders)
        running = running.after(next_round(running.contenders))
        if running.decided:
            break
    return running, truth, samples


def races(
    family: RaceNoise,
    count: int,
    repeats: int,
    seed: int,
    *,
    fields: tuple[Field, ...] = USUAL_FIELDS,
    limits: tuple[int, ...] = LIMITS,
    noise: float | None = None,
    shared: bool = True,
) -> Races:
    """Run races with noise of 0.5 % to 5 % where none is given, until they are decided or the budget is spent."""
    rng, outcome = np.random.default_rng(seed), Races()
    for turn in range(repeats):
        level = noise or math.exp(rng.uniform(math.log(LEAST_NOISE), math.log(MOST_NOISE)))
        limit = limits[turn // len(fields) % len(limits)]
        done, truth, samples = race(
            fields[turn % len(fields)], family, count, rng, limit=limit, noise=level, shared=shared
        )
        _count(outcome, done, truth, samples)
    return outcome


def _count(outcome: Races, done: Race, truth: Samples, samples: int) -> None:
    standing = done.standing()
    assert standing.winner is not None
    behind = float(truth[standing.winner])
    right = behind <= math.log1p(TOLERANCE)
    name = f"{max((b for b in BINS if standing.probability >= b), default=0.0):g}"
    outcome.counts[f"in {name}"] += 1
    outcome.counts[f"right {name}"] += right
    outcome.stated[name] = outcome.stated.get(name, 0.0) + standing.probability
    outcome.counts["decided"] += done.decided
    outcome.counts["decided wrongly"] += done.decided and not right
    outcome.counts["lost"] += not right and int(np.argmin(truth)) not in done.contenders
    outcome.regrets.append(round(1e4 * math.expm1(behind)))
    outcome.rounds.append(len(done.rows))
    outcome.expected_regret += 1e4 * standing.expected_regret
    outcome.samples += samples
