"""``assay gate``: two revisions of a repository in turns on one device, and whether the later one is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.cli.params import PROCESSES, Duration, Fraction, Listed, behind_dashes, retaking, verb, watching
from assay.cli.run import DEVICE, GPU

FILE = click.Path(path_type=Path)


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
@click.option("--gpus", cls=Listed, item=GPU, metavar="0", help="Which GPU, by number or UUID.  [default: the first]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 1]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@click.option(
    "--strangers",
    type=click.Choice(["warn", "refuse", "wait"]),
    default="warn",
    show_default=True,
    help="When others are busy before a restart.",
)
@click.option("--cache", type=click.Choice(["cold", "warm"]), help="A GPU's L2 before each call.  [default: cold]")
@retaking
@watching
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quick", is_flag=True, help="A first look: 3 restarts of 1 s, 30 s in all.")
@click.option("--options", "file", type=FILE, help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=FILE, default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Look into both revisions, show what would be measured, measure nothing.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
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
    from assay.cli import gate_build, options_file
    from assay.experiments.gate import EXPERIMENT
    from assay.machine.detect import detect

    gate_build.refuse_torchrun()
    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else gate_build.build(given, behind_dashes(ctx), machine)
    gate_build.refuse_blind(options.restarts, options.duration_s, options.budget_s)
    for note in options.notes:
        click.echo(f"Note: {note}.", err=True)
    return gate_build.measured(options, machine, given)
