"""``assay contention matrix``: which aggressor slows which victim, and what isolation cures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.on_host import hosted, sent
from assay.cli.params import (
    AGGRESSORS,
    COUNT,
    PROCESSES,
    Duration,
    Fraction,
    Listed,
    minding_strangers,
    retaking,
    verb,
    watching,
)
from assay.cli.run import DEVICE, GPU, parameter
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.experiments.matrix.options import MatrixOptions
    from assay.machine.model import Machine

DURATION_S, QUICK_DURATION_S = 2.0, 0.5
REPEAT, QUICK_REPEAT = 6, 3
SHORTEST_TRIAL_S = 0.1
FEWEST_BLOCKS = 3
"""A budget is shared out so that so many blocks fit: with fewer, intervals say next to nothing."""

NAME = r"[^-\s]\S*"


@verb("matrix")
@click.option("--victim", "victims", cls=Listed, item=NAME, metavar="NAME...", help="Workloads that are timed.")
@click.option(
    "--aggressor",
    "aggressors",
    cls=Listed,
    item=NAME,
    metavar="NAME...",
    help=f"Loads beside the victims: {AGGRESSORS}, or any workload.  [default: all that fit]",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the victims named.")
@click.option("--gpus", cls=Listed, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: one]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu:0", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@minding_strangers
@click.option("--duration", type=Duration(), help="Per trial, starting not counted.  [default: 2 s]")
@click.option("--repeat", type=COUNT, help="Blocks; intervals are over them.  [default: 6]")
@click.option("--budget", type=Duration(), help="For the whole run: shortens trials, and ends between blocks.")
@click.option("--cooldown", type=Duration(zero_ok=True), default="0", help="Pause between trials.")
@click.option("--minimum-effect", type=Fraction(), default="2%", show_default=True, help="What is smaller counts not.")
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retaking
@watching
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 0.5 s a trial, 3 blocks.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--in-turns", is_flag=True, help="All victims in one process, in turns: fewer starts.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@hosted()
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Put every victim beside every aggressor, with and without isolation.

    \b
    assay contention matrix
    assay contention matrix --device cpu:0 --victim softmax gemm --aggressor cpu memory
    assay contention matrix --gpus 0 --aggressor cpu pcie hbm --budget 10m
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := sent(ctx, given)) is not None:
        return code
    from assay.cli import dry_run, measure, options_file
    from assay.experiments.matrix import EXPERIMENT
    from assay.machine.detect import detect

    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else build(given, machine)
    if given["dry_run"]:
        return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
    return measure.as_told(EXPERIMENT, options, machine, options.seed, given)


def build(given: dict[str, Any], machine: Machine) -> MatrixOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.core.units import format_span
    from assay.experiments.aggressors import aggressors_of
    from assay.experiments.matrix.options import MatrixOptions
    from assay.experiments.matrix.victims import victims_of
    from assay.isolation.devices import choose
    from assay.workloads import registry

    named_devices = given["gpus"] or given["devices"]
    chosen = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=given["cpu_groups"])
    devices = chosen if named_devices else chosen[:1]
    kind = devices[0].partition(":")[0]
    params = dict(parameter(text) for text in given["params"])
    if params and not given["victims"]:
        raise BadInput("--param is of the victims that --victim names, and none is named.")
    if kind == "cpu" and given["cache"] == "cold":
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    subjects = [registry.subject(name, device_kind=kind, given=params) for name in given["victims"]]
    options = MatrixOptions(
        victims=tuple({(s.workload, s.impl): s for s in subjects}.values()) or victims_of(kind),
        aggressors=aggressors_of(given["aggressors"], kind),
        devices=devices,
        in_turns=given["in_turns"],
        duration_s=given["duration"] or (QUICK_DURATION_S if given["quick"] else DURATION_S),
        cooldown_s=given["cooldown"],
        repeat=given["repeat"] or (QUICK_REPEAT if given["quick"] else REPEAT),
        budget_s=given["budget"],
        minimum_effect=given["minimum_effect"],
        strangers=given["strangers"],
        cache=given["cache"],
        timeout_s=given["timeout"],
        cpu_groups=given["cpu_groups"],
        retakes=given["retakes"],
        seed=given["seed"],
    )
    fitting = within_budget(options)
    if given["duration"] is not None and fitting.duration_s < options.duration_s:
        click.echo(
            f"--duration {options.duration_s:g} s is shortened to {fitting.duration_s:.2g} s, so that "
            f"{min(options.repeat, FEWEST_BLOCKS)} blocks fit --budget {format_span(given['budget'])}.",
            err=True,
        )
    return fitting


def within_budget(options: MatrixOptions) -> MatrixOptions:
    """Shorten the trials until a few blocks fit the budget."""
    from assay.experiments.contention.budget import trial_s
    from assay.experiments.matrix.plan import block_of

    if options.budget_s is None:
        return options
    trials = block_of(options, 1).trials * min(options.repeat, FEWEST_BLOCKS)
    overhead_s = sum(trial_s(trial) - options.duration_s for trial in trials)
    trial_duration_s = (options.budget_s - overhead_s) / len(trials)
    if trial_duration_s < SHORTEST_TRIAL_S:
        minimum_s = overhead_s + len(trials) * SHORTEST_TRIAL_S
        raise BadInput(
            f"--budget {options.budget_s:g} s is too little for {len(trials)} trials; with starting they need "
            f"{minimum_s:.1f} s. Fewer --victim, --aggressor or --repeat need less."
        )
    return options.model_copy(update={"duration_s": min(options.duration_s, trial_duration_s)})
