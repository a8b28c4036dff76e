"""Assay's own tuner: ``assay.pick`` over the configurations of a workload, those that compute the right thing."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, TrialFailed
from assay.core.results import Tried
from assay.timing.batching import least_ns
from assay.timing.pick import pick
from assay.tuners.base import Found, space, why
from assay.workloads import registry
from assay.workloads.sharing import sharing
from assay.workloads.torch_device import torch_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.timing.values import Pick
    from assay.tuners.base import Job
    from assay.workloads.base import Prepared, Workload

PREPARING = 0.7
"""Of the budget at most, to compile configurations and check them; what is left is for the race."""

FIRST_CALLS = 10
"""About so many calls of each candidate are made before the race can say anything; long ones use the budget up."""

SHORTEST_RACE_S = 0.1


@dataclass
class LineUp:
    """The configurations that are right, ready to be called, and those that are not, with the reason."""

    ready: dict[str, Prepared] = field(default_factory=dict)
    configs: dict[str, Params] = field(default_factory=dict)
    out: list[Tried] = field(default_factory=list)
    left: int = 0


def tune(job: Job) -> Found:
    """Pick the fastest of the configurations that fit the budget; one whose output is wrong never wins."""
    if job.subject.command is not None:
        raise BadInput("a command has no configurations to choose from; the tuner may be a command too")
    workload = registry.find(job.subject.workload, job.subject.impl)
    configs = in_random_order(space(workload, job), job.seed)
    begin = time.perf_counter()
    with sharing(), contextlib.ExitStack() as stack:
        checked = line_up(workload, configs, job)
        for prepared in checked.ready.values():
            stack.callback(prepared.close)
        if not checked.ready:
            first = checked.out[0].reason
            return Found(None, tried=tuple(checked.out), reason=f"no configuration works; of the first: {first}")
        left_s = job.tuner.budget_s - (time.perf_counter() - begin)
        try:
            result = pick(
                {name: prepared.call for name, prepared in checked.ready.items()},
                configs=checked.configs,
                device=torch_device(job.device),
                cache=job.cache if job.device.startswith("cuda") else None,
                budget_s=max(SHORTEST_RACE_S, left_s),
                seed=job.seed,
            )
        except TrialFailed as error:
            return Found(None, tried=tuple(checked.out), reason=str(error))
    return _found(result, checked, job)


def in_random_order(configs: Sequence[Params], seed: int) -> list[Params]:
    """Return the default configuration and then the others in a random order: not all may fit the budget."""
    others = list(configs[1:])
    random.Random(seed).shuffle(others)  # noqa: S311 - an order is no secret
    return [configs[0], *others]


def line_up(workload: Workload, configs: Sequence[Params], job: Job) -> LineUp:
    """Prepare and check configurations until all are, or their part of the budget is spent."""
    checked = LineUp()
    deadline = time.perf_counter() + PREPARING * job.tuner.budget_s
    for number, config in enumerate(configs):
        if number and time.perf_counter() > deadline:
            checked.left = len(configs) - number
            break
        try:
            prepared = workload.prepare(job.subject.params, config, device=job.device, seed=job.seed)
            wrong = _wrong(prepared)
            deadline -= FIRST_CALLS * _call_s(prepared) if wrong is None else 0.0
        except Exception as error:  # noqa: BLE001 - whatever it raises is why it cannot be chosen
            checked.out.append(Tried(config=config, reason=why(error)))
            continue
        if wrong is not None:
            prepared.close()
            checked.out.append(Tried(config=config, reason=wrong))
            continue
        name = " ".join(f"{setting}={value}" for setting, value in config.items())
        checked.ready[name], checked.configs[name] = prepared, config
    return checked


def _call_s(prepared: Prepared) -> float:
    """Return how long one call takes at the least, in seconds; it was made before, so that nothing is compiled now."""
    return least_ns(prepared.call, finish=prepared.synchronize, enough_ns=0.0) / 1e9


def _wrong(prepared: Prepared) -> str | None:
    """Return what is wrong with the output of a configuration; null where nothing is, or nobody can tell."""
    check = prepared.check() if prepared.check is not None else None
    if check is None or check.passed:
        return None
    return f"its output is wrong: the {check.measure} is {check.error:.3g}, more than {check.tolerance:.3g}"


def _found(result: Pick, lineup: LineUp, job: Job) -> Found:
    tried = (
        Tried(config=candidate.config or {}, time_us=candidate.time_us, reason=candidate.reason)
        for candidate in result.ranking
    )
    sure = f"within {result.tolerance:.0%} of the best with a probability of {result.probability:.2f}"
    notes = [f"picked by {result.quantity} over {result.rounds} rounds, {result.stopped}; {sure}"]
    if lineup.left:
        notes.append(
            f"{lineup.left} of {lineup.left + len(lineup.ready) + len(lineup.out)} configurations were not tried: "
            f"to prepare and check them did not fit the budget of {job.tuner.budget_s:g} s"
        )
    return Found(result.config, result.time_us, (*tried, *lineup.out), notes=tuple(notes))
