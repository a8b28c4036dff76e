"""Which GPU to ask for, in a sentence: by name, by slot, by what to avoid; or that it does not matter.

What each GPU truly takes is guessed from what it took, drawn in towards the rest as far as its runs scatter (empirical
Bayes): the one that looks best is, on the whole, less good than it looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.intervals import CONFIDENCE
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.experiments.power.variability.fleet import Fleet
    from assay.experiments.power.variability.measures import Numbers, Unit
    from assay.experiments.power.variability.places import Effect

    Samples = NDArray[np.float64]

Answer = Literal["slot", "gpu", "avoid", "any", "unknown", "one"]
DRAWS, SEED = 4000, 17
FEW = 16
"""Among so many GPUs one is named; among more it is said which to avoid."""
SURE = 0.95
CANDIDATES = 40
FOURTH = "3"
"""The slot of the 4th GPU."""


@dataclass(frozen=True)
class Gain:
    """How much less time than a random one takes, as a share of that.

    The ends are null where chance is not known; then it is less than the geometric mean of all.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Advice:
    """Which GPU or slot, how surely it is the best, and what it gains against a random one.

    ``fourth`` is what always asking for the 4th GPU of a host gains; null where there is none, or it cannot be told.
    """

    answer: Answer
    gain: Gain | None = None
    best: tuple[int, ...] = ()
    confidence: float | None = None
    slot: Effect | None = None
    fourth: Gain | None = None
    unit: Unit | None = None


def advice_of(
    fleet: Fleet, numbers: Numbers, slots: Sequence[Effect], slow: Sequence[int], minimum_effect: float
) -> Advice:
    """Return which GPU to ask for; ``slow`` are those known to be so."""
    measured = np.flatnonzero(numbers.known)
    if len(measured) < 2:
        return Advice("one", unit=numbers.unit)
    gains = list(zip(slots, _gains_of(slots), strict=True))
    fourth = next((gain for slot, gain in gains if slot.name == FOURTH), None)
    if numbers.unit is None:
        times = numbers.value[measured]
        observed_gain = Gain(float(1 - np.exp(times.min() - times.mean())), None, None)
        recommendation = Advice("unknown", observed_gain, best=(int(measured[times.argmin()]),))
    else:
        recommendation = _guessed(fleet, numbers, measured, slow, minimum_effect)
    surely = [(slot, gain) for slot, gain in gains if gain.low is not None and gain.low > 0]
    if surely and any(slot.verdict == "yes" for slot in slots):
        slot, gain = max(surely, key=lambda slot_gain: slot_gain[1].value)
        recommendation = replace(recommendation, answer="slot", gain=gain, slot=slot)
    return replace(recommendation, fourth=fourth or recommendation.fourth, unit=numbers.unit)


def _guessed(
    fleet: Fleet, numbers: Numbers, known: NDArray[np.intp], slow: Sequence[int], minimum_effect: float
) -> Advice:
    """Return what the guesses at each GPU's true time say."""
    guesses = _Guesses(numbers, known)
    best, confidence = guesses.best()
    gain = guesses.gain(best[0])
    alone = len(fleet.hosts) == 1
    of_slot = [int(gpu) for gpu in known if str(fleet.gpus[gpu].slot) == FOURTH] if alone else []
    fourth = guesses.gain(of_slot[0]) if len(of_slot) == 1 else None
    if gain.high is not None and gain.high < minimum_effect:
        answer: Answer = "any"
    elif slow and len(known) > FEW:
        answer = "avoid"
    else:
        answer = "gpu" if gain.low is not None and gain.low > 0 else "unknown"
    return Advice(answer, gain, best, confidence, fourth=fourth)


class _Guesses:
    """What each GPU truly takes, as draws."""

    def __init__(self, numbers: Numbers, known: NDArray[np.intp]) -> None:
        value, error = numbers.value[known], numbers.error[known]
        noise = float(np.mean(error**2))
        between = max(float(value.var(ddof=1)) - noise, 1e-4 * noise, 1e-18)
        trust = between / (between + error**2)
        middle = float(np.average(value, weights=1 / (between + error**2)))
        self._known = known
        self._guess = middle + trust * (value - middle)
        self._doubt = np.sqrt(trust) * error
        self._freedom = float(np.min(numbers.freedom[known]))
        self._mean = float(np.exp(self._guess).mean())

    def best(self) -> tuple[tuple[int, ...], float]:
        """Return the fewest GPUs that the fastest is surely among, the likeliest first, and how likely that one is."""
        order = np.argsort(self._guess, kind="stable")[:CANDIDATES]
        chance = np.random.default_rng(SEED)
        draws = self._guess[order] + self._doubt[order] * chance.standard_t(self._freedom, (DRAWS, len(order)))
        wins = np.bincount(draws.argmin(axis=1), minlength=len(order)) / DRAWS
        ranked = np.argsort(-wins, kind="stable")
        needed = min(int(np.searchsorted(np.cumsum(wins[ranked]), SURE)) + 1, len(order))
        return tuple(int(self._known[order[rank]]) for rank in ranked[:needed]), float(wins[ranked[0]])

    def gain(self, gpu: int) -> Gain:
        """Return what one GPU gains against a random one."""
        index = int(np.flatnonzero(self._known == gpu)[0])
        n = len(self._known)
        own, doubt = float(self._guess[index]), float(self._doubt[index])
        others = float(np.sqrt((self._doubt**2).sum() - doubt**2)) / n
        half = quantile(CONFIDENCE, max(1, round(self._freedom))) * float(np.hypot(doubt * (1 - 1 / n), others))
        apart = float(np.log(self._mean)) - own
        value, low, high = (float(1 - np.exp(-log_ratio)) for log_ratio in (apart, apart - half, apart + half))
        return Gain(value, low, high)


def _gains_of(slots: Sequence[Effect]) -> list[Gain]:
    """Return what always asking for each slot gains against a random one."""
    if not slots:
        return []
    values = np.array([slot.value for slot in slots])
    halves = np.array([slot.high - slot.low for slot in slots]) / 2
    apart = float(np.log(np.exp(values).mean())) - values
    n = len(slots)
    own = np.sqrt(halves**2 * (1 - 2 / n) + float((halves**2).sum()) / n**2)
    return [
        Gain(*(float(1 - np.exp(-log_ratio)) for log_ratio in (gain, gain - half, gain + half)))
        for gain, half in zip(apart, own, strict=True)
    ]
