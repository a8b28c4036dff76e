"""Which step runs on which device when: every step once in each repeat, in random order, because heat carries over."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from assay.core.values import Block, Continuous, Done, Role, Trial
from assay.experiments.budget import TRIAL_OVERHEAD_S, TrialWorkers
from assay.experiments.power.sweep.options import step_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.core.values import Params, Subject
    from assay.experiments.power.sweep.options import SweepOptions

MAX_FAILURES = 2
"""A step that went wrong in so many repeats, and well in none, is not tried again."""


class SweepVisit(NamedTuple):
    """One point, by its place among the options, on the devices that are timed at once."""

    point: int
    devices: tuple[str, ...]


def plan_visits(options: SweepOptions) -> tuple[SweepVisit, ...]:
    """Return everything that is measured in one repeat, in a plain order; refused points are not."""
    casts = [options.devices] if options.together else [(device,) for device in options.devices]
    timed = [number for number, point in enumerate(options.points) if point.subject is not None]
    return tuple(SweepVisit(number, devices) for devices in casts for number in timed)


def build_trial(options: SweepOptions, visit: SweepVisit, number: int) -> Trial:
    """Return the trial of one visit in one repeat, counted from 1."""
    point = options.points[visit.point]
    if point.subject is None:
        raise ValueError(f"nothing is timed at {point.setting}: {point.refused}")
    phase = step_text(options, point.setting)
    settings: Params = {"phase": phase}
    if options.capped and point.setting is not None:
        settings[options.knob] = point.setting
    return Trial(
        block=block_name(number),
        roles=tuple(
            Role(name=device, subjects=(point.subject,), devices=(device,), isolation=options.isolation)
            for device in visit.devices
        ),
        schedule="together" if len(visit.devices) > 1 else "alone",
        mode=Continuous(
            duration_s=options.duration_s,
            timeout_s=options.timeout_s,
            duty=float(str(point.setting)) if options.knob == "duty" else 1.0,
            settle_s=options.settle_s,
        ),
        restarts=options.restarts,
        settings=settings,
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def worker_start_s(subject: Subject, processes: int) -> float:
    """Return until when a worker is ready, in seconds, as is usual; it is not timed."""
    return TrialWorkers((subject,), processes, processes).start_s


def max_trial_s(options: SweepOptions, trial: Trial) -> float:
    """Return at most how long a trial takes, in seconds, as far as can be foreseen."""
    settling_s = (options.settle_s or 0.0) * trial.restarts
    role = trial.roles[0]
    starting_s = trial.restarts * worker_start_s(role.subjects[0], len(trial.devices))
    return trial.mode.duration_s + starting_s + settling_s + TRIAL_OVERHEAD_S + trial.cooldown_s


def block_name(number: int) -> str:
    """Return the name of a repeat, counted from 1."""
    return f"repeat-{number}"


def build_block(options: SweepOptions, number: int, records: Iterable[Record] = ()) -> Block | None:
    """Return one repeat, its trials in random order, without what never worked before; null where nothing is left."""
    trials = [build_trial(options, visit, number) for visit in promising_visits(options, number, records)]
    if not trials:
        return None
    random.Random(f"{options.seed}/{number}").shuffle(trials)  # noqa: S311 - an order is no secret
    return Block(name=block_name(number), why=f"every step once, {number} of {options.repeat}", trials=tuple(trials))


def promising_visits(options: SweepOptions, number: int, records: Iterable[Record]) -> list[SweepVisit]:
    """Return the visits that are worth another try."""
    states: dict[SweepVisit, list[str]] = defaultdict(list)
    visit_of_trial = visits_by_trial(options, number - 1)
    for record in records:
        if record.trial in visit_of_trial:
            states[visit_of_trial[record.trial]].append(record.status)
    return [visit for visit in plan_visits(options) if len(states[visit]) < MAX_FAILURES or "ok" in states[visit]]


def visits_by_trial(options: SweepOptions, repeats: int) -> dict[str, SweepVisit]:
    """Return the visit of each trial of the first repeats."""
    return {
        build_trial(options, visit, number).id: visit
        for number in range(1, repeats + 1)
        for visit in plan_visits(options)
    }


def next_block(options: SweepOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next repeat, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)
    done = len({record.block for record in all_records})
    if done >= options.repeat:
        return Done(why=f"all {options.repeat} repeats are measured")
    block = build_block(options, done + 1, all_records)
    if block is None:
        return Done(why="no step could be measured")
    block_s = sum(max_trial_s(options, trial) for trial in block.trials)
    left_s = block_s * (options.repeat - done)
    if options.budget_s is not None:
        spent_s = _spent_s(all_records)
        if done and max(_block_durations_s(all_records).values()) > options.budget_s - spent_s:
            return Done(why=f"{done} of {options.repeat} repeats fill the budget of {options.budget_s:g} s")
        left_s = min(left_s, max(options.budget_s - spent_s, block_s))
    return block.model_copy(update={"left_s": left_s})


def _spent_s(records: Iterable[Record]) -> float:
    return sum(record.window.end_ns - record.window.start_ns for record in records) / 1e9


def _block_durations_s(records: Iterable[Record]) -> dict[str, float]:
    """Return how long the trials of each block took, in seconds."""
    blocks: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        blocks[record.block].append(record)
    return {block: _spent_s(several) for block, several in blocks.items()}
