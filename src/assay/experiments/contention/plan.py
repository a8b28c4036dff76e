"""Plan the blocks of the experiment.

Every phase once per block, each device alone in two of them, all concurrent in two.

    block-1   naive ▸ baseline ▸ isolated ▸ again      in random order
    block-2   again ▸ …
    retimed   every configuration that was picked, alone, interleaved

The order of the phases is random and balanced over blocks: over as many blocks as there are phases, each phase has each
position once and follows each other phase once (Williams design), so that neither drift nor carry-over favours one.
Before the first block, subjects whose kernels are compiled are tuned once, so that no phase pays for compilation. A
tuner whose search takes a fixed time does not need it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from assay.core.format import format_duration
from assay.core.values import HOST, Adaptive, Block, Role, Trial, Tuner
from assay.experiments.budget import (
    BLOCKS_FOR_DURATION,
    BUDGET_S,
    COMPILED_IMPLS,
    MIN_BLOCKS,
    MIN_TIMING_S,
    PLANNED_BLOCKS,
    QUICK_BUDGET_S,
    QUICK_TUNED_BLOCKS,
    RETIMING_SHARE,
    TRIAL_OVERHEAD_S,
    WARM_UP_SHARE,
    TrialWorkers,
    expected_trial_s,
    plan_durations,
    split_duration,
)
from assay.experiments.contention.options import CONCURRENT_PHASES, PHASE_LABELS
from assay.tuners.base import shortest_search_s

if TYPE_CHECKING:
    from assay.core.values import Isolation
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine


ItemT = TypeVar("ItemT")


def williams_design(n: int) -> list[list[int]]:
    """Return n rows of the numbers below n, for an even n: balanced for place and for what stands before."""
    first = [(position + 1) // 2 if position % 2 else (n - position // 2) % n for position in range(n)]
    return [[(number + row) % n for number in first] for row in range(n)]


def phase_order(phases: tuple[ItemT, ...], block: int, seed: int) -> tuple[ItemT, ...]:
    """Return the phases in the order of a block, counted from 1; the same seed gives the same order."""
    rows = williams_design(len(phases))
    group, position = divmod(block - 1, len(rows))
    chance = random.Random(f"{seed}/{group}")  # noqa: S311 - an order is no secret
    names = list(phases)
    chance.shuffle(names)
    chance.shuffle(rows)
    return tuple(names[number] for number in rows[position])


WARM_UP = "warm-up"


def warm_up_trials(machine: Machine, options: ContentionOptions, block: str) -> list[Trial]:
    """Return a trial for each subject that is compiled when it is tuned, on the first device of each model."""
    if options.tuner is None or options.search_s > 0:
        return []
    pairs = [
        (index, device)
        for index, subject in enumerate(options.subjects)
        if options.tunes(index) and subject.impl in COMPILED_IMPLS
        for device in first_device_per_model(machine, options)
    ]
    trials = []
    for index, device in pairs:
        subject = options.subjects[index]
        budget_s = max(options.tuning_s, WARM_UP_SHARE * options.budget_s / len(pairs))
        tuner = Tuner(name=options.tuner, budget_s=budget_s, command=options.tuner_command)
        role = Role(name=device, subjects=(subject,), devices=(device,), isolation="full", tuner=tuner)
        start_s = TrialWorkers((subject,), 1, len(machine.cores)).start_s
        trials.append(
            Trial(
                block=block,
                roles=(role,),
                mode=Adaptive(duration_s=start_s + MIN_TIMING_S, timeout_s=options.timeout_s),
                settings={"phase": WARM_UP},
                on_interference=options.on_interference,
                placed_with=options.placement_group,
                cpu_groups=options.cpu_groups,
                cooldown_s=options.cooldown_s,
                seed=options.seed,
            )
        )
    return trials


def first_device_per_model(machine: Machine, options: ContentionOptions) -> list[str]:
    """Return the first device of each model of GPU; of groups of cores the first."""
    names = {f"cuda:{gpu.index}": gpu.name for gpu in machine.gpus}
    by_model: dict[str | None, str] = {}
    for device in options.devices:
        by_model.setdefault(names.get(device.partition("/")[0]), device)
    return list(by_model.values())


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


def build_block(machine: Machine, options: ContentionOptions, number: int) -> Block:
    """Return a block with its trials in the order they are measured."""
    order = phase_order(options.phases, number, options.seed)
    chance = random.Random(f"{options.seed}/{number}")  # noqa: S311 - an order is no secret
    trials = warm_up_trials(machine, options, block_name(number)) if number == 1 else []
    for phase in order:
        in_phase = _phase_trials(machine, options, number, phase, chance)
        chance.shuffle(in_phase)
        trials += in_phase
    words = " ▸ ".join(PHASE_LABELS[phase] for phase in order)
    return Block(name=block_name(number), why=words, trials=tuple(trials))


def trial_workers(machine: Machine, options: ContentionOptions) -> list[TrialWorkers]:
    """Return whose start each trial of a block waits for."""
    cores = len(machine.cores)
    loads = tuple(load.subject for load in options.aggressors)
    casts: list[TrialWorkers] = []
    for phase in options.phases:
        for subject in options.subjects:
            if phase in CONCURRENT_PHASES:
                casts.append(TrialWorkers((subject, *loads), options.processes, cores))
            elif options.started_together:
                casts.append(TrialWorkers((subject,), len(options.devices), cores, in_turn=len(options.devices)))
            else:
                casts += [TrialWorkers((subject,), 1, cores)] * len(options.devices)
    return casts


def _phase_trials(
    machine: Machine, options: ContentionOptions, number: int, phase: Phase, chance: random.Random
) -> list[Trial]:
    """Return the trials of a phase: one a subject side by side, one a subject and device alone.

    Alone, devices whose workers start together share a trial, and are timed one after another in it.
    """
    trials: list[Trial] = []
    for index in range(len(options.subjects)):
        if phase in CONCURRENT_PHASES:
            level: Isolation = "gpu" if phase == "naive" else "full"
            timed = [
                _timed_role(options, number, index, (device, worker), level)
                for device in options.devices
                for worker in range(options.workers)
            ]
            trials.append(_phase_trial(machine, options, number, phase, (*timed, *_load_roles(options, level))))
        else:
            alone = [_timed_role(options, number, index, (device, 0), "full") for device in options.devices]
            if options.started_together:
                chance.shuffle(alone)
            role_sets = [tuple(alone)] if options.started_together else [(role,) for role in alone]
            trials += [_phase_trial(machine, options, number, phase, role_set) for role_set in role_sets]
    return trials


def _timed_role(options: ContentionOptions, block: int, index: int, slot: tuple[str, int], level: Isolation) -> Role:
    device, worker = slot
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


def _load_roles(options: ContentionOptions, level: Isolation) -> list[Role]:
    roles: list[Role] = []
    for number, load in enumerate(options.aggressors):
        for device in (HOST,) if load.location == "host" else options.devices:
            name = f"{load.subject.workload} on {device}"
            is_taken = any(role.name == name for role in roles)
            roles.append(
                Role(
                    name=f"{name} ({number + 1})" if is_taken else name,
                    subjects=(load.subject,),
                    duty="load",
                    devices=(device,),
                    isolation=level,
                    worker=_load_worker_index(options, roles, device),
                )
            )
    return roles


def _load_worker_index(options: ContentionOptions, roles: list[Role], device: str) -> int:
    """Return a load's number among the processes of its device, behind the timed ones."""
    before = sum(device in role.devices for role in roles)
    return before if device == HOST else options.workers + before


