"""The analysis of one fleet: outliers, variance, correlations, and which GPU to request.

What a GPU truly takes is estimated by shrinking its measured time towards the rest as far as its runs scatter
(empirical Bayes): the one that looks best is, on average, less good than it looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.power.variability.measures import (
    MEASURES,
    TIME_MEASURE,
    gpu_numbers,
    remove_case_effects,
    time_spread,
    variance_components,
)
from assay.experiments.power.variability.outliers import find_outliers, peer_references
from assay.stats.correlation import MIN_PAIRS, partial_correlation
from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile
from assay.stats.variance import group_means

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.fleet import GpuFleet
    from assay.experiments.power.variability.measures import GpuMeasure, GpuNumbers, ScatterUnit, TimeSpread
    from assay.experiments.power.variability.outliers import GpuOutlier, LocationEffect, PeerReferences
    from assay.stats.correlation import PartialCorrelation
    from assay.stats.variance import VarianceComponent


if TYPE_CHECKING:
    Samples = NDArray[np.float64]

AdviceKind = Literal["slot", "gpu", "avoid", "any", "unknown", "one"]
ADVICE_DRAWS, ADVICE_SEED = 4000, 17
MANY_GPUS = 16
"""Among so many GPUs one is named; among more it is said which to avoid."""
MIN_CONFIDENCE = 0.95
MAX_CANDIDATES = 40
FOURTH_SLOT = "3"
"""The slot of the 4th GPU."""


@dataclass(frozen=True)
class TimeGain:
    """How much less time than a random one takes, as a share of that.

    The ends are null where chance is not known; then it is less than the geometric mean of all.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GpuRecommendation:
    """Which GPU or slot, how surely it is the best, and what it gains against a random one.

    ``fourth`` is what always asking for the 4th GPU of a host gains; null where there is none, or it cannot be told.
    """

    answer: AdviceKind
    gain: TimeGain | None = None
    best: tuple[int, ...] = ()
    confidence: float | None = None
    slot: LocationEffect | None = None
    fourth: TimeGain | None = None
    unit: ScatterUnit | None = None


def recommend_gpu(
    fleet: GpuFleet, numbers: GpuNumbers, slots: Sequence[LocationEffect], slow: Sequence[int], minimum_effect: float
) -> GpuRecommendation:
    """Return which GPU to ask for; ``slow`` are those known to be so."""
    measured = np.flatnonzero(numbers.has_value)
    if len(measured) < 2:
        return GpuRecommendation("one", unit=numbers.unit)
    gains = list(zip(slots, _slot_gains(slots), strict=True))
    fourth = next((gain for slot, gain in gains if slot.name == FOURTH_SLOT), None)
    if numbers.unit is None:
        times = numbers.value[measured]
        observed_gain = TimeGain(float(1 - np.exp(times.min() - times.mean())), None, None)
        recommendation = GpuRecommendation("unknown", observed_gain, best=(int(measured[times.argmin()]),))
    else:
        recommendation = _recommend_from_estimates(fleet, numbers, measured, slow, minimum_effect)
    surely = [(slot, gain) for slot, gain in gains if gain.low is not None and gain.low > 0]
    if surely and any(slot.verdict == "yes" for slot in slots):
        slot, gain = max(surely, key=lambda slot_gain: slot_gain[1].value)
        recommendation = replace(recommendation, answer="slot", gain=gain, slot=slot)
    return replace(recommendation, fourth=fourth or recommendation.fourth, unit=numbers.unit)


def _recommend_from_estimates(
    fleet: GpuFleet, numbers: GpuNumbers, measured: NDArray[np.intp], slow: Sequence[int], minimum_effect: float
) -> GpuRecommendation:
    """Return what the guesses at each GPU's true time say."""
    guesses = _ShrunkTimes(numbers, measured)
    best, confidence = guesses.best()
    gain = guesses.gain(best[0])
    alone = len(fleet.hosts) == 1
    of_slot = [int(gpu) for gpu in measured if str(fleet.gpus[gpu].slot) == FOURTH_SLOT] if alone else []
    fourth = guesses.gain(of_slot[0]) if len(of_slot) == 1 else None
    if gain.high is not None and gain.high < minimum_effect:
        answer: AdviceKind = "any"
    elif slow and len(measured) > MANY_GPUS:
        answer = "avoid"
    else:
        answer = "gpu" if gain.low is not None and gain.low > 0 else "unknown"
    return GpuRecommendation(answer, gain, best, confidence, fourth=fourth)


