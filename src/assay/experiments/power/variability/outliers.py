"""Outliers: single GPUs.

Racks, hosts and slots, that differ from their peers beyond chance and by enough to matter.

A GPU is an outlier if its distance from its peers is unlikely among them, at a stated false-discovery rate over all
GPUs, and the interval of its own number over its runs lies beyond the smallest difference that matters. Its reference
is its rack, so that a hot rack neither makes its GPUs outliers nor hides one among them; its host where all GPUs of
that host differ together; and the effect of its slot is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.intervals import CONFIDENCE
from assay.stats.outliers import (
    MEDIAN_EFFICIENCY,
    estimate_scale,
    false_discovery_rates,
    holm_p_values,
    outlier_p_values,
)
from assay.stats.variance import group_medians

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.fleet import GpuFleet
    from assay.experiments.power.variability.measures import GpuMeasure, GpuNumbers


if TYPE_CHECKING:
    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

LocationKind = Literal["rack", "host", "slot"]
MEDIAN_COST = 1.2533
"""How much less a median knows about its centre than a mean, in Gaussian noise."""
MIN_GPUS = 3
"""GPUs of a rack or host, or hosts of a slot, of which a place can be told."""
FALSE_RATE = 0.05
"""How often a place, or among those that are told a GPU, may be called unlike the others by chance."""


@dataclass(frozen=True)
class LocationEffect:
    """What a rack, host or slot adds to its GPUs, on the measure's scale; the chance holds for all of its kind."""

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
        """Return what each slot adds on every host, held against the middle of the host."""
        hosts = len(self.fleet.hosts)
        full = np.bincount(self.host, minlength=hosts)[self.host] > 1
        host, slot = self.host[full], self.slot[full]
        if len(np.unique(host)) < MIN_GPUS or len(np.unique(slot)) < 2:
            return ()
        within = (values - group_medians(values, self.host, hosts)[self.host])[full]
        counts = np.bincount(slot)
        usable = np.flatnonzero(counts >= MIN_GPUS)
        added = group_medians(within, slot, len(counts))
        left = within - added[slot]
        groups = _LocationGroups("slot", [str(one) for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, counts[usable], len(np.unique(host)) + len(usable) - 1)

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
        groups = _LocationGroups("rack", [self.fleet.racks[one] for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, units, len(usable))

    def hosts(self, values: Samples) -> tuple[LocationEffect, ...]:
        """Return what each host adds, by how much GPUs of a host differ among themselves."""
        counts = np.bincount(self.host, minlength=len(self.fleet.hosts))
        usable = np.flatnonzero(counts >= MIN_GPUS)
        if len(usable) < 2:
            return ()
        added = group_medians(values, self.host, len(counts))
        inside = counts[self.host] >= MIN_GPUS
        left = values[inside] - added[self.host[inside]]
        groups = _LocationGroups("host", [self.fleet.hosts[one] for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, counts[usable], len(usable))

    def _judged(self, groups: _LocationGroups, left: Samples, units: Codes, fitted: int) -> tuple[LocationEffect, ...]:
        """Return the effects of all places of a kind, judged together by what is ``left`` without them."""
        fitted = min(fitted, len(left) - 1)
        freedom = max(1.0, MEDIAN_EFFICIENCY * (len(left) - fitted))
        errors = MEDIAN_COST * estimate_scale(left, fitted=fitted, least=self.measure.step) / np.sqrt(units)
        far: Samples = np.abs(groups.values) / errors
        chances = holm_p_values(np.asarray(2 * special.stdtr(freedom, -far), dtype=np.float64))
        halves = float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * errors
        return tuple(
            LocationEffect(
                groups.what,
                name,
                self.measure,
                int(members),
                value=float(value),
                low=float(value - half),
                high=float(value + half),
                chance=float(chance),
                verdict=self._verdict(float(value), float(half), float(chance)),
            )
            for name, members, value, half, chance in zip(
                groups.names, groups.members, groups.values, halves, chances, strict=True
            )
        )

    def _verdict(self, value: float, half: float, chance: float) -> Verdict:
        if chance <= FALSE_RATE and abs(value) - half > self.margin:
            return "yes"
        return "no" if abs(value) + half <= self.margin else "unsure"


@dataclass(frozen=True)
class _LocationGroups:
    what: LocationKind
    names: Sequence[str]
    members: Codes
    values: Samples


@dataclass(frozen=True)
class PeerDifference:
    """A difference on the measure's scale, with the interval that holds for all that are told together."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GpuOutlier:
    """One GPU that is unlike its peers; the verdict is unsure where its interval reaches what does not matter."""

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
    measured = np.flatnonzero(numbers.has_value)
    measure, values = numbers.measure, numbers.value[measured]
    distances = values - centres.reference[measured]
    noise = _number_errors(numbers, centres, measured)
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
        sure = (peers.low > margin) if peers.value > 0 else (peers.high < -margin)
        if abs(peers.value) <= margin:
            continue
        verdict: Verdict = "yes" if sure else "unsure"
        outliers.append(GpuOutlier(gpu, measure, peers, fleet, centres.against[gpu], float(rates[index]), verdict))
    return tuple(sorted(outliers, key=lambda one: -abs(one.peers.value)))


def _number_errors(numbers: GpuNumbers, centres: PeerReferences, measured: NDArray[np.intp]) -> Samples:
    """Return how well each GPU's number is known; where nothing was measured twice, no better than its peers differ."""
    if numbers.unit is None:
        return np.full(len(measured), centres.scale)
    return np.where(np.isfinite(numbers.error[measured]), numbers.error[measured], centres.scale)


def _peer_difference(value: float, noise: float, of_centre: float, reach: float) -> PeerDifference:
    half = reach * float(np.hypot(noise, of_centre))
    return PeerDifference(float(value), float(value) - half, float(value) + half)


MIN_GPUS_FOR_OWN_REFERENCE = 8
"""GPUs from which on a rack is what its GPUs are held against, whether or not it is unlike the others."""


@dataclass(frozen=True)
class PeerReferences:
    """What each GPU is held against: a number, the standard error of it, and in words; and what places add.

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
    """Return what every GPU is held against."""
    measured = np.flatnonzero(numbers.has_value)
    measure = numbers.measure
    layout = FleetLayout(
        fleet, measure, measure.margin(minimum_effect), fleet.host[measured], fleet.rack[measured], fleet.slot[measured]
    )
    middle = float(np.median(numbers.value[measured]))
    apart = numbers.value[measured] - middle
    slots = layout.slots(apart)
    of_slot = _location_offsets(slots, [str(slot) for slot in layout.slot])
    without_slots = apart - np.nan_to_num(of_slot)
    racks = layout.racks(without_slots)
    of_rack = _location_offsets(racks, [fleet.gpus[gpu].rack for gpu in measured], own=MIN_GPUS_FOR_OWN_REFERENCE)
    without_racks = without_slots - np.nan_to_num(of_rack)
    hosts = layout.hosts(without_racks)
    of_host = _location_offsets(hosts, [fleet.gpus[gpu].host for gpu in measured])
    left = without_racks - np.nan_to_num(of_host)
    fitted = 1 + sum(len(np.unique(offsets[np.isfinite(offsets)])) for offsets in (of_rack, of_host))
    scale = estimate_scale(left, fitted=fitted, least=measure.step)
    everything = np.full(len(numbers.value), np.nan)
    reference, error = everything.copy(), everything.copy()
    reference[measured] = numbers.value[measured] - left
    error[measured] = MEDIAN_COST * scale / np.sqrt(_peer_counts(layout, of_rack, of_host))
    return PeerReferences(
        fleet=middle,
        fleet_error=MEDIAN_COST * estimate_scale(apart, least=measure.step) / float(np.sqrt(len(measured))),
        reference=reference,
        reference_error=error,
        against=tuple(_reference_names(fleet, measured, of_rack, of_host)),
        fitted=fitted,
        scale=scale,
        effects=(*racks, *hosts, *slots),
    )


def _location_offsets(
    effects: Sequence[LocationEffect], names: Sequence[str | None], own: int | None = None
) -> Samples:
    """Return what the place of each GPU adds; NaN where it is not unlike others, and has fewer than ``own`` GPUs."""
    used = {
        effect.name: effect.value
        for effect in effects
        if effect.verdict == "yes" or (own is not None and effect.members >= own)
    }
    return np.array([np.nan if name is None else used.get(name, np.nan) for name in names])


def _peer_counts(layout: FleetLayout, of_rack: Samples, of_host: Samples) -> Codes:
    """Return how many GPUs each is held against."""
    by_host = np.bincount(layout.host)[layout.host]
    by_rack = np.bincount(layout.rack + 1)[layout.rack + 1]
    everyone = np.full(len(by_host), len(by_host))
    return np.where(np.isfinite(of_host), by_host, np.where(np.isfinite(of_rack), by_rack, everyone))


def _reference_names(fleet: GpuFleet, measured: Codes, of_rack: Samples, of_host: Samples) -> list[str]:
    names = [""] * len(fleet.gpus)
    for index, gpu in enumerate(measured):
        if np.isfinite(of_host[index]):
            names[gpu] = f"host {fleet.gpus[gpu].host}"
        else:
            names[gpu] = f"rack {fleet.gpus[gpu].rack}" if np.isfinite(of_rack[index]) else "the fleet"
    return names
