"""What goes together with time: heat, clock, power, busy and hot neighbours; and what is left of it at equal power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.power.variability.measures import without_cases
from assay.stats.grouped import means
from assay.stats.partial import association
from assay.stats.ranks import FEWEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.core.results import Verdict
    from assay.experiments.power.variability.fleet import Fleet
    from assay.stats.partial import Association

    Samples = NDArray[np.float64]

Over = Literal["GPUs", "rows of few GPUs", "rows, each GPU against itself"]

FEWEST_GPUS = 3
"""Two GPUs differ in everything at once."""
WEAK = 0.1
"""A correlation below this is none to speak of."""


@dataclass(frozen=True)
class Pair:
    """Two things, over what they were paired, what was held equal, and which sign the claim asks for."""

    claim: str
    x: str
    y: str
    equal: str | None
    over: Over
    sign: int
    found: Association | None

    @property
    def verdict(self) -> Verdict:
        """Whether the claim holds: only an interval that has no room for the other sign says so."""
        association = self.found
        if association is None or association.low is None or association.high is None:
            return "unsure"
        least, most = sorted((self.sign * association.low, self.sign * association.high))
        return "yes" if least > 0 else "no" if most < WEAK else "unsure"


def pairs_of(fleet: Fleet) -> tuple[Pair, ...]:
    """Return every correlation that the rows allow."""
    rows = {
        "time": fleet.column("median_us", log=True),
        "temperature": fleet.column("temperature_c"),
        "SM clock": fleet.column("sm_mhz"),
        "power": fleet.column("power_w"),
    }
    columns = {name: _without_cases(fleet, values) for name, values in rows.items()}
    few = len(fleet.gpus) < FEWEST
    over: Over = "rows of few GPUs" if few else "GPUs"
    if not few:
        columns = {name: _by_gpu(fleet, values) for name, values in columns.items()}

    def pair(claim: str, x: str, y: str, sign: int = 1, equal: str | None = None) -> Pair:
        held = (columns[equal],) if equal else ()
        result = association(columns[x], columns[y], held, independent=not few)
        return Pair(claim, x, y, equal, over, sign, result)

    if len(fleet.gpus) < FEWEST_GPUS:
        return tuple(_beside(fleet, rows["time"]))
    return (
        pair("hotter GPUs are slower", "temperature", "time"),
        pair("hotter GPUs are slower at equal power", "temperature", "time", equal="power"),
        pair("GPUs with a higher clock are faster", "SM clock", "time", -1),
        pair("GPUs that draw more are slower", "power", "time"),
        pair("hotter GPUs have a lower clock", "temperature", "SM clock", -1),
        *_beside(fleet, rows["time"]),
    )


def _beside(fleet: Fleet, time: Samples) -> list[Pair]:
    """Return whether a GPU is slower in rows with more busy neighbours, or with hotter ones, than in its others."""
    over: Over = "rows, each GPU against itself"
    comparisons = (
        ("a GPU is slower the more neighbours are busy", "busy neighbours", fleet.neighbours, time),
        (
            "a GPU is slower the hotter its neighbours are",
            "heat beside it",
            _without_cases(fleet, fleet.heat_beside),
            _without_cases(fleet, time),
        ),
    )
    pairs = []
    for claim, name, neighbour_values, y in comparisons:
        finite = np.isfinite(neighbour_values) & np.isfinite(y)
        if finite.sum() < FEWEST:
            continue
        x_own, y_own = (_against_itself(fleet, values, finite) for values in (neighbour_values, y))
        left = x_own[np.isfinite(x_own)]
        if not len(left) or float(np.ptp(left)) < 1e-9:
            continue
        spent = len(np.unique(fleet.gpu[finite]))
        pairs.append(Pair(claim, name, "time", None, over, 1, association(x_own, y_own, spent=spent)))
    return pairs


def _against_itself(fleet: Fleet, values: Samples, known: NDArray[np.bool_]) -> Samples:
    """Return values less the mean of their GPU; those of a GPU with a single row are not known."""
    masked = np.where(known, values, np.nan)
    n = len(fleet.gpus)
    level = means(values[known], fleet.gpu[known], n)
    alone = np.bincount(fleet.gpu[known], minlength=n) < 2
    return np.where(alone[fleet.gpu], np.nan, masked - level[fleet.gpu])


def _without_cases(fleet: Fleet, values: Samples) -> Samples:
    there = np.isfinite(values)
    levelled = np.full(len(values), np.nan)
    if there.any():
        levelled[there] = without_cases(values[there], fleet.gpu[there], fleet.case[there])
    return levelled


def _by_gpu(fleet: Fleet, values: Samples) -> Samples:
    there = np.isfinite(values)
    return means(values[there], fleet.gpu[there], len(fleet.gpus))
