"""``assay scaling run``: measure one rank, then more, in rings; speedup, efficiency and communication cost."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    CALLS,
    CALLS_OR_NONE,
    COUNT,
    PROCESSES,
    RANKS_OR_NONE,
    Fraction,
    ListOption,
    OptionalValueOption,
    device_options,
    dry_run_option,
    how_to_measure,
    json_option,
    monitor_options,
    name_host_option,
    output_group,
    unsure_option,
    verb,
    what_to_measure,
    worker_options,
)
from assay.cli.run import parse_parameter
from assay.cli.scaling_options import NUMBER, attention_subject, sequence_lengths, shape_options, whole_numbers
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.core.values import Subject
    from assay.experiments.scaling.plan import ScalingOptions, UnavailableWorld
    from assay.hosts.base import Job
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun


RANKS: dict[str, Any] = {"cls": OptionalValueOption, "alone": "0", "type": RANKS_OR_NONE, "metavar": "[N]"}
"""Of an option that may stand alone or before a number of ranks."""


@verb("run")
@shape_options
@what_to_measure
@click.option("--ring-sizes", cls=ListOption, item=NUMBER, metavar="R...", help="Ranks per ring.  [default: 1 2 4 8]")
@click.option("--nproc", type=PROCESSES, help="Ranks.  [default: one per device]")
@click.option("--all", "every", is_flag=True, help="Use 1, 2, 4 and 8 ranks, as devices allow.")
@click.option("--quick", **RANKS, help="Small problem, once; N sets the ranks.")
@click.option("--large", **RANKS, help="131072 and 262144 tokens; N sets the ranks.")
@click.option("--weak/--strong", default=False, help="Grow the problem with ranks, or fix it.")
@click.option("--workload", metavar="NAME", help="Scale another workload instead.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of --workload.")
@click.option("--ranks-param", metavar="NAME", help="Parameter that --strong divides by ranks.")
@device_options(cpu_groups="one per rank")
@click.option("--references/--no-references", default=None, help="Also measure a large matmul (on a GPU).")
@click.option("--energy/--no-energy", default=None, help="Measure J/token.  [default: on a GPU]")
@click.option("--profile", is_flag=True, help="Trace a call of the first configuration.")
@how_to_measure
@click.option("--link", metavar="NAME", help="Predict first: nvlink4 or 5us:100GB/s.")
@click.option("--min-efficiency", type=Fraction(), help="Exit with code 1 below this efficiency.")
@unsure_option
@click.option("--warmup-runs", type=CALLS_OR_NONE, envvar="WARMUP_RUNS", help="Warm-up calls.  [default: 3]")
@click.option("--benchmark-runs", type=CALLS, envvar="BENCHMARK_RUNS", help="Timed calls.  [default: 10]")
@click.option("--repeat", type=COUNT, help="Fresh starts.  [default: 3; --quick 1; gate 5]")
@worker_options("10m")
@output_group
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default="runs",
    show_default=True,
    envvar="OUTPUT_DIR",
    help="Folder for run folders.",
)
@click.option("--no-save", is_flag=True, hidden=True)
@name_host_option
@json_option
@dry_run_option
@monitor_options
@host_options(but=("nproc",))
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Measure how ring dilated attention, or any workload, scales over ranks.

    Launches the ranks, or joins those of torchrun. The CPU defaults are smaller.

    \b
    assay scaling run --nproc 4 --seq-lengths 16384 32768 --ring-sizes 1 2 4
    torchrun --nproc_per_node=2 -m assay scaling run --causal
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import dry_run, options_file
    from assay.core.errors import BadInput
    from assay.experiments.scaling import EXPERIMENT
    from assay.experiments.scaling.findings import refuse_blind_gate
    from assay.machine.detect import detect

    refuse_blind_gate(flags["min_efficiency"], flags["repeat"])
    if flags["unsure"] == "fail" and flags["min_efficiency"] is None and flags["file"] is None:
        raise BadInput("--unsure fail needs --min-efficiency.")
    if (code := dispatch_remote(ctx, flags, LatestFileHook())) is not None:
        return code
    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(ctx, flags, machine)
    refuse_blind_gate(options.min_efficiency, options.repeat)
    print_notices(ctx, options)
    if flags["dry_run"]:
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measure_and_gate(options, machine, flags)


def measure_and_gate(options: ScalingOptions, machine: Machine, flags: dict[str, Any]) -> int:
    """Measure, show, leave the older file beside the runs, and ask the gate; return the exit code."""
    from assay.cli import measuring
    from assay.experiments.scaling import EXPERIMENT

    saved = not flags["no_save"]

    def afterwards(run: Path, code: int) -> int:
        if saved:
            write_latest(run, run.parent)
        return apply_gate(run, code, fail_unsure=flags["unsure"] == "fail")

    with run_parent(flags) as parent:
        run_flags = {**flags, "output_dir": parent}
        return measuring.start_run(
            EXPERIMENT, options, machine, options.seed, run_flags, keep_run=saved, afterwards=afterwards
        )


class LatestFileHook:
    """What is left here of a run that came back: the older file beside the runs. Its gate was asked there."""

    local_options: frozenset[str] = frozenset()
    extra_words: tuple[str, ...] = ()

    def prepared(self, job: Job) -> Callable[[Path, int], int]:
        """Nothing has to be made sure of."""

        def afterwards(run: Path, code: int) -> int:
            write_latest(run, run.parent)
            return code

        return afterwards


@contextmanager
def run_parent(flags: dict[str, Any]) -> Iterator[Path]:
    """Give the folder that the run folder is made in: one that is removed afterwards where nothing is to be saved."""
    from tempfile import TemporaryDirectory

    if not flags["no_save"]:
        yield flags["output_dir"]
        return
    with TemporaryDirectory(prefix="assay-scaling-") as folder:
        yield Path(folder)


def write_latest(run: Path, parent: Path) -> None:
    """Copy the older tool's file of a run to ``latest.json`` beside the run folders, in one step."""
    from assay.compat.scaling import RESULTS_FILE
    from assay.core.files import replace_atomically, translate_os_errors

    file, latest = run / RESULTS_FILE, parent / "latest.json"
    if file.is_file():
        with translate_os_errors(latest):
            replace_atomically(latest, file.read_bytes())


