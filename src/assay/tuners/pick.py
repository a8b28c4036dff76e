"""Assay's own tuner: ``assay.pick`` over the configurations of a workload whose output is correct."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, TrialFailed
from assay.core.results import TriedConfig
from assay.timing.pick import pick
from assay.timing.sampling import probe_shortest_ns
from assay.tuners.base import TuningResult, config_space, describe_error, describe_wrong_output
from assay.workloads import registry
from assay.workloads.base import sharing_data
from assay.workloads.torch_device import torch_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params
    from assay.timing.results import Pick
    from assay.tuners.base import TuningJob
    from assay.workloads.base import PreparedWorkload, Workload

PREPARING_SHARE = 0.7
"""Share of the budget, at most, for compiling and checking configurations; the rest is for the race."""

FIRST_CALLS = 10
"""About this many calls of each candidate are made before the race has any result; long ones use the budget up."""

SHORTEST_RACE_S = 0.1


@dataclass
class CheckedConfigs:
    """The configurations that are correct, ready to be called, and those that are not, with the reason."""

    ready: dict[str, PreparedWorkload] = field(default_factory=dict)
    configs: dict[str, Params] = field(default_factory=dict)
    excluded: list[TriedConfig] = field(default_factory=list)
    not_tried: int = 0


def tune(job: TuningJob) -> TuningResult:
    """Pick the fastest of the configurations that fit the budget; one whose output is wrong never wins."""
    if job.subject.command is not None:
        raise BadInput("a command has no configurations to choose from; the tuner may be a command too")
    workload = registry.find_workload(job.subject.workload, job.subject.impl)
    configs = shuffle_configs(config_space(workload, job), job.seed)
    begin = time.perf_counter()
    with sharing_data(), contextlib.ExitStack() as stack:
        checked = prepare_configs(workload, configs, job)
        for prepared in checked.ready.values():
            stack.callback(prepared.close)
        if not checked.ready:
            first = checked.excluded[0].reason
            none_works = f"no configuration works; of the first: {first}"
            return TuningResult(None, tried=tuple(checked.excluded), reason=none_works)
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
            return TuningResult(None, tried=tuple(checked.excluded), reason=str(error))
    return _build_result(result, checked, job)


def shuffle_configs(configs: Sequence[Params], seed: int) -> list[Params]:
    """Return the default configuration and then the others in random order, as not all may fit the budget."""
    others = list(configs[1:])
    random.Random(seed).shuffle(others)  # noqa: S311 - an order is no secret
    return [configs[0], *others]


def prepare_configs(workload: Workload, configs: Sequence[Params], job: TuningJob) -> CheckedConfigs:
    """Prepare and check configurations until all are done, or their part of the budget is spent."""
    checked = CheckedConfigs()
    deadline = time.perf_counter() + PREPARING_SHARE * job.tuner.budget_s
    for index, config in enumerate(configs):
        if index and time.perf_counter() > deadline:
            checked.not_tried = len(configs) - index
            break
        try:
            prepared = workload.prepare(job.subject.params, config, device=job.device, seed=job.seed)
            wrong = describe_wrong_output(prepared)
            deadline -= FIRST_CALLS * _call_s(prepared) if wrong is None else 0.0
        except Exception as error:  # noqa: BLE001 - whatever it raises is the reason why it cannot be chosen
            checked.excluded.append(TriedConfig(config=config, reason=describe_error(error)))
            continue
        if wrong is not None:
            prepared.close()
            checked.excluded.append(TriedConfig(config=config, reason=f"its output is wrong: {wrong}"))
            continue
        name = " ".join(f"{setting}={value}" for setting, value in config.items())
        checked.ready[name], checked.configs[name] = prepared, config
    return checked


def _call_s(prepared: PreparedWorkload) -> float:
    """Return the shortest time of a call, in seconds; it was called before, so nothing is compiled now."""
    return probe_shortest_ns(prepared.call, finish=prepared.synchronize, enough_ns=0.0) / 1e9


def _build_result(result: Pick, checked: CheckedConfigs, job: TuningJob) -> TuningResult:
    tried = (TriedConfig(config=rank.config or {}, time_us=rank.time_us, reason=rank.reason) for rank in result.ranking)
    sure = f"within {result.tolerance:.0%} of the best with a probability of {result.probability:.2f}"
    notes = [f"picked by {result.quantity} over {result.rounds} rounds, {result.stopped}; {sure}"]
    if checked.not_tried:
        count = checked.not_tried + len(checked.ready) + len(checked.excluded)
        why = f"to prepare and check them did not fit the budget of {job.tuner.budget_s:g} s"
        notes.append(f"{checked.not_tried} of {count} configurations were not tried: {why}")
    return TuningResult(result.config, result.time_us, (*tried, *checked.excluded), notes=tuple(notes))
