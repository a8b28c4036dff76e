"""``assay run``: time workloads, functions or commands on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    CALLS,
    CALLS_OR_NONE,
    COUNT,
    PROCESSES,
    Duration,
    Fraction,
    cache_option,
    cooldown_option,
    device_options,
    how_to_measure,
    run_options,
    verb,
    what_to_measure,
    words_after_dashes,
    worker_options,
)
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.core.values import Subject, Trial
    from assay.experiments.run.plan import RunOptions
    from assay.machine.model import Machine

DURATION_S = 10.0
QUICK_DURATION_S = 2.0
QUICK_RESTARTS = 2
SHORTEST_TRIAL_S = 0.1


@verb("run")
@click.argument("workloads", metavar="[WORKLOAD]... [-- COMMAND...]", nargs=-1)
@what_to_measure
@click.option("--benchmark", "--kernel", "benchmarks", multiple=True, metavar="NAME", help="Another workload to time.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a workload parameter.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="Read a number that the command prints.")
@device_options()
@click.option("--ranks", type=PROCESSES, help="Processes per worker group.  [default: 1]")
@click.option("--references/--no-references", default=True, help="Also measure the GPU's peak rates.")
@how_to_measure
@click.option(
    "--mode",
    type=click.Choice(["sequential", "concurrent"]),
    default="sequential",
    show_default=True,
    metavar="MODE",
    help="sequential or concurrent.",
)
@click.option("--duration", type=Duration(), help="Time per trial.  [default: 10s]")
@click.option("--budget", type=Duration(), help="Total time; trials are shortened to fit.")
@cooldown_option
@click.option("--repeat", type=COUNT, default=1, show_default=True, help="Repetitions of everything.")
@click.option("--restarts", type=COUNT, help="Fresh processes per trial.  [default: 5, or 1]")
@click.option("--warmup-runs", type=CALLS_OR_NONE, help="Make exactly this many warm-up calls.")
@click.option("--benchmark-runs", type=CALLS, help="Time exactly this many calls.")
@click.option("--precision", type=Fraction(), default="1%", show_default=True, help="Stop a trial at this precision.")
@cache_option
@click.option("--quick", is_flag=True, help="Quick first look: 2s per trial, 2 restarts.")
@worker_options()
@run_options
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Time workloads, your own functions or any command.

    \b
    assay run softmax gemm
    assay run softmax --device cpu --mode concurrent --isolation full
    assay run path/to/file.py:function
    assay run --metric 'loss=loss ([0-9.]+)' -- python train.py
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := dispatch_remote(ctx, flags)) is not None:
        return code
    from assay.cli import dry_run, measuring, options_file
    from assay.experiments.run import EXPERIMENT
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, words_after_dashes(ctx), machine)
    if flags["dry_run"]:
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)


def build_options(flags: dict[str, Any], command_line: tuple[str, ...], machine: Machine) -> RunOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.experiments.run.plan import RunOptions, reference_subjects, repeat_trials
    from assay.isolation.devices import choose_devices
    from assay.isolation.placement import parse_level
    from assay.worker.rendezvous import Torchrun, devices_of_ranks

    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    exact = flags["benchmark_runs"] is not None
    duration = flags["duration"] or (QUICK_DURATION_S if flags["quick"] else DURATION_S)
    ranks = rank_count(flags["ranks"])
    if ranks > 1:
        devices = devices_of_ranks(devices, Torchrun.from_environment())
    restarts = flags["restarts"] or (1 if exact else QUICK_RESTARTS if flags["quick"] else 5)
    kind = devices[0].partition(":")[0]
    if kind == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold applies to GPUs only; remove it, or choose a GPU with --gpus.")
    chosen = build_subjects(flags, command_line, kind, ranks)
    options = RunOptions(
        subjects=chosen,
        references=reference_subjects(chosen, kind) if flags["references"] else (),
        devices=devices,
        mode=flags["mode"],
        isolation=parse_level(flags["isolation"]),
        on_interference=flags["on_interference"],
        duration_s=duration,
        cooldown_s=flags["cooldown"],
        repeat=flags["repeat"],
        restarts=restarts,
        ranks=ranks,
        warmup_runs=flags["warmup_runs"],
        benchmark_runs=flags["benchmark_runs"],
        precision=flags["precision"],
        cache=flags["cache"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        retakes=flags["retakes"],
        seed=flags["seed"],
    )
    return fit_to_budget(options, flags["budget"], repeat_trials(options, "repeat-1", 1) * options.repeat)


def rank_count(requested: int | None) -> int:
    """Return how many ranks: as asked, else as many as the torchrun around us has, else one."""
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is None:
        return requested or 1
    if requested is not None and requested > torchrun.world_size:
        raise BadInput(f"--ranks {requested} is more than the {torchrun.world_size} processes that torchrun started.")
    return requested or torchrun.world_size


def fit_to_budget(options: RunOptions, budget_s: float | None, trials: tuple[Trial, ...]) -> RunOptions:
    """Shorten the trials until all of them fit the budget."""
    from assay.experiments.run.plan import max_start_up_s

    if budget_s is None:
        return options
    beside_s = sum(max_start_up_s(trial) + trial.cooldown_s for trial in trials)
    each_s = (budget_s - beside_s) / len(trials)
    if each_s < SHORTEST_TRIAL_S:
        least = beside_s + len(trials) * SHORTEST_TRIAL_S
        raise BadInput(
            f"--budget {budget_s:g} s is too short: {len(trials)} trials need at least {least:.1f} s, startup included."
        )
    return options.model_copy(update={"duration_s": min(options.duration_s, each_s)})


def build_subjects(
    flags: dict[str, Any], command_line: tuple[str, ...], device_kind: str, ranks: int = 1
) -> tuple[Subject, ...]:
    """Return what is to be timed: named workloads, or the command behind ``--``."""
    from assay.workloads import registry

    names = (*flags["workloads"], *flags["benchmarks"])
    if command_line:
        if names or flags["params"]:
            raise BadInput("Name either workloads or a command after --, not both.")
        return (checked_command_subject(command_line, flags["metrics"]),)
    if not names:
        raise BadInput("Nothing to run: name a workload (`assay list` shows them), a file.py:function, or -- COMMAND.")
    if flags["metrics"]:
        raise BadInput("--metric needs a command: add -- COMMAND.")
    params = dict(parse_parameter(text) for text in flags["params"])
    chosen = [registry.resolve_subject(name, device_kind=device_kind, explicit=params, ranks=ranks) for name in names]
    return tuple({(s.workload, s.impl): s for s in chosen}.values())


def parse_parameter(text: str) -> tuple[str, str]:
    """Return name and value from NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"--param {text!r} must have the form NAME=VALUE.")
    return name, value


def checked_command_subject(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that it can be started and its metrics read."""
    import shutil

    if shutil.which(command_line[0]) is None:
        raise BadInput(f"Command {command_line[0]!r} not found; check its name and PATH.")
    return subject_from_command(command_line, metrics)


def subject_from_command(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that its metrics can be read."""
    import shlex

    from assay.core.values import Command, Metric, Subject
    from assay.workloads.command import read_metric

    read = [read_metric(text) for text in metrics]
    twice = {name for name, _ in read if [n for n, _ in read].count(name) > 1}
    if twice:
        raise BadInput(f"--metric {', '.join(sorted(twice))} is given more than once; use each name once.")
    return Subject(
        workload=shlex.join(command_line),
        impl="command",
        command=Command(argv=command_line, metrics=tuple(Metric(name=name, pattern=p) for name, p in read)),
    )
