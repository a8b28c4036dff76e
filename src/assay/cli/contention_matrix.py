"""``assay contention matrix``: which aggressor slows which victim, and which isolation prevents it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    AGGRESSORS,
    COUNT,
    PROCESSES,
    Duration,
    Fraction,
    ListOption,
    interference_option,
    monitor_options,
    retake_option,
    verb,
)
from assay.cli.run import DEVICE, GPU, parse_parameter
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.experiments.matrix.plan import MatrixOptions
    from assay.machine.model import Machine

DURATION_S, QUICK_DURATION_S = 2.0, 0.5
REPEAT, QUICK_REPEAT = 6, 3
SHORTEST_TRIAL_S = 0.1
FEWEST_BLOCKS = 3
"""A budget is shared out so that so many blocks fit: with fewer, intervals say next to nothing."""

NAME = r"[^-\s]\S*"


@verb("matrix")
@click.option("--victim", "victims", cls=ListOption, item=NAME, metavar="NAME...", help="Workloads that are timed.")
@click.option(
    "--aggressor",
    "aggressors",
    cls=ListOption,
    item=NAME,
    metavar="NAME...",
    help=f"Loads beside the victims: {AGGRESSORS}, or any workload.  [default: all that fit]",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the victims named.")
@click.option("--gpus", cls=ListOption, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: one]")
@click.option("--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu:0", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@interference_option
@click.option("--duration", type=Duration(), help="Per trial, starting not counted.  [default: 2 s]")
@click.option("--repeat", type=COUNT, help="Blocks; intervals are over them.  [default: 6]")
@click.option("--budget", type=Duration(), help="For the whole run: shortens trials, and ends between blocks.")
@click.option("--cooldown", type=Duration(zero_ok=True), default="0", help="Pause between trials.")
@click.option("--minimum-effect", type=Fraction(), default="2%", show_default=True, help="What is smaller counts not.")
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retake_option
@monitor_options
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 0.5 s a trial, 3 blocks.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--in-turns", is_flag=True, help="All victims in one process, in turns: fewer starts.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Put every victim beside every aggressor, with and without isolation.

    \b
    assay contention matrix
    assay contention matrix --device cpu:0 --victim softmax gemm --aggressor cpu memory
    assay contention matrix --gpus 0 --aggressor cpu pcie hbm --budget 10m
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := dispatch_remote(ctx, flags)) is not None:
        return code
    from assay.cli import dry_run, measuring, options_file
    from assay.experiments.matrix import EXPERIMENT
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if flags["dry_run"]:
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)


def build_options(flags: dict[str, Any], machine: Machine) -> MatrixOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.core.units import format_duration
    from assay.experiments.contention.aggressors import default_victims, resolve_aggressors
    from assay.experiments.matrix.plan import MatrixOptions
    from assay.isolation.devices import choose_devices
    from assay.workloads import registry

    named_devices = flags["gpus"] or flags["devices"]
    chosen = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    devices = chosen if named_devices else chosen[:1]
    kind = devices[0].partition(":")[0]
    params = dict(parse_parameter(text) for text in flags["params"])
    if params and not flags["victims"]:
        raise BadInput("--param is of the victims that --victim names, and none is named.")
    if kind == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    subjects = [registry.resolve_subject(name, device_kind=kind, explicit=params) for name in flags["victims"]]
    options = MatrixOptions(
        victims=tuple({(s.workload, s.impl): s for s in subjects}.values()) or default_victims(kind),
        aggressors=resolve_aggressors(flags["aggressors"], kind),
        devices=devices,
        in_turns=flags["in_turns"],
        duration_s=flags["duration"] or (QUICK_DURATION_S if flags["quick"] else DURATION_S),
        cooldown_s=flags["cooldown"],
        repeat=flags["repeat"] or (QUICK_REPEAT if flags["quick"] else REPEAT),
        budget_s=flags["budget"],
        minimum_effect=flags["minimum_effect"],
        on_interference=flags["on_interference"],
        cache=flags["cache"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        retakes=flags["retakes"],
        seed=flags["seed"],
    )
    fitting = fit_to_budget(options)
    if flags["duration"] is not None and fitting.duration_s < options.duration_s:
        click.echo(
            f"--duration {options.duration_s:g} s is shortened to {fitting.duration_s:.2g} s, so that "
            f"{min(options.repeat, FEWEST_BLOCKS)} blocks fit --budget {format_duration(flags['budget'])}.",
            err=True,
        )
    return fitting


def fit_to_budget(options: MatrixOptions) -> MatrixOptions:
    """Shorten the trials until a few blocks fit the budget."""
    from assay.experiments.budget import expected_trial_s
    from assay.experiments.matrix.plan import build_block

    if options.budget_s is None:
        return options
    trials = build_block(options, 1).trials * min(options.repeat, FEWEST_BLOCKS)
    overhead_s = sum(expected_trial_s(trial) - options.duration_s for trial in trials)
    trial_duration_s = (options.budget_s - overhead_s) / len(trials)
    if trial_duration_s < SHORTEST_TRIAL_S:
        minimum_s = overhead_s + len(trials) * SHORTEST_TRIAL_S
        raise BadInput(
            f"--budget {options.budget_s:g} s is too little for {len(trials)} trials; with starting they need "
            f"{minimum_s:.1f} s. Fewer --victim, --aggressor or --repeat need less."
        )
    return options.model_copy(update={"duration_s": min(options.duration_s, trial_duration_s)})
