"""The options of ``assay power sweep`` from its flags.

And the checks, claims and undo of the limits and clocks that it changes.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.run import parse_parameter
from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.core.values import SCHEMA_VERSION
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
from assay.isolation.devices import choose_devices
from assay.isolation.placement import parse_level
from assay.machine import nvidia
from assay.machine.doctor import missing_rights
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.core.leases import Lease
    from assay.core.values import Scalar
    from assay.experiments.power.rows import Knob
    from assay.experiments.power.sweep.plan import AllowedRange
    from assay.machine.model import Gpu, Machine


DURATION_S, QUICK_DURATION_S = 10.0, 3.0
SETTLE_S, QUICK_SETTLE_S = 30.0, 5.0
REPEAT = 3
SHORTEST_TRIAL_S = 1.0
FLAG_NAMES: dict[Knob, str] = {knob: names.flag[2:].replace("-", "_") for knob, names in KNOBS.items()}


def build_options(flags: Mapping[str, Any], machine: Machine) -> SweepOptions:
    """Return the options that the flags mean on this machine."""
    knob = _swept_knob(flags)
    named_devices = flags["gpus"] or flags["devices"]
    chosen = choose_devices(machine, gpus=flags["gpus"], devices=flags["devices"], cpu_groups=flags["cpu_groups"])
    devices = chosen if named_devices else chosen[:1]
    points = _points(knob, flags, devices[0].partition(":")[0])
    label = next(point.subject.label for point in points if point.subject is not None)
    quick = flags["quick"]
    settle_s = flags["settle"] if flags["settle"] is not None else QUICK_SETTLE_S if quick else SETTLE_S
    options = SweepOptions(
        knob=knob,
        points=points,
        workload=label,
        devices=devices,
        together=flags["concurrent"] and len(devices) > 1,
        isolation=parse_level(flags["isolation"]),
        on_interference=flags["on_interference"],
        duration_s=flags["duration"] or (QUICK_DURATION_S if quick else DURATION_S),
        settle_s=settle_s or None,
        cooldown_s=flags["cooldown"],
        repeat=flags["repeat"] or REPEAT,
        restarts=flags["restarts"],
        max_slowdown=flags["max_slowdown"],
        minimum_effect=flags["min_effect"],
        budget_s=flags["budget"],
        timeout_s=flags["timeout"],
        cpu_groups=flags["cpu_groups"],
        retakes=flags["retakes"],
        seed=flags["seed"],
    )
    return fit_to_budget(options)


def _swept_knob(flags: Mapping[str, Any]) -> Knob:
    """Return what is swept: one thing."""
    knobs: list[Knob] = [knob for knob, name in FLAG_NAMES.items() if flags[name]]
    if not knobs:
        raise BadInput(
            f"Nothing to sweep: give the steps with one of {', '.join(names.flag for names in KNOBS.values())}."
        )
    if len(knobs) > 1:
        raise BadInput(f"{' and '.join(KNOBS[knob].flag for knob in knobs)} exclude each other; sweep one at a time.")
    if flags["size_params"] and knobs[0] != "size":
        raise BadInput("--size-param needs --sizes.")
    if flags["apply"] and knobs[0] not in CAP_KNOBS:
        raise BadInput(f"--apply is for limits and clocks; {KNOBS[knobs[0]].flag} changes nothing on the GPU.")
    return knobs[0]


def _points(knob: Knob, flags: Mapping[str, Any], kind: str) -> tuple[SweepPoint, ...]:
    params = dict(parse_parameter(text) for text in flags["params"])
    steps = _steps(knob, flags[FLAG_NAMES[knob]])
    spec = flags["workload"]
    if knob in CAP_KNOBS or knob == "duty":
        subject = registry.resolve_subject(spec, device_kind=kind, explicit=params)
        settings: list[Scalar] = [float(str(step)) for step in steps]
        as_found: list[Scalar] = [None] if knob in CAP_KNOBS else []
        return tuple(SweepPoint(setting=setting, subject=subject) for setting in as_found + settings)
    names = size_parameters(knob, spec, flags["size_params"], device_kind=kind, params=params)
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


def show_caps(
    machine: Machine, options: SweepOptions, ranges: dict[str, AllowedRange], *, apply: bool, as_json: bool
) -> int:
    """Print what would be changed, for how long, and which privilege is missing; change nothing.

    ``apply`` says that --apply was given, beside --dry-run.
    """
    intent = plan_changes(machine, options, ranges, missing_rights(Path("/")))
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA_VERSION, **intent.as_json()}, indent=2, ensure_ascii=False))
        return 0
    for line in describe_changes(options, intent, machine, apply_requested=apply):
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
