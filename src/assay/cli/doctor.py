"""``assay doctor``: what is here, which isolation holds, what would make timings noisy, and how to mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.params import Listed, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Finding
    from assay.machine.model import Gpu, Machine


@verb("doctor")
@click.option("--gpus", cls=Listed, item=r"\d+", metavar="0,1", help="Check just these, by really touching each.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(gpus: tuple[str, ...], as_json: bool) -> int:
    """Look at this machine: what is here, what holds, what to mend.

    With --gpus each of them is touched; one that is missing, lost or refuses ends it with exit code 3. What answers is
    put into a ready configuration for inference over several GPUs.
    """
    from assay.machine.detect import detect
    from assay.machine.nvidia import touch

    return examine(detect(), gpus, touch, as_json=as_json)


def examine(machine: Machine, gpus: tuple[str, ...], touch: Callable[[str], None], *, as_json: bool) -> int:
    """Gather what the rooms say of a machine, and show it; how a GPU is touched is handed in."""
    from assay.cli import show
    from assay.core.values import SCHEMA_VERSION
    from assay.machine.inference import inference_yaml
    from assay.machine.page import doctor_page
    from assay.reports.terminal import print_page

    chosen = touched(machine, gpus, touch)
    yaml = inference_yaml(chosen) if gpus else None
    findings = gather(machine, tuple(f"cuda:{gpu.index}" for gpu in chosen if not gpu.mig))
    if as_json:
        data = {
            "schema": SCHEMA_VERSION,
            "machine": machine.as_json(),
            "findings": [finding.as_json() for finding in findings],
            "inference_yaml": yaml,
        }
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(doctor_page(machine, findings, yaml), show.console(stderr=False))
    return 0


def touched(machine: Machine, gpus: tuple[str, ...], touch: Callable[[str], None]) -> tuple[Gpu, ...]:
    """Return the GPUs that were asked for, each having answered."""
    from assay.isolation.devices import choose

    devices = set(choose(machine, gpus=gpus)) if gpus else set()
    chosen = tuple(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in devices)
    for gpu in chosen:
        touch(gpu.uuid)
    return chosen


def gather(machine: Machine, devices: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Return what every package has to say of this machine, and of some devices measured at once; none: of all."""
    from assay.isolation import probe as isolation
    from assay.joules import checks as joules
    from assay.machine import checks, permissions, quiet, tools
    from assay.timing import calibration
    from assay.worker import probe as worker

    root = Path("/")
    plugged_in = bool(machine.gpus) or tools.nvidia_hardware(root)
    return (
        *isolation.checks(machine, devices),
        *checks.checks(machine, has_gpu_hardware=plugged_in),
        *quiet.checks(machine),
        *joules.checks(machine),
        *calibration.checks([calibration.of_host()]),
        *worker.checks(worker.ask(), gpus=len(machine.gpus)),
        *permissions.checks(machine, root),
        *tools.checks(root, has_gpu_hardware=plugged_in),
    )
