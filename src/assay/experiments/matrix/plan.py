"""Which victim meets which aggressor, how isolated, in which order.

phase       aggressor   isolation of both   what it is for
alone       –           full                what the victim takes undisturbed
again       –           full                the same once more: what differs here is chance
bare        –           gpu                 alone, but unpinned: what the level by itself changes
naive       yes         gpu                 as processes are started by hand
isolated    yes         full                as far apart as this machine can keep them
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

from assay.core.plan import HOST, TO_THE_END, Block, Done, Method, Role, Trial
from assay.experiments.contention.budget import Cast, trial_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.plan import Isolation
    from assay.core.results import Record
    from assay.experiments.aggressors import Aggressor
    from assay.experiments.matrix.options import MatrixOptions

Phase = Literal["alone", "again", "bare", "naive", "isolated"]
LEVELS: dict[Phase, Isolation] = {"alone": "full", "again": "full", "bare": "gpu", "naive": "gpu", "isolated": "full"}
VICTIM, AGGRESSOR = "victim", "aggressor"
TRIES = 2
"""A meeting that went wrong in so many blocks, and well in none, is not tried again."""


class Meeting(NamedTuple):
    """A victim (by its place among the options) on a device in one phase; the aggressor by name, where there is one."""

    victim: int
    device: str
    phase: Phase
    aggressor: str | None = None


def meetings(options: MatrixOptions) -> tuple[Meeting, ...]:
    """Return everything that is measured in one block, in a plain order."""
    quiet: tuple[Phase, ...] = ("alone", "again", "bare")
    loud: tuple[Phase, ...] = ("naive", "isolated")
    return tuple(
        meeting
        for victim in range(len(options.victims))
        for device in options.devices
        for meeting in (
            *(Meeting(victim, device, phase) for phase in quiet),
            *(Meeting(victim, device, phase, a.name) for a in options.aggressors for phase in loud),
        )
    )


def trial_of(options: MatrixOptions, meeting: Meeting, number: int) -> Trial:
    """Return the trial of one meeting in one block, counted from 1; victims in turns share theirs."""
    level = LEVELS[meeting.phase]
    subjects = options.victims if options.in_turns else (options.victims[meeting.victim],)
    roles = [Role(name=VICTIM, subjects=subjects, devices=(meeting.device,), isolation=level)]
    roles += [_aggressor(a, meeting.device, level) for a in options.aggressors if a.name == meeting.aggressor]
    return Trial(
        block=block_name(number),
        roles=tuple(roles),
        schedule="together",
        method=Method(
            duration_s=options.duration_s + start_s(roles),
            precision=TO_THE_END,
            cache=options.cache,
            timeout_s=options.timeout_s,
        ),
        settings={"phase": meeting.phase, "aggressor": meeting.aggressor},
        strangers=options.strangers,
        placed_with=places(options, meeting.device),
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def start_s(roles: Sequence[Role]) -> float:
    """Return until when the workers of these roles are ready, in seconds, as is usual; it is not timed."""
    return Cast(tuple(subject for role in roles for subject in role.subjects), 1, 1).start_s


def places(options: MatrixOptions, device: str) -> tuple[str, ...]:
    """Return whose cores are shared out together: those of all devices, and of aggressors wherever there will be one.

    They are the same in every trial, so that a victim has the same cores alone and beside an aggressor.
    """
    kinds = {aggressor.place for aggressor in options.aggressors}
    return (
        *options.devices,
        *([device] if "device" in kinds else []),
        *([HOST] if "host" in kinds else []),
    )


def _aggressor(aggressor: Aggressor, device: str, level: Isolation) -> Role:
    """Return the role of an aggressor; on the victim's own device it is a second worker there."""
    on_host = aggressor.place == "host"
    return Role(
        name=AGGRESSOR,
        subjects=(aggressor.subject,),
        duty="load",
        devices=(HOST if on_host else device,),
        isolation=level,
        worker=0 if on_host else 1,
    )


def block_name(number: int) -> str:
    """Return the name of a block, counted from 1."""
    return f"block-{number}"


def block_of(options: MatrixOptions, number: int, records: Iterable[Record] = ()) -> Block:
    """Return one block, its trials in random order, without what never worked in the blocks before."""
    trials = (trial_of(options, meeting, number) for meeting in hopeful(options, number, records))
    unique_trials = list({trial.id: trial for trial in trials}.values())
    random.Random(f"{options.seed}/{number}").shuffle(unique_trials)  # noqa: S311 - an order is no secret
    why = f"every victim beside every aggressor, {number} of {options.repeat}"
    return Block(name=block_name(number), why=why, trials=tuple(unique_trials))


def hopeful(options: MatrixOptions, number: int, records: Iterable[Record]) -> list[Meeting]:
    """Return the meetings that are worth another try; a victim that cannot even be timed alone meets nobody."""
    states: dict[Meeting, list[str]] = defaultdict(list)
    planned = by_trial(options, number - 1)
    for record in records:
        for meeting in planned.get(record.trial, ()):
            states[meeting].append(record.status)
    worth = [m for m in meetings(options) if len(states[m]) < TRIES or "ok" in states[m]]
    timed = {(m.victim, m.device) for m in worth if m.phase == "alone"}
    return [m for m in worth if (m.victim, m.device) in timed]


def by_trial(options: MatrixOptions, blocks: int) -> dict[str, list[Meeting]]:
    """Return the meetings of each trial of the first blocks; of victims in turns, several."""
    by_id: dict[str, list[Meeting]] = defaultdict(list)
    for number in range(1, blocks + 1):
        for meeting in meetings(options):
            by_id[trial_of(options, meeting, number).id].append(meeting)
    return dict(by_id)


def next_step(options: MatrixOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next block, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)
    done = len({record.block for record in all_records})
    if done >= options.repeat:
        return Done(why=f"all {options.repeat} blocks are measured")
    block = block_of(options, done + 1, all_records) if hopeful(options, done + 1, all_records) else None
    if block is None:
        return Done(why="no victim could be timed")
    block_s = sum(trial_s(trial) for trial in block.trials)
    left_s = block_s * (options.repeat - done)
    if options.budget_s is not None:
        rest_s = options.budget_s - spent_s(all_records)
        if done and longest_so_far_s(all_records) > rest_s:
            return Done(why=f"{done} of {options.repeat} blocks fill the budget of {options.budget_s:g} s")
        left_s = min(left_s, rest_s if done else max(rest_s, block_s))
    return block.model_copy(update={"left_s": left_s})


def spent_s(records: Iterable[Record]) -> float:
    """Return how long the trials of these records took, starting their workers included."""
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def longest_so_far_s(records: Iterable[Record]) -> float:
    """Return how long the longest block took."""
    blocks: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        blocks[record.block].append(record)
    return max(map(spent_s, blocks.values()), default=0.0)
