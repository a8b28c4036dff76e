"""``assay.pick``: the fastest of many candidates, by elimination, and how sure that is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import AssayError, BadInput, TrialFailed
from assay.stats.best import Race
from assay.stats.intervals import CONFIDENCE
from assay.timing.clocks import ClockWatch, locked
from assay.timing.options import BUDGET_S, LIMIT_S, PRECISION, SMALL_BATCH_US, can_tell, options
from assay.timing.rig import batched_alike, rig
from assay.timing.subject import bind, blamed
from assay.timing.turns import QUANTITIES, TINY_US, Order, Turn, common_quantity, instrument_for, share_plans
from assay.timing.values import Candidate, Pick
from assay.timing.wall import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.values import Params
    from assay.timing.instrument import Call
    from assay.timing.options import ClockReader, Options, Time, Wanted
    from assay.timing.rig import Rig, Rigged
    from assay.timing.subject import Bound, FirstCalls
    from assay.timing.values import Cache, Quantity, Stop

TOLERANCE = 0.01
ON_DEVICE: tuple[Time, ...] = ("busy", "span")
"""The times that candidates are picked by unless another is asked for; what a caller waits is not taken then."""


def pick(
    candidates: Mapping[str, Callable[[], object]] | Sequence[Callable[[], object]],
    *,
    configs: Mapping[str, Params] | None = None,
    check: Callable[[object], object] | None = None,
    tolerance: float = TOLERANCE,
    setup: Call | None = None,
    device: str | None = None,
    cache: Cache | None = None,
    method: Wanted = "auto",
    by: Time | None = None,
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
        candidates: Functions by name, or one after another; each is called without arguments.
        configs: What each stands for, by name, to be kept with the result.
        check: Called with what a candidate returns; one for which it says no, or raises, is wrong and never wins.
        tolerance: A candidate within this share of the best is as good as the best.
        setup: Called before each call, untimed.
        device: As for ``measure``.
        cache: As for ``measure``.
        method: As for ``measure``.
        by: Which time decides: busy, span or call; without it, what all are best measured by.
        budget_s: At most about this long; first calls, which may compile, are not counted.
        limit_s: A single call may take this long; a candidate that takes longer has failed.
        lock_mhz: Lock the GPU's SM clock meanwhile.
        seed: Of the order in which they take turns.
        reader: Reads the GPU's clock; NVML without it.

    Raises:
        BadInput: There is no candidate, or an option makes no sense.
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
    timing_options = options(
        device=device, cache=cache, method=method, precision=PRECISION, budget_s=budget_s,
        times=(by,) if by is not None else ON_DEVICE, limit_s=limit_s, setup=setup, lock_mhz=lock_mhz, reader=reader,
        batch_us=SMALL_BATCH_US,
    )  # fmt: skip
    can_tell(by, timing_options)
    start = time.perf_counter()
    timer_setup = rig(timing_options)
    watch = ClockWatch(timing_options.reader or timer_setup.reader())
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(watch, timing_options.lock_mhz))
        prepared = _line_up(named, check, timer_setup, timing_options)
        stack.callback(prepared.close)
        race = Running(prepared, QUANTITIES[by] if by else common_quantity(prepared.rigged), tolerance, seed)
        stack.enter_context(quiet_collector())
        watch.begin()
        race.run(timing_options.budget_s, watch)
        watch.end()
    return _picked(race, configs or {}, timing_options, watch, time.perf_counter() - start)


@dataclass
class LineUp:
    """The candidates that run, ready to be timed, and those that do not, with the reason."""

    rigged: list[Rigged] = field(default_factory=list)
    out: list[Candidate] = field(default_factory=list)

    def close(self) -> None:
        """Give back what the instruments hold."""
        for timed_call in self.rigged:
            timed_call.close()


def _line_up(
    named: Mapping[str, Callable[[], object]], check: Callable[[object], object] | None, on: Rig, chosen: Options
) -> LineUp:
    """Make the first calls of every candidate; who fails or is wrong stays out, and the rest is batched alike."""
    prepared = LineUp()
    bounds: list[Bound] = []
    firsts: list[FirstCalls] = []
    for name, function in named.items():
        try:
            with blamed(name):
                bound = bind(function, name=name)
                first = on.first_calls(bound, chosen)
        except AssayError as error:
            prepared.out.append(Candidate(name=name, status="failed", reason=str(error)))
            continue
        wrong = _wrong(function, check, chosen.setup)
        if wrong is not None:
            prepared.out.append(Candidate(name=name, status="wrong", reason=wrong))
            continue
        bounds.append(bound)
        firsts.append(first)
    for bound, first in zip(bounds, batched_alike(firsts), strict=True):
        try:
            with blamed(bound.name):
                prepared.rigged.append(on.set_up(bound, chosen, first))
        except AssayError as error:
            prepared.out.append(Candidate(name=bound.name, status="failed", reason=str(error)))
    if not prepared.rigged:
        out = prepared.out[0]
        raise TrialFailed(f"None of {len(named)} candidates can be picked; the first, {out.name}: {out.reason}")
    return prepared


def _wrong(function: Callable[[], object], check: Callable[[object], object] | None, setup: Call | None) -> str | None:
    """Return what is wrong with a candidate's result; null where nothing is, or nobody checks."""
    if check is None:
        return None
    try:
        if setup is not None:
            setup()
        verdict = check(function())
    except Exception as error:  # noqa: BLE001 - a check may say no in any way it likes
        return f"the check raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None if verdict else "its result did not pass the check"


