"""Interleave several calls: in each round every call is sampled once, in random order, under the same conditions.

``sample_interleaved`` samples a block of a trial until every call is known precisely enough or the time is up.
``sample_pair`` samples two calls back to back, so that their times can be divided round by round:

    round     1          2          3          4
          ┌───┴───┐  ┌───┴───┐  ┌───┴───┐  ┌───┴───┐
          ref  fast  fast  ref  ref  fast  fast  ref        drift affects both alike

A round of a pair keeps one value per quantity and call: the median of a batch.
"""

from __future__ import annotations

import math
import random
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.stats.numerics import median
from assay.stats.shape import is_unsettled
from assay.timing.conditions import ClockWatch
from assay.timing.sampling import (
    MAX_SAMPLES,
    AveragingInstrument,
    concatenate_batches,
    group_durations,
    looks_between,
    median_interval,
    warm_up,
)
from assay.timing.setup import attribute_errors
from assay.timing.wall import WallTimer, gc_paused, plan_shared_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.stats.sequential import InterimLook
    from assay.timing.options import ClockReader, TimeKind
    from assay.timing.results import TimeQuantity
    from assay.timing.sampling import Instrument, SampleBatch
    from assay.timing.setup import TimedCall


QUANTITY_OF_TIME: dict[TimeKind, TimeQuantity] = {"busy": "busy_us", "span": "span_us", "call": "call_us"}
PROBE_ROUNDS, PROBE_SHARE = 3, 0.05
"""Rounds to probe, unless they take this share of the budget: one slow round must not decide how many are planned."""

TINY_US = 1e-6
"""Replaces a time of zero or less, as of an empty function, so that it has a logarithm."""


