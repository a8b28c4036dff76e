"""``assay power sweep`` and ``assay power characterize``.

Step a power limit, a clock or the load to find the most energy-efficient setting; and sample power, clocks and
temperature of every GPU, case by case.
"""

from __future__ import annotations

import contextlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.fleet import FleetFlags, dispatch_fleet
from assay.cli.host_flags import HostFlags, dispatch_remote
from assay.core import leases
from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.format import MAX_REPEATS, format_duration
from assay.core.guardian import Guardian
from assay.core.values import SCHEMA_VERSION
from assay.experiments.power.characterize.options import CharacterizeOptions
from assay.experiments.power.sweep.options import (
    CAP_KNOBS,
    KNOBS,
    SweepOptions,
    SweepPoint,
    load_points,
    parse_numbers,
    parse_shares,
    parse_whole_numbers,
    size_parameters,
    step_text,
)
from assay.experiments.power.sweep.plan import (
    build_block,
    check_steps,
    describe_changes,
    limit_range,
    max_trial_s,
    plan_changes,
    settable_gpu,
)
from assay.machine import nvidia
from assay.machine.devices import kind_of
from assay.machine.doctor import missing_rights
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.leases import Lease
    from assay.core.values import Scalar
    from assay.experiments.power.characterize.options import CaseSpec
    from assay.experiments.power.rows import Knob
    from assay.experiments.power.sweep.plan import AllowedRange
    from assay.machine.model import Gpu, Machine

STEPS = r"[0-9.][0-9.:%a-zA-Z]*"
DTYPE = r"(bfloat|float|fp|bf|tf|int|uint)[0-9]\w*"
QUICK_SWEEP = {"duration_s": 3.0, "settle_s": 5.0}
SHORTEST_TRIAL_S = 1.0


def steps_flag(metavar: str, help_text: str, item: str = STEPS) -> Any:
    """Return the flag of a knob's steps."""
    return cli.what_flag(default=(), item=item, metavar=metavar, help=help_text)


class SweepFlags(cli.IsolationFlags, cli.MeasureFlags, HostFlags):
    """What `assay power sweep` can be asked for."""

    workload: str = cli.argument("[WORKLOAD]", default="sgemm")
    limits: tuple[str, ...] = steps_flag("200:700:50", "Power limits in W; needs --apply.")
    sm_clocks: tuple[str, ...] = steps_flag("900:1980:90", "SM clocks in MHz; needs --apply.")
    sizes: tuple[str, ...] = steps_flag("1024,2048", "Problem sizes.")
    dtypes: tuple[str, ...] = steps_flag("float32,...", "Data types.", DTYPE)
    batches: tuple[str, ...] = steps_flag("1,8,32", "Batch sizes.")
    duty: tuple[str, ...] = steps_flag("10%:100%:10%", "Duty cycles of the load.")
    size_params: tuple[str, ...] = cli.what_flag(
        "--size-param",
        default=(),
        item=r"[a-z_]\w*",
        metavar="NAME",
        shown="m, n and k; n; or size",
        help="Parameter set by --sizes.",
    )
    apply: bool = cli.what_flag(default=False, help="Set limits or clocks, and restore them afterwards.")
    params: tuple[str, ...] = cli.param_flag()
    gpus: tuple[str, ...] = cli.gpus_flag("one")
    concurrent: bool = cli.what_flag(default=False, help="Run all GPUs concurrently, not one by one.")
    duration_s: float | None = cli.how_option(
        SweepOptions, "duration_s", optional=True, help="Time per trial, without startup."
    )
    settle_s: float | None = cli.how_flag(ge=0, shown="30s", help="Settle at most this long.")
    cooldown_s: float = cli.cooldown_flag()
    repeat: int = cli.how_option(SweepOptions, "repeat", le=MAX_REPEATS, help="Repetitions of each step.")
    restarts: int = cli.how_option(SweepOptions, "restarts", le=MAX_REPEATS, help="Fresh processes per trial.")
    budget_s: float | None = cli.how_flag(gt=0, help="Total time; shortens trials, drops repeats.")
    max_slowdown: float = cli.how_option(SweepOptions, "max_slowdown", help="Recommend caps within this.")
    minimum_effect: float = cli.min_effect_flag(SweepOptions, cli.HOW)
    quick: bool = cli.how_flag(default=False, help="Quick first look: 3s per trial, 5s to settle.")
    dry_run: bool = cli.output_flag(default=False, help="Show what would be measured or changed.")

    def named_workloads(self) -> tuple[str, ...]:
        """Return the one."""
        return (self.workload,)

    def steps(self) -> dict[Knob, tuple[str, ...]]:
        """Return the steps of each knob as they were given."""
        return {
            "power_limit_w": self.limits,
            "sm_mhz": self.sm_clocks,
            "size": self.sizes,
            "dtype": self.dtypes,
            "batch": self.batches,
            "duty": self.duty,
        }


