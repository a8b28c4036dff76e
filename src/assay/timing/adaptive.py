"""Warm up until the times have settled; then sample until the median is known well enough, or the budget is spent.

Samples that drift or switch between levels never end it early: a window that is still moving says nothing of the next.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.stats.anytime import Look, interval_at, looks
from assay.stats.intervals import torn_between
from assay.stats.order import median, quantiles
from assay.stats.shape import may_still_move
from assay.timing.instrument import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.timing.instrument import Batch, Instrument, Samples

FIRST_LOOK = 16
GROWTH = 1.4
MOST_SAMPLES = 100_000
WARMUP_SHARE = 0.2
SETTLED = 0.005
"""Batches whose medians differ by less than this share have settled, whatever their noise."""
ALIKE, ALIKE_IF_LARGE, LARGE = 3, 2, 4
"""So many batches in a row must agree; fewer where each holds at least so many samples."""

Stopped = Literal["precise enough", "budget spent", "two levels", "sample limit"]


@dataclass(frozen=True)
class WarmUp:
    """How a warm-up went: whether the times settled, the batches it took, and what one batch costs at the least."""

    settled: bool
    batches: int
    samples_per_batch: int
    batch_s: float


@dataclass
class Collected:
    """What was sampled, the look at which it ended, and why it ended there."""

    batches: list[Batch] = field(default_factory=list)
    look: Look = field(default_factory=lambda: Look(0, 1.0))
    stopped: Stopped = "budget spent"

    @property
    def samples(self) -> dict[str, Samples]:
        """All samples by quantity, as many as the last look saw."""
        return {name: values[: self.look.n] for name, values in joined(self.batches).items()}


def warm_up(instrument: Instrument, budget_s: float) -> WarmUp:
    """Take batches until two or three in a row agree, for about a fifth of the budget at most.

    Where they contradict the number of calls planned for a sample, it is planned anew before any of them counts.
    Where the device counts cycles they must agree in cycles: its clock may go on moving, which is no warm-up.
    """
    start = time.perf_counter()
    batches: list[Batch] = []
    took_s: list[float] = []
    while True:
        begin = time.perf_counter()
        batches.append(instrument.take())
        now = time.perf_counter()
        took_s.append(now - begin)
        settled = _settled(batches, instrument.primary)
        if settled or now - start + took_s[-1] > WARMUP_SHARE * budget_s:
            if not instrument.replan():
                break
            batches, took_s = [], []
    per_batch = len(batches[-1].quantities[instrument.primary])
    return WarmUp(settled, len(batches), per_batch, min(took_s))


def _settled(batches: list[Batch], primary: str) -> bool:
    alike = ALIKE_IF_LARGE if len(batches[-1].quantities[primary]) >= LARGE else ALIKE
    if len(batches) < alike:
        return False
    last = batches[-alike:]
    quantity = "cycles" if all("cycles" in batch.quantities for batch in last) else primary
    values = [batch.quantities[quantity] for batch in last]
    medians = [median(v) for v in values]
    spread = max(medians) - min(medians)
    noise = max(1.25 * float(v.std()) / math.sqrt(len(v)) for v in values)
    return spread <= max(SETTLED * abs(medians[-1]), 3 * noise)


def plan_looks(warm: WarmUp, budget_s: float) -> tuple[Look, ...]:
    """Return the looks that a budget allows, fixed before the first sample counts."""
    last = int(min(MOST_SAMPLES, max(1.0, budget_s / max(warm.batch_s, 1e-9) * warm.samples_per_batch)))
    return planned(FIRST_LOOK, last)


@cache
def _looks(first: int, last: int) -> tuple[Look, ...]:
    return looks(first, last, GROWTH)


def planned(first: int, last: int) -> tuple[Look, ...]:
    """Return looks from ``first`` to just ``last`` samples.

    How the error is shared is worked out once for roughly the same ``last``: the shares add up to the whole at any.
    """
    digits = 10 ** max(0, len(str(last)) - 1)
    rounded = max(1, last // digits * digits)
    *early, final = _looks(min(first, rounded), rounded)
    return (*early, replace(final, n=last))


def collect(
    instrument: Instrument,
    warm: WarmUp,
    *,
    precision: float,
    budget_s: float,
    between: Callable[[], None] | None = None,
) -> Collected:
    """Sample until a planned look knows the primary quantity to ±``precision``, or the budget is spent.

    The last look is at the end of the budget, however many samples there are by then. Where the times drift or switch
    between levels it goes on until then. ``between`` is called after each batch. At least one batch is taken.
    """
    *early, final = plan_looks(warm, budget_s)
    deadline = time.perf_counter() + budget_s
    collected = Collected()
    primary_samples: list[Samples] = []

    def sample(until: int, *, may_replan: bool) -> int:
        """Take batches until there are so many samples, or the time is up; return how many there are."""
        have = sum(map(len, primary_samples))
        while have < until and (not primary_samples or time.perf_counter() <= deadline):
            batch = instrument.take()
            collected.batches.append(batch)
            primary_samples.append(batch.quantities[instrument.primary])
            have += len(primary_samples[-1])
            if may_replan and instrument.replan():  # those before were put together otherwise
                collected.batches.clear()
                primary_samples.clear()
                have = 0
            if between is not None:
                between()
        return have

    for look in early:
        if sample(look.n, may_replan=look is early[0]) < look.n:
            final = look
            break
        collected.look = look
        values = np.concatenate(primary_samples)[: look.n]
        if _precise(interval(values, look, precision), values, precision) and not may_still_move(values):
            collected.stopped = "precise enough"
            return collected
    have = sample(MOST_SAMPLES, may_replan=not early)
    collected.look = Look(min(have, MOST_SAMPLES), final.share)
    values = np.concatenate(primary_samples)[: collected.look.n]
    collected.stopped = _stopped(values, collected.look, precision, in_time=time.perf_counter() <= deadline)
    return collected


def _precise(within: tuple[float, float] | None, samples: Samples, precision: float) -> bool:
    return within is not None and within[1] - within[0] <= 2 * precision * abs(median(samples))


def _stopped(samples: Samples, look: Look, precision: float, *, in_time: bool) -> Stopped:
    """Return what the last look says; ``in_time`` where the number of samples ended it, and not the time."""
    if _precise(interval(samples, look, precision), samples, precision):
        return "precise enough"
    if torn_between(samples) is not None:
        return "two levels"
    return "sample limit" if in_time else "budget spent"


def interval(samples: Samples, look: Look, precision: float) -> tuple[float, float] | None:
    """Return the interval of the median at a look, valid together with all looks before; null where there is none.

    Of samples torn between two levels that lie closer together than the wanted precision, all but the outermost are
    the interval: wherever the median goes, it stays there.
    """
    within = interval_at(samples, look)
    if within is not None or torn_between(samples) is None:
        return within
    low, high = quantiles(samples, (0.025, 0.975))
    return (low, high) if high - low <= 2 * precision * abs(median(samples)) else None
