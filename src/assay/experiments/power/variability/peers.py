"""Which single GPUs are slow, hot or hungry: unlike their peers beyond chance, and by enough to matter.

Two things must hold. Its distance from its peers is unlikely among them, at a stated rate of false ones over all GPUs;
and the interval of its own number, over its runs, lies beyond the smallest difference that matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from assay.experiments.power.variability.places import RATE
from assay.stats.outliers import discoveries, unlikely

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.centres import Centres
    from assay.experiments.power.variability.measures import Measure, Numbers

    Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Apart:
    """A difference on the measure's scale, with the interval that holds for all that are told together."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Outlier:
    """One GPU that is unlike its peers; the verdict is unsure where its interval reaches what does not matter."""

    gpu: int
    measure: Measure
    peers: Apart
    fleet: Apart
    against: str
    rate: float
    verdict: Verdict

    @property
    def word(self) -> str:
        """What it is: slow, or fast."""
        return self.measure.high if self.peers.value > 0 else self.measure.low


def outliers_of(numbers: Numbers, centres: Centres, minimum_effect: float) -> tuple[Outlier, ...]:
    """Return the GPUs that are unlike their peers by one measure, the farthest first."""
    measured = np.flatnonzero(numbers.known)
    measure, values = numbers.measure, numbers.value[measured]
    distances = values - centres.reference[measured]
    noise = _noise(numbers, centres, measured)
    extra = np.maximum(noise**2 - float(np.median(noise)) ** 2, 0.0)
    rates = discoveries(unlikely(distances, extra, fitted=centres.fitted, least=measure.step))
    called = np.flatnonzero(rates <= RATE)
    if not len(called):
        return ()
    level = 1 - RATE * len(called) / len(measured)
    margin = measure.margin(minimum_effect)
    outliers = []
    for index in called:
        gpu = int(measured[index])
        freedom = float(numbers.freedom[gpu]) if numbers.unit else float(len(measured) - 1)
        reach = float(special.stdtrit(freedom, 0.5 + level / 2))
        error = float(noise[index])
        peers = _apart(values[index] - centres.reference[gpu], error, centres.reference_error[gpu], reach)
        fleet = _apart(values[index] - centres.fleet, error, centres.fleet_error, reach)
        sure = (peers.low > margin) if peers.value > 0 else (peers.high < -margin)
        if abs(peers.value) <= margin:
            continue
        verdict: Verdict = "yes" if sure else "unsure"
        outliers.append(Outlier(gpu, measure, peers, fleet, centres.against[gpu], float(rates[index]), verdict))
    return tuple(sorted(outliers, key=lambda one: -abs(one.peers.value)))


def _noise(numbers: Numbers, centres: Centres, known: NDArray[np.intp]) -> Samples:
    """Return how well each GPU's number is known; where nothing was measured twice, no better than its peers differ."""
    if numbers.unit is None:
        return np.full(len(known), centres.scale)
    return np.where(np.isfinite(numbers.error[known]), numbers.error[known], centres.scale)


def _apart(value: float, noise: float, of_centre: float, reach: float) -> Apart:
    half = reach * float(np.hypot(noise, of_centre))
    return Apart(float(value), float(value) - half, float(value) + half)