@cli.verb("power sweep", SweepFlags)
def sweep_power(flags: SweepFlags) -> int:
    """Sweep power limits, clocks or load, and find the most energy-efficient setting.

    assay power sweep --limits 200:700:50
    assay power sweep --limits 200:700:50 --apply --max-slowdown 5%
    assay power sweep gemm --sizes 1024,2048,4096,8192
    assay power sweep --duty 10%:100%:10%
    """
    if (code := dispatch_remote(flags)) is not None:
        return code
    from assay.cli import measuring
    from assay.experiments.power.sweep import EXPERIMENT

    if flags.apply and not flags.dry_run:
        undo_crashed_runs()
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_sweep_options)
    if options.capped:
        ranges = check_caps(machine, options)
        if flags.dry_run or not flags.apply:
            return show_caps(machine, options, ranges, flags)
        with Guardian(), claim_settings(machine, options):
            return measuring.start_run(EXPERIMENT, options, machine, flags)
    for point in options.points if flags.dry_run else ():
        if point.refused is not None:
            click.echo(f"{step_text(options, point.setting)} is invalid: {point.refused}", err=True)
    return measuring.start_run(EXPERIMENT, options, machine, flags)


def build_sweep_options(flags: SweepFlags, machine: Machine) -> SweepOptions:
    """Return the options that the flags mean on this machine."""
    knob, devices = _swept_knob(flags), flags.choose_first_device(machine)
    points = _points(knob, flags, kind_of(devices[0]))
    settle = {"settle_s": None} if flags.settle_s == 0 else {}
    options = flags.fill(
        SweepOptions,
        QUICK_SWEEP if flags.quick else None,
        knob=knob,
        points=points,
        workload=next(point.subject.label for point in points if point.subject is not None),
        devices=devices,
        together=flags.concurrent and len(devices) > 1,
        **settle,
    )
    return fit_to_budget(options)


def _swept_knob(flags: SweepFlags) -> Knob:
    """Return the one thing that is swept."""
    knobs = [knob for knob, steps in flags.steps().items() if steps]
    if not knobs:
        raise BadInput(
            f"Nothing to sweep: give the steps with one of {', '.join(knob.flag for knob in KNOBS.values())}."
        )
    if len(knobs) > 1:
        raise BadInput(f"{' and '.join(KNOBS[knob].flag for knob in knobs)} exclude each other; sweep one at a time.")
    if flags.size_params and knobs[0] != "size":
        raise BadInput("--size-param needs --sizes.")
    if flags.apply and knobs[0] not in CAP_KNOBS:
        raise BadInput(f"--apply is for limits and clocks; {KNOBS[knobs[0]].flag} changes nothing on the GPU.")
    return knobs[0]


def _points(knob: Knob, flags: SweepFlags, kind: str) -> tuple[SweepPoint, ...]:
    params, spec = cli.parse_assignments(flags.params), flags.workload
    steps = _steps(knob, flags.steps()[knob])
    if knob in CAP_KNOBS or knob == "duty":
        subject = registry.resolve_subject(spec, device_kind=kind, explicit=params)
        settings: list[Scalar] = [float(str(step)) for step in steps]
        as_found: list[Scalar] = [None] if knob in CAP_KNOBS else []
        return tuple(SweepPoint(setting=setting, subject=subject) for setting in as_found + settings)
    names = size_parameters(knob, spec, flags.size_params, device_kind=kind, params=params)
    return load_points(knob, steps, spec, device_kind=kind, params=params, names=names)


def _steps(knob: Knob, words: Sequence[str]) -> tuple[Scalar, ...]:
    if knob == "dtype":
        return tuple(dict.fromkeys(words))
    if knob == "duty":
        return parse_shares(KNOBS[knob].flag, words)
    if knob == "power_limit_w":
        return parse_numbers(KNOBS[knob].flag, words, units=("W",))
    return parse_whole_numbers(KNOBS[knob].flag, words, units=("MHz",) if knob == "sm_mhz" else ())


