"""``assay contention run`` and ``assay contention matrix``.

Time and tune alone, concurrently and isolated; and measure which aggressor slows which victim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from assay.cli import flags as cli
from assay.cli.host_flags import DurationEstimate, HostFlags, dispatch_remote
from assay.core.errors import BadInput
from assay.core.format import MAX_PROCESSES, MAX_REPEATS
from assay.experiments.contention.options import (
    NAMED_AGGRESSORS,
    ContentionOptions,
    default_victims,
    resolve_aggressors,
)
from assay.experiments.matrix.plan import MatrixOptions

if TYPE_CHECKING:
    from assay.core.values import Command, Subject, TunerName
    from assay.machine.model import Machine

AGGRESSORS = ", ".join(NAMED_AGGRESSORS)
TUNER_OUTPUT = "{output}"
DEFAULTS = {"cuda": ("flash_attention", "softmax"), "cpu": ("softmax",)}
TUNABLE_IMPLS = {"pick": {"cuda": "triton", "cpu": "numpy"}, "triton": {"cuda": "triton"}, "helion": {"cuda": "helion"}}
"""The implementation that each tuner finds configurations in, by kind of device."""


def aggressor_flag(shown: str = "") -> Any:
    """Return the flag that names concurrent loads."""
    help_text = f"Concurrent loads: {AGGRESSORS}, or any workload."
    return cli.what_flag("--aggressor", default=(), item=cli.NAME, metavar="NAME...", shown=shown, help=help_text)


class ContentionRunFlags(cli.MeasureFlags, HostFlags):
    """What `assay contention run` can be asked for."""

    benchmarks: tuple[str, ...] = cli.what_flag(
        "--benchmark",
        aliases="--kernel",
        default=(),
        item=cli.NAME,
        metavar="NAME...",
        help="Workloads to time and tune.",
    )
    params: tuple[str, ...] = cli.param_flag()
    workers: int | None = cli.what_flag(
        "--workers-per-device",
        ge=1,
        le=MAX_PROCESSES,
        shown="1; 2 on CPU cores without --aggressor",
        help="Processes per device.",
    )
    aggressors: tuple[str, ...] = aggressor_flag()
    tuner: Literal["pick", "triton", "helion", "none"] | None = cli.what_flag(shown="pick", help="Auto-tuner to run.")
    tuner_command: str | None = cli.what_flag(
        metavar="'CMD {output}'", help="Tuner of your own; it writes JSON to {output}."
    )
    budget_s: float | None = cli.how_flag(gt=0, shown="5m", help="Total time; blocks repeat to fill it.")
    duration_s: float | None = cli.how_flag(gt=0, shown="from --budget", help="Time per trial, with tuning.")
    repeat: int | None = cli.how_flag(ge=1, le=MAX_REPEATS, shown="as many as fit", help="Number of blocks.")
    cooldown_s: float = cli.cooldown_flag()
    minimum_effect: float = cli.min_effect_flag(ContentionOptions, cli.HOW)
    quick: bool = cli.how_flag(default=False, help="Quick first look: a budget of 60s.")

    def estimate_duration(self) -> DurationEstimate:
        """Return its budget."""
        from assay.experiments.budget import BUDGET_S, QUICK_BUDGET_S

        if self.budget_s is not None:
            return super().estimate_duration()
        return (
            DurationEstimate(QUICK_BUDGET_S, "its budget with --quick")
            if self.quick
            else DurationEstimate(BUDGET_S, "its budget")
        )

    def named_workloads(self) -> tuple[str, ...]:
        """Return all of them."""
        return self.benchmarks


@cli.verb("contention run", ContentionRunFlags)
def measure_contention(flags: ContentionRunFlags) -> int:
    """Time and tune alone, concurrently, concurrently with isolation, and alone again.

    assay contention run --quick
    assay contention run --benchmark gemm softmax --gpus 0,1 --budget 10m
    assay contention run --device cpu:0 --workers-per-device 2 --aggressor cpu
    """
    if (code := dispatch_remote(flags)) is not None:
        return code
    from assay.cli import measuring
    from assay.experiments.contention import EXPERIMENT
    from assay.experiments.contention.plan import predict_overrun

    planned = flags.options_file
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    if planned is None and flags.workers is None and options.workers > 1:
        click.echo(f"{options.workers} workers per group of cores; --workers-per-device changes that.", err=True)
    too_long = predict_overrun(machine, options)
    if too_long is not None:
        click.echo(too_long, err=True)
    return measuring.start_run(EXPERIMENT, options, machine, flags)


def build_options(flags: ContentionRunFlags, machine: Machine) -> ContentionOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.contention.plan import fit_to_budget
    from assay.machine.devices import kind_of
    from assay.tuners.base import can_tune

    devices = flags.choose_devices(machine)
    kind = kind_of(devices[0])
    command_line = tuner_command(flags)
    tuner: TunerName | None = (
        "command" if command_line is not None else None if flags.tuner == "none" else flags.tuner or "pick"
    )
    subjects_to_time = subjects(flags, kind, tuner)
    tunable = tuple(tuner is not None and can_tune(tuner, subject) for subject in subjects_to_time)
    if flags.tuner in TUNABLE_IMPLS and not any(tunable):
        raise BadInput(f"{subjects_to_time[0].label} has no configurations to tune; use --tuner none to time it.")
    # Groups of cores are disjoint, so a single worker in each would not contend: two make them compete.
    default_workers = 2 if kind == "cpu" and not flags.aggressors else 1
    options = flags.fill(
        ContentionOptions,
        subjects=subjects_to_time,
        tunable=tunable,
        devices=devices,
        workers=flags.workers or default_workers,
        aggressors=tuple(load for word in flags.aggressors for load in resolve_aggressors([word], kind)),
        tuner=tuner if any(tunable) else None,
        tuner_command=command_line,
    )
    return fit_to_budget(machine, options, budget_s=flags.budget_s, duration_s=flags.duration_s, quick=flags.quick)


def subjects(flags: ContentionRunFlags, kind: str, tuner: str | None) -> tuple[Subject, ...]:
    """Return what is timed: as named, in an implementation that the tuner finds configurations in."""
    params, names = cli.parse_assignments(flags.params), flags.benchmarks
    if params and not names:
        raise BadInput("--param needs --benchmark: name the workloads it applies to.")
    chosen = [subject(name, kind, tuner, params) for name in names or default_benchmarks(kind, tuner)]
    for subject_to_time in chosen:
        if tuner in {"triton", "helion"} and subject_to_time.impl != tuner:
            raise BadInput(f"--tuner {tuner} tunes only workloads named NAME@{tuner}, not {subject_to_time.label}.")
    return tuple({(s.workload, s.impl): s for s in chosen}.values())


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


def tuner_command(flags: ContentionRunFlags) -> Command | None:
    """Return the user's own tuner, having made sure that it can be started and says where its result goes."""
    import shlex
    import shutil

    from assay.core.values import Command

    text = flags.tuner_command
    if text is None:
        return None
    if flags.tuner is not None:
        raise BadInput("--tuner and --tuner-command exclude each other; give one.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--tuner-command {text!r} cannot be read: {error}.") from None
    if not any(TUNER_OUTPUT in word for word in words):
        raise BadInput(f"--tuner-command must contain {TUNER_OUTPUT}, the file to which the tuner writes its result.")
    if shutil.which(words[0]) is None:
        raise BadInput(f"Command {words[0]!r} of --tuner-command not found; check its name and PATH.")
    return Command(argv=tuple(words))


