"""``assay contention run``: baseline, concurrent, isolated, and baseline repeated, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from assay.cli.host_options import dispatch_remote, host_options
from assay.cli.params import (
    AGGRESSORS,
    COUNT,
    PROCESSES,
    Duration,
    ListOption,
    cooldown_option,
    device_options,
    how_to_measure,
    min_effect_option,
    run_options,
    verb,
    what_to_measure,
    worker_options,
)
from assay.cli.run import parse_parameter
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.core.values import Command, Subject, TunerName
    from assay.experiments.contention.options import Aggressor, ContentionOptions
    from assay.machine.model import Machine

NAME = r"[^-\s]\S*"
OUTPUT = "{output}"
DEFAULTS = {"cuda": ("flash_attention", "softmax"), "cpu": ("softmax",)}
TUNABLE_IMPLS = {"pick": {"cuda": "triton", "cpu": "numpy"}, "triton": {"cuda": "triton"}, "helion": {"cuda": "helion"}}
"""The implementation that each tuner finds configurations in, by kind of device."""


@verb("run")
@what_to_measure
@click.option(
    "--benchmark",
    "--kernel",
    "benchmarks",
    cls=ListOption,
    item=NAME,
    metavar="NAME...",
    help="Workloads to time and tune.",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Set a workload parameter.")
@device_options()
@click.option(
    "--workers-per-device",
    "workers",
    type=PROCESSES,
    help="Processes per device.  [default: 1; 2 on CPU cores without --aggressor]",
)
@click.option(
    "--aggressor",
    "aggressors",
    cls=ListOption,
    item=NAME,
    metavar="NAME...",
    help=f"Concurrent loads: {AGGRESSORS}, or any workload.",
)
@click.option(
    "--tuner", type=click.Choice(["pick", "triton", "helion", "none"]), help="Auto-tuner to run.  [default: pick]"
)
@click.option("--tuner-command", metavar="'CMD {output}'", help="Tuner of your own; it writes JSON to {output}.")
@how_to_measure
@click.option("--budget", type=Duration(), help="Total time; blocks repeat to fill it.  [default: 5m]")
@click.option("--duration", type=Duration(), help="Time per trial, with tuning.  [default: from --budget]")
@click.option("--repeat", type=COUNT, help="Number of blocks.  [default: as many as fit]")
@cooldown_option
@min_effect_option("1%")
@click.option("--quick", is_flag=True, help="Quick first look: a budget of 60s.")
@worker_options(isolated=False)
@run_options
@host_options()
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Time and tune alone, concurrently, concurrently with isolation, and alone again.

    \b
    assay contention run --quick
    assay contention run --benchmark gemm softmax --gpus 0,1 --budget 10m
    assay contention run --device cpu:0 --workers-per-device 2 --aggressor cpu
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    if (code := dispatch_remote(ctx, flags)) is not None:
        return code
    from assay.cli import dry_run, measuring, options_file
    from assay.experiments.contention import EXPERIMENT
    from assay.experiments.contention.plan import predict_overrun
    from assay.machine.detect import detect

    if flags["file"] is not None:
        flags = options_file.merge_options_file(ctx, flags, flags["file"], EXPERIMENT)
    machine = detect(name_host=flags["name_host"])
    options = flags["options"] if "options" in flags else build_options(flags, machine)
    if flags["workers"] is None and "options" not in flags and options.workers > 1:
        click.echo(f"{options.workers} workers per group of cores; --workers-per-device changes that.", err=True)
    too_long = predict_overrun(machine, options)
    if too_long is not None:
        click.echo(too_long, err=True)
    if flags["dry_run"]:
        return dry_run.show_dry_run(EXPERIMENT, options, machine, as_json=flags["as_json"])
    return measuring.start_run(EXPERIMENT, options, machine, options.seed, flags)


def build_options(flags: dict[str, Any], machine: Machine) -> ContentionOptions:
    """Return the options that the flags mean on this machine; anything that makes no sense is said here."""
    from assay.experiments.contention.options import ContentionOptions
    from assay.experiments.contention.plan import fit_to_budget
    from assay.isolation.devices import choose_devices
    from assay.tuners.base import can_tune

    devices = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    kind = devices[0].partition(":")[0]
    command_line, tuner_name = tuner_command(flags), flags["tuner"]
    tuner: TunerName | None = (
        "command" if command_line is not None else None if tuner_name == "none" else tuner_name or "pick"
    )
    subjects_to_time = subjects(flags, kind, tuner)
    tunable = tuple(tuner is not None and can_tune(tuner, subject) for subject in subjects_to_time)
    if tuner_name in TUNABLE_IMPLS and not any(tunable):
        raise BadInput(f"{subjects_to_time[0].label} has no configurations to tune; use --tuner none to time it.")
    options = ContentionOptions(
        subjects=subjects_to_time,
        tunable=tunable,
        devices=devices,
        workers=flags["workers"] or default_workers(kind, flags["aggressors"]),
        aggressors=aggressors(flags["aggressors"], kind),
        tuner=tuner if any(tunable) else None,
        tuner_command=command_line,
        repeat=flags["repeat"],
        cooldown_s=flags["cooldown"],
        minimum_effect=flags["min_effect"],
        on_interference=flags["on_interference"],
        retakes=flags["retakes"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        seed=flags["seed"],
    )
    return fit_to_budget(machine, options, budget_s=flags["budget"], duration_s=flags["duration"], quick=flags["quick"])


def subjects(flags: dict[str, Any], kind: str, tuner: str | None) -> tuple[Subject, ...]:
    """Return what is timed: as named, in an implementation that the tuner finds configurations in."""
    params = dict(parse_parameter(text) for text in flags["params"])
    names = flags["benchmarks"]
    if params and not names:
        raise BadInput("--param needs --benchmark: name the workloads it applies to.")
    chosen = [subject(name, kind, tuner, params) for name in names or default_benchmarks(kind, tuner)]
    for subject_to_time in chosen:
        if tuner in {"triton", "helion"} and subject_to_time.impl != tuner:
            raise BadInput(f"--tuner {tuner} tunes only workloads named NAME@{tuner}, not {subject_to_time.label}.")
    return tuple({(s.workload, s.impl): s for s in chosen}.values())


def default_workers(kind: str, aggressors: tuple[str, ...]) -> int:
    """Return how many processes share a device where none are asked for.

    Groups of cores are disjoint, so a single worker in each meets nobody: two make them compete.
    """
    return 2 if kind == "cpu" and not aggressors else 1


def default_benchmarks(kind: str, tuner: str | None) -> tuple[str, ...]:
    """Return what is timed where nothing is named: of the usual workloads those that the tuner has kernels of."""
    from assay.workloads import registry

    usual = DEFAULTS[kind]
    tuned = tuple(name for name in usual if f"{name}@{tuner}" in registry.registered_workloads())
    return tuned or usual


def subject(name: str, kind: str, tuner: str | None, params: dict[str, str]) -> Subject:
    """Return one workload; where no implementation is named, the one that can be tuned, if there is one."""
    from importlib.util import find_spec

    from assay.workloads import registry
    from assay.workloads.function import is_function_spec

    impl = TUNABLE_IMPLS.get(tuner or "pick", TUNABLE_IMPLS["pick"]).get(kind)
    if impl is not None and "@" not in name and not is_function_spec(name):
        meant = registry.resolve_subject(name, device_kind=kind).workload
        if f"{meant}@{impl}" in registry.registered_workloads() and (impl == tuner or find_spec(impl) is not None):
            return registry.resolve_subject(f"{meant}@{impl}", device_kind=kind, explicit=params)
    return registry.resolve_subject(name, device_kind=kind, explicit=params)


def aggressors(words: tuple[str, ...], kind: str) -> tuple[Aggressor, ...]:
    """Return the loads that are named, as often as they are."""
    from assay.experiments.contention.options import resolve_aggressors

    return tuple(load for word in words for load in resolve_aggressors([word], kind))


def tuner_command(flags: dict[str, Any]) -> Command | None:
    """Return the user's own tuner, having made sure that it can be started and says where its result goes."""
    import shlex
    import shutil

    from assay.core.values import Command

    text = flags["tuner_command"]
    if text is None:
        return None
    if flags["tuner"] is not None:
        raise BadInput("--tuner and --tuner-command exclude each other; give one.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--tuner-command {text!r} cannot be read: {error}.") from None
    if not any(OUTPUT in word for word in words):
        raise BadInput(f"--tuner-command must contain {OUTPUT}, the file to which the tuner writes its result.")
    if shutil.which(words[0]) is None:
        raise BadInput(f"Command {words[0]!r} of --tuner-command not found; check its name and PATH.")
    return Command(argv=tuple(words))