def apply_gate(run: Path, code: int, *, fail_unsure: bool) -> int:
    """Return the exit code once the gate was asked, and say what it answers: no is 1, whatever else happened."""
    from assay.core.files import read_json
    from assay.core.results import Findings

    findings = Findings.model_validate(read_json(run / "findings.json"))
    answer = next((f for f in findings.findings if f.gate is not None), None)
    if answer is None:
        return code
    click.echo(f"Gate: {answer.reason}", err=True)
    refused = answer.verdict == "no" or (answer.verdict == "unsure" and fail_unsure)
    return 1 if refused else code


ATTENTION = "dilated_attention"
RANK_COUNTS = (1, 2, 4, 8)
RINGS = ("1", "2", "4", "8")
QUICK = {"cuda": ("8192", "16384"), "cpu": ("1024",)}
LARGE = ("131072", "262144")
DEFAULT_LENGTHS = {"cuda": (), "cpu": ("1024", "2048")}
"""Lengths where none is given; on a GPU those of the older tool."""
WARMUP_RUNS, BENCHMARK_RUNS, REPEAT = 3, 10, 3
QUICK_WARMUP_RUNS, QUICK_BENCHMARK_RUNS = 1, 3
ATTENTION_OPTIONS = (
    "batch_size",
    "seq_lengths",
    "embed_dim",
    "num_heads",
    "num_kv_heads",
    "segment_lengths",
    "dilation_rates",
    "dtype",
    "causal",
    "offset",
    "backend",
    "no_flash",
    "ring_sizes",
    "large",
    "link",
)
"""Flags that mean nothing to another workload."""


