"""What a single GPU is held against.

Against its rack, so that a rack that runs hot neither makes its GPUs outliers nor hides one among them; against its
host where all of that host stray together; and without what its slot adds everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.variability.places import MEDIAN_COST, Layout
from assay.stats.outliers import scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.experiments.power.variability.fleet import Fleet
    from assay.experiments.power.variability.measures import Numbers
    from assay.experiments.power.variability.places import Effect, What

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

OWN_CENTRE = 8
"""GPUs from which on a rack is what its GPUs are held against, whether or not it is unlike the others."""


@dataclass(frozen=True)
class Centres:
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
    effects: tuple[Effect, ...]

    def of(self, what: What) -> tuple[Effect, ...]:
        """Return the effects of racks, of hosts or of slots."""
        return tuple(effect for effect in self.effects if effect.what == what)


def centres_of(fleet: Fleet, numbers: Numbers, minimum_effect: float) -> Centres:
    """Return what every GPU is held against."""
    measured = np.flatnonzero(numbers.known)
    measure = numbers.measure
    layout = Layout(
        fleet, measure, measure.margin(minimum_effect), fleet.host[measured], fleet.rack[measured], fleet.slot[measured]
    )
    middle = float(np.median(numbers.value[measured]))
    apart = numbers.value[measured] - middle
    slots = layout.slots(apart)
    of_slot = _added(slots, [str(slot) for slot in layout.slot])
    without_slots = apart - np.nan_to_num(of_slot)
    racks = layout.racks(without_slots)
    of_rack = _added(racks, [fleet.gpus[gpu].rack for gpu in measured], own=OWN_CENTRE)
    without_racks = without_slots - np.nan_to_num(of_rack)
    hosts = layout.hosts(without_racks)
    of_host = _added(hosts, [fleet.gpus[gpu].host for gpu in measured])
    left = without_racks - np.nan_to_num(of_host)
    fitted = 1 + sum(len(np.unique(offsets[np.isfinite(offsets)])) for offsets in (of_rack, of_host))
    scale = scale_of(left, fitted=fitted, least=measure.step)
    everything = np.full(len(numbers.value), np.nan)
    reference, error = everything.copy(), everything.copy()
    reference[measured] = numbers.value[measured] - left
    error[measured] = MEDIAN_COST * scale / np.sqrt(_peers(layout, of_rack, of_host))
    return Centres(
        fleet=middle,
        fleet_error=MEDIAN_COST * scale_of(apart, least=measure.step) / float(np.sqrt(len(measured))),
        reference=reference,
        reference_error=error,
        against=tuple(_words(fleet, measured, of_rack, of_host)),
        fitted=fitted,
        scale=scale,
        effects=(*racks, *hosts, *slots),
    )


def _added(effects: Sequence[Effect], names: Sequence[str | None], own: int | None = None) -> Samples:
    """Return what the place of each GPU adds; NaN where it is not unlike others, and has fewer than ``own`` GPUs."""
    used = {
        effect.name: effect.value
        for effect in effects
        if effect.verdict == "yes" or (own is not None and effect.members >= own)
    }
    return np.array([np.nan if name is None else used.get(name, np.nan) for name in names])


def _peers(layout: Layout, of_rack: Samples, of_host: Samples) -> Codes:
    """Return how many GPUs each is held against."""
    by_host = np.bincount(layout.host)[layout.host]
    by_rack = np.bincount(layout.rack + 1)[layout.rack + 1]
    everyone = np.full(len(by_host), len(by_host))
    return np.where(np.isfinite(of_host), by_host, np.where(np.isfinite(of_rack), by_rack, everyone))


def _words(fleet: Fleet, known: Codes, of_rack: Samples, of_host: Samples) -> list[str]:
    names = [""] * len(fleet.gpus)
    for index, gpu in enumerate(known):
        if np.isfinite(of_host[index]):
            names[gpu] = f"host {fleet.gpus[gpu].host}"
        else:
            names[gpu] = f"rack {fleet.gpus[gpu].rack}" if np.isfinite(of_rack[index]) else "the fleet"
    return names
