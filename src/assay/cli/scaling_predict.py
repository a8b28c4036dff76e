"""``assay scaling predict``: what GPUs that are not here would take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import (
    CALLS,
    CALLS_OR_NONE,
    PROCESSES,
    Duration,
    Fraction,
    Listed,
    minding_strangers,
    retaking,
    verb,
    watching,
)
from assay.cli.run import DEVICE, GPU
from assay.cli.scaling_options import NUMBER, sequences_of, shaped, subject_of, whole_numbers
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.experiments.scaling_prediction.options import PredictionOptions
    from assay.machine.model import Machine


BENCHMARK_RUNS = 10


@verb("predict")
@click.option(
    "--gpus-count",
    "counts",
    cls=Listed,
    item=NUMBER,
    metavar="8,64,512",
    help="How many GPUs, each count one ring.  [default: 8 64 512]",
)
@click.option(
    "--link",
    default="nvlink4",
    show_default=True,
    metavar="NAME",
    help="nvlink4, pcie5, eth400, or ALPHA:BETA such as 5us:100GB/s.",
)
@shaped
@click.option("--weak/--strong", default=False, help="The sequence grows with the ring, or is shared out.  [default]")
@click.option(
    "--passes",
    type=click.Choice(["forward", "total"]),
    default="total",
    show_default=True,
    help="Forward alone, or with its gradients.",
)
@click.option("--min-efficiency", type=Fraction(), help="A gate: exit 1 where less is predicted for sure.")
@click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What the gate does when an interval holds both.",
)
@click.option("--gpus", cls=Listed, item=GPU, metavar="0", help="Which GPU measures.  [default: the first]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu:0", help="cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: 2]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@click.option("--warmup-runs", type=CALLS_OR_NONE, default=3, show_default=True, envvar="WARMUP_RUNS")
@click.option("--benchmark-runs", type=CALLS, default=BENCHMARK_RUNS, show_default=True, envvar="BENCHMARK_RUNS")
@minding_strangers
@retaking
@watching
@click.option("--timeout", type=Duration(), default="600", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True)
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Predict time, efficiency and memory over GPUs that are not here.

    One device computes one GPU's share of every ring alone; what a link takes for the messages is added, hidden or not.

    \b
    assay scaling predict --gpus-count 8,64,512 --link nvlink4
    assay scaling predict --seq-lengths 65536 --gpus-count 16 --link 5us:100GB/s
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, measure, options_file
    from assay.experiments.scaling_prediction import EXPERIMENT
    from assay.machine.detect import detect

    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else build(given, machine)
    if given["dry_run"]:
        return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
    gate = None if given["min_efficiency"] is None else partial(gated, fail_unsure=given["unsure"] == "fail")
    return measure.as_told(EXPERIMENT, options, machine, options.seed, given, afterwards=gate)


def gated(run: Path, code: int, *, fail_unsure: bool) -> int:
    """Return the exit code once the gate was asked, and say what it answers: no is 1, whatever else happened."""
    from assay.core.durable import read_json
    from assay.core.results import Findings

    findings = Findings.model_validate(read_json(run / "findings.json")).findings
    decided = [finding for finding in findings if finding.facts.get("status") != "skipped"]
    verdicts = {finding.verdict for finding in decided}
    verdict = "no" if "no" in verdicts else "unsure" if "unsure" in verdicts else "yes"
    claims = [finding.claim for finding in decided if finding.verdict == verdict]
    outcome = {"yes": "it is so", "no": "it is not so", "unsure": "it cannot be told whether this is so"}[verdict]
    lets = "; that passes, and --unsure fail would not let it" if verdict == "unsure" and not fail_unsure else ""
    click.echo(f"Gate: {outcome}: {'; '.join(claims)}{lets}.", err=True)
    return 1 if verdict == "no" or (verdict == "unsure" and fail_unsure) else code


def refuse_blind(given: dict[str, Any]) -> None:
    """Refuse a gate that could never say no, before anything is measured.

    Raises:
        BadInput: So few calls are timed that no interval can be told from them, or no gate is asked for.
    """
    from assay.stats.longrun import FEWEST

    if given["min_efficiency"] is None:
        if given["unsure"] == "fail":
            raise BadInput("--unsure fail is of the gate, and there is none without --min-efficiency.")
        return
    if given["benchmark_runs"] < FEWEST:
        raise BadInput(
            f"--min-efficiency could never say no: {given['benchmark_runs']} timed calls give no interval. "
            f"--benchmark-runs {BENCHMARK_RUNS} do."
        )


def build(given: dict[str, Any], machine: Machine) -> PredictionOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.experiments.scaling.links import link_of
    from assay.experiments.scaling_prediction.options import ENOUGH, PredictionOptions
    from assay.experiments.scaling_prediction.plan import Cell, cells, left_out, problem_of
    from assay.isolation.allot import parse_level
    from assay.isolation.devices import choose

    devices = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=given["cpu_groups"])
    kind = devices[0].partition(":")[0]
    options = PredictionOptions(
        link=link_of(given["link"]),
        counts=whole_numbers("--gpus-count", given["counts"]) or (8, 64, 512),
        subject=subject_of(given, kind),
        sequences=sequences_of(given, kind),
        mode="weak" if given["weak"] else "strong",
        passes=given["passes"],
        device=devices[0],
        isolation=parse_level(given["isolation"]),
        warmup_runs=given["warmup_runs"],
        benchmark_runs=given["benchmark_runs"],
        enough=given["min_efficiency"] or ENOUGH,
        strangers=given["strangers"],
        retakes=given["retakes"],
        timeout_s=given["timeout"],
        cpu_groups=given["cpu_groups"],
        seed=given["seed"],
    )
    refuse_blind(given)
    for tokens in options.sequences:
        problem_of(options, Cell(tokens, 1))
    if not cells(options):
        raise BadInput(f"Of the GPU counts asked for none can be: {left_out(options)[-1].reason}")
    return options
