"""The analysis of one fleet: outliers, correlations, variance, and which GPU to request.

A GPU is an outlier if its distance from its peers is unlikely among them, at a stated false-discovery rate over all
GPUs, and the interval of its own number over its runs lies beyond the smallest difference that matters. Its reference
is its rack, so that a hot rack neither makes its GPUs outliers nor hides one among them; its host where all GPUs of
that host differ together; and the effect of its slot is removed.

What a GPU truly takes is estimated by shrinking its measured time towards the rest as far as its runs scatter
(empirical Bayes): the one that looks best is, on average, less good than it looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy import special

from assay.experiments.power.variability.fleet import (
    MEASURES,
    TIME_MEASURE,
    gpu_numbers,
    time_spread,
    variance_components,
)
from assay.stats.correlation import MIN_PAIRS, partial_correlation
from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile
from assay.stats.outliers import (
    MEDIAN_EFFICIENCY,
    estimate_scale,
    false_discovery_rates,
    holm_p_values,
    outlier_p_values,
)
from assay.stats.variance import group_means, group_medians

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.fleet import (
        Codes,
        GpuFleet,
        GpuMeasure,
        GpuNumbers,
        Samples,
        ScatterUnit,
        TimeSpread,
    )
    from assay.stats.correlation import PartialCorrelation
    from assay.stats.variance import VarianceComponent


LocationKind = Literal["rack", "host", "slot"]
MEDIAN_COST = 1.2533
"""Standard error of a median over that of a mean, in Gaussian noise."""
MIN_GPUS = 3
"""GPUs of a rack or host, or hosts of a slot, that an effect needs; of fewer GPUs correlations say nothing."""
MIN_GPUS_FOR_OWN_REFERENCE = 8
"""From this many GPUs on, a rack is the reference of its GPUs, whether or not it is unlike the others."""
FALSE_RATE = 0.05
"""How often a location, or among the reported ones a GPU, may be called unlike the others by chance."""


@dataclass(frozen=True)
class LocationEffect:
    """What a rack, host or slot adds to its GPUs, on the measure's scale; ``chance`` holds for all of its kind."""

    what: LocationKind
    name: str
    measure: GpuMeasure
    members: int
    value: float
    low: float
    high: float
    chance: float
    verdict: Verdict

    @property
    def word(self) -> str:
        """What its GPUs are: slow, or fast."""
        return self.measure.high if self.value > 0 else self.measure.low