def fit_to_budget(options: SweepOptions) -> SweepOptions:
    """Shorten the trials, and the wait for steadiness with them, until all repeats fit the budget."""
    block = build_block(options, 1)
    if options.budget_s is None or block is None:
        return options
    trials = options.repeat * len(block.trials)
    ours_s = options.duration_s + (options.settle_s or 0.0) * options.restarts
    beside_s = options.repeat * sum(max_trial_s(options, trial) - ours_s for trial in block.trials)
    share = (options.budget_s - beside_s) / (trials * ours_s)
    if share >= 1:
        return options
    if share * options.duration_s < SHORTEST_TRIAL_S:
        least_s = beside_s + trials * ours_s * SHORTEST_TRIAL_S / options.duration_s
        raise BadInput(
            f"--budget {options.budget_s:g} s is too little for {trials} trials; they need {least_s:.0f} s. "
            "Fewer steps, GPUs or --repeat need less."
        )
    settle_s = None if options.settle_s is None else share * options.settle_s
    return options.model_copy(update={"duration_s": share * options.duration_s, "settle_s": settle_s})


def check_caps(machine: Machine, options: SweepOptions) -> dict[str, AllowedRange]:
    """Return what each GPU takes, in W or MHz, having made sure that every step lies within.

    Raises:
        BadInput: A step does not.
        MachineCannot: A device has no limits or clocks to be set.
    """
    steps = tuple(float(str(point.setting)) for point in options.points if point.setting is not None)
    ranges: dict[str, AllowedRange] = {}
    for device in options.devices:
        gpu = settable_gpu(machine, device)
        limits = options.knob == "power_limit_w"
        ranges[device] = limit_range(gpu) if limits else nvidia.sm_clock_range(gpu.uuid)
        check_steps(gpu, steps, ranges[device], unit="W" if limits else "MHz")
    return ranges


def show_caps(machine: Machine, options: SweepOptions, ranges: dict[str, AllowedRange], flags: SweepFlags) -> int:
    """Print what would be changed, for how long, and which privilege is missing; change nothing."""
    intent = plan_changes(machine, options, ranges, missing_rights(Path("/")))
    if flags.as_json:
        show.print_json({"schema": SCHEMA_VERSION, **intent.as_json()})
        return 0
    for line in describe_changes(options, intent, machine, apply_requested=flags.apply):
        click.echo(line)
    return 0


@contextlib.contextmanager
def claim_settings(machine: Machine, options: SweepOptions) -> Iterator[None]:
    """Keep the GPUs' settings from other runs for the length of a ``with`` block, and restore them at its end.

    Each GPU is set to what it is set to already, so that it shows before anything is measured whether this process
    may; the leases of single trials lie within.

    Raises:
        MachineCannot: It may not, or another run has it.
    """
    with contextlib.ExitStack() as undone:
        for device in options.devices:
            gpu = settable_gpu(machine, device)
            lease = nvidia.claim_sm_clocks(gpu.uuid) if options.knob == "sm_mhz" else _same_limit(gpu)
            undone.callback(leases.release_lease, lease)
        yield


def _same_limit(gpu: Gpu) -> Lease:
    if gpu.power_limit_w is None:
        raise MachineCannot(
            f"GPU {gpu.index} ({gpu.name}) does not report its power limit, so it could not be restored afterwards."
        )
    return nvidia.set_power_limit(gpu.uuid, gpu.power_limit_w)


def undo_crashed_runs() -> None:
    """Undo limits and clocks that runs which died have left, and say so: they are not how a GPU was found."""
    for kind in (nvidia.POWER_LIMIT_LEASE, nvidia.CLOCK_LEASE):
        before = {lease.id: lease for lease in leases.list_foreign_leases(kind)}
        left = {lease.id for lease in leases.release_orphans(kind)}
        for lease in (lease for name, lease in before.items() if name not in left):
            click.echo(f"Undone first, as its run has died: {lease.what}.", err=True)


QUICK_DURATION_S, QUICK_SETTLE_S = 2.0, 10.0