QUICK = {"duration_s": 0.5, "repeat": 3}
SHORTEST_TRIAL_S = 0.1
FEWEST_BLOCKS = 3
"""A budget is shared out so that this many blocks fit: with fewer, intervals say next to nothing."""


class MatrixFlags(cli.CacheFlags, cli.MeasureFlags, HostFlags):
    """What `assay contention matrix` can be asked for."""

    victims: tuple[str, ...] = cli.what_flag(
        "--victim", default=(), item=cli.NAME, metavar="NAME...", help="Workloads to time."
    )
    aggressors: tuple[str, ...] = aggressor_flag("all that fit")
    params: tuple[str, ...] = cli.param_flag("Set a parameter of the victims.")
    gpus: tuple[str, ...] = cli.gpus_flag("one")
    duration_s: float | None = cli.how_option(
        MatrixOptions, "duration_s", optional=True, help="Time per trial, without startup."
    )
    repeat: int | None = cli.how_option(
        MatrixOptions, "repeat", optional=True, le=MAX_REPEATS, help="Number of blocks."
    )
    budget_s: float | None = cli.how_flag(gt=0, help="Total time; shortens trials, drops blocks.")
    cooldown_s: float = cli.cooldown_flag()
    minimum_effect: float = cli.min_effect_flag(MatrixOptions, cli.HOW)
    in_turns: bool = cli.how_flag("--interleave", default=False, help="Time all victims in one process, interleaved.")
    quick: bool = cli.how_flag(default=False, help="Quick first look: 0.5s per trial, 3 blocks.")