class _ShrunkTimes:
    """What each GPU truly takes, as draws."""

    def __init__(self, numbers: GpuNumbers, measured: NDArray[np.intp]) -> None:
        value, error = numbers.value[measured], numbers.error[measured]
        noise = float(np.mean(error**2))
        between = max(float(value.var(ddof=1)) - noise, 1e-4 * noise, 1e-18)
        trust = between / (between + error**2)
        middle = float(np.average(value, weights=1 / (between + error**2)))
        self._known = measured
        self._guess = middle + trust * (value - middle)
        self._doubt = np.sqrt(trust) * error
        self._freedom = float(np.min(numbers.freedom[measured]))
        self._mean = float(np.exp(self._guess).mean())

    def best(self) -> tuple[tuple[int, ...], float]:
        """Return the fewest GPUs that the fastest is surely among, the likeliest first, and how likely that one is."""
        order = np.argsort(self._guess, kind="stable")[:MAX_CANDIDATES]
        chance = np.random.default_rng(ADVICE_SEED)
        draws = self._guess[order] + self._doubt[order] * chance.standard_t(self._freedom, (ADVICE_DRAWS, len(order)))
        wins = np.bincount(draws.argmin(axis=1), minlength=len(order)) / ADVICE_DRAWS
        ranked = np.argsort(-wins, kind="stable")
        needed = min(int(np.searchsorted(np.cumsum(wins[ranked]), MIN_CONFIDENCE)) + 1, len(order))
        return tuple(int(self._known[order[rank]]) for rank in ranked[:needed]), float(wins[ranked[0]])

    def gain(self, gpu: int) -> TimeGain:
        """Return what one GPU gains against a random one."""
        index = int(np.flatnonzero(self._known == gpu)[0])
        n = len(self._known)
        own, doubt = float(self._guess[index]), float(self._doubt[index])
        others = float(np.sqrt((self._doubt**2).sum() - doubt**2)) / n
        half = t_quantile(CONFIDENCE, max(1, round(self._freedom))) * float(np.hypot(doubt * (1 - 1 / n), others))
        apart = float(np.log(self._mean)) - own
        value, low, high = (float(1 - np.exp(-log_ratio)) for log_ratio in (apart, apart - half, apart + half))
        return TimeGain(value, low, high)


def _slot_gains(slots: Sequence[LocationEffect]) -> list[TimeGain]:
    """Return what always asking for each slot gains against a random one."""
    if not slots:
        return []
    values = np.array([slot.value for slot in slots])
    halves = np.array([slot.high - slot.low for slot in slots]) / 2
    apart = float(np.log(np.exp(values).mean())) - values
    n = len(slots)
    own = np.sqrt(halves**2 * (1 - 2 / n) + float((halves**2).sum()) / n**2)
    return [
        TimeGain(*(float(1 - np.exp(-log_ratio)) for log_ratio in (gain, gain - half, gain + half)))
        for gain, half in zip(apart, own, strict=True)
    ]


PairedOver = Literal["GPUs", "rows of few GPUs", "rows, each GPU against itself"]

MIN_GPUS = 3
"""Two GPUs differ in everything at once."""
WEAK_RHO = 0.1
"""A correlation below this is none to speak of."""


@dataclass(frozen=True)
class CorrelatedPair:
    """Two things, over what they were paired, what was held equal, and which sign the claim asks for."""

    claim: str
    x: str
    y: str
    equal: str | None
    over: PairedOver
    sign: int
    association: PartialCorrelation | None

    @property
    def verdict(self) -> Verdict:
        """Whether the claim holds: only an interval that has no room for the other sign says so."""
        association = self.association
        if association is None or association.low is None or association.high is None:
            return "unsure"
        least, most = sorted((self.sign * association.low, self.sign * association.high))
        return "yes" if least > 0 else "no" if most < WEAK_RHO else "unsure"


def correlate_pairs(fleet: GpuFleet) -> tuple[CorrelatedPair, ...]:
    """Return every correlation that the rows allow."""
    rows = {
        "time": fleet.column("median_us", log=True),
        "temperature": fleet.column("temperature_c"),
        "SM clock": fleet.column("sm_mhz"),
        "power": fleet.column("power_w"),
    }
    columns = {name: _case_levelled(fleet, values) for name, values in rows.items()}
    few = len(fleet.gpus) < MIN_PAIRS
    over: PairedOver = "rows of few GPUs" if few else "GPUs"
    if not few:
        columns = {name: _gpu_means(fleet, values) for name, values in columns.items()}

    def pair(claim: str, x: str, y: str, sign: int = 1, equal: str | None = None) -> CorrelatedPair:
        held = (columns[equal],) if equal else ()
        result = partial_correlation(columns[x], columns[y], held, independent=not few)
        return CorrelatedPair(claim, x, y, equal, over, sign, result)

    if len(fleet.gpus) < MIN_GPUS:
        return tuple(_neighbour_pairs(fleet, rows["time"]))
    return (
        pair("hotter GPUs are slower", "temperature", "time"),
        pair("hotter GPUs are slower at equal power", "temperature", "time", equal="power"),
        pair("GPUs with a higher clock are faster", "SM clock", "time", -1),
        pair("GPUs that draw more are slower", "power", "time"),
        pair("hotter GPUs have a lower clock", "temperature", "SM clock", -1),
        *_neighbour_pairs(fleet, rows["time"]),
    )


