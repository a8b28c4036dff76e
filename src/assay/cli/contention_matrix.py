"""``assay contention matrix``: which aggressor slows which victim, and which isolation prevents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    AGGRESSORS,
    COUNT,
    Duration,
    ListOption,
    cache_option,
    cooldown_option,
    device_options,
    how_to_measure,
    min_effect_option,
    run_options,
    verb,
    what_to_measure,
    worker_options,
)
from assay.cli.run import parse_parameter
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
@what_to_measure
@click.option("--victim", "victims", cls=ListOption, item=NAME, metavar="NAME...", help="Workloads to time.")
@click.option(
    "--aggressor",
    "aggressors",
    cls=ListOption,
    item=NAME,
    metavar="NAME...",
    help=f"Concurrent loads: {AGGRESSORS}, or any workload.  [default: all that fit]",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the victims.")
@device_options("one")
@how_to_measure
@click.option("--duration", type=Duration(), help="Time per trial, without startup.  [default: 2s]")
@click.option("--repeat", type=COUNT, help="Number of blocks.  [default: 6]")
@click.option("--budget", type=Duration(), help="Total time; shortens trials, drops blocks.")
@cooldown_option
@min_effect_option("2%")
@cache_option
@click.option("--interleave", is_flag=True, help="Time all victims in one process, interleaved.")
@click.option("--quick", is_flag=True, help="Quick first look: 0.5s per trial, 3 blocks.")
@worker_options(isolated=False)
@run_options
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Measure every victim against every aggressor, with and without isolation.

    \b
    assay contention matrix
    assay contention matrix --device cpu:0 --victim softmax --aggressor cpu memory
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
    from assay.core.format import format_duration
    from assay.experiments.contention.options import default_victims, resolve_aggressors
    from assay.experiments.matrix.plan import MatrixOptions
    from assay.isolation.devices import choose_devices
    from assay.workloads import registry

    named_devices = flags["gpus"] or flags["devices"]
    chosen = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    devices = chosen if named_devices else chosen[:1]
    kind = devices[0].partition(":")[0]
    params = dict(parse_parameter(text) for text in flags["params"])
    if params and not flags["victims"]:
        raise BadInput("--param needs --victim: name the workloads it applies to.")
    if kind == "cpu" and flags["cache"] == "cold":
        raise BadInput("--cache cold applies to GPUs only; remove it, or choose a GPU with --gpus.")
    subjects = [registry.resolve_subject(name, device_kind=kind, explicit=params) for name in flags["victims"]]
    options = MatrixOptions(
        victims=tuple({(s.workload, s.impl): s for s in subjects}.values()) or default_victims(kind),
        aggressors=resolve_aggressors(flags["aggressors"], kind),
        devices=devices,
        in_turns=flags["interleave"],
        duration_s=flags["duration"] or (QUICK_DURATION_S if flags["quick"] else DURATION_S),
        cooldown_s=flags["cooldown"],
        repeat=flags["repeat"] or (QUICK_REPEAT if flags["quick"] else REPEAT),
        budget_s=flags["budget"],
        minimum_effect=flags["min_effect"],
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
