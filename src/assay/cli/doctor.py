"""``assay doctor`` and ``assay energy check``: what this machine can measure, what would disturb it, how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import show
from assay.cli.flags import JsonFlags, flag, verb
from assay.core.errors import BadInput, MachineCannot
from assay.core.values import SCHEMA_VERSION

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
    from assay.machine.doctor import build_doctor_page, build_inference_yaml

    chosen = test_gpus(machine, gpus, touch)
    yaml = build_inference_yaml(chosen) if gpus else None
    findings = collect_findings(machine, tuple(f"cuda:{gpu.index}" for gpu in chosen if not gpu.mig))
    data = {
        "schema": SCHEMA_VERSION,
        "machine": machine.as_json(),
        "findings": [finding.as_json() for finding in findings],
        "inference_yaml": yaml,
    }
    show.print_result(data, build_doctor_page(machine, findings, yaml), as_json=as_json)
    return 0


def test_gpus(machine: Machine, gpus: tuple[str, ...], touch: Callable[[str], None]) -> tuple[Gpu, ...]:
    """Return the requested GPUs, after running a kernel on each."""
    from assay.machine.devices import choose_devices

    devices = set(choose_devices(machine, gpus=gpus)) if gpus else set()
    chosen = tuple(gpu for gpu in machine.gpus if f"cuda:{gpu.index}" in devices)
    for gpu in chosen:
        touch(gpu.uuid)
    return chosen


def collect_findings(machine: Machine, devices: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Return the findings of every package on this machine, for some devices measured at once; none: for all."""
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


CONFIG_NAME = "energy.yaml"


class EnergyCheckFlags(JsonFlags):
    """What `assay energy check` can be asked for."""

    gpus: tuple[str, ...] = flag(
        default=(), item=r"\d+|GPU-\S+", metavar="0,1", shown="all", help="GPUs, by index or UUID."
    )
    output: Path | None = flag("--output -o", metavar="FILE", help="Write the configuration to a file.")
    yes: bool = flag(default=False, help="Overwrite an existing file.")


@verb("energy check", EnergyCheckFlags)
def check_for_energy(flags: EnergyCheckFlags) -> int:
    """Check that the GPUs are present, compute, and are idle, before measuring.

    Each GPU is checked through NVML and with a PyTorch kernel. Usable GPUs are written into a configuration that limits
    the model to 90 % of their memory. Exit code 3: no usable GPU.

        assay energy check
        assay energy check --gpus 0,1 -o energy.yaml
    """
    from assay.machine.detect import detect
    from assay.machine.nvidia import smoke_test
    from assay.worker.probes import smoke_test_gpus

    return check_gpus(detect(), flags, smoke_test, smoke_test_gpus)


def check_gpus(
    machine: Machine, flags: EnergyCheckFlags, touch: Callable[[str], None], ask: Callable[[], dict[str, Any]]
) -> int:
    """Check the GPUs, show the result and write the configuration; how GPUs are touched is passed in."""
    from assay.cli.energy_run import gpu_indices
    from assay.core.files import replace_atomically
    from assay.experiments.energy.gpu_check import build_check_page, check_gpus, metered_only_note, recommend_config

    output: Path | None = flags.output
    if output is not None and output.exists() and not flags.yes:
        raise BadInput(f"{output} already exists; add --yes to overwrite it.")
    all_indices = sorted([*(gpu.index for gpu in machine.gpus), *(gpu.index for gpu in machine.lost)])
    indices = gpu_indices(machine, flags.gpus) if flags.gpus else all_indices
    torch_report = ask() if machine.gpus else {}
    checks = check_gpus(machine, indices, touch, torch_report)
    usable = {check.index for check in checks if check.usable}
    yaml = recommend_config(
        [gpu for gpu in machine.gpus if gpu.index in usable],
        metered=[check.index for check in checks if check.metered],
        without_torch=bool(machine.gpus) and torch_report.get("torch") is None,
    )
    if output is not None:
        replace_atomically(output, yaml.encode())
    line = f"assay energy run {output or CONFIG_NAME}"
    code = 0 if usable and len(usable) == len(checks) else MachineCannot.exit_code
    data = {
        "schema": SCHEMA_VERSION,
        "gpus": [check.as_json() for check in checks],
        "torch": torch_report.get("torch"),
        "note": metered_only_note(torch_report),
        "no_gpu_reason": None if checks else machine.gpu_note,
        "yaml": yaml,
        "command": line,
        "exit_code": code,
    }
    before = "" if output is not None else f"assay energy check -o {CONFIG_NAME}\n"
    page = build_check_page(machine, checks, yaml, f"{before}{line}", metered_only_note(torch_report))
    show.print_result(data, page, as_json=flags.as_json)
    if code:
        reason = f"Only {len(usable)} of {len(checks)} GPUs can be used" if checks else "No GPU can be used here"
        click.echo(f"assay: {reason}.", err=True)
    return code