class CharacterizeFlags(cli.IsolationFlags, cli.MeasureFlags, FleetFlags):
    """What `assay power characterize` can be asked for."""

    cases: Path | None = cli.argument("[CASES.yaml]")
    names: tuple[str, ...] = cli.what_flag(
        "--case", default=(), metavar="NAME", help="Only these cases; * is a wildcard."
    )
    repeat: int | None = cli.how_flag(ge=1, le=MAX_REPEATS, shown="from the file, or 3", help="Repetitions.")
    duration_s: float | None = cli.how_flag(gt=0, shown="from the file, or 20s", help="Time per trial.")
    settle_s: float | None = cli.how_flag(gt=0, shown="from the file, or 2m", help="Settle at most this long.")
    no_settle: bool = cli.how_flag(default=False, help="Do not wait for steady clocks and temperature.")
    restarts: int | None = cli.how_flag(ge=1, le=MAX_REPEATS, shown="from the file, or 1", help="Fresh processes.")
    rotate: bool | None = cli.how_flag(shown="rotate", help="Time every GPU in turn.")
    budget_s: float | None = cli.how_flag(gt=0, help="Total time; shortens trials, drops repeats.")
    minimum_effect: float = cli.min_effect_flag(CharacterizeOptions, cli.HOW)
    quick: bool = cli.how_flag(default=False, help="Quick first look: once, 2s per trial, 10s to settle, no rotation.")


@cli.verb("power characterize", CharacterizeFlags)
def characterize_power(flags: CharacterizeFlags) -> int:
    """Sample power, clocks and temperature while kernels run: alone, concurrently, and under contention.

    Without a file the cases are idle, sgemm on 1 to 4 GPUs, and sgemm concurrently with training, copies and both.

        assay power characterize
        assay power characterize --quick --device cpu
        assay power characterize my_cases.yaml --case 'sgemm*' --gpus 0,1 --repeat 5
    """
    if (code := dispatch_fleet(flags)) is not None:
        return code
    from assay.cli import measuring
    from assay.experiments.power.characterize import EXPERIMENT
    from assay.experiments.power.characterize.options import skipped_reasons

    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_characterize_options)
    code = measuring.start_run(EXPERIMENT, options, machine, flags)
    if flags.dry_run and not flags.as_json:
        for name, reason in skipped_reasons(machine, options).items():
            click.echo(f"Skipped: {name}: {reason}.")
    return code


def build_characterize_options(flags: CharacterizeFlags, machine: Machine) -> CharacterizeOptions:
    """Return the options that file and flags mean on this machine."""
    from assay.experiments.power.characterize.options import PACKAGED_CASES, fit_budget, read_cases, resolve_options

    if flags.settle_s is not None and flags.no_settle:
        raise BadInput("--settle and --no-settle exclude each other; give one.")
    devices = flags.choose_devices(machine)
    cases = select_cases(read_cases(flags.cases or PACKAGED_CASES), flags.names)
    options = resolve_options(
        machine,
        [apply_flags(case, flags, kind_of(devices[0])) for case in cases],
        devices=devices,
        source=str(flags.cases) if flags.cases is not None else None,
        isolation=flags.isolation,
        minimum_effect=flags.minimum_effect,
        budget_s=flags.budget_s,
        on_interference=flags.on_interference,
        timeout_s=flags.timeout_s,
        cpu_groups=flags.cpu_groups,
        retakes=flags.retakes,
        seed=flags.seed,
    )
    fitting, share = fit_budget(machine, options)
    if share < 1:
        message = f"Timing and settling are shortened to {share:.0%}, so that one repeat fits"
        click.echo(f"{message} --budget {format_duration(options.budget_s or 0.0)}.", err=True)
    return fitting


def select_cases(cases: tuple[CaseSpec, ...], names: tuple[str, ...]) -> list[CaseSpec]:
    """Return the cases that are asked for by name or pattern; all where none is."""
    for name in names:
        if not any(fnmatchcase(case.name.lower(), name.lower()) for case in cases):
            case_names = [case.name for case in cases]
            raise BadInput(
                f"--case {name!r} does not exist; there are {', '.join(case_names)}.{suggest_nearest(name, case_names)}"
            )
    return [c for c in cases if not names or any(fnmatchcase(c.name.lower(), name.lower()) for name in names)]


def apply_flags(case: CaseSpec, flags: CharacterizeFlags, kind: str) -> CaseSpec:
    """Return a case with the flags applied; groups of cores have no clocks to wait for."""
    quick = {"repeats": 1, "duration_s": QUICK_DURATION_S, "settle_s": QUICK_SETTLE_S, "rotate": False}
    changed = {
        "repeats": flags.repeat,
        "duration_s": flags.duration_s,
        "settle_s": flags.settle_s,
        "restarts": flags.restarts,
        "rotate": flags.rotate,
    }
    unsettled = {"settle_s": 0.0} if kind == "cpu" or flags.no_settle else {}
    changes = {**(quick if flags.quick else {}), **unsettled}
    return case.model_copy(update=changes | {name: value for name, value in changed.items() if value is not None})
