"""``assay.compare``: which of several functions is faster, decided as soon as it is sure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.stats.anytime import Look
from assay.stats.intervals import CONFIDENCE
from assay.stats.paired import MINIMUM_EFFECT, compare_at
from assay.stats.summary import estimate
from assay.timing.adaptive import planned
from assay.timing.clocks import ClockWatch, locked
from assay.timing.company import Company
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, SMALL_BATCH_US, TIMES, can_tell, options
from assay.timing.rig import rig, set_up_together
from assay.timing.subject import bind
from assay.timing.turns import (
    QUANTITIES,
    TINY_US,
    Order,
    Turn,
    common_quantity,
    instrument_for,
    round_seconds,
    share_plans,
    warm_all,
)
from assay.timing.values import Compared, Comparison
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.stats.paired import Comparison as Judged
    from assay.timing.instrument import Call, Instrument
    from assay.timing.options import ClockReader, Options, Time, Wanted
    from assay.timing.rig import Rigged
    from assay.timing.values import Cache, Quantity, Stop, Verdict

MOST_ROUNDS = 50_000
CLOCK_MOVED = 0.01
"""Clocks that differ by more than this share between or within functions make a verdict in time ask for cycles."""

FIRST_ROUNDS = 64
"""Rounds before the first look: with fewer, a clock that switches between levels cannot be told from a difference."""

BLOCK = 2
"""Rounds in a block: the second has the order of the first the other way round."""


def compare(
    functions: Mapping[str, Callable[..., object]],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: Wanted = "auto",
    by: Time | None = None,
    minimum_effect: float = MINIMUM_EFFECT,
    budget_s: float = BUDGET_S,
    limit_s: float = LIMIT_S,
    lock_mhz: int | None = None,
    seed: int = 0,
    reader: ClockReader | None = None,
) -> Comparison:
    """Return which of two or more functions is faster than the first, measured in turns.

    >>> import assay
    >>> result = assay.compare({"short": lambda: sum(range(100)), "long": lambda: sum(range(200))}, budget_s=2)
    >>> result.verdict
    'slower'

    Args:
        functions: By name; every other one is compared with the first.
        args: The same arguments for each.
        kwargs: The same arguments by name.
        setup: Called before each call, untimed.
        device: As for ``measure``.
        cache: As for ``measure``.
        method: As for ``measure``.
        by: Which time decides: busy, span or call; without it, what all are best measured by.
        minimum_effect: A difference below this share is called the same: 0.01 is 1 %.
        budget_s: At most about this long.
        limit_s: A single call may take this long.
        lock_mhz: Lock the GPU's SM clock meanwhile.
        seed: Of the order in which they take turns.
        reader: Reads the GPU's clock; NVML without it.

    Raises:
        BadInput: Fewer than two functions, or an option makes no sense.
        TrialFailed: A function raises, or does not return.
    """
    if not isinstance(functions, Mapping) or len(functions) < 2:
        raise BadInput("To compare takes at least two functions, by name: {'a': f, 'b': g}.")
    if not 0 < minimum_effect < 1:
        raise BadInput(f"minimum_effect is a share between 0 and 1, such as 0.01 for 1 %, not {minimum_effect!r}.")
    bound = [bind(function, args, kwargs, str(name)) for name, function in functions.items()]
    timing_options = options(
        device=device, cache=cache, method=method, precision=PRECISION, budget_s=budget_s,
        times=(by,) if by is not None else TIMES, limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
        batch_us=SMALL_BATCH_US,
    )  # fmt: skip
    can_tell(by, timing_options)
    start = time.perf_counter()
    timer_setup = rig(timing_options)
    watch = ClockWatch(timing_options.reader or timer_setup.reader())
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(watch, timing_options.lock_mhz))
        timed_calls = set_up_together(timer_setup, bound, timing_options, stack)
        comparison_setup = Contest(
            tuple(timed_calls), QUANTITIES[by] if by else common_quantity(timed_calls), minimum_effect, timing_options
        )
        stack.enter_context(quiet_collector())
        warm_all(comparison_setup.instruments, timing_options.budget_s)
        context_switches = Company()
        watch.begin()
        rounds = _take_turns(comparison_setup, seed, watch)
        watch.end()
        switch_notes = context_switches.notes() if timed_calls[0].device == "cpu" else ()
    result = _comparison(comparison_setup, rounds, watch, time.perf_counter() - start)
    return result.model_copy(update={"notes": (*result.notes, *switch_notes)})


@dataclass(frozen=True)
class Contest:
    """Functions with their instruments, the time they are compared by, and the least difference that counts."""

    rigged: tuple[Rigged, ...]
    quantity: Quantity
    minimum_effect: float
    chosen: Options

    @property
    def instruments(self) -> list[Instrument]:
        """The instrument of each that gives the time they are compared by."""
        return [instrument_for(timed_call, self.quantity) for timed_call in self.rigged]


@dataclass(frozen=True)
class Raced:
    """What the rounds gave, the look at which they ended, and why."""

    turns: tuple[Turn, ...]
    look: Look
    stopped: Stop


def _take_turns(contest: Contest, seed: int, watch: ClockWatch) -> Raced:
    """Take rounds until each function is decided against the first at a planned look, or the budget is spent.

    The last look is at the end of the budget, however many rounds there are by then.
    """
    instruments, budget_s = contest.instruments, contest.chosen.budget_s
    round_s = round_seconds(instruments, budget_s)
    changed = [instrument.replan() for instrument in instruments]
    if any(changed):
        share_plans(instruments)
        round_s = round_seconds(instruments, budget_s)
    likely = int(min(MOST_ROUNDS, max(BLOCK, budget_s / max(round_s, 1e-9))))
    *early, final = planned(FIRST_ROUNDS, likely)
    deadline = time.perf_counter() + budget_s
    medians = tuple(Turn() for _ in instruments)
    order = Order(seed)

    def take(until: int) -> int:
        """Take rounds until there are so many, or the time is up; return how many there are."""
        while len(medians[0].us) < until and (len(medians[0].us) < BLOCK or time.perf_counter() <= deadline):
            for index in order.next(range(len(instruments))):
                medians[index].add(instruments[index].take(), contest.quantity)
            watch.look()
        return len(medians[0].us)

    for look in early:
        if take(look.n) < look.n:
            final = look
            break
        if _decided(medians, look, contest.minimum_effect):
            return Raced(medians, look, "decided")
    look = Look(take(MOST_ROUNDS), final.share)
    if _decided(medians, look, contest.minimum_effect):
        return Raced(medians, look, "decided")
    return Raced(medians, look, "sample limit" if time.perf_counter() <= deadline else "budget spent")


def _decided(turns: Sequence[Turn], look: Look, minimum_effect: float) -> bool:
    return all(_judged(turns, p, look, minimum_effect).verdict != "unsure" for p in range(1, len(turns)))


def _judged(turns: Sequence[Turn], place: int, look: Look, minimum_effect: float, *, cycles: bool = False) -> Judged:
    """Return what the rounds up to a look say of one function against the first."""
    first, second = ((t.cycles if cycles else t.us) for t in (turns[0], turns[place]))
    return compare_at(
        np.maximum(np.asarray(first), TINY_US),
        np.maximum(np.asarray(second), TINY_US),
        look,
        minimum_effect=minimum_effect,
        confidence=1 - (1 - CONFIDENCE) / (len(turns) - 1),
        block=BLOCK,
    )


def _comparison(contest: Contest, raced: Raced, watch: ClockWatch, took_s: float) -> Comparison:
    medians, timed_calls, timing_options = raced.turns, contest.rigged, contest.chosen
    times = [estimate([np.asarray(turn.us)], "us") for turn in medians]
    others = []
    for index in range(1, len(medians)):
        compared = _judged(medians, index, raced.look, contest.minimum_effect)
        by_cycles = None
        if all(len(t.cycles) == len(t.us) for t in (medians[0], medians[index])):
            by_cycles = _judged(medians, index, raced.look, contest.minimum_effect, cycles=True)
        verdict, reason = confirmed(
            compared.verdict, by_cycles.verdict if by_cycles else None, medians[0], medians[index]
        )
        others.append(
            Compared(
                name=timed_calls[index].bound.name,
                verdict=verdict,
                ratio=compared.ratio,
                low=compared.low,
                high=compared.high,
                cycles_verdict=by_cycles.verdict if by_cycles else None,
                cycles_ratio=by_cycles.ratio if by_cycles else None,
                reason=reason or compared.reason,
                caveat="clock moved" if reason else compared.caveat,
                time_us=times[index],
            )
        )
    return Comparison(
        first=timed_calls[0].bound.name,
        first_us=times[0],
        others=tuple(others),
        quantity=contest.quantity,
        minimum_effect=contest.minimum_effect,
        device=timed_calls[0].device,
        cache=timing_options.cache if timing_options.on_gpu else "warm",
        methods={
            timed_call.bound.name: instrument_for(timed_call, contest.quantity).method for timed_call in timed_calls
        },
        pairs=len(medians[0].us),
        stopped=raced.stopped,
        clock=watch.seen(timing_options.lock_mhz, [mhz for turn in medians for mhz in turn.mhz]),
        took_s=took_s,
        notes=tuple(f"{timed_call.bound.name}: {note}" for timed_call in timed_calls for note in timed_call.notes),
        series={timed_call.bound.name: tuple(turn.us) for timed_call, turn in zip(timed_calls, medians, strict=True)},
    )


def confirmed(verdict: Verdict, by_cycles: Verdict | None, first: Turn, second: Turn) -> tuple[Verdict, str | None]:
    """Return a verdict, and why it was taken back: a difference under a moving clock must show in cycles too."""
    if verdict not in {"faster", "slower"} or by_cycles in {None, verdict}:
        return verdict, None
    clocks = np.asarray([*first.mhz, *second.mhz])
    if not len(clocks) or clocks.max() - clocks.min() <= CLOCK_MOVED * float(np.median(clocks)):
        return verdict, None
    moved = f"{np.median(first.mhz):.0f} and {np.median(second.mhz):.0f} MHz in the median"
    return "unsure", f"it is {verdict} in time, and in cycles {by_cycles}: the clock moved ({moved})"