@cli.verb("contention matrix", MatrixFlags)
def measure_matrix(flags: MatrixFlags) -> int:
    """Measure every victim against every aggressor, with and without isolation.

    assay contention matrix
    assay contention matrix --device cpu:0 --victim softmax --aggressor cpu memory
    assay contention matrix --gpus 0 --aggressor cpu pcie hbm --budget 10m
    """
    if (code := dispatch_remote(flags)) is not None:
        return code
    from assay.cli import measuring
    from assay.experiments.matrix import EXPERIMENT

    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_matrix_options)
    return measuring.start_run(EXPERIMENT, options, machine, flags)


def build_matrix_options(flags: MatrixFlags, machine: Machine) -> MatrixOptions:
    """Return the options that the flags mean on this machine."""
    from assay.core.format import format_duration
    from assay.machine.devices import kind_of
    from assay.workloads import registry

    devices = flags.choose_first_device(machine)
    kind = kind_of(devices[0])
    params = cli.parse_assignments(flags.params)
    if params and not flags.victims:
        raise BadInput("--param needs --victim: name the workloads it applies to.")
    flags.refuse_cold_cache(kind)
    victims = [registry.resolve_subject(name, device_kind=kind, explicit=params) for name in flags.victims]
    options = flags.fill(
        MatrixOptions,
        QUICK if flags.quick else None,
        victims=tuple({(s.workload, s.impl): s for s in victims}.values()) or default_victims(kind),
        aggressors=resolve_aggressors(flags.aggressors, kind),
        devices=devices,
    )
    fitting = fit_matrix_to_budget(options)
    if flags.duration_s is not None and fitting.duration_s < options.duration_s:
        click.echo(
            f"--duration {options.duration_s:g} s is shortened to {fitting.duration_s:.2g} s, so that "
            f"{min(options.repeat, FEWEST_BLOCKS)} blocks fit --budget {format_duration(options.budget_s or 0.0)}.",
            err=True,
        )
    return fitting


def fit_matrix_to_budget(options: MatrixOptions) -> MatrixOptions:
    """Shorten the trials until a few blocks fit the budget."""
    from assay.experiments.budget import expected_trial_s
    from assay.experiments.matrix.plan import build_block

    if options.budget_s is None:
        return options
    trials = build_block(options, 1).trials * min(options.repeat, FEWEST_BLOCKS)
    overhead_s = sum(expected_trial_s(trial) - options.duration_s for trial in trials)
    trial_duration_s = (options.budget_s - overhead_s) / len(trials)
    if trial_duration_s < SHORTEST_TRIAL_S:
        minimum_s = overhead_s + len(trials) * SHORTEST_TRIAL_S
        raise BadInput(
            f"--budget {options.budget_s:g} s is too little for {len(trials)} trials; with starting they need "
            f"{minimum_s:.1f} s. Fewer --victim, --aggressor or --repeat need less."
        )
    return options.model_copy(update={"duration_s": min(options.duration_s, trial_duration_s)})
