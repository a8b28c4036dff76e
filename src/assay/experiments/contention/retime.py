"""Time once more in quiet what the tuner picked: every configuration that was chosen anywhere, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import TO_THE_END, Block, Method, Role, Trial
from assay.experiments.contention.budget import BESIDE_S, LEAST_TIMING_S, RETIMING_SHARE, Cast
from assay.experiments.contention.places import key_of
from assay.experiments.contention.plan import role_name
from assay.tuners.registry import OWN_SPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Subject
    from assay.core.values import Params
    from assay.experiments.contention.options import ContentionOptions
    from assay.experiments.contention.places import Choice
    from assay.machine.model import Machine

RETIMED = "retimed"
RESTARTS = 3
LEAST_EACH_S = 0.05
"""For each configuration in each process."""
MOST = 24
"""Configurations that are timed again at most: those that were picked most often."""


def candidates(options: ContentionOptions, choices: Sequence[Choice], subject: int) -> list[Params | None]:
    """Return the default and every configuration that was picked, those picked most often first after it.

    The default is null where a tuner draws configurations from a space of its own: the workload then has a default that
    it does not name. What a command chose is timed again only where the workload knows its settings: it may have tuned
    something else.
    """
    default = options.subjects[subject].config
    if default is None and options.tuner not in OWN_SPACE:
        return []
    counts: dict[str, int] = {}
    configs: dict[str, Params] = {}
    for choice in choices:
        if choice.place.subject == subject and choice.config is not None and choice.key is not None:
            if options.tuner == "command" and not choice.config.keys() <= (default or {}).keys():
                continue
            counts[choice.key] = counts.get(choice.key, 0) + 1
            configs[choice.key] = choice.config
    ordered = sorted(configs, key=lambda key: (-counts[key], key))
    others = [configs[key] for key in ordered if default is None or key != key_of(default)]
    return [default, *others][:MOST] if configs else []


def with_config(subject: Subject, config: Params | None) -> Subject:
    """Return a subject in another configuration."""
    return subject.model_copy(update={"config": config})


def bare(subject: Subject) -> Subject:
    """Return a subject without its configuration."""
    return subject.model_copy(update={"config": None})


def retiming(machine: Machine, options: ContentionOptions, choices: Sequence[Choice]) -> Block | None:
    """Return the block that times the picks in quiet; null where nothing was picked."""
    chosen = {index: candidates(options, choices, index) for index in range(len(options.subjects))}
    rounds = [(index, device) for index, configs in chosen.items() if configs for device in options.devices]
    if not rounds:
        return None
    each_s = RETIMING_SHARE * options.budget_s / len(rounds) - BESIDE_S - options.cooldown_s
    cores = len(machine.cores)
    trials = tuple(
        _trial(options, device, [with_config(options.subjects[index], c) for c in chosen[index]], each_s, cores)
        for index, device in rounds
    )
    count = sum(len(configs) for configs in chosen.values())
    return Block(name=RETIMED, why=f"{count} configurations that were picked, in quiet and in turns", trials=trials)


def _trial(options: ContentionOptions, device: str, subjects: list[Subject], each_s: float, cores: int) -> Trial:
    role = Role(
        name=role_name(device, 0, options.workers), subjects=tuple(subjects), devices=(device,), isolation="full"
    )
    start_s = Cast((subjects[0],), 1, cores).start_s
    least_s = start_s + max(LEAST_TIMING_S, LEAST_EACH_S * len(subjects))
    return Trial(
        block=RETIMED,
        roles=(role,),
        method=Method(duration_s=max(each_s, 2 * least_s), precision=TO_THE_END, timeout_s=options.timeout_s),
        restarts=RESTARTS,
        settings={"phase": RETIMED},
        strangers=options.strangers,
        placed_with=options.places,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed,
    )