def _phase_trial(
    machine: Machine, options: ContentionOptions, number: int, phase: Phase, roles: tuple[Role, ...]
) -> Trial:
    cast = TrialWorkers(tuple(role.subjects[0] for role in roles), len(roles), len(machine.cores))
    duration_s = options.timing_s * (1 if phase in CONCURRENT_PHASES else len(roles)) + cast.start_s
    return Trial(
        block=block_name(number),
        roles=roles,
        schedule="together" if phase in CONCURRENT_PHASES else "alone",
        mode=Adaptive(duration_s=duration_s, precision=None, timeout_s=options.timeout_s),
        settings={"phase": phase},
        on_interference=options.on_interference,
        placed_with=options.placement_group,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed,
    )


def fit_to_budget(
    machine: Machine, options: ContentionOptions, *, budget_s: float | None, duration_s: float | None, quick: bool
) -> ContentionOptions:
    """Return the options with a budget, and with the durations that follow from it unless one is given.

    A duration alone asks for a few blocks of trials that long, however long that takes. A tuner that cannot be given a
    budget tunes for as long as its search takes.
    """
    on_cores = all(device.startswith("cpu") for device in options.devices)
    options = options.model_copy(update={"started_together": on_cores and len(options.devices) > 1})
    casts, tuned = trial_workers(machine, options), options.tuner is not None
    blocks = options.repeat or PLANNED_BLOCKS
    whole_s = budget_s or (QUICK_BUDGET_S if quick else BUDGET_S)
    repeat = options.repeat
    if duration_s is None:
        trial_durations = plan_durations(
            casts, budget_s=whole_s, blocks=blocks, cooldown_s=options.cooldown_s, tuned=tuned
        )
    else:
        trial_durations = split_duration(duration_s - min(cast.start_s for cast in casts), tuned=tuned)
        repeat = repeat or (None if budget_s is not None else BLOCKS_FOR_DURATION)
    search_s = shortest_search_s(options.tuner) if options.tuner is not None else 0.0
    updates = {
        "budget_s": whole_s,
        "keeps_to_budget": budget_s is not None or duration_s is None,
        "repeat": repeat,
        "tuned_blocks": QUICK_TUNED_BLOCKS if quick and on_cores and duration_s is None else None,
        "timing_s": trial_durations.timing_s,
        "tuning_s": max(trial_durations.tuning_s, search_s),
        "search_s": search_s,
    }
    return options.model_copy(update=updates)


