"""Sample a call adaptively: instruments, how many calls make a sample, warm-up, and when to stop.

Warm up until the times have settled, then sample until the median is known to the requested precision or the budget is
spent. Samples that drift or switch between levels never end a measurement early: a window that is still moving says
nothing about the next one.

A sample must last long compared with reading the clock, so short calls are batched. The batch size affects the result:
reading the clock adds a ninth of its cost per call to a sample of 9 calls, and where times are skewed the median of
single calls lies below that of means of nine. So interleaved calls are planned together (``plan_batches``):

    durations   0.40  0.43 0.71 µs            55  61 µs
    groups      └── similar: gaps < 2× ──┘    └──────┘      the same number of calls within a group
    sample      ──────────── about equally long ──────      in every group, so that disturbances hit all alike
    batch       ──────────── equally many samples ────
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.core import processes as copies
from assay.stats.intervals import find_competing_levels
from assay.stats.numerics import median, quantiles
from assay.stats.sequential import InterimLook, interval_at_look, plan_looks
from assay.stats.shape import is_unsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


if TYPE_CHECKING:
    Call: TypeAlias = Callable[[], object]

Samples: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class SampleBatch:
    """What one ``take`` of an instrument returned.

    Attributes:
        quantities: Samples in the order they were taken: ``busy_us``, ``span_us``, ``call_us``, ``cycles``.
        mhz: The device's clock while the calls ran, in its own cycles per microsecond; null where it has none.
    """

    quantities: Mapping[str, Samples] = field(default_factory=dict)
    mhz: float | None = None


class Instrument(Protocol):
    """Takes samples of one call.

    Attributes:
        method: ``graph``, ``queue``, ``trace`` or ``wall``.
        primary: The quantity whose precision decides when to stop.
        calls_per_sample: How many calls are averaged in one sample.
    """

    method: str
    primary: str
    calls_per_sample: int

    def take(self) -> SampleBatch:
        """Take the next samples."""
        ...

    def replan(self) -> bool:
        """Change the batch size where the last batch contradicts the plan; return whether anything changed."""
        ...

    def close(self) -> None:
        """Release what is held on the device."""
        ...


@runtime_checkable
class AveragingInstrument(Protocol):
    """An instrument that returns each call as a sample, or averages a whole batch where calls are short."""

    typical_us: float

    def average_by(self, typical_us: float) -> None:
        """Choose between the two, given how long a call takes."""
        ...


def concatenate_batches(batches: list[SampleBatch]) -> dict[str, Samples]:
    """Return all samples of several batches by quantity, in order."""
    names = list(dict.fromkeys(name for batch in batches for name in batch.quantities))
    return {
        name: np.concatenate([batch.quantities[name] for batch in batches if name in batch.quantities])
        for name in names
    }


FIRST_LOOK = 16
LOOK_GROWTH = 1.4
MAX_SAMPLES = 100_000
WARMUP_SHARE = 0.2
SETTLED_SHARE = 0.005
"""Batches whose medians differ by less than this share have settled, whatever their noise."""
AGREEING_BATCHES, AGREEING_LARGE_BATCHES, LARGE_BATCH = 3, 2, 4
"""This many batches in a row must agree; fewer where each holds at least ``LARGE_BATCH`` samples."""

SamplingStop = Literal["precise enough", "budget spent", "two levels", "sample limit"]


@dataclass(frozen=True)
class WarmUp:
    """How a warm-up went: whether the times settled, how many batches it took, and the shortest time of one batch."""

    settled: bool
    batches: int
    samples_per_batch: int
    batch_s: float


@dataclass
class CollectedSamples:
    """The samples, the look at which sampling ended, and why it ended there."""

    batches: list[SampleBatch] = field(default_factory=list)
    look: InterimLook = field(default_factory=lambda: InterimLook(0, 1.0))
    stopped: SamplingStop = "budget spent"

    @property
    def samples(self) -> dict[str, Samples]:
        """All samples by quantity, as many as the last look used."""
        return {name: values[: self.look.n] for name, values in concatenate_batches(self.batches).items()}


def warm_up(instrument: Instrument, budget_s: float) -> WarmUp:
    """Take batches until two or three in a row agree, for at most a fifth of the budget.

    Where they contradict the planned number of calls per sample, it is planned again before any of them counts.
    Where the device counts cycles, they must agree in cycles: its clock may keep changing, which is not warm-up.
    """
    start = time.perf_counter()
    batches: list[SampleBatch] = []
    took_s: list[float] = []
    while True:
        begin = time.perf_counter()
        batches.append(instrument.take())
        now = time.perf_counter()
        took_s.append(now - begin)
        settled = _has_settled(batches, instrument.primary)
        if settled or now - start + took_s[-1] > WARMUP_SHARE * budget_s:
            if not instrument.replan():
                break
            batches, took_s = [], []
    per_batch = len(batches[-1].quantities[instrument.primary])
    return WarmUp(settled, len(batches), per_batch, min(took_s))


def _has_settled(batches: list[SampleBatch], primary: str) -> bool:
    alike = AGREEING_LARGE_BATCHES if len(batches[-1].quantities[primary]) >= LARGE_BATCH else AGREEING_BATCHES
    if len(batches) < alike:
        return False
    last = batches[-alike:]
    quantity = "cycles" if all("cycles" in batch.quantities for batch in last) else primary
    values = [batch.quantities[quantity] for batch in last]
    medians = [median(v) for v in values]
    spread = max(medians) - min(medians)
    noise = max(1.25 * float(v.std()) / math.sqrt(len(v)) for v in values)
    return spread <= max(SETTLED_SHARE * abs(medians[-1]), 3 * noise)


def plan_budget_looks(warm: WarmUp, budget_s: float) -> tuple[InterimLook, ...]:
    """Return the looks that a budget allows, fixed before the first sample counts."""
    last = int(min(MAX_SAMPLES, max(1.0, budget_s / max(warm.batch_s, 1e-9) * warm.samples_per_batch)))
    return looks_between(FIRST_LOOK, last)


@cache
def _looks_cached(first: int, last: int) -> tuple[InterimLook, ...]:
    return plan_looks(first, last, LOOK_GROWTH)


def looks_between(first: int, last: int) -> tuple[InterimLook, ...]:
    """Return looks from ``first`` up to exactly ``last`` samples.

    How the error is spent is computed once for roughly the same ``last``: the shares add up to the total for any.
    """
    digits = 10 ** max(0, len(str(last)) - 1)
    rounded = max(1, last // digits * digits)
    *early, final = _looks_cached(min(first, rounded), rounded)
    return (*early, replace(final, n=last))


def collect_samples(
    instrument: Instrument,
    warm: WarmUp,
    *,
    precision: float,
    budget_s: float,
    after_batch: Callable[[], None] | None = None,
) -> CollectedSamples:
    """Sample until a planned look knows the primary quantity to ±``precision``, or the budget is spent.

    The last look is at the end of the budget, however many samples there are by then. Where the times drift or switch
    between levels, sampling continues until then. ``after_batch`` is called after each batch. At least one batch is
    taken.
    """
    *early, final = plan_budget_looks(warm, budget_s)
    deadline = time.perf_counter() + budget_s
    collected = CollectedSamples()
    primary_samples: list[Samples] = []

    def sample(until: int, *, may_replan: bool) -> int:
        """Take batches until there are ``until`` samples or the time is up; return how many there are."""
        have = sum(map(len, primary_samples))
        while have < until and (not primary_samples or time.perf_counter() <= deadline):
            batch = instrument.take()
            collected.batches.append(batch)
            primary_samples.append(batch.quantities[instrument.primary])
            have += len(primary_samples[-1])
            if may_replan and instrument.replan():  # earlier samples had a different number of calls
                collected.batches.clear()
                primary_samples.clear()
                have = 0
            if after_batch is not None:
                after_batch()
        return have

    for look in early:
        if sample(look.n, may_replan=look is early[0]) < look.n:
            final = look
            break
        collected.look = look
        values = np.concatenate(primary_samples)[: look.n]
        if _is_precise(median_interval(values, look, precision), values, precision) and not is_unsettled(values):
            collected.stopped = "precise enough"
            return collected
    have = sample(MAX_SAMPLES, may_replan=not early)
    collected.look = InterimLook(min(have, MAX_SAMPLES), final.share)
    values = np.concatenate(primary_samples)[: collected.look.n]
    collected.stopped = _stop_reason(values, collected.look, precision, in_time=time.perf_counter() <= deadline)
    return collected


def _is_precise(within: tuple[float, float] | None, samples: Samples, precision: float) -> bool:
    return within is not None and within[1] - within[0] <= 2 * precision * abs(median(samples))


def _stop_reason(samples: Samples, look: InterimLook, precision: float, *, in_time: bool) -> SamplingStop:
    """Return the result of the last look; ``in_time`` where the sample limit ended it rather than the time."""
    if _is_precise(median_interval(samples, look, precision), samples, precision):
        return "precise enough"
    if find_competing_levels(samples) is not None:
        return "two levels"
    return "sample limit" if in_time else "budget spent"


def median_interval(samples: Samples, look: InterimLook, precision: float) -> tuple[float, float] | None:
    """Return the interval of the median at a look, jointly valid with all earlier looks; null where there is none.

    For samples that switch between two levels closer together than the requested precision, the interval spans all but
    the outermost samples: wherever the median moves, it stays in there.
    """
    within = interval_at_look(samples, look)
    if within is not None or find_competing_levels(samples) is None:
        return within
    low, high = quantiles(samples, (0.025, 0.975))
    return (low, high) if high - low <= 2 * precision * abs(median(samples)) else None


TRIES, MIN_TRIES = 3, 2
"""A number of calls is long enough for a sample when the shortest of this many tries is."""
TRIES_OF_SINGLE_CALLS = 5
"""The same where calls are timed one by one, however short."""
LONG_PROBE_NS = 100_000_000
"""No more tries once they have taken this long in total, except for the minimum."""
MAX_CALLS_PER_TRY = 2**20
CALLS_GROWTH = 10
SIMILAR_FACTOR = 2.0
"""Durations that differ by less than this factor, directly or through a chain of neighbours, are planned as one."""
LONGEST_COMMON_SAMPLE_NS = 2_000_000
"""Short calls interleaved with long ones are batched into samples of about their length, up to this."""
CONTRADICTION_FACTOR = 2.0
"""Samples this many times longer than planned, or shorter than the minimum by this factor, contradict the probe."""


def _nothing() -> None:
    """Do nothing."""


def probe_shortest_ns(
    call: Call,
    *,
    finish: Callable[[], None] = _nothing,
    before: Call = _nothing,
    enough_ns: float,
    one_by_one: bool = False,
    clock: Callable[[], int] | None = None,
) -> float:
    """Return the shortest time of a call in nanoseconds, observed over at least ``enough_ns`` where it is short.

    The number of calls per try grows until the *shortest* of a few tries lasts long enough: a slow call only costs a
    try. ``one_by_one`` makes each try a single call, however short.
    """
    now = clock or time.perf_counter_ns

    def one_try(together: int) -> int:
        before()
        begin = now()
        for _ in repeat(None, together):
            call()
        finish()
        took = max(1, now() - begin)
        copies.exit_if_forked()
        return took

    if one_by_one:
        return float(_shortest_try_ns(one_try, 1, TRIES_OF_SINGLE_CALLS, 0.0))
    together, least = 1, math.inf
    while True:
        took = _shortest_try_ns(one_try, together, TRIES, enough_ns)
        least = min(least, took / together)
        if took >= enough_ns or together >= MAX_CALLS_PER_TRY:
            return max(1.0, least)
        together = min(MAX_CALLS_PER_TRY, CALLS_GROWTH * together, max(together + 1, math.ceil(enough_ns / least)))


def _shortest_try_ns(one_try: Callable[[int], int], together: int, tries: int, enough_ns: float) -> int:
    """Return the shortest of a few tries; one shorter than ``enough_ns`` ends them."""
    took: list[int] = []
    while len(took) < MIN_TRIES or (len(took) < tries and sum(took) < LONG_PROBE_NS):
        took.append(one_try(together))
        if took[-1] < enough_ns:
            break
    return min(took)


def group_durations(durations: Sequence[float]) -> list[float]:
    """Return for each duration the shortest of its group: neighbours within ``SIMILAR_FACTOR`` form one group.

    Similar durations always map to the same value, so whatever is planned from it is the same for all of them.
    """
    shortest: dict[float, float] = {}
    last = group = math.nan
    for duration in sorted(set(durations)):
        if not duration < SIMILAR_FACTOR * last:
            group = duration
        shortest[duration] = group
        last = duration
    return [shortest[duration] for duration in durations]


@dataclass(frozen=True)
class BatchPlan:
    """How calls are batched: calls per sample, and samples per batch."""

    calls_per_sample: int
    samples_per_batch: int


def plan_batches(
    call_ns: Sequence[float], *, shortest_ns: float, batch_ns: float, most_samples: int, one_by_one: bool = False
) -> list[BatchPlan]:
    """Return how the calls of several interleaved sides are batched, given how long one call of each takes.

    Sides with similar durations get the same number of calls. Where durations differ widely, each group gets enough
    calls for samples about as long as those of the others (up to ``LONGEST_COMMON_SAMPLE_NS``). All get the same number
    of samples per batch, as many as the longest side allows.
    """
    groups = [max(1.0, shortest) for shortest in group_durations(call_ns)]
    if one_by_one:
        calls = [1] * len(groups)
    else:
        own_ns = [duration_ns * math.ceil(shortest_ns / duration_ns) for duration_ns in groups]
        common_ns = (
            max(shortest_ns, min(LONGEST_COMMON_SAMPLE_NS, max(own_ns))) if len(set(groups)) > 1 else shortest_ns
        )
        calls = [max(1, math.ceil(common_ns / duration_ns)) for duration_ns in groups]
    longest_ns = max(count * duration for count, duration in zip(calls, call_ns, strict=True))
    samples = max(1, min(most_samples, int(batch_ns / longest_ns)))
    return [BatchPlan(count, samples) for count in calls]


def contradicts_probe(sample_ns: float, planned_ns: float, shortest_ns: float, calls: int) -> bool:
    """Return whether the typical sample duration contradicts the probe that the number of calls is based on.

    It does where samples are much too short for the clock, or where several calls take much longer than planned.
    """
    too_short = sample_ns * CONTRADICTION_FACTOR < shortest_ns
    return too_short or (calls > 1 and sample_ns > CONTRADICTION_FACTOR * max(planned_ns, shortest_ns))
