"""``assay scaling run``: one rank, then more, in rings; what they buy and what limits it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.on_host import hosted, sent
from assay.cli.params import (
    CALLS,
    CALLS_OR_NONE,
    COUNT,
    PROCESSES,
    RANKS_OR_NONE,
    Duration,
    Fraction,
    Listed,
    Perhaps,
    minding_strangers,
    retaking,
    verb,
    watching,
)
from assay.cli.run import DEVICE, GPU
from assay.cli.scaling_options import NUMBER, shaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.experiments.scaling.options import ScalingOptions
    from assay.hosts.base import Order
    from assay.machine.model import Machine

RANKS: dict[str, Any] = {"cls": Perhaps, "alone": "0", "type": RANKS_OR_NONE, "metavar": "[N]"}
"""Of an option that may stand alone or before a number of ranks."""


@verb("run")
@shaped
@click.option(
    "--ring-sizes", cls=Listed, item=NUMBER, metavar="R...", help="Ranks that share a sequence.  [default: 1 2 4 8]"
)
@click.option("--warmup-runs", type=CALLS_OR_NONE, envvar="WARMUP_RUNS", help="Untimed calls.  [default: 3]")
@click.option("--benchmark-runs", type=CALLS, envvar="BENCHMARK_RUNS", help="Timed calls.  [default: 10]")
@click.option(
    "--repeat", type=COUNT, help="All of it again, started afresh.  [default: 3; 1 with --quick; 5 with a gate]"
)
@click.option("--nproc", type=PROCESSES, help="So many ranks.  [default: one a device, or as torchrun has]")
@click.option("--all", "every", is_flag=True, help="1, 2, 4 and 8 ranks, as far as there are devices.")
@click.option("--quick", **RANKS, help="8192 and 16384 tokens, 1 warm-up, 3 runs, once; 1024 on a CPU. N: ranks.")
@click.option("--large", **RANKS, help="131072 and 262144 tokens, batch 1. N: ranks.")
@click.option("--weak/--strong", default=False, help="The sequence grows with the ring, or is shared out.  [default]")
@click.option("--workload", metavar="NAME", help="Another workload: every rank does the same call.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of that workload.")
@click.option("--ranks-param", metavar="NAME", help="Its parameter that ranks share out, under --strong.")
@click.option("--link", metavar="NAME", help="Predict beforehand: nvlink4, pcie5, eth400, or 5us:100GB/s.")
@click.option("--min-efficiency", type=Fraction(), help="A gate: exit 1 where an interval over starts lies below.")
@click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What the gate does when an interval holds both.",
)
@click.option("--gpus", cls=Listed, item=GPU, metavar="0,1", help="Which GPUs, by number or UUID.  [default: all]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--cpu-groups", type=PROCESSES, help="Groups the cores are parted into.  [default: one a rank]")
@click.option("--isolation", default="full", show_default=True, help="none, gpu, cpu, numa or full.")
@minding_strangers
@retaking
@watching
@click.option("--yardsticks/--no-yardsticks", default=None, help="Measure a large matmul too.  [default: on a GPU]")
@click.option("--energy/--no-energy", default=None, help="Meter the energy of a token.  [default: on a GPU]")
@click.option("--profile", is_flag=True, help="Trace one call of the first configuration.")
@click.option("--timeout", type=Duration(), default="600", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--options", "file", type=click.Path(path_type=Path), help="Options from a YAML or JSON file.")
@click.option("--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True, envvar="OUTPUT_DIR")
@click.option("--no-save", is_flag=True, help="Leave no file behind.")
@click.option("--name-host", is_flag=True, help="Write the host's name into machine.json.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, and measure nothing.")
@hosted(but=("nproc",))
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Scale ring dilated attention, or any workload, over ranks.

    Started by itself it launches the ranks; under torchrun it joins them. On a CPU sizes are small unless they are
    given: 1 sequence of 1024 and 2048 tokens, segments 256 512 1024, 4 heads of 32, float32.

    \b
    assay scaling run --quick
    assay scaling run --nproc 4 --seq-lengths 16384 32768 --ring-sizes 1 2 4
    assay scaling run --all --min-efficiency 0.7
    assay scaling run --workload softmax --nproc 2
    torchrun --nproc_per_node=2 -m assay scaling run --causal
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, options_file, scaling_build
    from assay.core.errors import BadInput
    from assay.experiments.scaling import EXPERIMENT
    from assay.experiments.scaling.gate import refuse_blind
    from assay.machine.detect import detect

    refuse_blind(given["min_efficiency"], given["repeat"])
    if given["unsure"] == "fail" and given["min_efficiency"] is None and given["file"] is None:
        raise BadInput("--unsure fail is of the gate, and there is none without --min-efficiency.")
    if (code := sent(ctx, given, LeavesLatest())) is not None:
        return code
    if given["file"] is not None:
        given = options_file.merged(ctx, given, given["file"], EXPERIMENT)
    machine = detect(name_host=given["name_host"])
    options = given["options"] if "options" in given else scaling_build.build(ctx, given, machine)
    refuse_blind(options.min_efficiency, options.repeat)
    scaling_build.say_what_is_meant(ctx, options)
    if given["dry_run"]:
        return dry_run.show(EXPERIMENT, options, machine, as_json=given["as_json"])
    return measured(options, machine, given)


def measured(options: ScalingOptions, machine: Machine, given: dict[str, Any]) -> int:
    """Measure, show, leave the older file beside the runs, and ask the gate; return the exit code."""
    from assay.cli import measure
    from assay.experiments.scaling import EXPERIMENT

    saved = not given["no_save"]

    def afterwards(run: Path, code: int) -> int:
        if saved:
            leave_latest(run, run.parent)
        return gated(run, code, fail_unsure=given["unsure"] == "fail")

    with parent_of(given) as parent:
        run_flags = {**given, "output_dir": parent}
        return measure.as_told(EXPERIMENT, options, machine, options.seed, run_flags, kept=saved, afterwards=afterwards)


class LeavesLatest:
    """What is left here of a run that came back: the older file beside the runs. Its gate was asked there."""

    kept: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()

    def prepared(self, order: Order) -> Callable[[Path, int], int]:
        """Nothing has to be made sure of."""

        def afterwards(run: Path, code: int) -> int:
            leave_latest(run, run.parent)
            return code

        return afterwards


@contextmanager
def parent_of(given: dict[str, Any]) -> Iterator[Path]:
    """Give the folder that the run folder is made in: one that is removed afterwards where nothing is to be saved."""
    from tempfile import TemporaryDirectory

    if not given["no_save"]:
        yield given["output_dir"]
        return
    with TemporaryDirectory(prefix="assay-scaling-") as folder:
        yield Path(folder)


def leave_latest(run: Path, parent: Path) -> None:
    """Copy the older tool's file of a run to ``latest.json`` beside the run folders, in one step."""
    from assay.core.durable import friendly_os_errors, replace_atomically
    from assay.experiments.scaling.older import FILE

    file, latest = run / FILE, parent / "latest.json"
    if file.is_file():
        with friendly_os_errors(latest):
            replace_atomically(latest, file.read_bytes())


def gated(run: Path, code: int, *, fail_unsure: bool) -> int:
    """Return the exit code once the gate was asked, and say what it answers: no is 1, whatever else happened."""
    from assay.core.durable import read_json
    from assay.core.results import Findings

    findings = Findings.model_validate(read_json(run / "findings.json"))
    answer = next((f for f in findings.findings if f.facts.get("about") == "gate"), None)
    if answer is None:
        return code
    click.echo(f"Gate: {answer.reason}", err=True)
    refused = answer.verdict == "no" or (answer.verdict == "unsure" and fail_unsure)
    return 1 if refused else code
