"""``assay run``: time workloads, functions or commands on devices."""

from __future__ import annotations

from pathlib import Path
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
    ListOption,
    interference_option,
    monitor_options,
    retake_option,
    verb,
    words_after_dashes,
)
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.core.plan import Subject, Trial
    from assay.experiments.run.plan import RunOptions
    from assay.machine.model import Machine

DURATION_S = 10.0
QUICK_DURATION_S = 2.0
QUICK_RESTARTS = 2
SHORTEST_TRIAL_S = 0.1
GPU = r"\d+(/\d+)?|(GPU|MIG)-\S+"
DEVICE = r"(cpu|cuda)(:\d+(/\d+)?)?"


@verb("run")
@click.argument("workloads", metavar="[WORKLOAD]... [-- COMMAND...]", nargs=-1)
@click.option("--benchmark", "--kernel", "benchmarks", multiple=True, help="Another way to name a workload.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="A number that the command prints, in a group."
)
@click.option("--gpus", cls=ListOption, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: all]")
@click.option("--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@click.option("--mode", type=click.Choice(["sequential", "concurrent"]), default="sequential", show_default=True)
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@interference_option
@click.option("--duration", type=Duration(), help="Per trial, restarts included.  [default: 10 s]")
@click.option("--budget", type=Duration(), help="For the whole run; shortens the trials to fit.")
@click.option("--cooldown", type=Duration(zero_ok=True), default="0", help="Pause between trials.")
@click.option("--repeat", type=COUNT, default=1, show_default=True, help="How often everything.")
@click.option("--restarts", type=COUNT, help="Fresh workers per trial.  [default: 5; 1 with given counts]")
@click.option("--ranks", type=PROCESSES, help="Processes that run it as one group.  [default: 1]")
@click.option("--warmup-runs", type=CALLS_OR_NONE, help="Exactly so many untimed calls first.")
@click.option("--benchmark-runs", type=CALLS, help="Exactly so many timed calls.")
@click.option(
    "--precision", type=Fraction(), default="1%", show_default=True, help="Known so well, a trial ends early."
)
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retake_option
@monitor_options
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--yardsticks/--no-yardsticks", default=True, help="Measure what the GPU can do, to compare with.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 2 s a trial, 2 restarts.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
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
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    chosen = build_subjects(flags, command_line, kind, ranks)
    options = RunOptions(
        subjects=chosen,
        references=reference_subjects(chosen, kind) if flags["yardsticks"] else (),
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
            f"--budget {budget_s:g} s is too little for {len(trials)} trials; with starting they need {least:.1f} s."
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
            raise BadInput("Time either workloads or a command behind --, not both in one run.")
        return (checked_command_subject(command_line, flags["metrics"]),)
    if not names:
        raise BadInput("Nothing to run: name a workload (`assay list` shows them), a file.py:function, or -- COMMAND.")
    if flags["metrics"]:
        raise BadInput("--metric reads the output of a command; there is none behind --.")
    params = dict(parse_parameter(text) for text in flags["params"])
    chosen = [registry.resolve_subject(name, device_kind=device_kind, explicit=params, ranks=ranks) for name in names]
    return tuple({(s.workload, s.impl): s for s in chosen}.values())


def parse_parameter(text: str) -> tuple[str, str]:
    """Return name and value from NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"A parameter is written NAME=VALUE, not {text!r}.")
    return name, value


def checked_command_subject(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that it can be started and its metrics read."""
    import shutil

    if shutil.which(command_line[0]) is None:
        raise BadInput(f"There is no command {command_line[0]!r} to be found.")
    return subject_from_command(command_line, metrics)


def subject_from_command(command_line: tuple[str, ...], metrics: tuple[str, ...]) -> Subject:
    """Return a command as a subject, having made sure that its metrics can be read."""
    import shlex

    from assay.core.plan import Command, Metric, Subject
    from assay.workloads.command import read_metric

    read = [read_metric(text) for text in metrics]
    twice = {name for name, _ in read if [n for n, _ in read].count(name) > 1}
    if twice:
        raise BadInput(f"The same metric is named twice: {', '.join(sorted(twice))}.")
    return Subject(
        workload=shlex.join(command_line),
        impl="command",
        command=Command(argv=command_line, metrics=tuple(Metric(name=name, pattern=p) for name, p in read)),
    )
