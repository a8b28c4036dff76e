"""``assay.pick``: pick the fastest of many candidates by elimination, and report the probability that it is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import AssayError, BadInput, TrialFailed
from assay.stats.intervals import CONFIDENCE
from assay.stats.selection import Race
from assay.timing.interleaved import (
    QUANTITY_OF_TIME,
    TINY_US,
    RoundMedians,
    RoundOrder,
    common_quantity,
    equalize_plans,
    instrument_for,
)
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, SMALL_BATCH_US, require_time_kind, resolve_options
from assay.timing.results import Pick, PickCandidate
from assay.timing.setup import attribute_errors, bind_call, equalize_first_calls, timing_session
from assay.timing.wall import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.timing.conditions import ClockWatch
    from assay.timing.options import ClockReader, MethodChoice, TimeKind, TimingOptions
    from assay.timing.results import Cache, StopReason, TimeQuantity
    from assay.timing.sampling import Call
    from assay.timing.setup import BoundCall, FirstCalls, TimedCall, TimerSetup

TOLERANCE = 0.01
DEVICE_TIMES: tuple[TimeKind, ...] = ("busy", "span")
"""The times that candidates are picked by unless requested otherwise; call time is not measured then."""


def pick(
    candidates: Mapping[str, Callable[[], object]] | Sequence[Callable[[], object]],
    *,
    configs: Mapping[str, Params] | None = None,
    check: Callable[[object], object] | None = None,
    tolerance: float = TOLERANCE,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: MethodChoice = "auto",
    by: TimeKind | None = None,
    budget_s: float = BUDGET_S,
    limit_s: float = LIMIT_S,
    lock_mhz: int | None = None,
    seed: int = 0,
    reader: ClockReader | None = None,
) -> Pick:
    """Return the fastest of many candidates, with the probability that it is the best within a tolerance.

    >>> import assay
    >>> result = assay.pick({"long": lambda: sum(range(3000)), "short": lambda: sum(range(300))}, budget_s=1)
    >>> result.winner
    'short'

    Args:
        candidates: Functions by name, or a sequence of them; each is called without arguments.
        configs: The configuration of each candidate, by name, stored with the result.
        check: Called with a candidate's result; if it returns false or raises, the candidate is wrong and never wins.
        tolerance: A candidate within this share of the best is as good as the best.
        setup: Called before each call, untimed.
        device: As for ``measure``.
        cache: As for ``measure``.
        method: As for ``measure``.
        by: Which time decides: busy, span or call; by default the best one that all have in common.
        budget_s: Approximate upper limit of the duration; first calls, which may compile, do not count.
        limit_s: Time limit for a single call; a candidate that takes longer has failed.
        lock_mhz: Lock the GPU's SM clock during the measurement.
        seed: Seed for the order within rounds.
        reader: Reads the GPU's clock; NVML by default.

    Raises:
        BadInput: There is no candidate, or an option is invalid.
        TrialFailed: Every candidate failed or was wrong.
    """
    named = (
        dict(candidates)
        if isinstance(candidates, Mapping)
        else {str(index): candidate for index, candidate in enumerate(candidates)}
    )
    if not named:
        raise BadInput("There is nothing to pick from.")
    if not 0 < tolerance < 1:
        raise BadInput(f"tolerance is a share between 0 and 1, such as 0.01 for 1 %, not {tolerance!r}.")
    unknown = [name for name in configs or {} if name not in named]
    if unknown:
        raise BadInput(f"There is a configuration for {unknown[0]!r}, and no such candidate.")
    timing_options = resolve_options(
        device=device, cache=cache, method=method, precision=PRECISION, budget_s=budget_s,
        times=(by,) if by is not None else DEVICE_TIMES, limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
        batch_us=SMALL_BATCH_US,
    )  # fmt: skip
    require_time_kind(by, timing_options)
    start = time.perf_counter()
    with timing_session(timing_options) as (timer_setup, watch), contextlib.ExitStack() as stack:
        prepared = _prepare_candidates(named, check, timer_setup, timing_options)
        stack.callback(prepared.close)
        race = CandidateRace(
            prepared, QUANTITY_OF_TIME[by] if by else common_quantity(prepared.timed_calls), tolerance, seed
        )
        stack.enter_context(gc_paused())
        watch.begin()
        race.run(timing_options.budget_s, watch)
        watch.end()
    return _build_pick(race, configs or {}, timing_options, watch, time.perf_counter() - start)


@dataclass
class PreparedCandidates:
    """The candidates that are ready to be timed, and those excluded, with the reason."""

    timed_calls: list[TimedCall] = field(default_factory=list)
    excluded: list[PickCandidate] = field(default_factory=list)

    def close(self) -> None:
        """Release what the instruments hold."""
        for timed_call in self.timed_calls:
            timed_call.close()


def _prepare_candidates(
    named: Mapping[str, Callable[[], object]],
    check: Callable[[object], object] | None,
    timer_setup: TimerSetup,
    timing_options: TimingOptions,
) -> PreparedCandidates:
    """Make the first calls of every candidate; exclude those that fail or are wrong, and batch the rest alike."""
    prepared = PreparedCandidates()
    bounds: list[BoundCall] = []
    firsts: list[FirstCalls] = []
    for name, function in named.items():
        try:
            with attribute_errors(name):
                bound = bind_call(function, name=name)
                first = timer_setup.first_calls(bound, timing_options)
        except AssayError as error:
            prepared.excluded.append(PickCandidate(name=name, status="failed", reason=str(error)))
            continue
        wrong = _check_error(function, check, timing_options.setup)
        if wrong is not None:
            prepared.excluded.append(PickCandidate(name=name, status="wrong", reason=wrong))
            continue
        bounds.append(bound)
        firsts.append(first)
    for bound, first in zip(bounds, equalize_first_calls(firsts), strict=True):
        try:
            with attribute_errors(bound.name):
                prepared.timed_calls.append(timer_setup.set_up(bound, timing_options, first))
        except AssayError as error:
            prepared.excluded.append(PickCandidate(name=bound.name, status="failed", reason=str(error)))
    if not prepared.timed_calls:
        out = prepared.excluded[0]
        raise TrialFailed(f"None of {len(named)} candidates can be picked; the first, {out.name}: {out.reason}")
    return prepared


def _check_error(
    function: Callable[[], object], check: Callable[[object], object] | None, setup: Call | None
) -> str | None:
    """Return what is wrong with a candidate's result; null where nothing is, or there is no check."""
    if check is None:
        return None
    try:
        if setup is not None:
            setup()
        verdict = check(function())
    except Exception as error:  # noqa: BLE001 - a check may fail in any way it likes
        return f"the check raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None if verdict else "its result did not pass the check"


