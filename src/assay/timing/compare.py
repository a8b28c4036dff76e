"""``assay.compare``: find out which of several functions is faster, and stop as soon as that is decided."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import BadInput
from assay.stats.intervals import CONFIDENCE, estimate_median
from assay.stats.sequential import MINIMUM_EFFECT, InterimLook, compare_at_look
from assay.timing.conditions import ContextSwitchCounter
from assay.timing.interleaved import (
    QUANTITY_OF_TIME,
    TINY_US,
    RoundMedians,
    RoundOrder,
    common_quantity,
    equalize_plans,
    instrument_for,
    shortest_round_s,
    warm_up_all,
)
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, SMALL_BATCH_US, TIMES, require_time_kind, resolve_options
from assay.timing.results import ComparedFunction, Comparison
from assay.timing.sampling import looks_between
from assay.timing.setup import bind_call, set_up_interleaved, timing_session
from assay.timing.wall import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.stats.sequential import PairedComparison
    from assay.timing.conditions import ClockWatch
    from assay.timing.options import ClockReader, MethodChoice, TimeKind, TimingOptions
    from assay.timing.results import Cache, StopReason, TimeQuantity, Verdict
    from assay.timing.sampling import Call, Instrument
    from assay.timing.setup import TimedCall

MAX_ROUNDS = 50_000
CLOCK_MOVED_SHARE = 0.01
"""A verdict in time must be confirmed in cycles where clocks differ by more than this share."""

FIRST_ROUNDS = 64
"""Rounds before the first look: with fewer, a clock that switches levels looks the same as a difference."""

ROUNDS_PER_BLOCK = 2
"""Rounds per block: the second reverses the order of the first."""


def compare(
    functions: Mapping[str, Callable[..., object]],
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: MethodChoice = "auto",
    by: TimeKind | None = None,
    minimum_effect: float = MINIMUM_EFFECT,
    budget_s: float = BUDGET_S,
    limit_s: float = LIMIT_S,
    lock_mhz: int | None = None,
    seed: int = 0,
    reader: ClockReader | None = None,
) -> Comparison:
    """Return which of two or more functions is faster than the first, measured in interleaved rounds.

    >>> import assay
    >>> result = assay.compare({"short": lambda: sum(range(100)), "long": lambda: sum(range(200))}, budget_s=2)
    >>> result.verdict
    'slower'

    Args:
        functions: By name; every other one is compared with the first.
        args: Positional arguments, the same for each.
        kwargs: Keyword arguments, the same for each.
        setup: Called before each call, untimed.
        device: As for ``measure``.
        cache: As for ``measure``.
        method: As for ``measure``.
        by: Which time decides: busy, span or call; by default the best one that all have in common.
        minimum_effect: A difference below this share is reported as the same: 0.01 is 1 %.
        budget_s: Approximate upper limit of the duration.
        limit_s: Time limit for a single call.
        lock_mhz: Lock the GPU's SM clock during the measurement.
        seed: Seed for the order within rounds.
        reader: Reads the GPU's clock; NVML by default.

    Raises:
        BadInput: Fewer than two functions, or an invalid option.
        TrialFailed: A function raises, or does not return.
    """
    if not isinstance(functions, Mapping) or len(functions) < 2:
        raise BadInput("To compare takes at least two functions, by name: {'a': f, 'b': g}.")
    if not 0 < minimum_effect < 1:
        raise BadInput(f"minimum_effect is a share between 0 and 1, such as 0.01 for 1 %, not {minimum_effect!r}.")
    bound = [bind_call(function, args, kwargs, str(name)) for name, function in functions.items()]
    timing_options = resolve_options(
        device=device, cache=cache, method=method, precision=PRECISION, budget_s=budget_s,
        times=(by,) if by is not None else TIMES, limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
        batch_us=SMALL_BATCH_US,
    )  # fmt: skip
    require_time_kind(by, timing_options)
    start = time.perf_counter()
    with timing_session(timing_options) as (timer_setup, watch), contextlib.ExitStack() as stack:
        timed_calls = set_up_interleaved(timer_setup, bound, timing_options, stack)
        comparison_setup = ComparisonSetup(
            tuple(timed_calls),
            QUANTITY_OF_TIME[by] if by else common_quantity(timed_calls),
            minimum_effect,
            timing_options,
        )
        stack.enter_context(gc_paused())
        warm_up_all(comparison_setup.instruments, timing_options.budget_s)
        context_switches = ContextSwitchCounter()
        watch.begin()
        rounds = _run_rounds(comparison_setup, seed, watch)
        watch.end()
        switch_notes = context_switches.notes() if timed_calls[0].device == "cpu" else ()
    result = _build_comparison(comparison_setup, rounds, watch, time.perf_counter() - start)
    return result.model_copy(update={"notes": (*result.notes, *switch_notes)})


@dataclass(frozen=True)
class ComparisonSetup:
    """Functions with their instruments, the time they are compared by, and the smallest relevant difference."""

    timed_calls: tuple[TimedCall, ...]
    quantity: TimeQuantity
    minimum_effect: float
    options: TimingOptions

    @property
    def instruments(self) -> list[Instrument]:
        """The instrument of each function that measures the time they are compared by."""
        return [instrument_for(timed_call, self.quantity) for timed_call in self.timed_calls]


@dataclass(frozen=True)
class ComparisonRounds:
    """The medians of all rounds, the look at which they ended, and why."""

    medians: tuple[RoundMedians, ...]
    look: InterimLook
    stopped: StopReason


def _run_rounds(comparison_setup: ComparisonSetup, seed: int, watch: ClockWatch) -> ComparisonRounds:
    """Take rounds until each function is decided against the first at a planned look, or the budget is spent.

    The last look is at the end of the budget, however many rounds there are by then.
    """
    instruments, budget_s = comparison_setup.instruments, comparison_setup.options.budget_s
    round_s = shortest_round_s(instruments, budget_s)
    changed = [instrument.replan() for instrument in instruments]
    if any(changed):
        equalize_plans(instruments)
        round_s = shortest_round_s(instruments, budget_s)
    likely = int(min(MAX_ROUNDS, max(ROUNDS_PER_BLOCK, budget_s / max(round_s, 1e-9))))
    *early, final = looks_between(FIRST_ROUNDS, likely)
    deadline = time.perf_counter() + budget_s
    medians = tuple(RoundMedians() for _ in instruments)
    order = RoundOrder(seed)

    def take(until: int) -> int:
        """Take rounds until there are ``until`` or the time is up; return how many there are."""
        while len(medians[0].us) < until and (len(medians[0].us) < ROUNDS_PER_BLOCK or time.perf_counter() <= deadline):
            for index in order.next(range(len(instruments))):
                medians[index].add(instruments[index].take(), comparison_setup.quantity)
            watch.label_batch()
        return len(medians[0].us)

    for look in early:
        if take(look.n) < look.n:
            final = look
            break
        if _all_decided(medians, look, comparison_setup.minimum_effect):
            return ComparisonRounds(medians, look, "decided")
    look = InterimLook(take(MAX_ROUNDS), final.share)
    if _all_decided(medians, look, comparison_setup.minimum_effect):
        return ComparisonRounds(medians, look, "decided")
    return ComparisonRounds(medians, look, "sample limit" if time.perf_counter() <= deadline else "budget spent")


def _all_decided(medians: Sequence[RoundMedians], look: InterimLook, minimum_effect: float) -> bool:
    return all(_compare_to_first(medians, p, look, minimum_effect).verdict != "unsure" for p in range(1, len(medians)))


def _compare_to_first(
    medians: Sequence[RoundMedians], index: int, look: InterimLook, minimum_effect: float, *, cycles: bool = False
) -> PairedComparison:
    """Return the verdict of the rounds up to a look on one function against the first."""
    first, second = ((t.cycles if cycles else t.us) for t in (medians[0], medians[index]))
    return compare_at_look(
        np.maximum(np.asarray(first), TINY_US),
        np.maximum(np.asarray(second), TINY_US),
        look,
        minimum_effect=minimum_effect,
        confidence=1 - (1 - CONFIDENCE) / (len(medians) - 1),
        block=ROUNDS_PER_BLOCK,
    )


def _build_comparison(
    comparison_setup: ComparisonSetup, rounds: ComparisonRounds, watch: ClockWatch, took_s: float
) -> Comparison:
    medians, timed_calls, timing_options = rounds.medians, comparison_setup.timed_calls, comparison_setup.options
    times = [estimate_median([np.asarray(turn.us)], "us") for turn in medians]
    others = []
    for index in range(1, len(medians)):
        compared = _compare_to_first(medians, index, rounds.look, comparison_setup.minimum_effect)
        by_cycles = None
        if all(len(t.cycles) == len(t.us) for t in (medians[0], medians[index])):
            by_cycles = _compare_to_first(medians, index, rounds.look, comparison_setup.minimum_effect, cycles=True)
        verdict, reason = confirm_by_cycles(
            compared.verdict, by_cycles.verdict if by_cycles else None, medians[0], medians[index]
        )
        others.append(
            ComparedFunction(
                name=timed_calls[index].bound_call.name,
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
        first=timed_calls[0].bound_call.name,
        first_us=times[0],
        others=tuple(others),
        quantity=comparison_setup.quantity,
        minimum_effect=comparison_setup.minimum_effect,
        device=timed_calls[0].device,
        cache=timing_options.cache if timing_options.on_gpu else "warm",
        methods={
            timed_call.bound_call.name: instrument_for(timed_call, comparison_setup.quantity).method
            for timed_call in timed_calls
        },
        pairs=len(medians[0].us),
        stopped=rounds.stopped,
        clock=watch.summary(timing_options.lock_mhz, [mhz for turn in medians for mhz in turn.mhz]),
        took_s=took_s,
        notes=tuple(f"{timed_call.bound_call.name}: {note}" for timed_call in timed_calls for note in timed_call.notes),
        series={
            timed_call.bound_call.name: tuple(turn.us) for timed_call, turn in zip(timed_calls, medians, strict=True)
        },
    )


def confirm_by_cycles(
    verdict: Verdict, by_cycles: Verdict | None, first: RoundMedians, second: RoundMedians
) -> tuple[Verdict, str | None]:
    """Return a verdict, and why it was withdrawn: with a changing clock a difference must show in cycles too."""
    if verdict not in {"faster", "slower"} or by_cycles in {None, verdict}:
        return verdict, None
    clocks = np.asarray([*first.mhz, *second.mhz])
    if not len(clocks) or clocks.max() - clocks.min() <= CLOCK_MOVED_SHARE * float(np.median(clocks)):
        return verdict, None
    moved = f"{np.median(first.mhz):.0f} and {np.median(second.mhz):.0f} MHz in the median"
    return "unsure", f"it is {verdict} in time, and in cycles {by_cycles}: the clock moved ({moved})"
