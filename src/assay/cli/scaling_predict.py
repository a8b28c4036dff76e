"""``assay scaling predict``: predict time, efficiency and memory on GPUs that are not here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from assay.cli import flags as cli
from assay.cli.scaling_run import ShapeFlags, whole_numbers
from assay.core.errors import BadInput
from assay.core.format import MAX_CALLS
from assay.experiments.scaling_prediction import PredictionOptions

if TYPE_CHECKING:
    from pathlib import Path

    from assay.machine.model import Machine


class PredictFlags(ShapeFlags, cli.UnsureFlags, cli.IsolationFlags, cli.MeasureFlags):
    """What `assay scaling predict` can be asked for."""

    counts: tuple[str, ...] = cli.what_flag(
        "--gpus-count", default=(), item=cli.NUMBER, metavar="8,64,512", shown="8 64 512", help="GPUs per ring."
    )
    link: str = cli.what_flag(
        default="nvlink4", metavar="NAME", help="nvlink4, pcie5, eth400, or LATENCY:BANDWIDTH such as 5us:100GB/s."
    )
    weak: bool = cli.what_flag("--weak/--strong", default=False, help="Grow the problem with ranks, or fix it.")
    passes: Literal["forward", "total"] = cli.what_flag(default="total", help="Forward only, or with backward.")
    gpus: tuple[str, ...] = cli.gpus_flag("the first", several=False)
    min_efficiency: float | None = cli.decide_flag(gt=0, lt=1, help="Exit with code 1 below this efficiency.")
    warmup_runs: int = cli.how_option(
        PredictionOptions, "warmup_runs", le=MAX_CALLS, envvar="WARMUP_RUNS", help="Warm-up calls."
    )
    benchmark_runs: int = cli.how_option(
        PredictionOptions, "benchmark_runs", le=MAX_CALLS, envvar="BENCHMARK_RUNS", help="Timed calls."
    )
    timeout_s: float = cli.timeout_flag(600.0)


@cli.verb("scaling predict", PredictFlags)
def predict_scaling(flags: PredictFlags) -> int:
    """Predict time, efficiency and memory on more GPUs than this machine has.

    Measures one GPU's share of every ring on one device, and adds the time of the messages, overlapped or not.

        assay scaling predict --gpus-count 8,64,512 --link nvlink4
        assay scaling predict --seq-lengths 65536 --gpus-count 16 --link 5us:100GB/s
    """
    from assay.cli import measuring
    from assay.experiments.scaling_prediction import EXPERIMENT

    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    gate = None if flags.min_efficiency is None else partial(apply_gate, fail_unsure=flags.unsure == "fail")
    return measuring.start_run(EXPERIMENT, options, machine, flags, afterwards=gate)


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


def refuse_undecidable_gate(flags: PredictFlags) -> None:
    """Refuse a gate that could never say no, before anything is measured.

    Raises:
        BadInput: Too few calls are timed for an interval, or no gate is asked for.
    """
    from assay.stats.numerics import MIN_VALUES

    if flags.min_efficiency is None:
        if flags.unsure == "fail":
            raise BadInput("--unsure fail needs --min-efficiency.")
        return
    if flags.benchmark_runs < MIN_VALUES:
        default = PredictionOptions.model_fields["benchmark_runs"].default
        raise BadInput(
            f"--min-efficiency could never fail: {flags.benchmark_runs} timed calls give no interval. "
            f"Use --benchmark-runs {default}."
        )


def build_options(flags: PredictFlags, machine: Machine) -> PredictionOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.scaling.prediction import parse_link
    from assay.experiments.scaling_prediction import PredictionCell, cell_problem, list_cells, list_impossible_cells
    from assay.machine.devices import kind_of

    device = flags.choose_devices(machine)[0]
    kind = kind_of(device)
    usual = {} if flags.min_efficiency is None else {"required_efficiency": flags.min_efficiency}
    options = flags.fill(
        PredictionOptions,
        usual,
        link=parse_link(flags.link),
        counts=whole_numbers("--gpus-count", flags.counts) or (8, 64, 512),
        subject=flags.attention_subject(kind),
        sequences=flags.sequences(kind),
        mode="weak" if flags.weak else "strong",
        device=device,
    )
    refuse_undecidable_gate(flags)
    for tokens in options.sequences:
        cell_problem(options, PredictionCell(tokens, 1))
    if not list_cells(options):
        raise BadInput(f"No --gpus-count is possible: {list_impossible_cells(options)[-1].reason}")
    return options