class CandidateRace:
    """A race in progress: rounds of the remaining candidates."""

    def __init__(self, prepared: PreparedCandidates, quantity: TimeQuantity, tolerance: float, seed: int) -> None:
        self.prepared = prepared
        self.quantity: TimeQuantity = quantity
        self.medians = [RoundMedians() for _ in prepared.timed_calls]
        self.race = Race.start(len(prepared.timed_calls), tolerance=tolerance, confidence=CONFIDENCE)
        self.failed: dict[int, str] = {}
        self.calls = 0
        self.stopped: StopReason = "budget spent"
        self._order = RoundOrder(seed)
        self._instruments = [instrument_for(timed_call, quantity) for timed_call in prepared.timed_calls]

    def run(self, budget_s: float, watch: ClockWatch) -> None:
        """Take rounds until the race is decided or the budget is spent; the first round is a warm-up.

        At least one round counts, even for a single candidate.
        """
        deadline = time.perf_counter() + budget_s
        self._round()
        equalize_plans(instrument for index, instrument in enumerate(self._instruments) if index not in self.failed)
        while True:
            self.race = self.race.after(self._round(self.medians))
            watch.label_batch()
            if self.race.decided:
                self.stopped = "decided"
                return
            if time.perf_counter() > deadline:
                return

    def _round(self, medians: Sequence[RoundMedians] | None = None) -> dict[int, float]:
        """Sample each remaining candidate once and drop those that fail; without ``medians``, plans may change."""
        times: dict[int, float] = {}
        for index in self._order.next(self.race.contenders):
            instrument = self._instruments[index]
            try:
                batch = instrument.take()
                if medians is None:
                    instrument.replan()
            except AssayError as error:
                self.failed[index] = str(error)
                times[index] = math.nan
                continue
            self.calls += len(batch.quantities[self.quantity]) * instrument.calls_per_sample
            candidate_medians = medians[index] if medians is not None else RoundMedians()
            times[index] = max(TINY_US, candidate_medians.add(batch, self.quantity))
        return times


def _build_pick(
    candidate_race: CandidateRace,
    configs: Mapping[str, Params],
    timing_options: TimingOptions,
    watch: ClockWatch,
    took_s: float,
) -> Pick:
    standing = candidate_race.race.standing()
    timed_calls = candidate_race.prepared.timed_calls
    if standing.winner is None:
        raise TrialFailed(
            f"Every candidate failed; {timed_calls[0].bound_call.name}: {next(iter(candidate_race.failed.values()))}"
        )
    ranking = []
    for entry in standing.ranking:
        name, medians = timed_calls[entry.candidate].bound_call.name, candidate_race.medians[entry.candidate]
        failed = candidate_race.failed.get(entry.candidate)
        ranking.append(
            PickCandidate(
                name=name,
                config=configs.get(name),
                status="failed" if failed else "ok",
                reason=failed,
                time_us=float(np.median(medians.us)) if medians.us else None,
                behind=None if failed else entry.behind,
                behind_low=None if failed else entry.low,
                behind_high=None if failed else entry.high,
                rounds=entry.rounds,
            )
        )
    winner = timed_calls[standing.winner].bound_call.name
    return Pick(
        winner=winner,
        config=configs.get(winner),
        time_us=float(np.median(candidate_race.medians[standing.winner].us)),
        probability=standing.probability,
        expected_regret=standing.expected_regret,
        tolerance=candidate_race.race.tolerance,
        ranking=(
            *ranking,
            *(out.model_copy(update={"config": configs.get(out.name)}) for out in candidate_race.prepared.excluded),
        ),
        quantity=candidate_race.quantity,
        device=timed_calls[0].device,
        cache=timing_options.cache if timing_options.on_gpu else "warm",
        rounds=max(len(medians.us) for medians in candidate_race.medians),
        calls=candidate_race.calls,
        stopped=candidate_race.stopped,
        took_s=took_s,
        clock=watch.summary(
            timing_options.lock_mhz, [mhz for medians in candidate_race.medians for mhz in medians.mhz]
        ),
        notes=tuple(
            dict.fromkeys(
                f"{timed_call.bound_call.name}: {note}" for timed_call in timed_calls for note in timed_call.notes
            )
        ),
    )
