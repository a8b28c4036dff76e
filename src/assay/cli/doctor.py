"""``assay doctor``: the hardware, which isolation works, what would make timings noisy, and how to fix it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.flags import JsonFlags, flag, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Finding
    from assay.machine.model import Gpu, Machine


class DoctorFlags(JsonFlags):
    """What `assay doctor` can be asked for."""

    gpus: tuple[str, ...] = flag(default=(), item=r"\d+", metavar="0,1", help="Run a kernel on each of these GPUs.")


@verb("doctor", DoctorFlags)
def check_this_machine(flags: DoctorFlags) -> int:
    """Check this machine: hardware, isolation, sources of noise, and how to fix them.

    With --gpus each of these GPUs is used: if one is missing, lost or refuses, the exit code is 3; otherwise a
    configuration for inference on them is printed.
    """
    from assay.machine.detect import detect
    from assay.machine.nvidia import smoke_test

    return run_doctor(detect(), flags.gpus, smoke_test, as_json=flags.as_json)


def run_doctor(machine: Machine, gpus: tuple[str, ...], touch: Callable[[str], None], *, as_json: bool) -> int:
    """Collect every package's checks of this machine and show them; how a GPU is touched is passed in."""
    from assay.cli import show
    from assay.core.values import SCHEMA_VERSION
    from assay.machine.doctor import build_doctor_page, build_inference_yaml
    from assay.reports.terminal import print_page

    chosen = test_gpus(machine, gpus, touch)
    yaml = build_inference_yaml(chosen) if gpus else None
    findings = collect_findings(machine, tuple(f"cuda:{gpu.index}" for gpu in chosen if not gpu.mig))
    if as_json:
        data = {
            "schema": SCHEMA_VERSION,
            "machine": machine.as_json(),
            "findings": [finding.as_json() for finding in findings],
            "inference_yaml": yaml,
        }
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(build_doctor_page(machine, findings, yaml), show.console(stderr=False))
    return 0


def test_gpus(machine: Machine, gpus: tuple[str, ...], touch: Callable[[str], None]) -> tuple[Gpu, ...]:
    """Return the GPUs that were asked for, each having answered."""
    from assay.isolation.devices import choose_devices

    devices = set(choose_devices(machine, gpus=gpus)) if gpus else set()
    chosen = tuple(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in devices)
    for gpu in chosen:
        touch(gpu.uuid)
    return chosen


def collect_findings(machine: Machine, devices: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Return what every package has to say of this machine, and of some devices measured at once; none: of all."""
    from assay.isolation import probe as isolation
    from assay.joules import sensor_model as joules
    from assay.machine import doctor, interference
    from assay.timing import calibration
    from assay.worker import probes as worker

    root = Path("/")
    plugged_in = bool(machine.gpus) or doctor.has_nvidia_hardware(root)
    return (
        *isolation.check_isolation(machine, devices),
        *doctor.check_machine(machine, has_gpu_hardware=plugged_in),
        *interference.check_interference(machine),
        *joules.check_sensors(machine),
        *calibration.check_clocks([calibration.calibrate_host_clock()]),
        *worker.check_software(worker.query_software(), gpus=len(machine.gpus)),
        *doctor.check_permissions(machine, root),
        *doctor.check_tools(root, has_gpu_hardware=plugged_in),
    )