@dataclass(frozen=True)
class FleetLayout:
    """Where the GPUs sit that have a number, as codes: of hosts, of racks (-1: not known), and slots."""

    fleet: GpuFleet
    measure: GpuMeasure
    margin: float
    host: Codes
    rack: Codes
    slot: Codes

    def slots(self, values: Samples) -> tuple[LocationEffect, ...]:
        """Return what each slot adds on every host, relative to the median of the host."""
        hosts = len(self.fleet.hosts)
        full = np.bincount(self.host, minlength=hosts)[self.host] > 1
        host, slot = self.host[full], self.slot[full]
        host_count = len(np.unique(host))
        if host_count < MIN_GPUS or len(np.unique(slot)) < 2:
            return ()
        within = (values - group_medians(values, self.host, hosts)[self.host])[full]
        counts = np.bincount(slot)
        usable = np.flatnonzero(counts >= MIN_GPUS)
        added = group_medians(within, slot, len(counts))
        groups = {str(one): (int(counts[one]), float(added[one])) for one in usable}
        return self._judge("slot", groups, within - added[slot], counts[usable], host_count + len(usable) - 1)

    def racks(self, values: Samples) -> tuple[LocationEffect, ...]:
        """Return what each rack adds, by how much its hosts differ among themselves; its GPUs where it has but one."""
        has_rack = self.rack >= 0
        racks, rack = len(self.fleet.racks), self.rack[has_rack]
        counts = np.bincount(rack, minlength=racks)
        usable = np.flatnonzero(counts >= MIN_GPUS)
        if len(usable) < 2:
            return ()
        added = group_medians(values[has_rack], rack, racks)
        hosts = group_medians(values, self.host, len(self.fleet.hosts))
        home = np.full(len(hosts), -1)
        home[self.host] = self.rack
        usable_hosts = np.flatnonzero((home >= 0) & np.isfinite(hosts))
        units = np.bincount(home[usable_hosts], minlength=racks)[usable]
        left = hosts[usable_hosts] - added[home[usable_hosts]]
        if units.min() < 2:
            left, units = values[has_rack] - added[rack], counts[usable]
        groups = {self.fleet.racks[one]: (int(counts[one]), float(added[one])) for one in usable}
        return self._judge("rack", groups, left, units, len(usable))

    def hosts(self, values: Samples) -> tuple[LocationEffect, ...]:
        """Return what each host adds, by how much GPUs of a host differ among themselves."""
        counts = np.bincount(self.host, minlength=len(self.fleet.hosts))
        usable = np.flatnonzero(counts >= MIN_GPUS)
        if len(usable) < 2:
            return ()
        added = group_medians(values, self.host, len(counts))
        inside = counts[self.host] >= MIN_GPUS
        left = values[inside] - added[self.host[inside]]
        groups = {self.fleet.hosts[one]: (int(counts[one]), float(added[one])) for one in usable}
        return self._judge("host", groups, left, counts[usable], len(usable))

    def _judge(
        self, what: LocationKind, groups: Mapping[str, tuple[int, float]], left: Samples, units: Codes, fitted: int
    ) -> tuple[LocationEffect, ...]:
        """Return the effects of all locations of a kind, judged together by what is ``left`` without them.

        ``groups`` has the members and the effect of each by its name, ``units`` how many values each is the median of.
        """
        fitted = min(fitted, len(left) - 1)
        freedom = max(1.0, MEDIAN_EFFICIENCY * (len(left) - fitted))
        errors = MEDIAN_COST * estimate_scale(left, fitted=fitted, least=self.measure.step) / np.sqrt(units)
        far: Samples = np.abs(np.array([value for _, value in groups.values()])) / errors
        chances = holm_p_values(np.asarray(2 * special.stdtr(freedom, -far), dtype=np.float64)).tolist()
        halves = (float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * errors).tolist()
        effects = []
        for (name, (members, value)), half, chance in zip(groups.items(), halves, chances, strict=True):
            verdict: Verdict = "no" if abs(value) + half <= self.margin else "unsure"
            if chance <= FALSE_RATE and abs(value) - half > self.margin:
                verdict = "yes"
            low, high = value - half, value + half
            effects.append(LocationEffect(what, name, self.measure, members, value, low, high, chance, verdict))
        return tuple(effects)


