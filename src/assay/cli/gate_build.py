"""From the flags of ``assay gate`` to two checkouts and what is measured in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.plan import Subject
    from assay.experiments.gate.options import GateOptions
    from assay.machine.model import Machine


def refuse_torchrun() -> None:
    """Say so where torchrun started several of us: a gate has one process in its turn."""
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.found()
    if torchrun is not None and torchrun.world_size > 1:
        raise BadInput("A gate starts its own processes, one in its turn; start it without torchrun.")


def build(given: Mapping[str, Any], behind: tuple[str, ...], machine: Machine) -> GateOptions:
    """Return the options that the flags mean in this folder and on this machine."""
    from pydantic import ValidationError

    from assay.cli import gate_revisions
    from assay.core.values import first_problem
    from assay.experiments.gate import options as of
    from assay.isolation.allot import parse_level
    from assay.isolation.devices import choose, kind_of

    groups = given["cpu_groups"] or (None if given["devices"] and given["devices"] != ("cpu",) else 1)
    device = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=groups)[0]
    named_devices = given["gpus"] or [name for name in given["devices"] if ":" in name]
    if len(named_devices) > 1:
        raise BadInput(f"A gate is passed on one device, and {len(named_devices)} are named; run them one by one.")
    if kind_of(device) == "cpu" and given["cache"] == "cold":
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    quick = given["quick"]
    checkouts, notes = gate_revisions.checkouts(given)
    subject = subject_of(given, behind, kind_of(device), Path(checkouts.repository))
    both = sorted({*given["lower"]} & {*given["higher"]})
    if both:
        raise BadInput(f"{both[0]} cannot be better both lower and higher; say one of the two.")
    lower = (*(m.name for m in (subject.command.metrics if subject.command else ())), *given["lower"])
    restarts = given["restarts"] or (of.QUICK_RESTARTS if quick else of.RESTARTS)
    duration_s = given["duration"] or (of.QUICK_DURATION_S if quick else of.DURATION_S)
    budget_s = given["budget"] or (of.QUICK_BUDGET_S if quick else of.BUDGET_S)
    try:
        return of.GateOptions(
            checkouts=checkouts,
            subject=subject,
            device=device,
            minimum_effect=given["minimum_effect"],
            restarts=restarts,
            duration_s=duration_s,
            budget_s=budget_s,
            decide_on=given["decide_on"],
            gate_time=given["gate_time"],
            lower_is_better=tuple(name for name in dict.fromkeys(lower) if name not in given["higher"]),
            higher_is_better=tuple(dict.fromkeys(given["higher"])),
            unsure=given["unsure"],
            isolation=parse_level(given["isolation"]),
            strangers=given["strangers"],
            cache=given["cache"],
            timeout_s=given["timeout"],
            cpu_groups=groups,
            retakes=given["retakes"],
            notes=notes,
            seed=given["seed"],
        )
    except ValidationError as error:
        raise BadInput(f"{first_problem(error)}.") from None


def refuse_blind(restarts: int, duration_s: float, budget_s: float) -> None:
    """Refuse a gate whose budget ends before its first look, so that it could never say no.

    Raises:
        BadInput: Not even the restarts themselves fit, their starting not counted.
    """
    from assay.core.units import format_span

    if restarts * duration_s > budget_s:
        raise BadInput(
            f"The gate could never say no: {restarts} restarts of {format_span(duration_s)} before the first look do "
            f"not fit in a --budget of {format_span(budget_s)}; give more, or a shorter --duration."
        )


def subject_of(given: Mapping[str, Any], behind: tuple[str, ...], device_kind: str, repository: Path) -> Subject:
    """Return what is measured: one workload, before or behind ``--``, or the command behind it."""
    from assay.cli.run import commanded, parameter
    from assay.core.plan import Subject
    from assay.workloads import registry
    from assay.workloads.function import FunctionWorkload, is_function_spec

    words: tuple[str, ...] = (*given["workloads"], *behind)
    if not words:
        raise BadInput("Nothing to measure: name file.py:function, package.module:function, or -- COMMAND.")
    if given["workloads"] and len(words) > 1:
        raise BadInput("A gate measures one thing: a workload, or the command behind --.")
    params = dict(parameter(text) for text in given["params"])
    if is_function_spec(words[0]) and len(words) == 1:
        _no_metrics(given)
        function = FunctionWorkload(as_seen_from_a_checkout(words[0], repository))
        return Subject(
            workload=function.name,
            impl="python",
            params={k: registry.plain(v) for k, v in params.items()},
            digest=function.digest() if Path(function.name).is_absolute() else None,
        )
    if len(words) == 1 and (given["workloads"] or _is_registered(words[0])):
        _no_metrics(given)
        chosen = registry.subject(words[0], device_kind=device_kind, given=params)
        if given["setup"] is None:
            raise BadInput(
                f"{chosen.label} is Assay's own, and the same for both revisions; name a function of yours, or give "
                "each revision an environment of its own with --setup."
            )
        return chosen
    if params:
        raise BadInput("--param is for workloads; a command has its own words.")
    return commanded(words, given["metrics"])


def _no_metrics(given: Mapping[str, Any]) -> None:
    for option, name in (("--metric", "metrics"), ("--lower-is-better", "lower"), ("--higher-is-better", "higher")):
        if given[name]:
            raise BadInput(f"{option} is about what a command reports; there is none behind --.")


def _is_registered(word: str) -> bool:
    from assay.workloads import registry

    name, _, impl = word.partition("@")
    plainly = registry.ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
    return any(entry.name == plainly and impl in {"", entry.impl} for entry in registry.known().values())


def as_seen_from_a_checkout(spec: str, repository: Path) -> str:
    """Return a function's name as a worker in a checkout reads it: files of the repository relative, others whole.

    Raises:
        BadInput: It is a file elsewhere, which cannot be read.
    """
    module_path, _, function = spec.rpartition(":")
    if not module_path.endswith(".py"):
        return spec
    path = Path(module_path).absolute()
    real = path.parent.resolve() / path.name
    if real.is_relative_to(repository):
        return f"{os.path.relpath(real, Path.cwd().resolve())}:{function}"
    if not os.access(real, os.R_OK):
        raise BadInput(f"{real} cannot be read.")
    return f"{real}:{function}"


def measured(options: GateOptions, machine: Machine, given: Mapping[str, Any]) -> int:
    """Check both revisions out, look into them, set them up and measure; nothing is left behind."""
    from assay.cli import dry_run, gate_check, measure
    from assay.core.guardian import Guardian
    from assay.core.stopping import stop_on_signals
    from assay.experiments.gate import EXPERIMENT
    from assay.launch.checkouts import checked_out, set_up

    with stop_on_signals(), Guardian(), checked_out(options.checkouts) as leases:
        gate_check.code(options)
        if given["dry_run"]:
            return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
        ready = set_up(options.checkouts, leases, lambda line: click.echo(line, err=True))
        options = options.model_copy(update={"checkouts": ready})
        gate_check.command(options)
        return measure.as_told(EXPERIMENT, options, machine, options.seed, given)
