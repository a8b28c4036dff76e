"""Plan the blocks: every phase once per block, each device alone in two of them, all concurrent in two.

    block-1   naive ▸ baseline ▸ isolated ▸ again      in random order
    block-2   again ▸ …
    retimed   every configuration that was picked, alone, interleaved

The order of the phases is random and balanced over blocks: over as many blocks as there are phases, each phase has each
position once and follows each other phase once (Williams design), so that neither drift nor carry-over favours one.
Before the first block, subjects whose kernels are compiled are tuned once, so that no phase pays for compilation. A
tuner whose search takes a fixed time does not need it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from assay.core.format import format_count, format_duration
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
from assay.tuners.base import OWN_SPACE_TUNERS, shortest_search_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from assay.core.values import Isolation, Params, Subject
    from assay.experiments.contention.layout import TunerPick
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine


ItemT = TypeVar("ItemT")


def phase_order(phases: tuple[ItemT, ...], block: int, seed: int) -> tuple[ItemT, ...]:
    """Return the phases in the order of a block, counted from 1; the same seed gives the same order."""
    n = len(phases)
    first = [(position + 1) // 2 if position % 2 else (n - position // 2) % n for position in range(n)]
    rows = [[(number + row) % n for number in first] for row in range(n)]
    group, position = divmod(block - 1, n)
    chance = random.Random(f"{seed}/{group}")  # noqa: S311 - an order is no secret
    names = list(phases)
    chance.shuffle(names)
    chance.shuffle(rows)
    return tuple(names[number] for number in rows[position])


WARM_UP = "warm-up"


def warm_up_trials(machine: Machine, options: ContentionOptions, block: str) -> list[Trial]:
    """Return a trial for each subject that is compiled when it is tuned, on the first device of each GPU model."""
    if options.tuner is None or options.search_s > 0:
        return []
    models = {f"cuda:{gpu.index}": gpu.name for gpu in machine.gpus}
    first_of_model: dict[str | None, str] = {}
    for device in options.devices:
        first_of_model.setdefault(models.get(device.partition("/")[0]), device)
    pairs = [
        (subject, device)
        for index, subject in enumerate(options.subjects)
        if options.tunes(index) and subject.impl in COMPILED_IMPLS
        for device in first_of_model.values()
    ]
    budget_s = max(options.tuning_s, WARM_UP_SHARE * options.budget_s / max(1, len(pairs)))
    tuner = Tuner(name=options.tuner, budget_s=budget_s, command=options.tuner_command)
    trials = []
    for subject, device in pairs:
        role = Role(name=device, subjects=(subject,), devices=(device,), isolation="full", tuner=tuner)
        duration_s = TrialWorkers((subject,), 1, len(machine.cores)).start_s + MIN_TIMING_S
        mode = Adaptive(duration_s=duration_s, timeout_s=options.timeout_s)
        trials.append(_build_trial(options, block, WARM_UP, (role,), mode=mode))
    return trials


def _build_trial(options: ContentionOptions, block: str, phase: str, roles: tuple[Role, ...], **more: Any) -> Trial:
    """Return a trial with the settings that all have in common."""
    return Trial(
        block=block,
        roles=roles,
        settings={"phase": phase},
        on_interference=options.on_interference,
        placed_with=options.placement_group,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        seed=options.seed,
        **more,
    )


def block_name(number: int) -> str:
    """Return the name of a block, counted from 1."""
    return f"block-{number}"


def block_number(name: str) -> int | None:
    """Return the number of a block; null for one that is not among the repeats."""
    stem, _, number = name.rpartition("-")
    return int(number) if stem == "block" and number.isdigit() else None


def role_name(device: str, worker: int, workers: int) -> str:
    """Return the name of a worker: its device, and its number where there are several."""
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


def _phase_trials(
    machine: Machine, options: ContentionOptions, number: int, phase: Phase, chance: random.Random
) -> list[Trial]:
    """Return the trials of a phase: one per subject side by side, one per subject and device alone.

    Alone, devices whose workers start together share a trial, and are timed one after another in it.
    """
    concurrent = phase in CONCURRENT_PHASES
    level: Isolation = "gpu" if phase == "naive" else "full"
    trials: list[Trial] = []
    for index in range(len(options.subjects)):
        timed = [
            _timed_role(options, number, index, (device, worker), level)
            for device in options.devices
            for worker in range(options.workers if concurrent else 1)
        ]
        if concurrent:
            role_sets = [(*timed, *_load_roles(options, level))]
        elif options.started_together:
            chance.shuffle(timed)
            role_sets = [tuple(timed)]
        else:
            role_sets = [(role,) for role in timed]
        for roles in role_sets:
            workers = TrialWorkers(tuple(role.subjects[0] for role in roles), len(roles), len(machine.cores))
            duration_s = options.timing_s * (1 if concurrent else len(roles)) + workers.start_s
            trials.append(
                _build_trial(
                    options,
                    block_name(number),
                    phase,
                    roles,
                    schedule="together" if concurrent else "alone",
                    mode=Adaptive(duration_s=duration_s, precision=None, timeout_s=options.timeout_s),
                    retakes=options.retakes,
                )
            )
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
    """Return the roles of the aggressors; on a device their worker numbers follow those of the timed workers."""
    roles: list[Role] = []
    for number, load in enumerate(options.aggressors):
        for device in (HOST,) if load.location == "host" else options.devices:
            name = f"{load.subject.workload} on {device}"
            is_taken = any(role.name == name for role in roles)
            before = sum(device in role.devices for role in roles)
            roles.append(
                Role(
                    name=f"{name} ({number + 1})" if is_taken else name,
                    subjects=(load.subject,),
                    duty="load",
                    devices=(device,),
                    isolation=level,
                    worker=before if device == HOST else options.workers + before,
                )
            )
    return roles


def fit_to_budget(
    machine: Machine, options: ContentionOptions, *, budget_s: float | None, duration_s: float | None, quick: bool
) -> ContentionOptions:
    """Return the options with a budget, and with the durations that follow from it unless one is given.

    A duration alone asks for a few blocks of trials that long, however long that takes. A tuner that cannot be given a
    budget tunes for as long as its search takes.
    """
    on_cores = all(device.startswith("cpu") for device in options.devices)
    options = options.model_copy(update={"started_together": on_cores and len(options.devices) > 1})
    casts, tuned = _trial_workers(machine, options), options.tuner is not None
    whole_s = budget_s or (QUICK_BUDGET_S if quick else BUDGET_S)
    repeat = options.repeat
    if duration_s is None:
        trial_durations = plan_durations(
            casts, budget_s=whole_s, blocks=repeat or PLANNED_BLOCKS, cooldown_s=options.cooldown_s, tuned=tuned
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


def _trial_workers(machine: Machine, options: ContentionOptions) -> list[TrialWorkers]:
    """Return the workers whose start each trial of a block waits for."""
    cores, devices = len(machine.cores), len(options.devices)
    loads = tuple(load.subject for load in options.aggressors)
    casts: list[TrialWorkers] = []
    for phase in options.phases:
        for subject in options.subjects:
            if phase in CONCURRENT_PHASES:
                casts.append(TrialWorkers((subject, *loads), options.processes, cores))
            elif options.started_together:
                casts.append(TrialWorkers((subject,), devices, cores, in_turn=devices))
            else:
                casts += [TrialWorkers((subject,), 1, cores)] * devices
    return casts


def predict_overrun(machine: Machine, options: ContentionOptions) -> str | None:
    """Return in a sentence by how much the fewest blocks that are measured will overrun the budget; null where not."""
    blocks = options.repeat or MIN_BLOCKS
    first, later = build_block(machine, options, 1), build_block(machine, options, 2)
    later_s = sum(map(expected_trial_s, later.trials))
    whole_s = sum(map(expected_trial_s, first.trials)) + (blocks - 1) * later_s + expected_retiming_s(machine, options)
    if not options.keeps_to_budget or whole_s <= options.budget_s:
        return None
    reason = "were asked for" if options.repeat is not None else "are the fewest that tell anything"
    return (
        f"This will take about {format_duration(whole_s)}, {format_duration(whole_s - options.budget_s)} more than the "
        f"budget of {format_duration(options.budget_s)}: {format_count(blocks, 'block')} {reason}, each of "
        f"{len(later.trials)} trials of about {format_duration(later_s / len(later.trials))}, starting included."
    )


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


RETIMED = "retimed"
RETIMING_RESTARTS = 3
MIN_CONFIG_S = 0.05
"""For each configuration in each process."""
MAX_RETIMED_CONFIGS = 24
"""Configurations that are timed again at most: those that were picked most often."""


_SORTED_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def config_key(config: Params) -> str:
    """Return a configuration as text, the same for the same one."""
    return _SORTED_JSON.encode(config)


def _retiming_candidates(options: ContentionOptions, choices: Sequence[TunerPick], subject: int) -> list[Params | None]:
    """Return the default and every configuration that was picked, those picked most often first after it.

    The default is null where a tuner draws configurations from a space of its own: the workload then has a default that
    it does not name. What a command chose is timed again only where the workload knows its settings: it may have tuned
    something else.
    """
    default = options.subjects[subject].config
    if default is None and options.tuner not in OWN_SPACE_TUNERS:
        return []
    configs = [
        choice.config
        for choice in choices
        if choice.slot.subject == subject and choice.config is not None
        if options.tuner != "command" or choice.config.keys() <= (default or {}).keys()
    ]
    by_key = {config_key(config): config for config in configs}
    counts = Counter(map(config_key, configs))
    if default is not None:
        by_key.pop(config_key(default), None)
    others = [by_key[key] for key in sorted(by_key, key=lambda key: (-counts[key], key))]
    return [default, *others][:MAX_RETIMED_CONFIGS] if configs else []


def retiming_block(machine: Machine, options: ContentionOptions, choices: Sequence[TunerPick]) -> Block | None:
    """Return the block that times the picks alone and interleaved; null where nothing was picked."""
    chosen = {index: _retiming_candidates(options, choices, index) for index in range(len(options.subjects))}
    rounds = [(index, device) for index, configs in chosen.items() if configs for device in options.devices]
    if not rounds:
        return None
    each_s = RETIMING_SHARE * options.budget_s / len(rounds) - TRIAL_OVERHEAD_S - options.cooldown_s
    trials = []
    for index, device in rounds:
        subjects = tuple(options.subjects[index].model_copy(update={"config": c}) for c in chosen[index])
        trials.append(_retiming_trial(options, device, subjects, each_s, len(machine.cores)))
    count = sum(len(configs) for configs in chosen.values())
    why = f"{count} configurations that were picked, in quiet and in turns"
    return Block(name=RETIMED, why=why, trials=tuple(trials))


def _retiming_trial(
    options: ContentionOptions, device: str, subjects: tuple[Subject, ...], each_s: float, cores: int
) -> Trial:
    role = Role(name=role_name(device, 0, options.workers), subjects=subjects, devices=(device,), isolation="full")
    least_s = TrialWorkers(subjects[:1], 1, cores).start_s + max(MIN_TIMING_S, MIN_CONFIG_S * len(subjects))
    mode = Adaptive(duration_s=max(each_s, 2 * least_s), precision=None, timeout_s=options.timeout_s)
    return _build_trial(
        options, RETIMED, RETIMED, (role,), mode=mode, restarts=RETIMING_RESTARTS, retakes=options.retakes
    )
