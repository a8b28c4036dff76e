"""The options of ``assay contention matrix``, and the victim–aggressor pairs of each block, in random order.

phase       aggressor   isolation of both   purpose
alone       –           full                the undisturbed time of the victim
again       –           full                the same once more: the difference is chance (A/A)
bare        –           gpu                 alone, but unpinned: the effect of pinning itself
naive       yes         gpu                 as processes are started by hand
isolated    yes         full                as far apart as this machine can keep them
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from assay.core.values import (
    HOST,
    Adaptive,
    Block,
    Cache,
    Done,
    InterferencePolicy,
    Role,
    Subject,
    Trial,
    Value,
)
from assay.experiments.budget import TrialWorkers, expected_trial_s
from assay.experiments.contention.options import Aggressor
from assay.experiments.contention.plan import block_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.core.values import Isolation


MatrixPhase = Literal["alone", "again", "bare", "naive", "isolated"]
ISOLATION_LEVELS: dict[MatrixPhase, Isolation] = {
    "alone": "full",
    "again": "full",
    "bare": "gpu",
    "naive": "gpu",
    "isolated": "full",
}
VICTIM, AGGRESSOR = "victim", "aggressor"
MAX_FAILURES = 2
"""A pair that failed in so many blocks, and well in none, is not tried again."""


class MatrixPair(NamedTuple):
    """A victim (by its place among the options) on a device in one phase; the aggressor by name, where there is one."""

    victim: int
    device: str
    phase: MatrixPhase
    aggressor: str | None = None


def matrix_pairs(options: MatrixOptions) -> tuple[MatrixPair, ...]:
    """Return everything that is measured in one block, in a plain order."""
    quiet: tuple[MatrixPhase, ...] = ("alone", "again", "bare")
    loud: tuple[MatrixPhase, ...] = ("naive", "isolated")
    return tuple(
        pair
        for victim in range(len(options.victims))
        for device in options.devices
        for pair in (
            *(MatrixPair(victim, device, phase) for phase in quiet),
            *(MatrixPair(victim, device, phase, a.name) for a in options.aggressors for phase in loud),
        )
    )


def pair_trial(options: MatrixOptions, pair: MatrixPair, number: int) -> Trial:
    """Return the trial of one pair in one block, counted from 1; victims in turns share theirs.

    The cores of all devices, and of aggressors wherever there will be one, are shared out together. They are the same
    in every trial, so that a victim has the same cores alone and beside an aggressor.
    """
    level = ISOLATION_LEVELS[pair.phase]
    subjects = options.victims if options.in_turns else (options.victims[pair.victim],)
    roles = [Role(name=VICTIM, subjects=subjects, devices=(pair.device,), isolation=level)]
    roles += [_aggressor_role(a, pair.device, level) for a in options.aggressors if a.name == pair.aggressor]
    start_s = TrialWorkers(tuple(subject for role in roles for subject in role.subjects), 1, 1).start_s
    locations = {aggressor.location for aggressor in options.aggressors}
    return Trial(
        block=block_name(number),
        roles=tuple(roles),
        schedule="together",
        mode=Adaptive(
            duration_s=options.duration_s + start_s,
            precision=None,
            cache=options.cache,
            timeout_s=options.timeout_s,
        ),
        settings={"phase": pair.phase, "aggressor": pair.aggressor},
        on_interference=options.on_interference,
        placed_with=(
            *options.devices,
            *([pair.device] if "device" in locations else []),
            *([HOST] if "host" in locations else []),
        ),
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def _aggressor_role(aggressor: Aggressor, device: str, level: Isolation) -> Role:
    """Return the role of an aggressor; on the victim's own device it is a second worker there."""
    on_host = aggressor.location == "host"
    return Role(
        name=AGGRESSOR,
        subjects=(aggressor.subject,),
        duty="load",
        devices=(HOST if on_host else device,),
        isolation=level,
        worker=0 if on_host else 1,
    )


def build_block(options: MatrixOptions, number: int, records: Iterable[Record] = ()) -> Block:
    """Return one block, its trials in random order, without what never worked in the blocks before."""
    trials = (pair_trial(options, pair, number) for pair in promising_pairs(options, number, records))
    unique_trials = list({trial.id: trial for trial in trials}.values())
    random.Random(f"{options.seed}/{number}").shuffle(unique_trials)  # noqa: S311 - an order is no secret
    why = f"every victim beside every aggressor, {number} of {options.repeat}"
    return Block(name=block_name(number), why=why, trials=tuple(unique_trials))


def promising_pairs(options: MatrixOptions, number: int, records: Iterable[Record]) -> list[MatrixPair]:
    """Return the pairs that are worth another try; a victim that cannot even be timed alone meets nobody."""
    states: dict[MatrixPair, list[str]] = defaultdict(list)
    planned = pairs_by_trial(options, number - 1)
    for record in records:
        for pair in planned.get(record.trial, ()):
            states[pair].append(record.status)
    worth = [m for m in matrix_pairs(options) if len(states[m]) < MAX_FAILURES or "ok" in states[m]]
    timed = {(m.victim, m.device) for m in worth if m.phase == "alone"}
    return [m for m in worth if (m.victim, m.device) in timed]


def pairs_by_trial(options: MatrixOptions, blocks: int) -> dict[str, list[MatrixPair]]:
    """Return the pairs of each trial of the first blocks; of victims in turns, several."""
    by_id: dict[str, list[MatrixPair]] = defaultdict(list)
    for number in range(1, blocks + 1):
        for pair in matrix_pairs(options):
            by_id[pair_trial(options, pair, number).id].append(pair)
    return dict(by_id)


def next_block(options: MatrixOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next block, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)
    done = len({record.block for record in all_records})
    if done >= options.repeat:
        return Done(why=f"all {options.repeat} blocks are measured")
    block = build_block(options, done + 1, all_records) if promising_pairs(options, done + 1, all_records) else None
    if block is None:
        return Done(why="no victim could be timed")
    block_s = sum(expected_trial_s(trial) for trial in block.trials)
    left_s = block_s * (options.repeat - done)
    if options.budget_s is not None:
        rest_s = options.budget_s - spent_trials_s(all_records)
        if done and longest_block_s(all_records) > rest_s:
            return Done(why=f"{done} of {options.repeat} blocks fill the budget of {options.budget_s:g} s")
        left_s = min(left_s, rest_s if done else max(rest_s, block_s))
    return block.model_copy(update={"left_s": left_s})


def spent_trials_s(records: Iterable[Record]) -> float:
    """Return how long the trials of these records took, starting their workers included."""
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def longest_block_s(records: Iterable[Record]) -> float:
    """Return how long the longest block took."""
    blocks: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        blocks[record.block].append(record)
    return max(map(spent_trials_s, blocks.values()), default=0.0)


class MatrixOptions(Value):
    """Every victim on every device meets every aggressor, with and without isolation, once in each block."""

    victims: tuple[Subject, ...] = Field(min_length=1)
    aggressors: tuple[Aggressor, ...] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    in_turns: bool = Field(default=False, description="All victims of a device in one process, in turns.")
    duration_s: float = Field(default=2.0, gt=0)
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=6, ge=1)
    budget_s: float | None = Field(default=None, gt=0, description="No block begins that would not fit any more.")
    minimum_effect: float = Field(default=0.02, gt=0, lt=1, description="Smaller slowdowns do not count.")
    on_interference: InterferencePolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0