def predict_overrun(machine: Machine, options: ContentionOptions) -> str | None:
    """Return in a sentence by how much the fewest blocks that are measured will overrun the budget; null where not."""
    blocks = options.repeat or MIN_BLOCKS
    first, later = build_block(machine, options, 1), build_block(machine, options, 2)
    later_s = sum(map(expected_trial_s, later.trials))
    whole_s = sum(map(expected_trial_s, first.trials)) + (blocks - 1) * later_s + expected_retiming_s(machine, options)
    if not options.keeps_to_budget or whole_s <= options.budget_s:
        return None
    many = f"{blocks} block{'' if blocks == 1 else 's'}"
    reason = f"{many} {'were asked for' if options.repeat is not None else 'are the fewest that tell anything'}"
    block_text = (
        f"{len(later.trials)} trials of about {format_duration(later_s / len(later.trials))}, starting included"
    )
    excess = (
        f"{format_duration(whole_s - options.budget_s)} more than the budget of {format_duration(options.budget_s)}"
    )
    return f"This will take about {format_duration(whole_s)}, {excess}: {reason}, each of {block_text}."


def expected_retiming_s(machine: Machine, options: ContentionOptions) -> float:
    """Return how long timing the picks again takes, in seconds, as far as can be foreseen."""
    tuned = [subject for index, subject in enumerate(options.subjects) if options.tunes(index)]
    rounds = len(tuned) * len(options.devices)
    if not rounds:
        return 0.0
    beside_s = TRIAL_OVERHEAD_S + options.cooldown_s
    share_s = RETIMING_SHARE * options.budget_s / rounds - beside_s
    least = [2 * (TrialWorkers((subject,), 1, len(machine.cores)).start_s + MIN_TIMING_S) for subject in tuned]
    return len(options.devices) * sum(max(share_s, least_s) + beside_s for least_s in least)
