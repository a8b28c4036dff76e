"""The order in which the workers of a group are timed, tuned and traced: alone, together or in turns.

alone      A ▓▓▓▓▓▓▓▓          together   A ▓▓▓▓▓▓▓░░        turns   A ▓▓  ▓▓  ▓▓
           B         ▓▓▓▓▓▓▓▓             B ▓▓▓▓▓▓▓▓▓                B   ▓▓  ▓▓  ▓▓
                                          (░ held as a load)

The parent sleeps while workers are timed. Tuners run after timing, alone or together in the same way; a timed role
without a tuner is then held as a load. Loads run untimed: they are started before and released after the timing they
run next to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from assay.core.results import Note
from assay.core.values import Continuous, Counted, Paired, Staged
from assay.launch.conditions import settle
from assay.launch.workers import LoadTotals, WorkerReply, collect_replies, unpack_series
from assay.timing.wall import MAX_KEPT_SAMPLES
from assay.worker import protocol as say

if TYPE_CHECKING:
    from assay.core.values import Mode, Role
    from assay.launch.workers import WorkerGroup, WorkerHandle, WorkerReplies
    from assay.machine.model import Machine


def start_load(group: WorkerGroup, handles: list[WorkerHandle]) -> None:
    """Start workers as untimed loads, and wait until each has made its first calls."""
    group.send(handles, say.Hold())
    group.collect(handles, say.Holding, within_s=group.trial.mode.timeout_s, doing="raising the load")


def release_load(group: WorkerGroup, handles: list[WorkerHandle]) -> None:
    """Stop a load, and keep its totals, with the samples of continuous calls."""
    group.send(handles, say.Release())
    replies = group.collect(handles, say.Released, within_s=group.trial.mode.timeout_s, doing="ending the load")
    for key, reply in replies.items():
        if isinstance(reply, WorkerReply) and isinstance(reply.message, say.Released):
            group.load_totals.setdefault(key, LoadTotals()).add(reply.message)
            group.series.extend(unpack_series(group.handles[key].worker_id, reply.message, reply.payload))


def run_tuners(group: WorkerGroup, delay_ns: int) -> None:
    """Run every tuner of a group; concurrent ones start together, ``delay_ns`` from now."""
    tuning = [role for role in group.timed if role.tuner is not None]
    if group.trial.schedule != "together" or len(group.timed) == 1:
        for role in tuning:
            _tune_roles(group, [role], delay_ns, hold=False)
        return
    if tuning:
        others = group.workers_of(role for role in group.timed if role.tuner is None)
        start_load(group, others)
        _tune_roles(group, tuning, delay_ns, hold=True)
        release_load(group, [*group.workers_of(tuning), *others])


def _tune_roles(group: WorkerGroup, roles: list[Role], delay_ns: int, *, hold: bool) -> None:
    """Let some roles tune concurrently; the results of successful ones are kept even if another fails."""
    handles = group.workers_of(roles)
    start = time.perf_counter_ns() + delay_ns if all(handle.same_clock for handle in handles) else None
    group.send(handles, say.Tune(start_at_ns=start, hold=hold, seed=group.trial.seed + 1000 * group.restart))
    limit_s = group.trial.mode.timeout_s + max(role.tuner.budget_s for role in roles if role.tuner is not None)
    untuned = (role for role in group.timed if role.tuner is None) if hold else ()
    background = group.workers_of([*group.loads, *untuned])
    replies = collect_replies(handles, say.Tuned, within_s=limit_s, doing="tuning", loads=background)
    group.keep_tunings(replies)
    group.fail_on(replies)


START_DELAY_NS = 50_000_000
"""A common start is this far ahead, so that every worker has received it before then."""

TURN_DELAY_NS = 5_000_000
"""Delay of a single worker's turn: it busy-waits at the end, so that its core has left idle states."""

STAGE_TIMEOUTS = 3
"""A stage may take this many timeouts beside its own time: preparation, warm-up, and the last whole call."""

