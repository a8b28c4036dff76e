"""Before the first block: tune once what is compiled, so that no phase pays for it.

A tuner that compiles spends its time on that the first time, and later finds everything in its cache. Without this the
first block would tune less than the others. A tuner whose search takes as long as it takes does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import Method, Role, Trial, Tuner
from assay.experiments.contention.budget import COMPILED, LEAST_TIMING_S, WARMING_SHARE, Cast

if TYPE_CHECKING:
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine

WARM = "warm-up"


def warming(machine: Machine, options: ContentionOptions, block: str) -> list[Trial]:
    """Return a trial for each subject that is compiled when it is tuned, on the first device of each model."""
    if options.tuner is None or options.search_s > 0:
        return []
    pairs = [
        (index, device)
        for index, subject in enumerate(options.subjects)
        if options.tunes(index) and subject.impl in COMPILED
        for device in one_of_each_model(machine, options)
    ]
    trials = []
    for index, device in pairs:
        subject = options.subjects[index]
        budget_s = max(options.tuning_s, WARMING_SHARE * options.budget_s / len(pairs))
        tuner = Tuner(name=options.tuner, budget_s=budget_s, command=options.tuner_command)
        role = Role(name=device, subjects=(subject,), devices=(device,), isolation="full", tuner=tuner)
        start_s = Cast((subject,), 1, len(machine.cores)).start_s
        trials.append(
            Trial(
                block=block,
                roles=(role,),
                method=Method(duration_s=start_s + LEAST_TIMING_S, timeout_s=options.timeout_s),
                settings={"phase": WARM},
                strangers=options.strangers,
                placed_with=options.places,
                cpu_groups=options.cpu_groups,
                cooldown_s=options.cooldown_s,
                seed=options.seed,
            )
        )
    return trials


def one_of_each_model(machine: Machine, options: ContentionOptions) -> list[str]:
    """Return the first device of each model of GPU; of groups of cores the first."""
    names = {f"cuda:{gpu.index}": gpu.name for gpu in machine.gpus}
    by_model: dict[str | None, str] = {}
    for device in options.devices:
        by_model.setdefault(names.get(device.partition("/")[0]), device)
    return list(by_model.values())
