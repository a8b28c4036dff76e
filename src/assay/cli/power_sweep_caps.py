"""Before limits or clocks are changed: what each GPU takes, what would be changed, and whether it may be."""

from __future__ import annotations

import contextlib
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
    from collections.abc import Iterator

    from assay.core.leases import Lease
    from assay.experiments.power.sweep.intent import Range
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Gpu, Machine


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


def show(machine: Machine, options: SweepOptions, ranges: dict[str, Range], *, asked: bool, as_json: bool) -> int:
    """Print what would be changed, for how long, and which privilege is missing; change nothing.

    ``asked`` says that --apply was given, beside --dry-run.
    """
    intent = intent_of(machine, options, ranges, missing_to_set(Path("/")))
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA_VERSION, **intent.as_json()}, indent=2, ensure_ascii=False))
        return 0
    for line in in_words(options, intent, machine, asked=asked):
        click.echo(line)
    return 0


@contextlib.contextmanager
def claimed(machine: Machine, options: SweepOptions) -> Iterator[None]:
    """Keep the GPUs' settings from other runs for the length of a ``with`` block, and restore them at its end.

    Each GPU is set to what it is set to already, so that it shows before anything is measured whether this process
    may; the leases of single trials lie within.

    Raises:
        MachineCannot: It may not, or another run has it.
    """
    with contextlib.ExitStack() as undone:
        for device in options.devices:
            gpu = gpu_of(machine, device)
            lease = nvidia.claim_sm_clocks(gpu.uuid) if options.knob == "sm_mhz" else _same_limit(gpu)
            undone.callback(leases.release, lease)
        yield


def _same_limit(gpu: Gpu) -> Lease:
    if gpu.power_limit_w is None:
        raise MachineCannot(f"GPU {gpu.index} ({gpu.name}) does not tell its power limit, to restore it afterwards.")
    return nvidia.set_power_limit(gpu.uuid, gpu.power_limit_w)


def undo_what_died() -> None:
    """Undo limits and clocks that runs which died have left, and say so: they are not how a GPU was found."""
    for kind in (nvidia.LIMIT, nvidia.CLOCK):
        before = {lease.id: lease for lease in leases.all_of(kind)}
        left = {lease.id for lease in leases.freed(kind)}
        for lease in (lease for name, lease in before.items() if name not in left):
            click.echo(f"Undone first, as its run has died: {lease.what}.", err=True)