def build_options(ctx: click.Context, flags: dict[str, Any], machine: Machine) -> ScalingOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.scaling.analysis import build_matmul_subject
    from assay.experiments.scaling.plan import ScalingOptions, check_shapes, describe_skipped, list_shapes, list_skipped
    from assay.experiments.scaling.prediction import parse_link
    from assay.isolation.placement import parse_level
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    quick = flags["quick"] is not None
    devices, worlds, beyond = place_ranks(flags, machine, torchrun)
    kind = devices[0].partition(":")[0]
    subject, sequences = subject_and_lengths(ctx, flags, kind)
    measures = kind == "cuda"
    torch = subject.impl == "torch"
    options = ScalingOptions(
        subject=subject,
        sequences=sequences,
        worlds=worlds,
        rings=whole_numbers("--ring-sizes", flags["ring_sizes"] or RINGS) if sequences else (1,),
        unavailable=beyond,
        mode="weak" if flags["weak"] else "strong",
        ranks_param=flags["ranks_param"],
        devices=devices,
        local_ranks=torchrun.local_world_size
        if torchrun is not None and torchrun.local_world_size < torchrun.world_size
        else None,
        isolation=parse_level(flags["isolation"]),
        repeat=flags["repeat"] or default_repeats(gated=flags["min_efficiency"] is not None, quick=quick),
        warmup_runs=value_or_default(flags["warmup_runs"], QUICK_WARMUP_RUNS if quick else WARMUP_RUNS),
        benchmark_runs=flags["benchmark_runs"] or (QUICK_BENCHMARK_RUNS if quick else BENCHMARK_RUNS),
        matmul=build_matmul_subject(subject, kind)
        if torch and value_or_default(flags["references"], measures)
        else None,
        energy=value_or_default(flags["energy"], measures),
        profile=flags["profile"],
        link=None if flags["link"] is None else parse_link(flags["link"]),
        min_efficiency=flags["min_efficiency"],
        on_interference=flags["on_interference"],
        retakes=flags["retakes"],
        timeout_s=flags["timeout"],
        cpu_groups=cpu_groups(flags, machine, devices, worlds, torchrun),
        seed=flags["seed"],
    )
    check_shapes(options)
    if options.min_efficiency is not None and not list_shapes(options):
        why = " ".join(describe_skipped(list_skipped(options))) or "One rank is all there is; --nproc 2 asks for more."
        raise BadInput(f"--min-efficiency has nothing to judge: nothing is measured with more than one rank. {why}")
    return options


def default_repeats(*, gated: bool, quick: bool) -> int:
    """Return how often all is measured where nothing is given: a gate takes as many starts as its interval needs."""
    from assay.experiments.scaling.findings import GATE_REPEATS

    return GATE_REPEATS if gated else 1 if quick else REPEAT


def value_or_default(flags: Any, otherwise: Any) -> Any:
    """Return what was given, were it nothing or no; otherwise what is usual."""
    return otherwise if flags is None else flags


def subject_and_lengths(ctx: click.Context, flags: dict[str, Any], kind: str) -> tuple[Subject, tuple[int, ...]]:
    """Return what is scaled: dilated attention at some lengths, or another workload, which has none."""
    from importlib.util import find_spec

    from assay.workloads import registry

    name = flags["workload"]
    if name is not None and name.partition("@")[0].replace("-", "_") != ATTENTION:
        strange = [p for p in ATTENTION_OPTIONS if ctx.get_parameter_source(p) == ParameterSource.COMMANDLINE]
        if strange:
            option = next(p.opts[0] for p in ctx.command.params if p.name == strange[0])
            raise BadInput(f"{option} applies to dilated attention only; set parameters of {name} with --param.")
        params = dict(parse_parameter(text) for text in flags["params"])
        return registry.resolve_subject(name, device_kind=kind, explicit=params), ()
    if flags["params"] or flags["ranks_param"]:
        flag = "--param" if flags["params"] else "--ranks-param"
        raise BadInput(f"{flag} needs --workload; dilated attention has flags of its own (--help).")
    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    flags_with_sizes = with_default_sizes(flags, kind)
    return attention_subject(flags_with_sizes, kind), sequence_lengths(flags_with_sizes, kind)


