"""``assay power sweep``: step a power limit, a clock or the load, and find the most energy-efficient setting."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    COUNT,
    Duration,
    Fraction,
    ListOption,
    cooldown_option,
    device_options,
    how_to_measure,
    json_option,
    min_effect_option,
    monitor_options,
    name_host_option,
    output_dir_option,
    output_group,
    verb,
    what_to_measure,
    worker_options,
)

STEPS = r"[0-9.][0-9.:%a-zA-Z]*"
DTYPE = r"(bfloat|float|fp|bf|tf|int|uint)[0-9]\w*"
NAME = r"[a-z_]\w*"


@verb("sweep")
@click.argument("workload", default="sgemm", required=False)
@what_to_measure
@click.option("--limits", cls=ListOption, item=STEPS, metavar="200:700:50", help="Power limits in W; needs --apply.")
@click.option("--sm-clocks", cls=ListOption, item=STEPS, metavar="900:1980:90", help="SM clocks in MHz; needs --apply.")
@click.option("--sizes", cls=ListOption, item=STEPS, metavar="1024,2048", help="Problem sizes.")
@click.option("--dtypes", cls=ListOption, item=DTYPE, metavar="float32,...", help="Data types.")
@click.option("--batches", cls=ListOption, item=STEPS, metavar="1,8,32", help="Batch sizes.")
@click.option("--duty", cls=ListOption, item=STEPS, metavar="10%:100%:10%", help="Duty cycles of the load.")
@click.option(
    "--size-param",
    "size_params",
    cls=ListOption,
    item=NAME,
    metavar="NAME",
    help="Parameter set by --sizes.  [default: m, n and k; n; or size]",
)
@click.option("--apply", is_flag=True, help="Set limits or clocks, and restore them afterwards.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a workload parameter.")
@device_options("one")
@click.option("--concurrent", is_flag=True, help="Run all GPUs concurrently, not one by one.")
@how_to_measure
@click.option("--duration", type=Duration(), help="Time per trial, without startup.  [default: 10s]")
@click.option("--settle", type=Duration(zero_ok=True), help="Settle at most this long.  [default: 30s]")
@cooldown_option
@click.option("--repeat", type=COUNT, help="Repetitions of each step.  [default: 3]")
@click.option("--restarts", type=COUNT, default=1, show_default=True, help="Fresh processes per trial.")
@click.option("--budget", type=Duration(), help="Total time; shortens trials, drops repeats.")
@click.option("--max-slowdown", type=Fraction(), default="5%", show_default=True, help="Recommend caps within this.")
@min_effect_option("1%")
@click.option("--quick", is_flag=True, help="Quick first look: 3s per trial, 5s to settle.")
@worker_options()
@output_group
@output_dir_option
@name_host_option
@json_option
@click.option("--dry-run", is_flag=True, help="Show what would be measured or changed.")
@monitor_options
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Sweep power limits, clocks or load, and find the most energy-efficient setting.

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
                click.echo(f"{step_text(options, point.setting)} is invalid: {point.refused}", err=True)
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)
