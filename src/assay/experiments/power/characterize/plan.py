"""Trials, repeats, and when it is done: every case once in each repeat, in an order drawn by lot.

In every trial calls follow one another without a pause, once clocks and heat are steady, and everybody has the cores
it has in every other trial. A repeat has a trial in which all devices are idle: what they draw then stands beside
what they draw under load.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

from assay.core.plan import Block, Done, Method, Role, Trial
from assay.experiments.contention.budget import BESIDE_S
from assay.experiments.matrix.plan import longest_so_far_s, spent_s
from assay.experiments.power.cases import IDLE
from assay.experiments.power.characterize.placing import NoRoom, places
from assay.experiments.run.plan import start_up_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.experiments.power.characterize.options import Case, CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.machine.model import Machine

TRIES = 2
"""What went wrong in so many repeats, and well in none, is not tried again."""


def is_idle(case: Case) -> bool:
    """Return whether a case is the baseline: nothing is done."""
    return case.base.subject.workload == IDLE and not case.noise


def placed(machine: Machine, options: CharacterizeOptions, repeat: int) -> tuple[Placed, ...]:
    """Return all that is measured in one repeat, in the order of the file."""
    placed_cases: list[Placed] = []
    for case in options.cases:
        if repeat <= case.repeats:
            try:
                placed_cases += places(machine, options, case, repeat)
            except NoRoom:
                continue
    return tuple(placed_cases)


def trial_of(options: CharacterizeOptions, where: Placed) -> Trial:
    """Return the trial of one case on its devices."""
    case, roles = where.case, _roles(options, where)
    return Trial(
        block=block_name(where.repeat),
        roles=roles,
        schedule="together" if len(where.base) > 1 else "alone",
        method=Method(
            duration_s=case.duration_s,
            continuous=True,
            settle_s=case.settle_s,
            timeout_s=options.timeout_s,
        ),
        restarts=case.restarts,
        settings={"phase": case.name},
        strangers=options.strangers,
        placed_with=_places_held(options),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + where.repeat - 1,
    )


def _roles(options: CharacterizeOptions, where: Placed) -> tuple[Role, ...]:
    """Return who is timed, named by the device, and who makes a load, named by what it is and where."""
    roles = [
        Role(name=device, subjects=(where.case.base.subject,), devices=(device,), isolation=options.isolation)
        for device in where.base
    ]
    for load in where.noise:
        name = f"{load.part.subject.label} on {load.device}"
        others = sum(role.name.startswith(name) for role in roles)
        roles.append(
            Role(
                name=f"{name} ({others + 1})" if others else name,
                subjects=(load.part.subject,),
                duty="load",
                devices=(load.device,),
                isolation=options.isolation,
                worker=sum(load.device in role.devices for role in roles),
            )
        )
    return tuple(roles)


def _places_held(options: CharacterizeOptions) -> tuple[str, ...]:
    """Return whose cores are shared out together: the same in every trial, with room for loads on the same device."""
    most = max(sum(part.placement == "same" for part in case.noise) for case in options.cases)
    return options.devices * (1 + most)


def block_name(repeat: int) -> str:
    """Return the name of a repeat, counted from 1."""
    return f"repeat-{repeat}"


def trial_s(trial: Trial) -> float:
    """Return at most how long a trial takes, in seconds, as far as can be foreseen."""
    settle_s = trial.restarts * (trial.method.settle_s or 0.0)
    return trial.method.duration_s + settle_s + start_up_s(trial) + BESIDE_S


def block_of(
    machine: Machine, options: CharacterizeOptions, repeat: int, records: Iterable[Record] = ()
) -> Block | None:
    """Return one repeat, its trials in random order; null where nothing is left that may work."""
    hopeless = _hopeless(machine, options, repeat, records)
    trials = [
        trial_of(options, placed_case)
        for placed_case in placed(machine, options, repeat)
        if _key(placed_case) not in hopeless
    ]
    if not trials:
        return None
    random.Random(f"{options.seed}/{repeat}").shuffle(trials)  # noqa: S311 - an order is no secret
    reason = f"every case, every device in turn, {repeat} of {options.repeats}"
    return Block(name=block_name(repeat), why=reason, trials=tuple(trials))


def _key(where: Placed) -> tuple[str, tuple[str, ...]]:
    return where.case.name, tuple(sorted(where.base))


def _hopeless(
    machine: Machine, options: CharacterizeOptions, repeat: int, records: Iterable[Record]
) -> set[tuple[str, tuple[str, ...]]]:
    """Return the cases on those devices on which they went wrong again and again."""
    cases = by_trial(machine, options, repeat - 1)
    states: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for record in records:
        if record.trial in cases:
            states[_key(cases[record.trial])].append(record.status)
    return {key for key, statuses in states.items() if len(statuses) >= TRIES and "ok" not in statuses}


def by_trial(machine: Machine, options: CharacterizeOptions, repeats: int) -> dict[str, Placed]:
    """Return what each trial of the first repeats is, by its id."""
    return {
        trial_of(options, placed_case).id: placed_case
        for repeat in range(1, repeats + 1)
        for placed_case in placed(machine, options, repeat)
    }


def next_step(machine: Machine, options: CharacterizeOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next repeat, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)
    done = len({record.block for record in all_records})
    if done >= options.repeats:
        return Done(why=f"all {options.repeats} repeats are measured")
    block = block_of(machine, options, done + 1, all_records)
    if block is None:
        return Done(why="no case is left that may work" if all_records else "no case fits these devices")
    left_s = sum(_repeat_s(machine, options, repeat) for repeat in range(done + 1, options.repeats + 1))
    if options.budget_s is not None:
        rest_s = options.budget_s - spent_s(all_records)
        if done and longest_so_far_s(all_records) > rest_s:
            return Done(why=f"{done} of {options.repeats} repeats fill the budget of {options.budget_s:g} s")
        left_s = min(left_s, max(rest_s, sum(map(trial_s, block.trials))))
    return block.model_copy(update={"left_s": left_s})


def _repeat_s(machine: Machine, options: CharacterizeOptions, repeat: int) -> float:
    return sum(trial_s(trial_of(options, placed_case)) for placed_case in placed(machine, options, repeat))
