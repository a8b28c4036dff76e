"""Several calls timed in turns: each round every one is sampled once, in random order, under the same conditions."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.timing.adaptive import warm_up
from assay.timing.batching import alike
from assay.timing.instrument import Averaging
from assay.timing.subject import blamed
from assay.timing.wallclock import WallClock, share_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.timing.instrument import Batch, Instrument
    from assay.timing.options import Time
    from assay.timing.rig import Rigged
    from assay.timing.values import Quantity

QUANTITIES: dict[Time, Quantity] = {"busy": "busy_us", "span": "span_us", "call": "call_us"}
TRIED_ROUNDS, TRIED_SHARE = 3, 0.05
"""A slow round must not decide how many are planned: so many are tried, unless they take such a share of the budget."""

TINY_US = 1e-6
"""Stands for a time that came out as nothing or less, as of an empty function: it still has a logarithm."""


@dataclass
class Turn:
    """What one call gave in its turns: the medians of its batches in microseconds, in cycles, and the clock."""

    us: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    mhz: list[float] = field(default_factory=list)

    def add(self, batch: Batch, quantity: Quantity) -> float:
        """Keep a batch; return its microseconds.

        Raises:
            BadInput: The batch does not have the quantity.
        """
        if quantity not in batch.quantities:
            has = ", ".join(name.removesuffix("_us") for name in batch.quantities if name.endswith("_us"))
            raise BadInput(f"{quantity.removesuffix('_us')} cannot be told of these calls; what can is {has}.")
        us = float(np.median(batch.quantities[quantity]))
        self.us.append(us)
        if "cycles" in batch.quantities:
            self.cycles.append(float(np.median(batch.quantities["cycles"])))
        if batch.mhz is not None:
            self.mhz.append(batch.mhz)
        return us


def instrument_for(rigged: Rigged, quantity: Quantity) -> Instrument:
    """Return the instrument of a call that gives a quantity; what the call raises is blamed on it by name."""
    if quantity == "call_us" and rigged.wall is not None:
        return Blaming(rigged.wall, rigged.bound.name)
    if quantity == "busy_us" and rigged.beside is not None:
        return Blaming(rigged.beside, rigged.bound.name)
    return Blaming(rigged.instrument, rigged.bound.name)


class Blaming:
    """An instrument that says whose call it was when one fails."""

    def __init__(self, instrument: Instrument, name: str) -> None:
        self.method = instrument.method
        self.primary = instrument.primary
        self.calls_per_sample = instrument.calls_per_sample
        self._instrument = instrument
        self._name = name

    def take(self) -> Batch:
        """Take the next samples; how many calls make one may be known only then."""
        with blamed(self._name):
            batch = self._instrument.take()
        self.calls_per_sample = self._instrument.calls_per_sample
        return batch

    def replan(self) -> bool:
        """Put calls together anew where the last batch contradicts the plan."""
        with blamed(self._name):
            return self._instrument.replan()

    @property
    def own(self) -> Instrument:
        """The instrument itself."""
        return self._instrument

    def close(self) -> None:
        """Give back what is held on the device."""
        self._instrument.close()


def common_quantity(rigged: Iterable[Rigged]) -> Quantity:
    """Return the time to compare calls by: kernels at work where that is what each is measured by, or the span."""
    decisive = {timed_call.decisive for timed_call in rigged}
    if len(decisive) == 1:
        return decisive.pop()
    return "call_us" if "call_us" in decisive else "span_us"


def warm_all(instruments: Iterable[Instrument], budget_s: float) -> None:
    """Warm each up, within a share of the budget that they divide; then their calls are put together alike."""
    all_of_them = list(instruments)
    for instrument in all_of_them:
        warm_up(instrument, budget_s / len(all_of_them))
    share_plans(all_of_them)


def try_out(instruments: Iterable[Instrument]) -> None:
    """Take a batch of each that does not count, and put their calls together alike: where there is no warm-up."""
    all_of_them = list(instruments)
    for instrument in all_of_them:
        instrument.take()
        instrument.replan()
    share_plans(all_of_them)


def share_plans(instruments: Iterable[Instrument]) -> None:
    """Have calls that take turns put together in the same way: what was averaged must not tell them apart."""
    unwrapped = [instrument.own if isinstance(instrument, Blaming) else instrument for instrument in instruments]
    share_batches([instrument for instrument in unwrapped if isinstance(instrument, WallClock)])
    stamped = [instrument for instrument in unwrapped if isinstance(instrument, Averaging)]
    for instrument, typical_us in zip(stamped, alike([instrument.typical_us for instrument in stamped]), strict=True):
        instrument.average_by(typical_us)


class Order:
    """In which order calls take their turns: shuffled, and in the next round the other way round."""

    def __init__(self, seed: int) -> None:
        self._shuffle = random.Random(seed).shuffle  # noqa: S311 - an order is no secret
        self._last: list[int] | None = None

    def next(self, contenders: Iterable[int]) -> list[int]:
        """Return the order of the next round."""
        indices = list(contenders)
        if self._last is not None and sorted(self._last) == sorted(indices):
            order, self._last = self._last[::-1], None
            return order
        self._shuffle(indices)
        self._last = indices
        return list(indices)


def round_seconds(instruments: Iterable[Instrument], budget_s: float) -> float:
    """Return how long a round takes at the least, from a few that do not count; from one where that takes long."""
    all_of_them = list(instruments)
    took_s: list[float] = []
    while not took_s or (len(took_s) < TRIED_ROUNDS and sum(took_s) < TRIED_SHARE * budget_s):
        begin = time.perf_counter()
        for instrument in all_of_them:
            instrument.take()
        took_s.append(time.perf_counter() - begin)
    return min(took_s)