@dataclass
class RoundMedians:
    """What one call gave over the rounds: its batch medians in microseconds and in cycles, and the clock in MHz."""

    us: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    mhz: list[float] = field(default_factory=list)

    def add(self, batch: SampleBatch, quantity: TimeQuantity) -> float:
        """Add a batch; return its median in microseconds.

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


def instrument_for(timed_call: TimedCall, quantity: TimeQuantity) -> Instrument:
    """Return the instrument of a call that measures a quantity; errors are attributed to the call by name."""
    if quantity == "call_us" and timed_call.wall is not None:
        return AttributedInstrument(timed_call.wall, timed_call.bound_call.name)
    if quantity == "busy_us" and timed_call.busy_instrument is not None:
        return AttributedInstrument(timed_call.busy_instrument, timed_call.bound_call.name)
    return AttributedInstrument(timed_call.instrument, timed_call.bound_call.name)


class AttributedInstrument:
    """An instrument that names the call when one fails."""

    def __init__(self, instrument: Instrument, name: str) -> None:
        self.method = instrument.method
        self.primary = instrument.primary
        self.calls_per_sample = instrument.calls_per_sample
        self._instrument = instrument
        self._name = name

    def take(self) -> SampleBatch:
        """Take the next samples; ``calls_per_sample`` may be known only then."""
        with attribute_errors(self._name):
            batch = self._instrument.take()
        self.calls_per_sample = self._instrument.calls_per_sample
        return batch

    def replan(self) -> bool:
        """Change the batch size where the last batch contradicts the plan."""
        with attribute_errors(self._name):
            return self._instrument.replan()

    @property
    def wrapped(self) -> Instrument:
        """The wrapped instrument."""
        return self._instrument

    def close(self) -> None:
        """Release what is held on the device."""
        self._instrument.close()


def common_quantity(timed_calls: Iterable[TimedCall]) -> TimeQuantity:
    """Return the time to compare calls by: the decisive one if all share it, else call time, else the span."""
    decisive = {timed_call.decisive for timed_call in timed_calls}
    if len(decisive) == 1:
        return decisive.pop()
    return "call_us" if "call_us" in decisive else "span_us"


def warm_up_all(instruments: Iterable[Instrument], budget_s: float) -> None:
    """Warm up each within an equal share of the budget, then give their calls equal batch plans."""
    instrument_list = list(instruments)
    for instrument in instrument_list:
        warm_up(instrument, budget_s / len(instrument_list))
    equalize_plans(instrument_list)


def take_trial_batches(instruments: Iterable[Instrument]) -> None:
    """Take a batch of each that does not count, and equalize batch plans: for use without a warm-up."""
    instrument_list = list(instruments)
    for instrument in instrument_list:
        instrument.take()
        instrument.replan()
    equalize_plans(instrument_list)


def equalize_plans(instruments: Iterable[Instrument]) -> None:
    """Give interleaved calls the same batch plan, so that averaging does not make them differ."""
    unwrapped = [
        instrument.wrapped if isinstance(instrument, AttributedInstrument) else instrument for instrument in instruments
    ]
    plan_shared_batches([instrument for instrument in unwrapped if isinstance(instrument, WallTimer)])
    stamped = [instrument for instrument in unwrapped if isinstance(instrument, AveragingInstrument)]
    for instrument, typical_us in zip(
        stamped, group_durations([instrument.typical_us for instrument in stamped]), strict=True
    ):
        instrument.average_by(typical_us)


class RoundOrder:
    """Order of calls within rounds: shuffled, then reversed in the next round."""

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


def shortest_round_s(instruments: Iterable[Instrument], budget_s: float) -> float:
    """Return the shortest duration of a round, from a few that do not count, or from one where rounds take long."""
    instrument_list = list(instruments)
    took_s: list[float] = []
    while not took_s or (len(took_s) < PROBE_ROUNDS and sum(took_s) < PROBE_SHARE * budget_s):
        begin = time.perf_counter()
        for instrument in instrument_list:
            instrument.take()
        took_s.append(time.perf_counter() - begin)
    return min(took_s)


TIMED_ROUNDS = 3
"""The shortest of this many rounds decides how many are planned: the first one may have been slow."""

FIRST_LOOK = 64
"""Samples before the first look: enough to see drift, bursts and levels."""


@dataclass(frozen=True)
class SampleSeries:
    """Samples of one quantity of one subject, in order; ``window`` is their time span, null for the whole block."""

    subject: int
    quantity: str
    samples: array[float]
    calls_per_sample: int = 1
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class SampleBlock:
    """The start and end of a block of sampling, and its series."""

    start_ns: int
    end_ns: int
    series: tuple[SampleSeries, ...]


class _SampledCall:
    """One interleaved call: its samples, and whether they are precise enough."""

    def __init__(self, timed_call: TimedCall) -> None:
        self._timed_call = timed_call
        self._looks: list[InterimLook] = []
        self._batches: list[SampleBatch] = []
        self._calls_us = array("d")
        self.count = 0
        self.is_precise = False

    def sample(self) -> None:
        """Take a batch, and one wall-clock sample of the call where there is a wall timer."""
        batch = self._timed_call.instrument.take()
        self._batches.append(batch)
        self.count += len(batch.quantities[self._timed_call.instrument.primary])
        if self._timed_call.wall is not None:
            self._calls_us.append(self._timed_call.wall.sample_us())

    def plan_looks(self, most_rounds: int, rounds: int) -> None:
        """Plan the looks from how many samples the first rounds gave and how many rounds there may be."""
        last = max(1, min(MAX_SAMPLES, self.count * max(rounds, most_rounds) // rounds))
        self._looks = list(looks_between(FIRST_LOOK, last))

    def check_precision(self, precision: float) -> None:
        """Check at the looks that are due whether the median is known well enough."""
        while self._looks and self._looks[0].n <= self.count and not self.is_precise:
            look = self._looks.pop(0)
            values = concatenate_batches(self._batches)[self._timed_call.instrument.primary][: look.n]
            within = median_interval(values, look, precision)
            middle = abs(median(values))
            precise = within is not None and within[1] - within[0] <= 2 * precision * middle
            self.is_precise = precise and not is_unsettled(values)

    def series(self, subject: int) -> list[SampleSeries]:
        """Return all samples."""
        calls_per_sample = self._timed_call.instrument.calls_per_sample
        all_series = [
            SampleSeries(subject, SERIES_NAMES.get(name, name), array("d", samples.tolist()), calls_per_sample)
            for name, samples in concatenate_batches(self._batches).items()
        ]
        if self._timed_call.wall is not None:
            all_series.append(SampleSeries(subject, "call_us", self._calls_us, self._timed_call.wall.calls_per_sample))
        clock = [batch.mhz for batch in self._batches if batch.mhz is not None]
        if clock:
            all_series.append(SampleSeries(subject, "clock_mhz", array("d", clock), self.count // len(self._batches)))
        return all_series


SERIES_NAMES = {"cycles": "busy_cycles"}
"""Names of an instrument's quantities in a series, where they differ."""