class PeerDifference(NamedTuple):
    """A difference on the measure's scale, with the interval that holds for all that are reported together."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GpuOutlier:
    """One GPU that is unlike its peers; the verdict is unsure where its interval includes what does not matter."""

    gpu: int
    measure: GpuMeasure
    peers: PeerDifference
    fleet: PeerDifference
    against: str
    rate: float
    verdict: Verdict

    @property
    def word(self) -> str:
        """What it is: slow, or fast."""
        return self.measure.high if self.peers.value > 0 else self.measure.low


def find_outliers(numbers: GpuNumbers, centres: PeerReferences, minimum_effect: float) -> tuple[GpuOutlier, ...]:
    """Return the GPUs that are unlike their peers by one measure, the farthest first."""
    measured = numbers.measured
    measure, values = numbers.measure, numbers.value[measured]
    distances = values - centres.reference[measured]
    # Where nothing was measured twice, a number is known no better than its peers differ.
    has_error = np.isfinite(numbers.error[measured]) & (numbers.unit is not None)
    noise = np.where(has_error, numbers.error[measured], centres.scale)
    extra = np.maximum(noise**2 - float(np.median(noise)) ** 2, 0.0)
    rates = false_discovery_rates(outlier_p_values(distances, extra, fitted=centres.fitted, least=measure.step))
    called = np.flatnonzero(rates <= FALSE_RATE)
    if not len(called):
        return ()
    level = 1 - FALSE_RATE * len(called) / len(measured)
    margin = measure.margin(minimum_effect)
    outliers = []
    for index in called:
        gpu = int(measured[index])
        freedom = float(numbers.freedom[gpu]) if numbers.unit else float(len(measured) - 1)
        reach = float(special.stdtrit(freedom, 0.5 + level / 2))
        error = float(noise[index])
        peers = _peer_difference(values[index] - centres.reference[gpu], error, centres.reference_error[gpu], reach)
        fleet = _peer_difference(values[index] - centres.fleet, error, centres.fleet_error, reach)
        if abs(peers.value) > margin:
            sure = (peers.low > margin) if peers.value > 0 else (peers.high < -margin)
            verdict: Verdict = "yes" if sure else "unsure"
            outliers.append(GpuOutlier(gpu, measure, peers, fleet, centres.against[gpu], float(rates[index]), verdict))
    return tuple(sorted(outliers, key=lambda one: -abs(one.peers.value)))


def _peer_difference(value: float, noise: float, of_centre: float, reach: float) -> PeerDifference:
    half = reach * float(np.hypot(noise, of_centre))
    return PeerDifference(float(value), float(value) - half, float(value) + half)


@dataclass(frozen=True)
class PeerReferences:
    """The reference of each GPU: a number, its standard error, and in words; and what locations add.

    ``fitted`` is how many numbers that took, ``scale`` how far GPUs scatter around them.
    """

    fleet: float
    fleet_error: float
    reference: Samples
    reference_error: Samples
    against: tuple[str, ...]
    fitted: int
    scale: float
    effects: tuple[LocationEffect, ...]

    def of(self, what: LocationKind) -> tuple[LocationEffect, ...]:
        """Return the effects of racks, of hosts or of slots."""
        return tuple(effect for effect in self.effects if effect.what == what)


def peer_references(fleet: GpuFleet, numbers: GpuNumbers, minimum_effect: float) -> PeerReferences:
    """Return the reference of every GPU."""
    measured, measure = numbers.measured, numbers.measure
    margin = measure.margin(minimum_effect)
    layout = FleetLayout(fleet, measure, margin, fleet.host[measured], fleet.rack[measured], fleet.slot[measured])
    gpus = [fleet.gpus[gpu] for gpu in measured]
    middle = float(np.median(numbers.value[measured]))
    apart = numbers.value[measured] - middle
    slots = layout.slots(apart)
    without_slots = apart - np.nan_to_num(_location_offsets(slots, [str(gpu.slot) for gpu in gpus]))
    racks = layout.racks(without_slots)
    of_rack = _location_offsets(racks, [gpu.rack for gpu in gpus], own=MIN_GPUS_FOR_OWN_REFERENCE)
    without_racks = without_slots - np.nan_to_num(of_rack)
    hosts = layout.hosts(without_racks)
    of_host = _location_offsets(hosts, [gpu.host for gpu in gpus])
    left = without_racks - np.nan_to_num(of_host)
    fitted = 1 + sum(len(np.unique(offsets[np.isfinite(offsets)])) for offsets in (of_rack, of_host))
    scale = estimate_scale(left, fitted=fitted, least=measure.step)
    in_host, in_rack = np.bincount(layout.host)[layout.host], np.bincount(layout.rack + 1)[layout.rack + 1]
    peers = np.where(np.isfinite(of_host), in_host, np.where(np.isfinite(of_rack), in_rack, len(measured)))
    reference, error = np.full(len(numbers.value), np.nan), np.full(len(numbers.value), np.nan)
    reference[measured] = numbers.value[measured] - left
    error[measured] = MEDIAN_COST * scale / np.sqrt(peers)
    against = [""] * len(fleet.gpus)
    for index, (number, gpu) in enumerate(zip(measured, gpus, strict=True)):
        of_its_rack = f"rack {gpu.rack}" if np.isfinite(of_rack[index]) else "the fleet"
        against[number] = f"host {gpu.host}" if np.isfinite(of_host[index]) else of_its_rack
    return PeerReferences(
        fleet=middle,
        fleet_error=MEDIAN_COST * estimate_scale(apart, least=measure.step) / float(np.sqrt(len(measured))),
        reference=reference,
        reference_error=error,
        against=tuple(against),
        fitted=fitted,
        scale=scale,
        effects=(*racks, *hosts, *slots),
    )


def _location_offsets(
    effects: Sequence[LocationEffect], names: Sequence[str | None], own: int | None = None
) -> Samples:
    """Return what the location of each GPU adds; NaN if it is not unlike others and has fewer than ``own`` GPUs."""
    used = {
        effect.name: effect.value
        for effect in effects
        if effect.verdict == "yes" or (own is not None and effect.members >= own)
    }
    return np.array([np.nan if name is None else used.get(name, np.nan) for name in names])


AdviceKind = Literal["slot", "gpu", "avoid", "any", "unknown", "one"]
ADVICE_DRAWS, ADVICE_SEED = 4000, 17
MANY_GPUS = 16
"""Among this many GPUs one is recommended; among more, those to avoid."""
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

    ``fourth`` is what always asking for the 4th GPU of a host gains; null where there is none, or it is not known.
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
    measured = numbers.measured
    if len(measured) < 2:
        return GpuRecommendation("one", unit=numbers.unit)
    gains = _slot_gains(slots)
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
        return _time_gain(apart, half)


def _time_gain(log_ratio: float, half: float) -> TimeGain:
    """Return the share of the time that is gained, from a logarithm of times and half of its interval."""
    return TimeGain(*(float(1 - np.exp(-end)) for end in (log_ratio, log_ratio - half, log_ratio + half)))


def _slot_gains(slots: Sequence[LocationEffect]) -> list[tuple[LocationEffect, TimeGain]]:
    """Return each slot and what always asking for it gains against a random one."""
    if not slots:
        return []
    values = np.array([slot.value for slot in slots])
    halves = np.array([slot.high - slot.low for slot in slots]) / 2
    apart = float(np.log(np.exp(values).mean())) - values
    n = len(slots)
    own = np.sqrt(halves**2 * (1 - 2 / n) + float((halves**2).sum()) / n**2)
    return [(slot, _time_gain(gain, half)) for slot, gain, half in zip(slots, apart, own, strict=True)]


PairedOver = Literal["GPUs", "rows of few GPUs", "rows, each GPU against itself"]

WEAK_RHO = 0.1
"""A correlation below this is negligible."""


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
    columns = {name: fleet.without_case_effects(values) for name, values in rows.items()}
    few = len(fleet.gpus) < MIN_PAIRS
    over: PairedOver = "rows of few GPUs" if few else "GPUs"
    if not few:
        columns = {name: fleet.gpu_means(values) for name, values in columns.items()}

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
            fleet.without_case_effects(fleet.neighbour_temperature),
            fleet.without_case_effects(time),
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
    """Return values less the mean of their GPU; NaN for a GPU with a single row."""
    masked = np.where(finite, values, np.nan)
    n = len(fleet.gpus)
    level = group_means(values[finite], fleet.gpu[finite], n)
    alone = np.bincount(fleet.gpu[finite], minlength=n) < 2
    return np.where(alone[fleet.gpu], np.nan, masked - level[fleet.gpu])


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
    by_measure = {measure.name: gpu_numbers(fleet, measure) for measure in MEASURES}
    numbers = {name: values for name, values in by_measure.items() if values is not None}
    centres = {name: peer_references(fleet, values, minimum_effect) for name, values in numbers.items()}
    outliers = tuple(
        o for name, values in numbers.items() for o in find_outliers(values, centres[name], minimum_effect)
    )
    by_time = [one for one in outliers if one.measure == TIME_MEASURE]
    strays = frozenset(one.gpu for one in by_time)
    slow = [one.gpu for one in by_time if one.verdict == "yes" and one.peers.value > 0]
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
