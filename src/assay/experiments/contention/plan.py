"""The blocks of the experiment: every phase once, each device alone in two of them and all side by side in two.

block-1   naive ▸ baseline ▸ isolated ▸ again      the order by lot
block-2   again ▸ …
retimed   every configuration that was picked, in quiet, in turns
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from assay.core.plan import HOST, TO_THE_END, Block, Method, Role, Trial, Tuner
from assay.experiments.contention.budget import Cast
from assay.experiments.contention.options import CROWDED, WORDS
from assay.experiments.contention.order import order_of
from assay.experiments.contention.warm import warming

if TYPE_CHECKING:
    from assay.core.plan import Isolation
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine


def block_name(number: int) -> str:
    """Return the name of a block, counted from 1."""
    return f"block-{number}"


def block_number(name: str) -> int | None:
    """Return the number of a block; null for one that is not among the repeats."""
    stem, _, number = name.rpartition("-")
    return int(number) if stem == "block" and number.isdigit() else None


def role_name(device: str, worker: int, workers: int) -> str:
    """Return how a worker is called: by its device, and by its number where there are several."""
    return device if workers == 1 else f"{device} worker {worker + 1}"


def block_of(machine: Machine, options: ContentionOptions, number: int) -> Block:
    """Return a block with its trials in the order they are measured."""
    order = order_of(options.phases, number, options.seed)
    chance = random.Random(f"{options.seed}/{number}")  # noqa: S311 - an order is no secret
    trials = warming(machine, options, block_name(number)) if number == 1 else []
    for phase in order:
        in_phase = _trials(machine, options, number, phase, chance)
        chance.shuffle(in_phase)
        trials += in_phase
    words = " ▸ ".join(WORDS[phase] for phase in order)
    return Block(name=block_name(number), why=words, trials=tuple(trials))


def casts_of(machine: Machine, options: ContentionOptions) -> list[Cast]:
    """Return whose start each trial of a block waits for."""
    cores = len(machine.cores)
    loads = tuple(load.subject for load in options.aggressors)
    casts: list[Cast] = []
    for phase in options.phases:
        for subject in options.subjects:
            if phase in CROWDED:
                casts.append(Cast((subject, *loads), options.processes, cores))
            elif options.started_together:
                casts.append(Cast((subject,), len(options.devices), cores, in_turn=len(options.devices)))
            else:
                casts += [Cast((subject,), 1, cores)] * len(options.devices)
    return casts


def _trials(
    machine: Machine, options: ContentionOptions, number: int, phase: Phase, chance: random.Random
) -> list[Trial]:
    """Return the trials of a phase: one a subject side by side, one a subject and device alone.

    Alone, devices whose workers start together share a trial, and are timed one after another in it.
    """
    trials: list[Trial] = []
    for index in range(len(options.subjects)):
        if phase in CROWDED:
            level: Isolation = "gpu" if phase == "naive" else "full"
            timed = [
                _timed(options, number, index, (device, worker), level)
                for device in options.devices
                for worker in range(options.workers)
            ]
            trials.append(_trial(machine, options, number, phase, (*timed, *_loads(options, level))))
        else:
            alone = [_timed(options, number, index, (device, 0), "full") for device in options.devices]
            if options.started_together:
                chance.shuffle(alone)
            role_sets = [tuple(alone)] if options.started_together else [(role,) for role in alone]
            trials += [_trial(machine, options, number, phase, role_set) for role_set in role_sets]
    return trials


def _timed(options: ContentionOptions, block: int, index: int, place: tuple[str, int], level: Isolation) -> Role:
    device, worker = place
    tuner = None
    if options.tuner is not None and options.tunes(index, block):
        tuner = Tuner(name=options.tuner, budget_s=options.tuning_s, command=options.tuner_command)
    return Role(
        name=role_name(device, worker, options.workers),
        subjects=(options.subjects[index],),
        devices=(device,),
        isolation=level,
        worker=worker,
        tuner=tuner,
    )


def _loads(options: ContentionOptions, level: Isolation) -> list[Role]:
    roles: list[Role] = []
    for number, load in enumerate(options.aggressors):
        for device in (HOST,) if load.place == "host" else options.devices:
            name = f"{load.subject.workload} on {device}"
            is_taken = any(role.name == name for role in roles)
            roles.append(
                Role(
                    name=f"{name} ({number + 1})" if is_taken else name,
                    subjects=(load.subject,),
                    duty="load",
                    devices=(device,),
                    isolation=level,
                    worker=_worker_beside(options, roles, device),
                )
            )
    return roles


def _worker_beside(options: ContentionOptions, roles: list[Role], device: str) -> int:
    """Return a load's number among the processes of its device, behind the timed ones."""
    before = sum(device in role.devices for role in roles)
    return before if device == HOST else options.workers + before


def _trial(machine: Machine, options: ContentionOptions, number: int, phase: Phase, roles: tuple[Role, ...]) -> Trial:
    cast = Cast(tuple(role.subjects[0] for role in roles), len(roles), len(machine.cores))
    duration_s = options.timing_s * (1 if phase in CROWDED else len(roles)) + cast.start_s
    return Trial(
        block=block_name(number),
        roles=roles,
        schedule="together" if phase in CROWDED else "alone",
        method=Method(duration_s=duration_s, precision=TO_THE_END, timeout_s=options.timeout_s),
        settings={"phase": phase},
        strangers=options.strangers,
        placed_with=options.places,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed,
    )
