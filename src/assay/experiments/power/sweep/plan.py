"""Which step runs on which device when, and what the run would change on each GPU, reported before anything is changed.

Every step is measured once in each repeat, in random order, because heat carries over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_count, format_duration
from assay.core.values import Block, Continuous, Role, Trial, Value
from assay.experiments.budget import TRIAL_OVERHEAD_S, TrialWorkers
from assay.experiments.power.characterize.plan import failed_repeatedly, next_repeat, shuffle_repeat
from assay.experiments.power.sweep.options import KNOBS, join_settings, step_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.core.values import Done, Params
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Gpu, Machine


class SweepVisit(NamedTuple):
    """One point, by its place among the options, on the devices that are timed at once."""

    point: int
    devices: tuple[str, ...]


def plan_visits(options: SweepOptions) -> tuple[SweepVisit, ...]:
    """Return everything that is measured in one repeat, in a plain order; refused points are not."""
    casts = [options.devices] if options.together else [(device,) for device in options.devices]
    timed = [number for number, point in enumerate(options.points) if point.subject is not None]
    return tuple(SweepVisit(number, devices) for devices in casts for number in timed)


def build_trial(options: SweepOptions, visit: SweepVisit, number: int) -> Trial:
    """Return the trial of one visit in one repeat, counted from 1."""
    point = options.points[visit.point]
    if point.subject is None:
        raise ValueError(f"nothing is timed at {point.setting}: {point.refused}")
    settings: Params = {"phase": step_text(options, point.setting)}
    if options.capped and point.setting is not None:
        settings[options.knob] = point.setting
    return Trial(
        block=f"repeat-{number}",
        roles=tuple(
            Role(name=device, subjects=(point.subject,), devices=(device,), isolation=options.isolation)
            for device in visit.devices
        ),
        schedule="together" if len(visit.devices) > 1 else "alone",
        mode=Continuous(
            duration_s=options.duration_s,
            timeout_s=options.timeout_s,
            duty=float(str(point.setting)) if options.knob == "duty" else 1.0,
            settle_s=options.settle_s,
        ),
        restarts=options.restarts,
        settings=settings,
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        retakes=options.retakes,
        seed=options.seed + number - 1,
    )


def max_trial_s(options: SweepOptions, trial: Trial) -> float:
    """Return at most how long a trial takes, in seconds, as far as can be foreseen."""
    processes = len(trial.devices)
    start_s = TrialWorkers(trial.roles[0].subjects[:1], processes, processes).start_s
    restarting_s = trial.restarts * (start_s + (options.settle_s or 0.0))
    return trial.mode.duration_s + restarting_s + TRIAL_OVERHEAD_S + trial.cooldown_s


def build_block(options: SweepOptions, number: int, records: Iterable[Record] = ()) -> Block | None:
    """Return one repeat, its trials in random order, without what failed before; null where nothing is left."""
    visit_of = visits_by_trial(options, number - 1)
    failed = failed_repeatedly((visit_of[record.trial], record) for record in records if record.trial in visit_of)
    trials = [build_trial(options, visit, number) for visit in plan_visits(options) if visit not in failed]
    return shuffle_repeat(trials, number, options.seed, f"every step once, {number} of {options.repeat}")


def visits_by_trial(options: SweepOptions, repeats: int) -> dict[str, SweepVisit]:
    """Return the visit of each trial of the first repeats."""
    return {
        build_trial(options, visit, number).id: visit
        for number in range(1, repeats + 1)
        for visit in plan_visits(options)
    }


def next_block(options: SweepOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next repeat, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)

    def trial_s(trial: Trial) -> float:
        return max_trial_s(options, trial)

    return next_repeat(
        all_records,
        options.repeat,
        options.budget_s,
        build=lambda number: build_block(options, number, all_records),
        trial_s=trial_s,
        remaining_s=lambda block, done: sum(map(trial_s, block.trials)) * (options.repeat - done),
        none_left="no step could be measured",
    )


class GpuChange(Value):
    """What one GPU would be set to, from what it is. Null: not reported."""

    device: str
    uuid: str
    name: str
    present: float | None
    lowest: float | None
    highest: float | None
    persistence: bool | None
    steps: tuple[float, ...]


class PlannedChanges(Value):
    """Everything a sweep would change, how long it would take at most, and what it lacks to do so."""

    knob: str
    changes: tuple[GpuChange, ...]
    trials: int
    at_most_s: float | None
    missing: str | None


AllowedRange = tuple[float, float]
LEASE_NOTE = (
    "Each step is set under a lease and undone after its trial, also where Assay is killed; `assay reap` undoes it at "
    "any later time."
)
MAX_STEPS_SHOWN = 12
"""Of more steps the first two and the last are named."""


def settable_gpu(machine: Machine, device: str) -> Gpu:
    """Return the whole GPU that a device is, or say why it has no limit or clock to be set.

    Raises:
        MachineCannot: It is no GPU, or a part of one.
    """
    if not device.startswith("cuda"):
        raise MachineCannot(
            f"{device} is a group of cores, whose power and clock cannot be set here; "
            "--sizes, --dtypes, --batches and --duty sweep its load instead."
        )
    if "/" in device:
        raise MachineCannot(f"{device} is a part of a GPU, and limits and clocks are of whole GPUs.")
    return next(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" == device)


def limit_range(gpu: Gpu) -> AllowedRange:
    """Return the lowest and highest power limit that a GPU takes, in W."""
    if gpu.power_limit_min_w is None or gpu.power_limit_max_w is None:
        raise MachineCannot(f"GPU {gpu.index} ({gpu.name}) offers no power limit to be set.")
    return gpu.power_limit_min_w, gpu.power_limit_max_w


def check_steps(gpu: Gpu, steps: tuple[float, ...], allowed: AllowedRange, *, unit: str) -> None:
    """Make sure that a GPU takes every step.

    Raises:
        BadInput: It does not; the range is named.
    """
    low, high = allowed
    outside = [step for step in steps if not low <= step <= high]
    if outside:
        what = "A power limit" if unit == "W" else "An SM clock"
        raise BadInput(
            f"{what} of {outside[0]:g} {unit} is out of range: GPU {gpu.index} ({gpu.name}) takes "
            f"{low:g} to {high:g} {unit}."
        )


def plan_changes(
    machine: Machine, options: SweepOptions, ranges: dict[str, AllowedRange], missing: str | None
) -> PlannedChanges:
    """Return what would be changed; ``missing`` is the privilege that is lacking, in words."""
    block = next_block(options, [])
    steps = tuple(float(str(point.setting)) for point in options.points if point.setting is not None)
    changes = []
    for device in options.devices:
        gpu = settable_gpu(machine, device)
        low, high = ranges[device]
        changes.append(
            GpuChange(
                device=device,
                uuid=gpu.uuid,
                name=gpu.name,
                present=gpu.power_limit_w if options.knob == "power_limit_w" else None,
                lowest=low,
                highest=high,
                persistence=gpu.persistence,
                steps=steps,
            )
        )
    return PlannedChanges(
        knob=options.knob,
        changes=tuple(changes),
        trials=options.repeat * len(block.trials) if isinstance(block, Block) else 0,
        at_most_s=block.left_s if isinstance(block, Block) else None,
        missing=missing,
    )


def describe_changes(
    options: SweepOptions, planned: PlannedChanges, machine: Machine, *, apply_requested: bool = False
) -> list[str]:
    """Return the lines that describe it; ``apply_requested`` says that --apply was given, beside --dry-run."""
    loose = persistence_note(machine, options)
    at_most = f", at most {format_duration(planned.at_most_s)}" if planned.at_most_s is not None else ""
    hint = "without --dry-run both are done" if apply_requested else "--apply does both"
    return [
        *(_change_line(options, change) for change in planned.changes),
        *([loose] if loose is not None else []),
        f"{options.workload} would be measured in {planned.trials} trials{at_most}.",
        LEASE_NOTE,
        f"Missing: {planned.missing}."
        if planned.missing is not None
        else "No privilege is seen to be missing; whether the driver agrees shows when it is asked to.",
        f"Nothing was changed and nothing measured; {hint}.",
    ]


def _change_line(options: SweepOptions, change: GpuChange) -> str:
    unit = KNOBS[options.knob].unit
    what = "power limit" if unit == "W" else "SM clock"
    now = f"{change.present:g} {unit} now, " if change.present is not None else ""
    steps = join_settings(options.knob, change.steps)
    if len(change.steps) > MAX_STEPS_SHOWN:
        steps = f"{change.steps[0]:g}, {change.steps[1]:g}, … {change.steps[-1]:g} {unit}"
    return (
        f"{change.device} ({change.name}): {what} {now}takes {change.lowest:g} to {change.highest:g} {unit}; "
        f"would be set to {format_count(len(change.steps), 'step')}: {steps}."
    )


def persistence_note(machine: Machine, options: SweepOptions) -> str | None:
    """Say that limits may be lost where the driver is not kept loaded; null where it is, or is not reported."""
    gpus = [settable_gpu(machine, device) for device in options.devices]
    loose = [f"GPU {gpu.index}" for gpu in gpus if gpu.persistence is False]
    if not loose:
        return None
    return (
        f"Persistence mode is off on {', '.join(loose)}: the driver may forget limits and clocks whenever nobody has "
        "the GPU open; `nvidia-smi -pm 1` keeps them."
    )
