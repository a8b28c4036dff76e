"""``assay power sweep``: step a power limit, a clock or the load, and find the most energy-efficient setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
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
from assay.cli.run import DEVICE, GPU

STEPS = r"[0-9.][0-9.:%a-zA-Z]*"
DTYPE = r"(bfloat|float|fp|bf|tf|int|uint)[0-9]\w*"
NAME = r"[a-z_]\w*"


@verb("sweep")
@click.argument("workload", default="sgemm", required=False)
@click.option("--limits", cls=ListOption, item=STEPS, metavar="200:700:50", help="Power limits in W. Needs --apply.")
@click.option("--sm-clocks", cls=ListOption, item=STEPS, metavar="900:1980:90", help="SM clocks in MHz. Needs --apply.")
@click.option("--sizes", cls=ListOption, item=STEPS, metavar="1024,2048", help="Sizes of the workload.")
@click.option("--dtypes", cls=ListOption, item=DTYPE, metavar="float32,bfloat16", help="What it computes in.")
@click.option("--batches", cls=ListOption, item=STEPS, metavar="1,8,32", help="Its parameter batch.")
@click.option("--duty", cls=ListOption, item=STEPS, metavar="10%:100%:10%", help="Share of the time that calls fill.")
@click.option(
    "--size-param",
    "size_params",
    cls=ListOption,
    item=NAME,
    metavar="NAME",
    help="The parameter that --sizes sets.  [default: m, n and k; n; or size]",
)
@click.option("--apply", is_flag=True, help="Set limits or clocks, and restore them. Without it: say what would be.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option("--gpus", cls=ListOption, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: one]")
@click.option("--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu:0", help="cpu, cpu:0, cuda:1.")
@click.option("--together", is_flag=True, help="All GPUs at once; otherwise one after another.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@interference_option
@click.option("--duration", type=Duration(), help="Per trial, starting not counted.  [default: 10 s]")
@click.option(
    "--settle", type=Duration(zero_ok=True), help="At most, until clocks and heat are steady.  [default: 30 s]"
)
@click.option("--cooldown", type=Duration(zero_ok=True), default="0", help="Pause between trials.")
@click.option("--repeat", type=COUNT, help="How often each step; intervals are over them.  [default: 3]")
@click.option("--restarts", type=COUNT, default=1, show_default=True, help="Fresh workers per trial.")
@click.option("--budget", type=Duration(), help="For the whole run: shortens trials, and ends between repeats.")
@click.option("--max-slowdown", type=Fraction(), default="5%", show_default=True, help="The lowest cap within it.")
@click.option("--minimum-effect", type=Fraction(), default="1%", show_default=True, help="What is smaller counts not.")
@retake_option
@monitor_options
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 3 s a trial, steady within 5 s.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured or changed, and do neither.")
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Step one knob and find where energy is best spent: a power limit, a clock, or the load.

    \b
    assay power sweep --limits 200:700:50
    assay power sweep --limits 200:700:50 --apply --max-slowdown 5%
    assay power sweep gemm --sizes 1024,2048,4096,8192
    assay power sweep --duty 10%:100%:10%
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := dispatch_remote(ctx, flags)) is not None:
        return code
    from assay.cli import dry_run, measuring, options_file, power_sweep_options
    from assay.cli.power_sweep_options import build_options
    from assay.core.guardian import Guardian
    from assay.experiments.power.sweep import EXPERIMENT
    from assay.experiments.power.sweep.options import step_text
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    if flags["apply"] and not flags["dry_run"]:
        power_sweep_options.undo_crashed_runs()
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if options.capped:
        ranges = power_sweep_options.check_caps(machine, options)
        if flags["dry_run"] or not flags["apply"]:
            apply, as_json = flags["apply"], flags["as_json"]
            return power_sweep_options.show_caps(machine, options, ranges, apply=apply, as_json=as_json)
        with Guardian(), power_sweep_options.claim_settings(machine, options):
            return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)
    if flags["dry_run"]:
        for point in options.points:
            if point.refused is not None:
                click.echo(f"{step_text(options, point.setting)} is refused: {point.refused}", err=True)
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)
