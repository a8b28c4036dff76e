"""All that rows say about GPUs, fleet by fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.power.variability.advice import Advice, advice_of
from assay.experiments.power.variability.centres import centres_of
from assay.experiments.power.variability.levels import levels_of
from assay.experiments.power.variability.measures import MEASURES, TIME, numbers_of
from assay.experiments.power.variability.peers import outliers_of
from assay.experiments.power.variability.spread import spread_of
from assay.experiments.power.variability.together import pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.experiments.power.variability.centres import Centres
    from assay.experiments.power.variability.fleet import Fleet
    from assay.experiments.power.variability.measures import Measure, Numbers
    from assay.experiments.power.variability.peers import Outlier
    from assay.experiments.power.variability.places import Effect
    from assay.experiments.power.variability.spread import Spread
    from assay.experiments.power.variability.together import Pair
    from assay.stats.components import Component


@dataclass(frozen=True)
class Looked:
    """What one fleet shows. ``typical`` are the components without the GPUs that stand out, null where none do."""

    fleet: Fleet
    minimum_effect: float
    numbers: Mapping[str, Numbers]
    centres: Mapping[str, Centres]
    outliers: tuple[Outlier, ...]
    components: tuple[Component, ...]
    typical: tuple[Component, ...] | None
    spread: Spread | None
    pairs: tuple[Pair, ...]
    advice: Advice

    @property
    def places(self) -> tuple[Effect, ...]:
        """What racks, hosts and slots add, by every measure."""
        return tuple(effect for centres in self.centres.values() for effect in centres.effects)

    @property
    def told(self) -> tuple[Outlier, ...]:
        """The outliers without what others explain: a GPU that is slow or hungry also spends more on each call."""
        why = {one.gpu for one in self.outliers if one.measure.name in {"time", "power"}}
        return tuple(one for one in self.outliers if one.measure.name != "energy" or one.gpu not in why)

    def surely(self, measure: Measure, *, high: bool = True) -> tuple[Outlier, ...]:
        """Return the GPUs that surely stand out to one side by a measure."""
        return tuple(
            one
            for one in self.told
            if one.measure == measure and one.verdict == "yes" and (one.peers.value > 0) == high
        )


def look(fleet: Fleet, minimum_effect: float) -> Looked:
    """Return all that a fleet shows."""
    numbers = {
        measure.name: gpu_values for measure in MEASURES if (gpu_values := numbers_of(fleet, measure)) is not None
    }
    centres = {name: centres_of(fleet, gpu_values, minimum_effect) for name, gpu_values in numbers.items()}
    outliers = tuple(
        one for name, gpu_values in numbers.items() for one in outliers_of(gpu_values, centres[name], minimum_effect)
    )
    strays = frozenset(one.gpu for one in outliers if one.measure == TIME)
    slow = [one.gpu for one in outliers if one.measure == TIME and one.verdict == "yes" and one.peers.value > 0]
    times = numbers[TIME.name]
    return Looked(
        fleet=fleet,
        minimum_effect=minimum_effect,
        numbers=numbers,
        centres=centres,
        outliers=outliers,
        components=levels_of(fleet),
        typical=levels_of(fleet, strays) if strays else None,
        spread=spread_of(times),
        pairs=pairs_of(fleet),
        advice=advice_of(fleet, times, centres[TIME.name].of("slot"), slow, minimum_effect),
    )
