"""Alone, together, in turns: in which order the workers of a crew are timed. The parent sleeps meanwhile.

alone      A ▓▓▓▓▓▓▓▓          together   A ▓▓▓▓▓▓▓░░        turns   A ▓▓  ▓▓  ▓▓
           B         ▓▓▓▓▓▓▓▓             B ▓▓▓▓▓▓▓▓▓                B   ▓▓  ▓▓  ▓▓
                                          (░ held as a load)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from assay.launch.handle import Answer, gather
from assay.launch.loads import raise_load, release
from assay.launch.samples import unpacked
from assay.launch.settling import settle
from assay.launch.tuning import tune
from assay.timing.wall import MOST_SAMPLES
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.core.plan import Role
    from assay.launch.crew import Crew
    from assay.launch.handle import Answers, Handle
    from assay.machine.model import Machine

START_DELAY_NS = 50_000_000
"""A common start lies this far ahead, so that every worker has heard of it before it comes."""

TURN_DELAY_NS = 5_000_000
"""The same where only one has its turn: it is awake for the last of it, and its core no longer dozes."""

STAGE_TIMEOUTS = 3
"""So many timeouts may a stage take beside its own time: it is put in place, warmed up, and ends with a whole call."""

CALIBRATION_SAMPLES = 3
TURNS = 10
ONE_BY_ONE = "several ranks go in step, so that their calls are timed one by one and not continuously"


def run(crew: Crew, share_s: float, machine: Machine) -> None:
    """Time the crew's roles as its trial says, each for its share, then let them tune; the loads are up meanwhile.

    Where the trial asks for it, whoever is timed runs untimed first, until the machine's GPUs in use are steady.
    """
    loads = crew.of(crew.loads)
    if crew.trial.method.continuous and any(role.ranks > 1 for role in crew.timed):
        crew.notes.append(ONE_BY_ONE)
    raise_load(crew, loads)
    if crew.trial.schedule == "together":
        settle(crew, crew.timed, machine)
        _together(crew, share_s)
    elif crew.trial.schedule == "turns":
        settle(crew, crew.timed, machine)
        _in_turns(crew, share_s)
    else:
        for role in crew.timed:
            settle(crew, [role], machine)
            _one_role(crew, role, share_s / len(crew.timed))
    tune(crew, START_DELAY_NS)
    release(crew, loads)


def _order(crew: Crew, share_s: float, *, hold: bool = False, turn: int = 0) -> say.TakeBlock:
    """Return the order to time a stretch; given counts are obeyed exactly."""
    method = crew.trial.method
    exact = method.benchmark_runs is not None
    return say.TakeBlock(
        samples=method.benchmark_runs,
        duration_s=None if exact else share_s,
        warmup_runs=method.warmup_runs,
        precision=crew.trial.enough,
        rounds=method.rounds,
        start_at_ns=time.perf_counter_ns() + START_DELAY_NS,
        hold=hold,
        duty=method.duty,
        seed=crew.trial.seed + 1000 * crew.restart + turn,
    )


def _take(crew: Crew, handles: list[Handle], order: say.TakeBlock, *, keep: bool = True) -> Answers:
    """Have several workers time the same stretch; what the good ones measured is kept even if another fails."""
    if not all(handle.same_clock for handle in handles):
        order = order.model_copy(update={"start_at_ns": None})
    crew.tell(handles, order)
    limit_s = (order.duration_s or 0.0) + crew.trial.method.timeout_s * (1 if order.stage is None else STAGE_TIMEOUTS)
    loads = crew.of(crew.loads)
    answers = gather(handles, say.BlockDone, within_s=limit_s, doing="being timed", beside=loads)
    if keep:
        for handle in handles:
            answer = answers[handle.seat.key]
            if isinstance(answer, Answer) and isinstance(answer.message, say.BlockDone):
                crew.series.extend(unpacked(handle.seat, answer.message, answer.payload))
                if answer.message.facts is not None:
                    crew.facts[handle.seat.key] = say.Ready(facts=answer.message.facts)
    crew.fail_on(answers)
    return answers


def _one_role(crew: Crew, role: Role, share_s: float) -> None:
    handles = crew.of([role])
    if role.in_stages:
        _in_stages(crew, role, share_s)
    elif role.ranks == 1 or crew.trial.method.benchmark_runs is not None:
        _take(crew, handles, _order(crew, share_s))
    else:
        _take(crew, handles, _calibrated(crew, handles, share_s))


def _in_stages(crew: Crew, role: Role, share_s: float) -> None:
    """Have one subject after another called for its while; none is begun when the time is up."""
    method = crew.trial.method
    handles = crew.of([role])
    end_ns = time.perf_counter_ns() + int(share_s * 1e9)
    for stage in range(len(role.subjects)):
        if time.perf_counter_ns() >= end_ns:
            crew.notes.append(f"{stage} of {len(role.subjects)} stages fit into {share_s:.3g} s")
            return
        order = _order(crew, method.stage_s or 0.0)
        _take(crew, handles, order.model_copy(update={"stage": stage, "stage_calls": method.stage_calls}))


def _calibrated(crew: Crew, handles: list[Handle], share_s: float) -> say.TakeBlock:
    """Return an order of equally many samples for every rank, as many as the slowest can take in its share."""
    first = _order(crew, share_s).model_copy(update={"samples": CALIBRATION_SAMPLES, "duration_s": None})
    if first.warmup_runs is None:
        first = first.model_copy(update={"warmup_runs": CALIBRATION_SAMPLES})
    begin = time.perf_counter_ns()
    answers = _take(crew, handles, first, keep=False)
    spent_s = (time.perf_counter_ns() - begin) / 1e9
    round_s = max(_round_s(answer.message) for answer in answers.values() if isinstance(answer, Answer))
    samples = max(1, min(MOST_SAMPLES, int((share_s - spent_s) / round_s)))
    return _order(crew, share_s).model_copy(update={"samples": samples, "duration_s": None})


def _round_s(done: say.Message) -> float:
    """Return how long a round took that samples every subject once, with all that is done between samples."""
    if not isinstance(done, say.BlockDone):
        raise say.Garbled(f"a calibration gave {done.kind!r}")
    return max((done.end_ns - done.start_ns) / CALIBRATION_SAMPLES / 1e9, 1e-9)


def _together(crew: Crew, share_s: float) -> None:
    """Start all at one moment; who ends first goes on as a load, so that every sample had company."""
    if len(crew.timed) == 1:
        _one_role(crew, crew.timed[0], share_s)
        return
    handles = crew.of(crew.timed)
    _take(crew, handles, _order(crew, share_s, hold=True))
    release(crew, handles)


def _in_turns(crew: Crew, share_s: float) -> None:
    """Alternate strictly between two processes; the one whose turn it is not sleeps.

    A turn lasts at least a call, so that there are fewer turns where calls are long.
    """
    exact = crew.trial.method.benchmark_runs
    turns = exact if exact is not None else TURNS
    end_ns = time.perf_counter_ns() + int(share_s * 1e9)
    for turn in range(turns):
        for role in crew.timed:
            order = _order(crew, share_s / (2 * turns), turn=turn)
            soon = {"start_at_ns": time.perf_counter_ns() + TURN_DELAY_NS}
            _take(crew, crew.of([role]), order.model_copy(update={**soon, "samples": 1} if exact else soon))
        if exact is None and time.perf_counter_ns() >= end_ns:
            break
