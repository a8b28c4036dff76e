"""``assay threshold run``: both paths over a grid, in pairs, until it is decided from which size on one is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.on_host import HostOption, hosted, sent
from assay.cli.params import PROCESSES, SEVERAL, Duration, Listed, minding_strangers, retaking, verb, watching
from assay.cli.run import DEVICE, GPU

if TYPE_CHECKING:
    from assay.experiments.threshold.options import ThresholdOptions
    from assay.machine.model import Machine

FILE = click.Path(path_type=Path)


@verb("run")
@click.argument("thresholds", required=False, type=FILE)
@click.option("--safety-margin", metavar="X", help="1.2, or conservative, balanced, aggressive.  [default: the file's]")
@click.option(
    "--decide-on",
    type=click.Choice(["call", "span", "cautious"]),
    default="cautious",
    show_default=True,
    help="What a caller waits, its kernels alone, or both: the higher threshold.",
)
@click.option("--grid", metavar="NAME", help="Which of the file's grids: small or large.  [default: its first]")
@click.option("--sizes", cls=Listed, item=r"\d+", metavar="N...", help="Only these sizes of the grid.")
@click.option("--output", type=FILE, metavar="FILE", help="The results as JSON, in the older tool's form.")
@click.option("--report", type=FILE, metavar="FILE", help="The report as Markdown.")
@click.option("--update-config", is_flag=True, help="Write what is decided, its diff shown first.")
@click.option(
    "--config", type=FILE, default="configs/base.yaml", show_default=True, help="What --update-config writes to."
)
@click.option("--baseline", type=FILE, metavar="FILE", help="A gate: exit 1 where a threshold rose against this.")
@click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What the gate does when that cannot be told.",
)
@click.option("--gpus", cls=Listed, item=GPU, metavar="0", help="Which GPU, by number or UUID.  [default: the first]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 1]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@minding_strangers
@click.option(
    "--duration", type=Duration(), help="Of one process, starting not counted.  [default: 60 s; 20 s on a CPU]"
)
@click.option("--budget", type=Duration(), help="For the whole run.  [default: 4m; 90 s on a CPU]")
@click.option("--processes", type=SEVERAL, help="At the most; one is one draw.  [default: 5]")
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retaking
@watching
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: two processes, half of the time.")
@click.option("--options", "file", type=FILE, help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=FILE, default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@click.option("--provider", metavar="HOST", cls=HostOption, help="The older name of --on.")
@click.option("--gpu-type", "--gpu", "gpu_type", cls=HostOption, metavar="L4", help="The kind of GPU there.")
@hosted(but=("gpu_type",))
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Find from which size on the fast path is faster by a margin: of both NSA branches, or of THRESHOLDS.

    Exit code 1: a threshold rose against --baseline, or the fast path is not right, so that nothing is written.

    \b
    assay threshold run
    assay threshold run --quick --device cpu
    assay threshold run examples/thresholds.yaml --safety-margin 1.5
    assay threshold run --grid large --update-config --config configs/base.yaml
    assay threshold run --baseline results.json --unsure fail
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, options_file, threshold_after, threshold_build
    from assay.experiments.threshold import EXPERIMENT
    from assay.machine.detect import detect

    given = threshold_build.by_its_older_name(given)
    if (code := sent(ctx, given, threshold_after.Here(given))) is not None:
        return code
    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else threshold_build.build(given, machine)
    if given["dry_run"]:
        threshold_after.After.prepared(options, machine, given)
        return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
    return measured(options, machine, given)


def measured(options: ThresholdOptions, machine: Machine, given: dict[str, Any]) -> int:
    """Look at everything that will be written first; measure; then write, and ask the gates."""
    from assay.cli import measure
    from assay.cli.threshold_after import After
    from assay.experiments.threshold import EXPERIMENT

    after = After.prepared(options, machine, given)
    return measure.as_told(EXPERIMENT, options, machine, options.seed, given, afterwards=after)