def sample_interleaved(
    timed_calls: Sequence[TimedCall],
    *,
    until_ns: int,
    precision: float | None,
    seed: int,
    reader: ClockReader | None = None,
) -> SampleBlock:
    """Sample every call once per round, in random order, until a deadline; at least one round is taken.

    With a precision, stop as soon as every call is known to it, at a look planned beforehand. With a reader, each
    round is labelled by whether the GPU's clock was throttled.
    """
    watch = ClockWatch(reader)
    start = now = time.perf_counter_ns()
    order = RoundOrder(seed)
    with gc_paused():
        sampled = [_SampledCall(timed_call) for timed_call in timed_calls]
        for index in order.next(range(len(timed_calls))):
            sampled[index].sample()
        round_ns = max(1, time.perf_counter_ns() - start)
        rounds = 1
        watch.label_batch()
        while (now := time.perf_counter_ns()) + round_ns // 2 < until_ns:
            if all(call.is_precise or call.count >= MAX_SAMPLES for call in sampled):
                break
            for index in order.next(range(len(timed_calls))):
                sampled[index].sample()
            watch.label_batch()
            rounds += 1
            if rounds <= TIMED_ROUNDS:
                round_ns = max(1, min(round_ns, time.perf_counter_ns() - now))
            if precision is not None and rounds >= TIMED_ROUNDS:
                for call in sampled:
                    if rounds == TIMED_ROUNDS:
                        call.plan_looks((until_ns - start) // round_ns, rounds)
                    call.check_precision(precision)
        now = time.perf_counter_ns()
    series = [s for i, call in enumerate(sampled) for s in call.series(i)]
    if reader is not None and not math.isnan(watch.labels[0]):
        series += [SampleSeries(i, "throttled", array("d", watch.labels)) for i in range(len(sampled))]
    return SampleBlock(start, now, tuple(series))


MIN_PAIR_ROUNDS = 4
"""Rounds taken even when the time is already up: fewer allow no conclusion."""


class _PairSide:
    """One call of a pair: one value per round for each quantity."""

    def __init__(self, timed_call: TimedCall) -> None:
        self._timed_call = timed_call
        self._values: dict[str, array[float]] = {}
        self._calls: dict[str, int] = {}

    def sample(self) -> None:
        """Take a batch, and one wall-clock sample of the call where there is a wall timer."""
        instrument, wall = self._timed_call.instrument, self._timed_call.wall
        batch = instrument.take()
        for quantity, samples in batch.quantities.items():
            self._append(quantity, float(np.median(samples)), len(samples) * instrument.calls_per_sample)
        if batch.mhz is not None:
            self._append("clock_mhz", batch.mhz, 1)
        if wall is not None:
            self._append("call_us", wall.sample_us(), wall.calls_per_sample)

    def _append(self, quantity: str, value: float, calls: int) -> None:
        name = SERIES_NAMES.get(quantity, quantity)
        self._values.setdefault(name, array("d")).append(value)
        self._calls[name] = calls

    def series(self, subject: int, window: tuple[int, int]) -> list[SampleSeries]:
        """Return all samples."""
        return [SampleSeries(subject, name, values, self._calls[name], window) for name, values in self._values.items()]


def sample_pair(
    pair: tuple[TimedCall, TimedCall],
    subjects: tuple[int, int],
    *,
    rounds: int,
    until_ns: int,
    seed: int,
    reader: ClockReader | None = None,
) -> list[SampleSeries]:
    """Sample both calls for a number of rounds, or fewer if the time is up; the order is random, then reversed.

    Args:
        pair: The two calls with their instruments.
        subjects: Their indices in the series.
        rounds: Maximum number of rounds.
        until_ns: No round starts after this time, except for the first few.
        seed: Seed for the order.
        reader: With one, each round is labelled by whether the GPU's clock was throttled.
    """
    watch, order = ClockWatch(reader), RoundOrder(seed)
    sides = [_PairSide(timed_call) for timed_call in pair]
    start = time.perf_counter_ns()
    with gc_paused():
        for round_number in range(rounds):
            if round_number >= MIN_PAIR_ROUNDS and time.perf_counter_ns() >= until_ns:
                break
            for index in order.next(range(2)):
                sides[index].sample()
            watch.label_batch()
    window = (start, time.perf_counter_ns())
    all_series = [
        series for side, subject in zip(sides, subjects, strict=True) for series in side.series(subject, window)
    ]
    if reader is not None and watch.labels and not math.isnan(watch.labels[0]):
        all_series += [SampleSeries(subject, "throttled", array("d", watch.labels), 1, window) for subject in subjects]
    return all_series
