"""``assay gate``: measure two revisions of a repository in turn on one device.

Decide whether the later one is slower.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import (
    PROCESSES,
    Duration,
    Fraction,
    ListOption,
    monitor_options,
    retake_option,
    verb,
    words_after_dashes,
)
from assay.cli.run import DEVICE, GPU
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.plan import Subject
    from assay.experiments.gate.plan import GateOptions
    from assay.machine.model import Machine


PATH_TYPE = click.Path(path_type=Path)


@verb("gate")
@click.argument("workloads", metavar="[WORKLOAD] [-- COMMAND|WORKLOAD]", nargs=-1)
@click.option("--base", metavar="REF", help="The revision to hold the other against: a branch, a tag, a commit.")
@click.option("--head", metavar="REF", default="HEAD", show_default=True, help="The revision that is judged.")
@click.option("--setup", metavar="COMMAND", help="Run in each checkout first; builds its own environment.")
@click.option("--python", metavar="PATH", help="The interpreter that --setup makes.  [default: .venv/bin/python]")
@click.option(
    "--minimum-effect", type=Fraction(), default="2%", show_default=True, help="Worse by more than this is too much."
)
@click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What the gate does where there is not enough data.",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="A number that the command prints, in a group."
)
@click.option("--lower-is-better", "lower", multiple=True, metavar="NAME", help="Of a number that it writes.")
@click.option("--higher-is-better", "higher", multiple=True, metavar="NAME", help="Of a metric, or one that it writes.")
@click.option("--gate-time/--no-gate-time", default=True, help="Judge the time too, or only the metrics.")
@click.option(
    "--decide-on",
    type=click.Choice(["both", "kernels", "call"]),
    default="both",
    show_default=True,
    help="Which time, on a GPU.",
)
@click.option("--restarts", type=click.IntRange(3, 60), help="Before the first look.  [default: 5]")
@click.option("--duration", type=Duration(), help="Of one restart, starting not counted.  [default: 3 s]")
@click.option("--budget", type=Duration(), help="For all restarts; --setup not counted.  [default: 2m]")
@click.option(
    "--gpus", cls=ListOption, item=GPU, metavar="0", help="Which GPU, by number or UUID.  [default: the first]"
)
@click.option("--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 1]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@click.option(
    "--on-interference",
    type=click.Choice(["warn", "refuse", "wait"]),
    default="warn",
    show_default=True,
    help="When others are busy before a restart.",
)
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retake_option
@monitor_options
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 3 restarts of 1 s, 30 s in all.")
@click.option("--options", "file", type=PATH_TYPE, help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=PATH_TYPE, default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Look into both revisions, show what would be measured, measure nothing.")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Is HEAD slower than BASE by more than a limit?

    Both are checked out in git worktrees, which are removed afterwards, and measured in strict turns in processes that
    are restarted several times. Exit code 0: it passes, or there is not enough data. 1: it fails. 3: a revision does
    not install.

    \b
    assay gate --base main -- bench/speed.py:work
    assay gate --base main -- package.module:function
    assay gate --base v1.2 --head HEAD -- python bench/speed.py
    assay gate --base main --setup 'python -m venv .venv && .venv/bin/pip install -e . gpu-assay' -- python bench.py
    assay gate --base main --metric 'tokens=([0-9.]+) tok/s' --higher-is-better tokens --no-gate-time -- ./serve.sh
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
        raise BadInput("A gate starts its own processes, one in its turn; start it without torchrun.")


def build_options(flags: Mapping[str, Any], behind: tuple[str, ...], machine: Machine) -> GateOptions:
    """Return the options that the flags mean in this folder and on this machine."""
    from pydantic import ValidationError

    from assay.cli import gate_checkouts
    from assay.core.values import first_problem
    from assay.experiments.gate import plan as of
    from assay.isolation.devices import choose_devices, kind_of
    from assay.isolation.placement import parse_level

    groups = flags["cpu_groups"] or (None if flags["devices"] and flags["devices"] != ("cpu",) else 1)
    device = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=groups)[0]
    named_devices = flags["gpus"] or [name for name in flags["devices"] if ":" in name]
    if len(named_devices) > 1:
        raise BadInput(f"A gate is passed on one device, and {len(named_devices)} are named; run them one by one.")
    if kind_of(device) == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    quick = flags["quick"]
    checkouts, notes = gate_checkouts.resolve_checkouts(flags)
    subject = gate_subject(flags, behind, kind_of(device), Path(checkouts.repository))
    both = sorted({*flags["lower"]} & {*flags["higher"]})
    if both:
        raise BadInput(f"{both[0]} cannot be better both lower and higher; say one of the two.")
    lower = (*(m.name for m in (subject.command.metrics if subject.command else ())), *flags["lower"])
    restarts = flags["restarts"] or (of.QUICK_RESTARTS if quick else of.RESTARTS)
    duration_s = flags["duration"] or (of.QUICK_DURATION_S if quick else of.DURATION_S)
    budget_s = flags["budget"] or (of.QUICK_BUDGET_S if quick else of.BUDGET_S)
    try:
        return of.GateOptions(
            checkouts=checkouts,
            subject=subject,
            device=device,
            minimum_effect=flags["minimum_effect"],
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
    from assay.core.units import format_duration

    if restarts * duration_s > budget_s:
        raise BadInput(
            f"The gate could never say no: {restarts} restarts of {format_duration(duration_s)} before the "
            "first look do "
            f"not fit in a --budget of {format_duration(budget_s)}; give more, or a shorter --duration."
        )


def gate_subject(flags: Mapping[str, Any], behind: tuple[str, ...], device_kind: str, repository: Path) -> Subject:
    """Return what is measured: one workload, before or behind ``--``, or the command behind it."""
    from assay.cli.run import parse_parameter, subject_from_command
    from assay.core.plan import Subject
    from assay.workloads import registry
    from assay.workloads.function import FunctionWorkload, is_function_spec

    words: tuple[str, ...] = (*flags["workloads"], *behind)
    if not words:
        raise BadInput("Nothing to measure: name file.py:function, package.module:function, or -- COMMAND.")
    if flags["workloads"] and len(words) > 1:
        raise BadInput("A gate measures one thing: a workload, or the command behind --.")
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
        raise BadInput("--param is for workloads; a command has its own words.")
    return subject_from_command(words, flags["metrics"])


def _refuse_metrics(flags: Mapping[str, Any]) -> None:
    for option, name in (("--metric", "metrics"), ("--lower-is-better", "lower"), ("--higher-is-better", "higher")):
        if flags[name]:
            raise BadInput(f"{option} is about what a command reports; there is none behind --.")


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
    from assay.core.signals import stop_on_signals
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
