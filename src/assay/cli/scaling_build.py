"""From the flags of ``assay scaling run`` to its options on this machine; anything that makes no sense is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from assay.cli.run import parameter
from assay.cli.scaling_options import sequences_of, subject_of, whole_numbers
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from assay.core.plan import Subject
    from assay.experiments.scaling.options import Beyond, ScalingOptions
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun

ATTENTION = "dilated_attention"
EVERY = (1, 2, 4, 8)
RINGS = ("1", "2", "4", "8")
QUICK = {"cuda": ("8192", "16384"), "cpu": ("1024",)}
LARGE = ("131072", "262144")
USUAL = {"cuda": (), "cpu": ("1024", "2048")}
"""Lengths where none is given; on a GPU those of the older tool."""
WARMUP_RUNS, BENCHMARK_RUNS, REPEAT = 3, 10, 3
QUICK_WARMUP_RUNS, QUICK_BENCHMARK_RUNS = 1, 3
OF_ATTENTION = (
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


def build(ctx: click.Context, given: dict[str, Any], machine: Machine) -> ScalingOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.scaling.links import link_of
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.problem import check
    from assay.experiments.scaling.rates import yardstick
    from assay.experiments.scaling.shapes import sentences, shapes, skipped
    from assay.isolation.allot import parse_level
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.found()
    quick = given["quick"] is not None
    devices, worlds, beyond = placed(given, machine, torchrun)
    kind = devices[0].partition(":")[0]
    subject, sequences = subject_and_lengths(ctx, given, kind)
    measures = kind == "cuda"
    torch = subject.impl == "torch"
    options = ScalingOptions(
        subject=subject,
        sequences=sequences,
        worlds=worlds,
        rings=whole_numbers("--ring-sizes", given["ring_sizes"] or RINGS) if sequences else (1,),
        beyond=beyond,
        mode="weak" if given["weak"] else "strong",
        ranks_param=given["ranks_param"],
        devices=devices,
        local_ranks=torchrun.local_world_size
        if torchrun is not None and torchrun.local_world_size < torchrun.world_size
        else None,
        isolation=parse_level(given["isolation"]),
        repeat=given["repeat"] or repeats(gated=given["min_efficiency"] is not None, quick=quick),
        warmup_runs=chosen(given["warmup_runs"], QUICK_WARMUP_RUNS if quick else WARMUP_RUNS),
        benchmark_runs=given["benchmark_runs"] or (QUICK_BENCHMARK_RUNS if quick else BENCHMARK_RUNS),
        yardstick=yardstick(subject, kind) if torch and chosen(given["yardsticks"], measures) else None,
        energy=chosen(given["energy"], measures),
        profile=given["profile"],
        link=None if given["link"] is None else link_of(given["link"]),
        min_efficiency=given["min_efficiency"],
        strangers=given["strangers"],
        retakes=given["retakes"],
        timeout_s=given["timeout"],
        cpu_groups=groups_of(given, machine, devices, worlds, torchrun),
        seed=given["seed"],
    )
    check(options)
    if options.min_efficiency is not None and not shapes(options):
        why = " ".join(sentences(skipped(options))) or "One rank is all there is; --nproc 2 asks for more."
        raise BadInput(f"--min-efficiency has nothing to judge: nothing is measured with more than one rank. {why}")
    return options


def repeats(*, gated: bool, quick: bool) -> int:
    """Return how often all is measured where nothing is given: a gate takes as many starts as its interval needs."""
    from assay.experiments.scaling.gate import GATE_REPEATS

    return GATE_REPEATS if gated else 1 if quick else REPEAT


def chosen(given: Any, otherwise: Any) -> Any:
    """Return what was given, were it nothing or no; otherwise what is usual."""
    return otherwise if given is None else given


def subject_and_lengths(ctx: click.Context, given: dict[str, Any], kind: str) -> tuple[Subject, tuple[int, ...]]:
    """Return what is scaled: dilated attention at some lengths, or another workload, which has none."""
    from importlib.util import find_spec

    from assay.workloads import registry

    name = given["workload"]
    if name is not None and name.partition("@")[0].replace("-", "_") != ATTENTION:
        strange = [p for p in OF_ATTENTION if ctx.get_parameter_source(p) == ParameterSource.COMMANDLINE]
        if strange:
            option = next(p.opts[0] for p in ctx.command.params if p.name == strange[0])
            raise BadInput(f"{option} is of dilated attention, and means nothing to {name}; --param names others.")
        params = dict(parameter(text) for text in given["params"])
        return registry.subject(name, device_kind=kind, given=params), ()
    if given["params"] or given["ranks_param"]:
        flag = "--param" if given["params"] else "--ranks-param"
        raise BadInput(f"{flag} is of another workload; dilated attention has flags of its own (--help).")
    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    flags_with_sizes = with_usual(given, kind)
    return subject_of(flags_with_sizes, kind), sequences_of(flags_with_sizes, kind)


def with_usual(given: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the flags with the lengths and the batch that --quick and --large stand for, where none are given."""
    if given["quick"] is not None and given["large"] is not None:
        raise BadInput("Say either --quick or --large, not both.")
    lengths = QUICK[kind] if given["quick"] is not None else LARGE if given["large"] is not None else USUAL[kind]
    batch = given["batch_size"] or (1 if given["large"] is not None else None)
    return {**given, "seq_lengths": given["seq_lengths"] or lengths, "batch_size": batch}