CALIBRATION_SAMPLES = 3
TURNS = 10
RANKS_COUNTED_NOTE = Note.remark(
    "ranks_timed_singly", "several ranks run in lockstep: their calls are timed one by one, not continuously"
)


def run_schedule(group: WorkerGroup, share_s: float, machine: Machine) -> None:
    """Time the group's roles by the trial's schedule, each for its share, then run the tuners; loads run meanwhile.

    Where the trial asks for it, timed roles run untimed first, until the machine's GPUs in use are steady.
    """
    loads = group.workers_of(group.loads)
    if isinstance(group.trial.mode, Continuous) and any(role.ranks > 1 for role in group.timed):
        group.notes.append(RANKS_COUNTED_NOTE)
    start_load(group, loads)
    if group.trial.schedule == "together":
        settle(group, group.timed, machine)
        _run_together(group, share_s)
    elif group.trial.schedule == "turns":
        settle(group, group.timed, machine)
        _run_in_turns(group, share_s)
    else:
        for role in group.timed:
            settle(group, [role], machine)
            _run_role(group, role, share_s / len(group.timed))
    run_tuners(group, START_DELAY_NS)
    release_load(group, loads)


TakeRequest: TypeAlias = say.TakeBlock | say.TakeSamples | say.TakeStage


def _block_request(
    group: WorkerGroup, share_s: float, *, hold: bool = False, turn: int = 0
) -> say.TakeBlock | say.TakeSamples:
    """Return the request to time a block; given counts are exact."""
    mode = group.trial.mode
    warmup_runs = None if isinstance(mode, Paired | Staged) else mode.warmup_runs
    start_at_ns = time.perf_counter_ns() + START_DELAY_NS
    seed = group.trial.seed + 1000 * group.restart + turn
    if isinstance(mode, Counted):
        return say.TakeSamples(
            samples=mode.runs, warmup_runs=warmup_runs, start_at_ns=start_at_ns, hold=hold, seed=seed
        )
    return say.TakeBlock(
        duration_s=share_s,
        warmup_runs=warmup_runs,
        precision=group.trial.target_precision,
        start_at_ns=start_at_ns,
        hold=hold,
        seed=seed,
    )


def _take_block(
    group: WorkerGroup, handles: list[WorkerHandle], request: TakeRequest, *, keep: bool = True
) -> WorkerReplies:
    """Let several workers time the same block; the samples of successful ones are kept even if another fails."""
    if not all(handle.same_clock for handle in handles):
        request = request.model_copy(update={"start_at_ns": None})
    group.send(handles, request)
    loads = group.workers_of(group.loads)
    limit_s = _reply_limit_s(group.trial.mode, request)
    replies = collect_replies(handles, say.BlockDone, within_s=limit_s, doing="being timed", loads=loads)
    if keep:
        for handle in handles:
            reply = replies[handle.worker_id.key]
            if isinstance(reply, WorkerReply) and isinstance(reply.message, say.BlockDone):
                group.series.extend(unpack_series(handle.worker_id, reply.message, reply.payload))
                if reply.message.facts is not None:
                    group.facts[handle.worker_id.key] = say.WorkerReady(facts=reply.message.facts)
    group.fail_on(replies)
    return replies


def _reply_limit_s(mode: Mode, request: TakeRequest) -> float:
    """Return how long a worker may take to reply to a request, in s."""
    match request, mode:
        case say.TakeBlock(), _:
            return request.duration_s + mode.timeout_s
        case say.TakeStage(), Staged():
            return mode.stage_s + STAGE_TIMEOUTS * mode.timeout_s
        case _:
            return mode.timeout_s


def _run_role(group: WorkerGroup, role: Role, share_s: float) -> None:
    handles = group.workers_of([role])
    if isinstance(group.trial.mode, Staged):
        _run_stages(group, role, share_s)
    elif role.ranks == 1 or isinstance(group.trial.mode, Counted):
        _take_block(group, handles, _block_request(group, share_s))
    else:
        _take_block(group, handles, _calibrated_request(group, handles, share_s))


