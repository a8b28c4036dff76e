"""``assay energy run``: joules, watts and time per token of a model or a server, prefill and decode apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.on_host import hosted, sent
from assay.cli.params import COUNT, Duration, Listed, minding_strangers, remembering, retaking, verb

if TYPE_CHECKING:
    from assay.cli.energy_after import After
    from assay.experiments.energy.options import EnergyOptions
    from assay.machine.model import Machine

FILE = click.Path(path_type=Path)


@verb("run")
@click.argument("config", metavar="[CONFIG.yaml]", required=False)
@click.option(
    "--model", metavar="NAME", help="Instead of the file's: random:llama-1b and the like, a folder, a hub's id."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PLACE=VALUE",
    help="Change what the file says: backend.device_ids=[0,1].",
)
@click.option(
    "--gpus", cls=Listed, item=r"\d+|GPU-\S+", metavar="0,1", help="GPUs to compute on; a server's, to meter."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    help="Where a model computes.  [default: the file's, or auto]",
)
@click.option("--allow-missing", is_flag=True, help="Go on without GPUs that are missing, as long as one is there.")
@click.option("--repeat", type=COUNT, help="Processes started afresh.  [default: the file's, or 3]")
@click.option("--budget", type=Duration(), help="For the whole run: nothing is begun that would not fit.")
@click.option("--isolation", help="none, gpu, cpu, numa or full.  [default: gpu; none on a CPU]")
@minding_strangers
@retaking
@remembering
@click.option(
    "--timeout", type=Duration(), default="10m", show_default=True, help="For a worker to load, and to answer."
)
@click.option("--seed", type=int, help="Of random weights and prompts.  [default: the file's, or 0]")
@click.option(
    "--quick",
    is_flag=True,
    help="A first look: one process, windows of 2 s (0.5 s where no GPU is metered), the smallest of each size.",
)
@click.option("--reports/--no-reports", default=True, help="Write what the file's reporters name.")
@click.option("--options", "file", type=FILE, help="Options from a YAML or JSON file, or another run's plan.json.")
@click.option("--output-dir", type=FILE, help="Where run folders go.  [default: the file's, or runs]")
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured and whether it fits, and measure nothing.")
@hosted()
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Measure what a token costs in joules: of a model here, or of a server that speaks OpenAI's protocol.

    CONFIG.yaml says who makes the tokens (backend), what is asked (scenario), what is metered (metrics), and which
    files are written (reporter); `assay energy check` writes one that fits this machine. Without it, --model is enough.

    \b
    assay energy run --quick --model random:llama-tiny
    assay energy run examples/pytorch_single.yaml
    assay energy run examples/pytorch_multigpu.yaml --set backend.device_ids=[0,1] --set scenario.batch_sizes=[1,8]
    assay energy run examples/openai_server.yaml --gpus 0 --dry-run
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import energy_after, energy_build, energy_foreseen, options_file
    from assay.experiments.energy import EXPERIMENT
    from assay.machine.detect import detect

    elsewhere = {**given, "output_dir": given["output_dir"] or Path("runs")}
    if (code := sent(ctx, elsewhere, energy_after.Here(reports=given["reports"]))) is not None:
        return code
    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options: EnergyOptions = given["options"] if "options" in given else energy_build.build(given, machine)
    for note in options.notes:
        click.echo(f"Note: {note}.", err=True)
    after = looked_at(options, given)
    if given["dry_run"]:
        return energy_foreseen.shown(options, machine, as_json=given["as_json"])
    return measured(options, machine, given, after)


def looked_at(options: EnergyOptions, given: dict[str, Any]) -> After:
    """Make sure that the run's folder and all files can be written; return who writes them afterwards."""
    from assay.cli.energy_after import After
    from assay.cli.outputs import check_folder

    check_folder(folder_of(options, given))
    return After.prepared(options.config.reporter if given["reports"] else ())


def folder_of(options: EnergyOptions, given: dict[str, Any]) -> Path:
    """Return where the run's folder goes."""
    return given["output_dir"] or Path(options.config.output_dir or "runs")


def measured(options: EnergyOptions, machine: Machine, given: dict[str, Any], after: After) -> int:
    """Measure, then write what the reporters name."""
    from assay.cli import measure
    from assay.experiments.energy import EXPERIMENT

    run_flags = {
        **given,
        "output_dir": folder_of(options, given),
        "monitor": options.monitored,
        "monitor_interval": None,
    }
    return measure.as_told(EXPERIMENT, options, machine, options.seed, run_flags, afterwards=after)