class Running:
    """A race in progress: rounds of those still in it."""

    def __init__(self, lineup: LineUp, quantity: Quantity, tolerance: float, seed: int) -> None:
        self.lineup = lineup
        self.quantity: Quantity = quantity
        self.turns = [Turn() for _ in lineup.rigged]
        self.race = Race.start(len(lineup.rigged), tolerance=tolerance, confidence=CONFIDENCE)
        self.failed: dict[int, str] = {}
        self.calls = 0
        self.stopped: Stop = "budget spent"
        self._order = Order(seed)
        self._instruments = [instrument_for(timed_call, quantity) for timed_call in lineup.rigged]

    def run(self, budget_s: float, watch: ClockWatch) -> None:
        """Take rounds until it is decided or the budget is spent; the first round warms up and does not count.

        One round is taken at least, also of a candidate that is alone.
        """
        deadline = time.perf_counter() + budget_s
        self._round()
        share_plans(instrument for index, instrument in enumerate(self._instruments) if index not in self.failed)
        while True:
            self.race = self.race.after(self._round(self.turns))
            watch.look()
            if self.race.decided:
                self.stopped = "decided"
                return
            if time.perf_counter() > deadline:
                return

    def _round(self, turns: Sequence[Turn] | None = None) -> dict[int, float]:
        """Sample everybody still in the race once; who fails now is out. Without turns, plans may still change."""
        times: dict[int, float] = {}
        for index in self._order.next(self.race.contenders):
            instrument = self._instruments[index]
            try:
                batch = instrument.take()
                if turns is None:
                    instrument.replan()
            except AssayError as error:
                self.failed[index] = str(error)
                times[index] = math.nan
                continue
            self.calls += len(batch.quantities[self.quantity]) * instrument.calls_per_sample
            candidate_medians = turns[index] if turns is not None else Turn()
            times[index] = max(TINY_US, candidate_medians.add(batch, self.quantity))
        return times


def _picked(running: Running, configs: Mapping[str, Params], chosen: Options, watch: ClockWatch, took_s: float) -> Pick:
    standing = running.race.standing()
    timed_calls = running.lineup.rigged
    if standing.winner is None:
        raise TrialFailed(f"Every candidate failed; {timed_calls[0].bound.name}: {next(iter(running.failed.values()))}")
    ranking = []
    for entry in standing.ranking:
        name, medians = timed_calls[entry.candidate].bound.name, running.turns[entry.candidate]
        failed = running.failed.get(entry.candidate)
        ranking.append(
            Candidate(
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
    winner = timed_calls[standing.winner].bound.name
    return Pick(
        winner=winner,
        config=configs.get(winner),
        time_us=float(np.median(running.turns[standing.winner].us)),
        probability=standing.probability,
        expected_regret=standing.expected_regret,
        tolerance=running.race.tolerance,
        ranking=(*ranking, *(_with_config(out, configs) for out in running.lineup.out)),
        quantity=running.quantity,
        device=timed_calls[0].device,
        cache=chosen.cache if chosen.on_gpu else "warm",
        rounds=max(len(medians.us) for medians in running.turns),
        calls=running.calls,
        stopped=running.stopped,
        took_s=took_s,
        clock=watch.seen(chosen.lock_mhz, [mhz for medians in running.turns for mhz in medians.mhz]),
        notes=tuple(
            dict.fromkeys(f"{timed_call.bound.name}: {note}" for timed_call in timed_calls for note in timed_call.notes)
        ),
    )


def _with_config(candidate: Candidate, configs: Mapping[str, Params]) -> Candidate:
    return candidate.model_copy(update={"config": configs.get(candidate.name)})