def _neighbour_pairs(fleet: GpuFleet, time: Samples) -> list[CorrelatedPair]:
    """Return whether a GPU is slower in rows with more busy neighbours, or with hotter ones, than in its others."""
    over: PairedOver = "rows, each GPU against itself"
    comparisons = (
        ("a GPU is slower the more neighbours are busy", "busy neighbours", fleet.neighbours, time),
        (
            "a GPU is slower the hotter its neighbours are",
            "heat beside it",
            _case_levelled(fleet, fleet.neighbour_temperature),
            _case_levelled(fleet, time),
        ),
    )
    pairs = []
    for claim, name, neighbour_values, y in comparisons:
        finite = np.isfinite(neighbour_values) & np.isfinite(y)
        if finite.sum() < MIN_PAIRS:
            continue
        x_own, y_own = (_centre_per_gpu(fleet, values, finite) for values in (neighbour_values, y))
        left = x_own[np.isfinite(x_own)]
        if not len(left) or float(np.ptp(left)) < 1e-9:
            continue
        spent = len(np.unique(fleet.gpu[finite]))
        pairs.append(CorrelatedPair(claim, name, "time", None, over, 1, partial_correlation(x_own, y_own, spent=spent)))
    return pairs


def _centre_per_gpu(fleet: GpuFleet, values: Samples, finite: NDArray[np.bool_]) -> Samples:
    """Return values less the mean of their GPU; those of a GPU with a single row are not known."""
    masked = np.where(finite, values, np.nan)
    n = len(fleet.gpus)
    level = group_means(values[finite], fleet.gpu[finite], n)
    alone = np.bincount(fleet.gpu[finite], minlength=n) < 2
    return np.where(alone[fleet.gpu], np.nan, masked - level[fleet.gpu])


def _case_levelled(fleet: GpuFleet, values: Samples) -> Samples:
    there = np.isfinite(values)
    levelled = np.full(len(values), np.nan)
    if there.any():
        levelled[there] = remove_case_effects(values[there], fleet.gpu[there], fleet.case[there])
    return levelled


def _gpu_means(fleet: GpuFleet, values: Samples) -> Samples:
    there = np.isfinite(values)
    return group_means(values[there], fleet.gpu[there], len(fleet.gpus))


@dataclass(frozen=True)
class FleetAnalysis:
    """What one fleet shows. ``typical`` are the components without the GPUs that stand out, null where none do."""

    fleet: GpuFleet
    minimum_effect: float
    numbers: Mapping[str, GpuNumbers]
    references: Mapping[str, PeerReferences]
    outliers: tuple[GpuOutlier, ...]
    components: tuple[VarianceComponent, ...]
    typical: tuple[VarianceComponent, ...] | None
    spread: TimeSpread | None
    pairs: tuple[CorrelatedPair, ...]
    advice: GpuRecommendation

    @property
    def location_effects(self) -> tuple[LocationEffect, ...]:
        """What racks, hosts and slots add, by every measure."""
        return tuple(effect for centres in self.references.values() for effect in centres.effects)

    @property
    def reported_outliers(self) -> tuple[GpuOutlier, ...]:
        """The outliers without what others explain: a GPU that is slow or hungry also spends more on each call."""
        why = {one.gpu for one in self.outliers if one.measure.name in {"time", "power"}}
        return tuple(one for one in self.outliers if one.measure.name != "energy" or one.gpu not in why)

    def surely(self, measure: GpuMeasure, *, high: bool = True) -> tuple[GpuOutlier, ...]:
        """Return the GPUs that surely stand out to one side by a measure."""
        return tuple(
            one
            for one in self.reported_outliers
            if one.measure == measure and one.verdict == "yes" and (one.peers.value > 0) == high
        )


def analyse_fleet(fleet: GpuFleet, minimum_effect: float) -> FleetAnalysis:
    """Return all that a fleet shows."""
    numbers = {
        measure.name: gpu_values for measure in MEASURES if (gpu_values := gpu_numbers(fleet, measure)) is not None
    }
    centres = {name: peer_references(fleet, gpu_values, minimum_effect) for name, gpu_values in numbers.items()}
    outliers = tuple(
        one for name, gpu_values in numbers.items() for one in find_outliers(gpu_values, centres[name], minimum_effect)
    )
    strays = frozenset(one.gpu for one in outliers if one.measure == TIME_MEASURE)
    slow = [one.gpu for one in outliers if one.measure == TIME_MEASURE and one.verdict == "yes" and one.peers.value > 0]
    times = numbers[TIME_MEASURE.name]
    return FleetAnalysis(
        fleet=fleet,
        minimum_effect=minimum_effect,
        numbers=numbers,
        references=centres,
        outliers=outliers,
        components=variance_components(fleet),
        typical=variance_components(fleet, strays) if strays else None,
        spread=time_spread(times),
        pairs=correlate_pairs(fleet),
        advice=recommend_gpu(fleet, times, centres[TIME_MEASURE.name].of("slot"), slow, minimum_effect),
    )