def with_default_sizes(flags: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the flags with the lengths and the batch that --quick and --large stand for, where none are given."""
    if flags["quick"] is not None and flags["large"] is not None:
        raise BadInput("--quick and --large exclude each other; give one.")
    lengths = (
        QUICK[kind] if flags["quick"] is not None else LARGE if flags["large"] is not None else DEFAULT_LENGTHS[kind]
    )
    batch = flags["batch_size"] or (1 if flags["large"] is not None else None)
    return {**flags, "seq_lengths": flags["seq_lengths"] or lengths, "batch_size": batch}


def place_ranks(
    flags: dict[str, Any], machine: Machine, torchrun: Torchrun | None
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[UnavailableWorld, ...]]:
    """Return the devices, the numbers of ranks, and those that are asked for and are not measured here."""
    from assay.experiments.scaling.plan import UnavailableWorld
    from assay.isolation.devices import choose_devices

    rank_counts = requested_ranks(flags)
    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    on_cpu = devices[0].startswith("cpu")
    there = len(machine.cores) if on_cpu and not flags["devices"] else len(devices)
    if torchrun is not None:
        if rank_counts is not None and rank_counts > torchrun.world_size:
            raise BadInput(
                f"{rank_counts} ranks are more than the {torchrun.world_size} processes that torchrun started."
            )
        there = torchrun.world_size
    worlds: tuple[int, ...] = (rank_counts or (torchrun.world_size if torchrun is not None else len(devices)),)
    beyond: tuple[UnavailableWorld, ...] = ()
    if flags["every"]:
        if rank_counts is not None:
            raise BadInput("--all means 1, 2, 4 and 8 ranks; do not give another number of ranks.")
        only = "torchrun started" if torchrun is not None else "there are only"
        what = "processes" if torchrun is not None else "cores" if on_cpu else "GPUs"
        worlds = tuple(world for world in RANK_COUNTS if world <= there)
        beyond = tuple(UnavailableWorld(world=w, reason=f"{only} {there} {what}") for w in RANK_COUNTS if w > there)
    groups = cpu_groups(flags, machine, devices, worlds, torchrun)
    if groups is not None and not any(":" in word for word in flags["devices"]):
        devices = choose_devices(machine, devices=flags["devices"], cpu_groups=groups)
    return devices[: max(1, local_ranks(max(worlds), torchrun))], worlds, beyond


def local_ranks(world: int, torchrun: Torchrun | None) -> int:
    """Return how many of so many ranks are on this machine."""
    return world if torchrun is None else min(world, torchrun.local_world_size)


def cpu_groups(
    flags: dict[str, Any],
    machine: Machine,
    devices: tuple[str, ...],
    worlds: tuple[int, ...],
    torchrun: Torchrun | None,
) -> int | None:
    """Return the groups that cores are parted into: one a rank, as far as there are cores; null on GPUs."""
    if not devices[0].startswith("cpu"):
        return None
    if flags["cpu_groups"] is not None or any(":" in word for word in flags["devices"]):
        groups: int | None = flags["cpu_groups"]
        return groups
    return min(len(machine.cores), max(2, local_ranks(max(worlds), torchrun)))


def requested_ranks(flags: dict[str, Any]) -> int | None:
    """Return how many ranks the flags ask for; null where none says."""
    named = {flag: flags[flag] for flag in ("nproc", "quick", "large") if flags[flag]}
    if len(set(named.values())) > 1:
        raise BadInput(
            f"{' and '.join(f'--{flag} {count}' for flag, count in named.items())} are different numbers of ranks."
        )
    return next(iter(named.values()), None)


def print_notices(ctx: click.Context, options: ScalingOptions) -> None:
    """Say on stderr what a user may not expect: small sizes on a CPU, what the environment set, what is skipped."""
    from assay.experiments.scaling.plan import describe_skipped, list_skipped
    from assay.experiments.scaling.report import describe_sharing
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.rank > 0:
        return
    params = options.subject.params
    if options.is_attention and options.kind == "cpu":
        lengths = " and ".join(map(str, options.sequences))
        click.echo(
            f"On a CPU sizes are small unless they are given. Here: batch {params['batch']}, {lengths} tokens, "
            f"segments {params['segments']}, rates {params['rates']}, {params['heads']} heads of {params['dim']}, "
            f"{params['dtype']}.",
            err=True,
        )
    notices = [
        f"{p.envvar}={' '.join(v) if isinstance(v := ctx.params[str(p.name)], tuple) else v}"
        for p in ctx.command.params
        if p.envvar and ctx.get_parameter_source(str(p.name)) == ParameterSource.ENVIRONMENT
    ]
    if notices:
        click.echo(f"From the environment: {', '.join(notices)}.", err=True)
    for sentence in describe_skipped(list_skipped(options)):
        click.echo(f"Skipped: {sentence}", err=True)
    if options.local_rank_count > len(options.devices):
        click.echo(f"{describe_sharing(options)}: they wait for each other.", err=True)
