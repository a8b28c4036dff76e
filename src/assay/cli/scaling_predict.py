"""``assay scaling predict``: predict time, efficiency and memory on GPUs that are not here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import (
    CALLS,
    CALLS_OR_NONE,
    Fraction,
    ListOption,
    device_options,
    how_to_decide,
    how_to_measure,
    run_options,
    unsure_option,
    verb,
    what_to_measure,
    worker_options,
)
from assay.cli.scaling_options import NUMBER, attention_subject, sequence_lengths, shape_options, whole_numbers
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.scaling_prediction import PredictionOptions
    from assay.machine.model import Machine


BENCHMARK_RUNS = 10


@verb("predict")
@what_to_measure
@click.option(
    "--gpus-count",
    "counts",
    cls=ListOption,
    item=NUMBER,
    metavar="8,64,512",
    help="GPUs per ring.  [default: 8 64 512]",
)
@click.option(
    "--link",
    default="nvlink4",
    show_default=True,
    metavar="NAME",
    help="nvlink4, pcie5, eth400, or LATENCY:BANDWIDTH such as 5us:100GB/s.",
)
@shape_options
@click.option("--weak/--strong", default=False, help="Grow the problem with ranks, or fix it.")
@click.option(
    "--passes",
    type=click.Choice(["forward", "total"]),
    default="total",
    show_default=True,
    help="Forward only, or with backward.",
)
@device_options("the first", several=False)
@how_to_decide
@click.option("--min-efficiency", type=Fraction(), help="Exit with code 1 below this efficiency.")
@unsure_option
@how_to_measure
@click.option(
    "--warmup-runs",
    type=CALLS_OR_NONE,
    default=3,
    show_default=True,
    envvar="WARMUP_RUNS",
    help="Warm-up calls.",
)
@click.option(
    "--benchmark-runs",
    type=CALLS,
    default=BENCHMARK_RUNS,
    show_default=True,
    envvar="BENCHMARK_RUNS",
    help="Timed calls.",
)
@worker_options("10m")
@run_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Predict time, efficiency and memory on more GPUs than this machine has.

    Measures one GPU's share of every ring on one device, and adds the time of the messages, overlapped or not.

    \b
    assay scaling predict --gpus-count 8,64,512 --link nvlink4
    assay scaling predict --seq-lengths 65536 --gpus-count 16 --link 5us:100GB/s
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, measuring, options_file
    from assay.experiments.scaling_prediction import EXPERIMENT
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if flags["dry_run"]:
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    gate = None if flags["min_efficiency"] is None else partial(apply_gate, fail_unsure=flags["unsure"] == "fail")
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags, afterwards=gate)


def apply_gate(run: Path, code: int, *, fail_unsure: bool) -> int:
    """Return the exit code once the gate was asked, and say what it answers: no is 1, whatever else happened."""
    from assay.core.files import read_json
    from assay.core.results import Findings

    findings = Findings.model_validate(read_json(run / "findings.json")).findings
    decided = [finding for finding in findings if finding.kind != "skipped"]
    verdicts = {finding.verdict for finding in decided}
    verdict = "no" if "no" in verdicts else "unsure" if "unsure" in verdicts else "yes"
    claims = [finding.claim for finding in decided if finding.verdict == verdict]
    outcome = {"yes": "it is so", "no": "it is not so", "unsure": "it cannot be told whether this is so"}[verdict]
    lets = "; that passes, and --unsure fail would not let it" if verdict == "unsure" and not fail_unsure else ""
    click.echo(f"Gate: {outcome}: {'; '.join(claims)}{lets}.", err=True)
    return 1 if verdict == "no" or (verdict == "unsure" and fail_unsure) else code


def refuse_undecidable_gate(flags: dict[str, Any]) -> None:
    """Refuse a gate that could never say no, before anything is measured.

    Raises:
        BadInput: So few calls are timed that no interval can be told from them, or no gate is asked for.
    """
    from assay.stats.numerics import MIN_VALUES

    if flags["min_efficiency"] is None:
        if flags["unsure"] == "fail":
            raise BadInput("--unsure fail needs --min-efficiency.")
        return
    if flags["benchmark_runs"] < MIN_VALUES:
        raise BadInput(
            f"--min-efficiency could never fail: {flags['benchmark_runs']} timed calls give no interval. "
            f"Use --benchmark-runs {BENCHMARK_RUNS}."
        )


def build_options(flags: dict[str, Any], machine: Machine) -> PredictionOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.experiments.scaling.prediction import parse_link
    from assay.experiments.scaling_prediction import (
        REQUIRED_EFFICIENCY,
        PredictionCell,
        PredictionOptions,
        cell_problem,
        list_cells,
        list_impossible_cells,
    )
    from assay.isolation.devices import choose_devices
    from assay.isolation.placement import parse_level

    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    kind = devices[0].partition(":")[0]
    options = PredictionOptions(
        link=parse_link(flags["link"]),
        counts=whole_numbers("--gpus-count", flags["counts"]) or (8, 64, 512),
        subject=attention_subject(flags, kind),
        sequences=sequence_lengths(flags, kind),
        mode="weak" if flags["weak"] else "strong",
        passes=flags["passes"],
        device=devices[0],
        isolation=parse_level(flags["isolation"]),
        warmup_runs=flags["warmup_runs"],
        benchmark_runs=flags["benchmark_runs"],
        required_efficiency=flags["min_efficiency"] or REQUIRED_EFFICIENCY,
        on_interference=flags["on_interference"],
        retakes=flags["retakes"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        seed=flags["seed"],
    )
    refuse_undecidable_gate(flags)
    for tokens in options.sequences:
        cell_problem(options, PredictionCell(tokens, 1))
    if not list_cells(options):
        raise BadInput(f"No --gpus-count is possible: {list_impossible_cells(options)[-1].reason}")
    return options
