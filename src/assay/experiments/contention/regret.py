"""What a pick costs: its time alone over that of the best configuration that was picked anywhere.

Every configuration that was picked is timed once more, alone, interleaved in one process. The best configuration is
selected in one half of the time and the regret of the others is estimated in the other half, so that a configuration
that looks best by chance does not also look better than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.core.values import Adaptive, Block, Role, Trial
from assay.experiments.budget import MIN_TIMING_S, RETIMING_SHARE, TRIAL_OVERHEAD_S, TrialWorkers
from assay.experiments.contention.layout import WorkerSlot, config_key
from assay.experiments.contention.plan import role_name
from assay.experiments.estimates import primary_time
from assay.stats.intervals import CONFIDENCE, mean_interval
from assay.stats.numerics import t_quantile, winsorize
from assay.tuners.base import OWN_SPACE_TUNERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record
    from assay.core.values import Params, Subject
    from assay.experiments.contention.effects import LevelTable
    from assay.experiments.contention.layout import TunerPick
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


RETIMED = "retimed"
RETIMING_RESTARTS = 3
MIN_CONFIG_S = 0.05
"""For each configuration in each process."""
MAX_RETIMED_CONFIGS = 24
"""Configurations that are timed again at most: those that were picked most often."""


def retiming_candidates(options: ContentionOptions, choices: Sequence[TunerPick], subject: int) -> list[Params | None]:
    """Return the default and every configuration that was picked, those picked most often first after it.

    The default is null where a tuner draws configurations from a space of its own: the workload then has a default that
    it does not name. What a command chose is timed again only where the workload knows its settings: it may have tuned
    something else.
    """
    default = options.subjects[subject].config
    if default is None and options.tuner not in OWN_SPACE_TUNERS:
        return []
    counts: dict[str, int] = {}
    configs: dict[str, Params] = {}
    for choice in choices:
        if choice.slot.subject == subject and choice.config is not None and choice.key is not None:
            if options.tuner == "command" and not choice.config.keys() <= (default or {}).keys():
                continue
            counts[choice.key] = counts.get(choice.key, 0) + 1
            configs[choice.key] = choice.config
    ordered = sorted(configs, key=lambda key: (-counts[key], key))
    others = [configs[key] for key in ordered if default is None or key != config_key(default)]
    return [default, *others][:MAX_RETIMED_CONFIGS] if configs else []


def with_config(subject: Subject, config: Params | None) -> Subject:
    """Return a subject in another configuration."""
    return subject.model_copy(update={"config": config})


def without_config(subject: Subject) -> Subject:
    """Return a subject without its configuration."""
    return subject.model_copy(update={"config": None})


def retiming_block(machine: Machine, options: ContentionOptions, choices: Sequence[TunerPick]) -> Block | None:
    """Return the block that times the picks in quiet; null where nothing was picked."""
    chosen = {index: retiming_candidates(options, choices, index) for index in range(len(options.subjects))}
    rounds = [(index, device) for index, configs in chosen.items() if configs for device in options.devices]
    if not rounds:
        return None
    each_s = RETIMING_SHARE * options.budget_s / len(rounds) - TRIAL_OVERHEAD_S - options.cooldown_s
    cores = len(machine.cores)
    trials = tuple(
        _retiming_trial(
            options, device, [with_config(options.subjects[index], c) for c in chosen[index]], each_s, cores
        )
        for index, device in rounds
    )
    count = sum(len(configs) for configs in chosen.values())
    return Block(name=RETIMED, why=f"{count} configurations that were picked, in quiet and in turns", trials=trials)


def _retiming_trial(
    options: ContentionOptions, device: str, subjects: list[Subject], each_s: float, cores: int
) -> Trial:
    role = Role(
        name=role_name(device, 0, options.workers), subjects=tuple(subjects), devices=(device,), isolation="full"
    )
    start_s = TrialWorkers((subjects[0],), 1, cores).start_s
    least_s = start_s + max(MIN_TIMING_S, MIN_CONFIG_S * len(subjects))
    return Trial(
        block=RETIMED,
        roles=(role,),
        mode=Adaptive(duration_s=max(each_s, 2 * least_s), precision=None, timeout_s=options.timeout_s),
        restarts=RETIMING_RESTARTS,
        settings={"phase": RETIMED},
        on_interference=options.on_interference,
        placed_with=options.placement_group,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed,
    )


if TYPE_CHECKING:
    Samples = NDArray[np.float64]

TIME_PARTS = 24
"""Parts of the time that each process is cut into; configurations are compared part by part."""
MIN_PROCESSES = 3
"""With fewer, the interval is within processes and says so."""


@dataclass(frozen=True)
class SlotRegrets:
    """Of one subject on one device: the regret of each configuration by its key, 1 for the best; the best's time."""

    best: str
    best_us: float
    by_config: dict[str, Estimate]
    trial: str


