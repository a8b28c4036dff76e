"""What a place adds: racks, hosts and slots whose GPUs all stray together, each with an interval and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.stats.grouped import medians
from assay.stats.intervals import CONFIDENCE
from assay.stats.outliers import WORTH, scale_of, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.fleet import Fleet
    from assay.experiments.power.variability.measures import Measure

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

What = Literal["rack", "host", "slot"]
MEDIAN_COST = 1.2533
"""How much less a median knows about its centre than a mean, in Gaussian noise."""
FEWEST = 3
"""GPUs of a rack or host, or hosts of a slot, of which a place can be told."""
RATE = 0.05
"""How often a place, or among those that are told a GPU, may be called unlike the others by chance."""


@dataclass(frozen=True)
class Effect:
    """What a rack, host or slot adds to its GPUs, on the measure's scale; the chance holds for all of its kind."""

    what: What
    name: str
    measure: Measure
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
class Layout:
    """Where the GPUs sit that have a number, as codes: of hosts, of racks (-1: not known), and slots."""

    fleet: Fleet
    measure: Measure
    margin: float
    host: Codes
    rack: Codes
    slot: Codes

    def slots(self, values: Samples) -> tuple[Effect, ...]:
        """Return what each slot adds on every host, held against the middle of the host."""
        hosts = len(self.fleet.hosts)
        full = np.bincount(self.host, minlength=hosts)[self.host] > 1
        host, slot = self.host[full], self.slot[full]
        if len(np.unique(host)) < FEWEST or len(np.unique(slot)) < 2:
            return ()
        within = (values - medians(values, self.host, hosts)[self.host])[full]
        counts = np.bincount(slot)
        usable = np.flatnonzero(counts >= FEWEST)
        added = medians(within, slot, len(counts))
        left = within - added[slot]
        groups = _Places("slot", [str(one) for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, counts[usable], len(np.unique(host)) + len(usable) - 1)

    def racks(self, values: Samples) -> tuple[Effect, ...]:
        """Return what each rack adds, by how much its hosts differ among themselves; its GPUs where it has but one."""
        has_rack = self.rack >= 0
        racks, rack = len(self.fleet.racks), self.rack[has_rack]
        counts = np.bincount(rack, minlength=racks)
        usable = np.flatnonzero(counts >= FEWEST)
        if len(usable) < 2:
            return ()
        added = medians(values[has_rack], rack, racks)
        hosts = medians(values, self.host, len(self.fleet.hosts))
        home = np.full(len(hosts), -1)
        home[self.host] = self.rack
        usable_hosts = np.flatnonzero((home >= 0) & np.isfinite(hosts))
        units = np.bincount(home[usable_hosts], minlength=racks)[usable]
        left = hosts[usable_hosts] - added[home[usable_hosts]]
        if units.min() < 2:
            left, units = values[has_rack] - added[rack], counts[usable]
        groups = _Places("rack", [self.fleet.racks[one] for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, units, len(usable))

    def hosts(self, values: Samples) -> tuple[Effect, ...]:
        """Return what each host adds, by how much GPUs of a host differ among themselves."""
        counts = np.bincount(self.host, minlength=len(self.fleet.hosts))
        usable = np.flatnonzero(counts >= FEWEST)
        if len(usable) < 2:
            return ()
        added = medians(values, self.host, len(counts))
        inside = counts[self.host] >= FEWEST
        left = values[inside] - added[self.host[inside]]
        groups = _Places("host", [self.fleet.hosts[one] for one in usable], counts[usable], added[usable])
        return self._judged(groups, left, counts[usable], len(usable))

    def _judged(self, places: _Places, left: Samples, units: Codes, fitted: int) -> tuple[Effect, ...]:
        """Return the effects of all places of a kind, judged together by what is ``left`` without them."""
        fitted = min(fitted, len(left) - 1)
        freedom = max(1.0, WORTH * (len(left) - fitted))
        errors = MEDIAN_COST * scale_of(left, fitted=fitted, least=self.measure.step) / np.sqrt(units)
        far: Samples = np.abs(places.values) / errors
        chances = together(np.asarray(2 * special.stdtr(freedom, -far), dtype=np.float64))
        halves = float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * errors
        return tuple(
            Effect(
                places.what,
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
                places.names, places.members, places.values, halves, chances, strict=True
            )
        )

    def _verdict(self, value: float, half: float, chance: float) -> Verdict:
        if chance <= RATE and abs(value) - half > self.margin:
            return "yes"
        return "no" if abs(value) + half <= self.margin else "unsure"


@dataclass(frozen=True)
class _Places:
    what: What
    names: Sequence[str]
    members: Codes
    values: Samples