def placed(
    given: dict[str, Any], machine: Machine, place: Torchrun | None
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Beyond, ...]]:
    """Return the devices, the numbers of ranks, and those that are asked for and are not measured here."""
    from assay.experiments.scaling.options import Beyond
    from assay.isolation.devices import choose

    rank_counts = processes(given)
    devices = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=given["cpu_groups"])
    on_cpu = devices[0].startswith("cpu")
    there = len(machine.cores) if on_cpu and not given["devices"] else len(devices)
    if place is not None:
        if rank_counts is not None and rank_counts > place.world_size:
            raise BadInput(f"{rank_counts} ranks are more than the {place.world_size} processes that torchrun started.")
        there = place.world_size
    worlds: tuple[int, ...] = (rank_counts or (place.world_size if place is not None else len(devices)),)
    beyond: tuple[Beyond, ...] = ()
    if given["every"]:
        if rank_counts is not None:
            raise BadInput("--all means 1, 2, 4 and 8 ranks, and another flag says how many.")
        only = "torchrun started" if place is not None else "there are only"
        what = "processes" if place is not None else "cores" if on_cpu else "GPUs"
        worlds = tuple(world for world in EVERY if world <= there)
        beyond = tuple(Beyond(world=w, reason=f"{only} {there} {what}") for w in EVERY if w > there)
    groups = groups_of(given, machine, devices, worlds, place)
    if groups is not None and not any(":" in word for word in given["devices"]):
        devices = choose(machine, devices=given["devices"], cpu_groups=groups)
    return devices[: max(1, local_ranks(max(worlds), place))], worlds, beyond


def local_ranks(world: int, place: Torchrun | None) -> int:
    """Return how many of so many ranks are on this machine."""
    return world if place is None else min(world, place.local_world_size)


def groups_of(
    given: dict[str, Any], machine: Machine, devices: tuple[str, ...], worlds: tuple[int, ...], place: Torchrun | None
) -> int | None:
    """Return the groups that cores are parted into: one a rank, as far as there are cores; null on GPUs."""
    if not devices[0].startswith("cpu"):
        return None
    if given["cpu_groups"] is not None or any(":" in word for word in given["devices"]):
        groups: int | None = given["cpu_groups"]
        return groups
    return min(len(machine.cores), max(2, local_ranks(max(worlds), place)))


def processes(given: dict[str, Any]) -> int | None:
    """Return how many ranks the flags ask for; null where none says."""
    named = {flag: given[flag] for flag in ("nproc", "quick", "large") if given[flag]}
    if len(set(named.values())) > 1:
        raise BadInput(f"How many ranks? {' and '.join(f'--{flag} {count}' for flag, count in named.items())}.")
    return next(iter(named.values()), None)


def say_what_is_meant(ctx: click.Context, options: ScalingOptions) -> None:
    """Say on stderr what a user may not expect: small sizes on a CPU, what the environment set, what is skipped."""
    from assay.experiments.scaling.shapes import sentences, skipped
    from assay.experiments.scaling.tables import sharing
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.found()
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
    for sentence in sentences(skipped(options)):
        click.echo(f"Skipped: {sentence}", err=True)
    if options.crowd > len(options.devices):
        click.echo(f"{sharing(options)}: they wait for each other.", err=True)