def compute_regrets(
    machine: Machine, options: ContentionOptions, choices: Sequence[TunerPick], records: Records
) -> dict[WorkerSlot, SlotRegrets]:
    """Return the regrets at each place that was timed again."""
    block = retiming_block(machine, options, choices)
    planned = {trial.id: trial for trial in block.trials} if block is not None else {}
    by_slot: dict[WorkerSlot, SlotRegrets] = {}
    for record in records:
        trial = planned.get(record.trial)
        if trial is None or record.status != "ok":
            continue
        role = trial.roles[0]
        subject = [without_config(candidate) for candidate in options.subjects].index(without_config(role.subjects[0]))
        slot_regrets = _record_regrets(records, record, role)
        if slot_regrets is not None:
            by_slot[WorkerSlot(subject, role.devices[0])] = slot_regrets
    return by_slot


def regret_table(choices: Sequence[TunerPick], regrets_by_slot: dict[WorkerSlot, SlotRegrets]) -> LevelTable:
    """Return the logarithm of each pick's regret, by phase, place and block; picks not timed again are left out."""
    table: LevelTable = {}
    for choice in choices:
        regret = pick_regret(choice, regrets_by_slot)
        if regret is not None:
            table.setdefault((choice.phase, choice.slot), {})[choice.block] = math.log(regret.value)
    return table


def pick_regret(choice: TunerPick, regrets_by_slot: dict[WorkerSlot, SlotRegrets]) -> Estimate | None:
    """Return the regret of a pick; null where it was not timed again."""
    slot_regrets = regrets_by_slot.get(choice.slot.single_worker)
    return slot_regrets.by_config.get(choice.key) if slot_regrets is not None and choice.key is not None else None


def _record_regrets(records: Records, record: Record, role: Role) -> SlotRegrets | None:
    """Return the regrets from one record of configurations in turns; null where some have no samples."""
    quantity = primary_time([record], role.name)
    restarts = sorted({s.restart for s in record.series})
    # processes × configurations × parts, in logarithms
    logs = []
    for restart in restarts:
        series = {s.subject: s for s in record.series if s.quantity == quantity and s.restart == restart}
        if len(series) == len(role.subjects):
            samples = [records.samples(series[index]) for index in range(len(role.subjects))]
            logs.append(part_levels(samples))
    if not logs:
        return None
    ranked = np.concatenate([process[:, 0::2] for process in logs], axis=1)
    best = int(np.argmin(np.median(ranked, axis=1)))
    keys = [config_key(subject.config or {}) for subject in role.subjects]
    best_us = math.exp(float(np.median(np.concatenate([process[best] for process in logs]))))
    behind = {
        key: _regret_estimate([process[index, 1::2] - process[best, 1::2] for process in logs])
        for index, key in enumerate(keys)
    }
    return SlotRegrets(keys[best], best_us, behind, record.trial)


def part_levels(samples_by_config: Sequence[Samples]) -> Samples:
    """Return the logarithm of the median time of each configuration in each part of a process's time."""
    parts = min(TIME_PARTS, *(len(samples) for samples in samples_by_config))
    parts -= parts % 2 if parts > 1 else 0
    return np.array(
        [
            [math.log(max(float(np.median(p)), 1e-6)) for p in np.array_split(samples, parts)]
            for samples in samples_by_config
        ]
    )


def _regret_estimate(by_process: Sequence[Samples]) -> Estimate:
    """Return how far a configuration is behind the best: over processes where there are enough, else within them."""
    values = [winsorize(process) for process in by_process if len(process)] or [np.zeros(1)]
    means = np.array([float(process.mean()) for process in values])
    n = sum(len(process) for process in values)
    if len(means) >= MIN_PROCESSES:
        centre, spread = float(means.mean()), float(means.std(ddof=1))
        half = t_quantile(CONFIDENCE, len(means) - 1) * spread / math.sqrt(len(means))
        how = f"mean log-ratio in turns, Student's t over {len(means)} processes"
        return _ratio_estimate(centre, (centre - half, centre + half), "run", how, n)
    pooled = np.concatenate(values)
    how = f"mean log-ratio in turns, within {len(means)} process{'es' if len(means) > 1 else ''}"
    return _ratio_estimate(float(pooled.mean()), mean_interval(pooled), "process", how, n)


def _ratio_estimate(centre: float, interval: tuple[float, float] | None, scope: str, how: str, n: int) -> Estimate:
    low, high = (math.exp(interval[0]), math.exp(interval[1])) if interval is not None else (None, None)
    return Estimate(
        value=math.exp(centre),
        low=low,
        high=high,
        unit="×",
        scope="run" if scope == "run" else "process",
        method=how,
        n=n,
    )