def _run_stages(group: WorkerGroup, role: Role, share_s: float) -> None:
    """Call one subject after another for its stage time; none is started when the time is up."""
    handles = group.workers_of([role])
    end_ns = time.perf_counter_ns() + int(share_s * 1e9)
    for stage in range(len(role.subjects)):
        if time.perf_counter_ns() >= end_ns:
            message = f"{stage} of {len(role.subjects)} stages fit into {share_s:.3g} s"
            group.notes.append(Note.warning("stages_cut", message, stages=stage, requested=len(role.subjects)))
            return
        start_at_ns = time.perf_counter_ns() + START_DELAY_NS
        _take_block(group, handles, say.TakeStage(subject=stage, start_at_ns=start_at_ns))


def _calibrated_request(group: WorkerGroup, handles: list[WorkerHandle], share_s: float) -> say.TakeSamples:
    """Return a request with the same number of samples for every rank: as many as the slowest fits in its share."""
    block = _block_request(group, share_s)
    runs = CALIBRATION_SAMPLES if block.warmup_runs is None else block.warmup_runs
    first = say.TakeSamples(
        samples=CALIBRATION_SAMPLES, warmup_runs=runs, start_at_ns=block.start_at_ns, seed=block.seed
    )
    begin = time.perf_counter_ns()
    replies = _take_block(group, handles, first, keep=False)
    spent_s = (time.perf_counter_ns() - begin) / 1e9
    done = [reply.message for reply in replies.values() if isinstance(reply, WorkerReply)]
    rounds_ns = [(block.end_ns - block.start_ns) / CALIBRATION_SAMPLES for block in done if block.kind == "done"]
    round_s = max(1e-9, *(ns / 1e9 for ns in rounds_ns))  # every subject once, with the work between samples
    samples = max(1, min(MAX_KEPT_SAMPLES, int((share_s - spent_s) / round_s)))
    return first.model_copy(update={"samples": samples, "start_at_ns": time.perf_counter_ns() + START_DELAY_NS})


def _run_together(group: WorkerGroup, share_s: float) -> None:
    """Start all at one time; a role that ends first continues as a load, so that every sample is concurrent."""
    if len(group.timed) == 1:
        _run_role(group, group.timed[0], share_s)
        return
    handles = group.workers_of(group.timed)
    _take_block(group, handles, _block_request(group, share_s, hold=True))
    release_load(group, handles)


def _run_in_turns(group: WorkerGroup, share_s: float) -> None:
    """Alternate strictly between two processes; the inactive one sleeps.

    A turn lasts at least one call, so that there are fewer turns if calls are long.
    """
    mode = group.trial.mode
    turns = mode.runs if isinstance(mode, Counted) else TURNS
    end_ns = time.perf_counter_ns() + int(share_s * 1e9)
    for turn in range(turns):
        for role in group.timed:
            request = _block_request(group, share_s / (2 * turns), turn=turn)
            changes: dict[str, int] = {"start_at_ns": time.perf_counter_ns() + TURN_DELAY_NS}
            if isinstance(request, say.TakeSamples):
                changes["samples"] = 1
            _take_block(group, group.workers_of([role]), request.model_copy(update=changes))
        if not isinstance(mode, Counted) and time.perf_counter_ns() >= end_ns:
            break


def trace_workers(group: WorkerGroup) -> None:
    """Let every timed worker trace its subjects, in the first restart of a trial that asks for it."""
    if not group.trial.profile or group.restart > 0:
        return
    for role in group.timed:
        handles = group.workers_of([role])
        group.send(handles, say.TakeTrace())
        replies = group.collect(handles, say.TraceDone, within_s=group.trial.mode.timeout_s, doing="being traced")
        for key, reply in replies.items():
            if isinstance(reply, WorkerReply) and isinstance(reply.message, say.TraceDone):
                group.traces[key] = reply.payload
                if reply.message.reason is not None:
                    message = f"{group.handles[key].worker_id.name} was not traced: {reply.message.reason}"
                    group.notes.append(Note.warning("not_traced", message))
