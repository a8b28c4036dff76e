"""``--dry-run``: the first block, the placement of its workers, an upper bound on the duration, and the cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.core.format import format_duration
from assay.core.values import SCHEMA_VERSION, Counted, Done
from assay.launch.trial import TrialPlacement, compute_placements, predict_isolation
from assay.reports.progress import describe_trial
from assay.store.records import Records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from assay.core.values import Block, Trial, Value
    from assay.experiments.base import Experiment
    from assay.machine.model import Machine


def show_dry_run(
    experiment: Experiment[Any],
    options: Value,
    machine: Machine,
    *,
    as_json: bool,
    extra: Mapping[str, JsonValue] | None = None,
) -> int:
    """Print what would be measured first; nothing is written and nothing started. ``extra`` stands in the JSON too."""
    step = experiment.step(machine, options, Records([], Path()))
    if isinstance(step, Done):
        click.echo(f"Nothing to measure: {step.why}.")
        return 0
    if as_json:
        click.echo(json.dumps({**_dry_run_data(step, machine), **(extra or {})}, indent=2, ensure_ascii=False))
        return 0
    count = len(step.trials)
    click.echo(f"First block: {step.name} ({step.why}), {count} trial{'' if count == 1 else 's'}")
    for trial in step.trials:
        restarts = f", up to {trial.restarts} restarts" if trial.restarts > 1 else ""
        click.echo(f"  {describe_trial(trial)}: {_timing_text(trial)}{restarts}")
        for line in _placement_lines(trial, machine):
            click.echo(f"    {line}")
    if step.left_s is None:
        click.echo("How long the whole run takes is known once something is measured; on this machine, at no cost.")
    else:
        click.echo(f"The whole run takes at most {format_duration(step.left_s)}, on this machine, at no cost.")
    return 0


def _timing_text(trial: Trial) -> str:
    """Say how long a trial is timed: given counts are obeyed, however long they take."""
    mode = trial.mode
    if not isinstance(mode, Counted):
        return f"{mode.duration_s:.3g} s"
    return f"{mode.warmup_runs or 0} calls to warm up, {mode.runs} timed"


def _placement_lines(trial: Trial, machine: Machine) -> list[str]:
    lines: list[str] = []
    placements = compute_placements(machine, trial)
    for role in trial.roles:
        for device in role.devices:
            allotment = placements[role.isolation].of(device, role.worker)
            cores = "unpinned" if allotment.cpus is None else f"cores {','.join(map(str, allotment.cpus))}"
            tuned = "" if role.tuner is None else f", tunes ({role.tuner.name}) for {role.tuner.budget_s:.2g} s"
            lines.append(f"{role.name}: {role.duty}, isolation {role.isolation}, {cores}{tuned}")
    lines += [f"note: {note.message}" for placement in placements.values() for note in placement.notes]
    return lines + [f"note: {note}" for note in _isolation_shortfalls(trial, machine)]


def _isolation_shortfalls(trial: Trial, machine: Machine) -> list[str]:
    """Return in words which isolation cannot hold, each reason once."""
    roles = {role.name: role for role in trial.roles}
    return list(
        dict.fromkeys(
            f"isolation {roles[name].isolation} cannot hold, only {held.level}: {limit.message}"
            for (name, _), held in predict_isolation(trial, TrialPlacement(trial, machine, {})).items()
            for limit in held.limits
        )
    )


def _isolation_data(trial: Trial, machine: Machine) -> list[dict[str, Any]]:
    """Return which level can hold for each worker, and what limits it."""
    return [
        {"role": role, "rank": rank, "can_hold": held.level, "limits": [limit.as_json() for limit in held.limits]}
        for (role, rank), held in predict_isolation(trial, TrialPlacement(trial, machine, {})).items()
    ]


def _dry_run_data(block: Block, machine: Machine) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "block": block.as_json(),
        "placements": [
            {
                "trial": trial.id,
                "levels": {level: p.as_json() for level, p in compute_placements(machine, trial).items()},
                "isolation": _isolation_data(trial, machine),
            }
            for trial in block.trials
        ],
        "at_most_s": block.left_s,
        "cost_usd": 0.0,
    }
