"""``assay power sweep``: step a limit, a clock or the load, and find where energy is best spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.cli.on_host import hosted, sent
from assay.cli.params import COUNT, PROCESSES, Duration, Fraction, Listed, minding_strangers, retaking, verb, watching
from assay.cli.run import DEVICE, GPU

STEPS = r"[0-9.][0-9.:%a-zA-Z]*"
DTYPE = r"(bfloat|float|fp|bf|tf|int|uint)[0-9]\w*"
NAME = r"[a-z_]\w*"


@verb("sweep")
@click.argument("workload", default="sgemm", required=False)
@click.option("--limits", cls=Listed, item=STEPS, metavar="200:700:50", help="Power limits in W. Needs --apply.")
@click.option("--sm-clocks", cls=Listed, item=STEPS, metavar="900:1980:90", help="SM clocks in MHz. Needs --apply.")
@click.option("--sizes", cls=Listed, item=STEPS, metavar="1024,2048", help="Sizes of the workload.")
@click.option("--dtypes", cls=Listed, item=DTYPE, metavar="float32,bfloat16", help="What it computes in.")
@click.option("--batches", cls=Listed, item=STEPS, metavar="1,8,32", help="Its parameter batch.")
@click.option("--duty", cls=Listed, item=STEPS, metavar="10%:100%:10%", help="Share of the time that calls fill.")
@click.option(
    "--size-param",
    "size_params",
    cls=Listed,
    item=NAME,
    metavar="NAME",
    help="The parameter that --sizes sets.  [default: m, n and k; n; or size]",
)
@click.option("--apply", is_flag=True, help="Set limits or clocks, and restore them. Without it: say what would be.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option("--gpus", cls=Listed, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: one]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu:0", help="cpu, cpu:0, cuda:1.")
@click.option("--together", is_flag=True, help="All GPUs at once; otherwise one after another.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@minding_strangers
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
@retaking
@watching
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 3 s a trial, steady within 5 s.")
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured or changed, and do neither.")
@hosted()
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Step one knob and find where energy is best spent: a power limit, a clock, or the load.

    \b
    assay power sweep --limits 200:700:50
    assay power sweep --limits 200:700:50 --apply --max-slowdown 5%
    assay power sweep gemm --sizes 1024,2048,4096,8192
    assay power sweep --duty 10%:100%:10%
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := sent(ctx, given)) is not None:
        return code
    from assay.cli import dry_run, measure, options_file, power_sweep_caps
    from assay.cli.power_sweep_build import build
    from assay.core.guardian import Guardian
    from assay.experiments.power.sweep import EXPERIMENT
    from assay.experiments.power.sweep.words import step_text
    from assay.machine.detect import detect

    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    if given["apply"] and not given["dry_run"]:
        power_sweep_caps.undo_what_died()
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else build(given, machine)
    if options.capped:
        ranges = power_sweep_caps.checked(machine, options)
        if given["dry_run"] or not given["apply"]:
            apply, as_json = given["apply"], given["as_json"]
            return power_sweep_caps.show(machine, options, ranges, asked=apply, as_json=as_json)
        with Guardian(), power_sweep_caps.claimed(machine, options):
            return measure.as_told(EXPERIMENT, options, machine, options.seed, given)
    if given["dry_run"]:
        for point in options.points:
            if point.refused is not None:
                click.echo(f"{step_text(options, point.setting)} is refused: {point.refused}", err=True)
        return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
    return measure.as_told(EXPERIMENT, options, machine, options.seed, given)
