"""``assay gate``: measure two revisions of a repository in turn on one device.

Decide whether the later one is slower.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import (
    Duration,
    WholeNumber,
    cache_option,
    device_options,
    how_to_decide,
    how_to_measure,
    min_effect_option,
    run_options,
    unsure_option,
    verb,
    what_to_measure,
    words_after_dashes,
    worker_options,
)
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Subject
    from assay.experiments.gate import GateOptions
    from assay.machine.model import Machine


PATH_TYPE = click.Path(path_type=Path)


@verb("gate")
@click.argument("workloads", metavar="[WORKLOAD] [-- COMMAND|WORKLOAD]", nargs=-1)
@what_to_measure
@click.option("--base", metavar="REF", help="Baseline revision: a branch, tag or commit.")
@click.option("--head", metavar="REF", default="HEAD", show_default=True, help="Revision to test.")
@click.option("--setup", metavar="COMMAND", help="Run in each checkout first, such as an install.")
@click.option("--python", metavar="PATH", help="Interpreter made by --setup.  [default: .venv/bin/python]")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a workload parameter.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="Read a number that the command prints.")
@device_options("the first", cpu_groups="1", several=False)
@how_to_decide
@min_effect_option("2%")
@unsure_option
@click.option("--lower-is-better", "lower", multiple=True, metavar="NAME", help="Gate on this metric; lower is better.")
@click.option(
    "--higher-is-better", "higher", multiple=True, metavar="NAME", help="Gate on this metric; higher is better."
)
@click.option("--gate-time/--no-gate-time", default=True, help="Gate on time, or on metrics only.")
@click.option(
    "--decide-on",
    type=click.Choice(["both", "kernels", "call"]),
    default="both",
    show_default=True,
    help="GPU time to gate on.",
)
@how_to_measure
@click.option("--restarts", type=WholeNumber(3, 60), help="Restarts before the first look.  [default: 5]")
@click.option("--duration", type=Duration(), help="Time per restart, without startup.  [default: 3s]")
@click.option("--budget", type=Duration(), help="Total time, without --setup.  [default: 2m]")
@cache_option
@click.option("--quick", is_flag=True, help="Quick first look: 3 restarts of 1s, 30s in total.")
@worker_options()
@run_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Fail if HEAD is slower than BASE by more than a limit.

    Both are checked out in temporary git worktrees and measured alternately in processes that are restarted several
    times. Exit code 0: pass, or inconclusive. 1: fail. 3: a revision does not install.

    \b
    assay gate --base main -- bench/speed.py:work
    assay gate --base main -- package.module:function
    assay gate --base v1.2 --head HEAD -- python bench/speed.py
    assay gate --base main --setup ./install.sh -- python bench.py
    assay gate --base main --metric 'tok=(.+)/s' --higher-is-better tok -- ./run
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import options_file
    from assay.experiments.gate import EXPERIMENT
    from assay.machine.detect import detect

    refuse_torchrun()
    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, words_after_dashes(ctx), machine)
    refuse_undecidable_budget(options.restarts, options.duration_s, options.budget_s)
    for note in options.notes:
        click.echo(f"Note: {note}.", err=True)
    return check_out_and_measure(options, machine, flags)


def refuse_torchrun() -> None:
    """Say so where torchrun started several of us: a gate has one process in its turn."""
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.world_size > 1:
        raise BadInput("`assay gate` starts its own processes; run it without torchrun.")


def build_options(flags: Mapping[str, Any], behind: tuple[str, ...], machine: Machine) -> GateOptions:
    """Return the options that the flags mean in this folder and on this machine."""
    from pydantic import ValidationError

    from assay.cli import gate_checkouts
    from assay.core.values import first_problem
    from assay.experiments import gate as of
    from assay.isolation.devices import choose_devices, kind_of
    from assay.isolation.placement import parse_level

    groups = flags["cpu_groups"] or (None if flags["devices"] and flags["devices"] != ("cpu",) else 1)
    device = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=groups)[0]
    named_devices = flags["gpus"] or [name for name in flags["devices"] if ":" in name]
    if len(named_devices) > 1:
        raise BadInput(f"A gate runs on one device, but {len(named_devices)} are named; run it once for each.")
    if kind_of(device) == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold applies to GPUs only; remove it, or choose a GPU with --gpus.")
    quick = flags["quick"]
    checkouts, notes = gate_checkouts.resolve_checkouts(flags)
    subject = gate_subject(flags, behind, kind_of(device), Path(checkouts.repository))
    both = sorted({*flags["lower"]} & {*flags["higher"]})
    if both:
        raise BadInput(f"{both[0]} is in both --lower-is-better and --higher-is-better; choose one.")
    lower = (*(m.name for m in (subject.command.metrics if subject.command else ())), *flags["lower"])
    restarts = flags["restarts"] or (of.QUICK_RESTARTS if quick else of.RESTARTS)
    duration_s = flags["duration"] or (of.QUICK_DURATION_S if quick else of.DURATION_S)
    budget_s = flags["budget"] or (of.QUICK_BUDGET_S if quick else of.BUDGET_S)
    try:
        return of.GateOptions(
            checkouts=checkouts,
            subject=subject,
            device=device,
            minimum_effect=flags["min_effect"],
            restarts=restarts,
            duration_s=duration_s,
            budget_s=budget_s,
            decide_on=flags["decide_on"],
            gate_time=flags["gate_time"],
            lower_is_better=tuple(name for name in dict.fromkeys(lower) if name not in flags["higher"]),
            higher_is_better=tuple(dict.fromkeys(flags["higher"])),
            unsure=flags["unsure"],
            isolation=parse_level(flags["isolation"]),
            on_interference=flags["on_interference"],
            cache=flags["cache"],
            timeout_s=flags["timeout"],
            cpu_groups=groups,
            retakes=flags["retakes"],
            notes=notes,
            seed=flags["seed"],
        )
    except ValidationError as error:
        raise BadInput(f"{first_problem(error)}.") from None


def refuse_undecidable_budget(restarts: int, duration_s: float, budget_s: float) -> None:
    """Refuse a gate whose budget ends before its first look, so that it could never say no.

    Raises:
        BadInput: Not even the restarts themselves fit, their starting not counted.
    """
    from assay.core.format import format_duration

    if restarts * duration_s > budget_s:
        raise BadInput(
            f"The gate could never fail: {restarts} restarts of {format_duration(duration_s)} before the "
            "first look do "
            f"not fit in a --budget of {format_duration(budget_s)}; raise --budget or lower --duration."
        )


def gate_subject(flags: Mapping[str, Any], behind: tuple[str, ...], device_kind: str, repository: Path) -> Subject:
    """Return what is measured: one workload, before or behind ``--``, or the command behind it."""
    from assay.cli.run import parse_parameter, subject_from_command
    from assay.core.values import Subject
    from assay.workloads import registry
    from assay.workloads.function import FunctionWorkload, is_function_spec

    words: tuple[str, ...] = (*flags["workloads"], *behind)
    if not words:
        raise BadInput("Nothing to measure: name file.py:function, package.module:function, or -- COMMAND.")
    if flags["workloads"] and len(words) > 1:
        raise BadInput("A gate measures one thing: name one workload, or one command after --.")
    params = dict(parse_parameter(text) for text in flags["params"])
    if is_function_spec(words[0]) and len(words) == 1:
        _refuse_metrics(flags)
        function = FunctionWorkload(path_from_checkout(words[0], repository))
        return Subject(
            workload=function.name,
            impl="python",
            params={k: registry.parse_scalar(v) for k, v in params.items()},
            digest=function.digest() if Path(function.name).is_absolute() else None,
        )
    if len(words) == 1 and (flags["workloads"] or _is_registered(words[0])):
        _refuse_metrics(flags)
        chosen = registry.resolve_subject(words[0], device_kind=device_kind, explicit=params)
        if flags["setup"] is None:
            raise BadInput(
                f"{chosen.label} is Assay's own, and the same for both revisions; name a function of yours, or give "
                "each revision an environment of its own with --setup."
            )
        return chosen
    if params:
        raise BadInput("--param applies to workloads only; put arguments of the command after --.")
    return subject_from_command(words, flags["metrics"])


def _refuse_metrics(flags: Mapping[str, Any]) -> None:
    for option, name in (("--metric", "metrics"), ("--lower-is-better", "lower"), ("--higher-is-better", "higher")):
        if flags[name]:
            raise BadInput(f"{option} needs a command: add -- COMMAND.")


def _is_registered(word: str) -> bool:
    from assay.workloads import registry

    name, _, impl = word.partition("@")
    plainly = registry.ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
    return any(entry.name == plainly and impl in {"", entry.impl} for entry in registry.registered_workloads().values())


def path_from_checkout(spec: str, repository: Path) -> str:
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


def check_out_and_measure(options: GateOptions, machine: Machine, flags: Mapping[str, Any]) -> int:
    """Check both revisions out, look into them, set them up and measure; nothing is left behind."""
    from assay.cli import dry_run, gate_checkouts, measuring
    from assay.core.guardian import Guardian
    from assay.core.processes import stop_on_signals
    from assay.experiments.gate import EXPERIMENT
    from assay.launch.checkouts import check_out, set_up_checkouts

    with stop_on_signals(), Guardian(), check_out(options.checkouts) as leases:
        gate_checkouts.check_code(options)
        if flags["dry_run"]:
            return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
        ready = set_up_checkouts(options.checkouts, leases, lambda line: click.echo(line, err=True))
        options = options.model_copy(update={"checkouts": ready})
        gate_checkouts.check_command(options)
        return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)
