"""What a sweep of power limits or clocks would change on each GPU, reported before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.core.format import format_duration
from assay.core.values import Value
from assay.experiments.power.sweep.options import join_settings
from assay.experiments.power.sweep.plan import next_block

if TYPE_CHECKING:
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Gpu, Machine


class GpuChange(Value):
    """What one GPU would be set to, from what it is. Null: not told."""

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
        present = gpu.power_limit_w if options.knob == "power_limit_w" else None
        changes.append(
            GpuChange(
                device=device,
                uuid=gpu.uuid,
                name=gpu.name,
                present=present,
                lowest=low,
                highest=high,
                persistence=gpu.persistence,
                steps=steps,
            )
        )
    return PlannedChanges(
        knob=options.knob,
        changes=tuple(changes),
        trials=options.repeat * len(getattr(block, "trials", ())),
        at_most_s=getattr(block, "left_s", None),
        missing=missing,
    )


def describe_changes(
    options: SweepOptions, intent: PlannedChanges, machine: Machine, *, apply_requested: bool = False
) -> list[str]:
    """Return the lines that tell it to people; ``apply_requested`` says that --apply was given, beside --dry-run."""
    lines = [_change_line(options, change) for change in intent.changes]
    loose = persistence_note(machine, options)
    lines += [loose] if loose is not None else []
    span = f", at most {format_duration(intent.at_most_s)}" if intent.at_most_s is not None else ""
    lines.append(f"{options.workload} would be measured in {intent.trials} trials{span}.")
    lines.append(
        "Each step is set under a lease and undone after its trial, also where Assay is killed; "
        "`assay reap` undoes it at any later time."
    )
    lines.append(
        f"Missing: {intent.missing}."
        if intent.missing is not None
        else "No privilege is seen to be missing; whether the driver agrees shows when it is asked to."
    )
    hint = "without --dry-run both are done" if apply_requested else "--apply does both"
    lines.append(f"Nothing was changed and nothing measured; {hint}.")
    return lines


def _change_line(options: SweepOptions, change: GpuChange) -> str:
    unit = "W" if options.knob == "power_limit_w" else "MHz"
    what = "power limit" if unit == "W" else "SM clock"
    now = f"{change.present:g} {unit} now, " if change.present is not None else ""
    shown_steps = join_settings(options.knob, [*change.steps[:MAX_STEPS_SHOWN]])
    if len(change.steps) > MAX_STEPS_SHOWN:
        shown_steps = f"{change.steps[0]:g}, {change.steps[1]:g}, … {change.steps[-1]:g} {unit}"
    steps = f"{len(change.steps)} step{'' if len(change.steps) == 1 else 's'}"
    return (
        f"{change.device} ({change.name}): {what} {now}takes {change.lowest:g} to {change.highest:g} {unit}; "
        f"would be set to {steps}: {shown_steps}."
    )


def persistence_note(machine: Machine, options: SweepOptions) -> str | None:
    """Say that limits may be lost where the driver is not kept loaded; null where it is, or is not told."""
    gpus = [settable_gpu(machine, device) for device in options.devices]
    loose = [f"GPU {gpu.index}" for gpu in gpus if gpu.persistence is False]
    if not loose:
        return None
    return (
        f"Persistence mode is off on {', '.join(loose)}: the driver may forget limits and clocks whenever nobody has "
        "the GPU open; `nvidia-smi -pm 1` keeps them."
    )
