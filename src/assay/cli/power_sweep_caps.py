"""Before limits or clocks are changed: what each GPU takes, what would be changed, and whether it may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.values import SCHEMA_VERSION
from assay.experiments.power.sweep.intent import check_steps, gpu_of, in_words, intent_of, limit_range
from assay.machine import nvidia
from assay.machine.permissions import missing_to_set

if TYPE_CHECKING:
    from assay.experiments.power.sweep.intent import Range
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Machine


def checked(machine: Machine, options: SweepOptions) -> dict[str, Range]:
    """Return what each GPU takes, in W or MHz, having made sure that every step lies within.

    Raises:
        BadInput: A step does not.
        MachineCannot: A device has no limits or clocks to be set.
    """
    steps = tuple(float(str(point.setting)) for point in options.points if point.setting is not None)
    ranges: dict[str, Range] = {}
    for device in options.devices:
        gpu = gpu_of(machine, device)
        limits = options.knob == "power_limit_w"
        ranges[device] = limit_range(gpu) if limits else nvidia.sm_clock_range(gpu.uuid)
        check_steps(gpu, steps, ranges[device], unit="W" if limits else "MHz")
    return ranges


def show(machine: Machine, options: SweepOptions, ranges: dict[str, Range], *, as_json: bool) -> int:
    """Print what would be changed, for how long, and which privilege is missing; change nothing."""
    intent = intent_of(machine, options, ranges, missing_to_set(Path("/")))
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA_VERSION, **intent.as_json()}, indent=2, ensure_ascii=False))
        return 0
    for line in in_words(options, intent, machine):
        click.echo(line)
    return 0


def try_out(machine: Machine, options: SweepOptions) -> None:
    """Make sure that this process may set what it is about to set, by setting each GPU to what it is set to already.

    Raises:
        MachineCannot: It may not.
    """
    for device in options.devices:
        gpu = gpu_of(machine, device)
        if options.knob == "sm_mhz":
            nvidia.unlock_sm_clocks(gpu.uuid)
            continue
        if gpu.power_limit_w is None:
            raise MachineCannot(
                f"GPU {gpu.index} ({gpu.name}) does not tell its power limit, to restore it afterwards."
            )
        leases.release(nvidia.set_power_limit(gpu.uuid, gpu.power_limit_w))
