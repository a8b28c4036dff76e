"""``assay energy check``: detect and test the GPUs, and write a configuration that fits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.flags import JsonFlags, flag, verb
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.machine.model import Machine

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
    """Look, tell and write; how GPUs are touched is handed in."""
    from assay.cli import show
    from assay.cli.energy_run import gpu_indices
    from assay.core.files import replace_atomically
    from assay.core.values import SCHEMA_VERSION
    from assay.experiments.energy.gpu_check import build_check_page, check_gpus, metered_only_note, recommend_config
    from assay.reports.terminal import print_page

    output: Path | None = flags.output
    if output is not None and output.exists() and not flags.yes:
        raise BadInput(f"{output} already exists; add --yes to overwrite it.")
    all_indices = sorted([*(gpu.index for gpu in machine.gpus), *(gpu.index for gpu in machine.lost)])
    indices = gpu_indices(machine, flags.gpus) if flags.gpus else all_indices
    torch_report = ask() if machine.gpus else {}
    checks = check_gpus(machine, indices, touch, torch_report)
    usable = {check_of_gpu.index for check_of_gpu in checks if check_of_gpu.usable}
    yaml = recommend_config(
        [gpu for gpu in machine.gpus if gpu.index in usable],
        metered=[check_of_gpu.index for check_of_gpu in checks if check_of_gpu.metered],
        without_torch=bool(machine.gpus) and torch_report.get("torch") is None,
    )
    if output is not None:
        replace_atomically(output, yaml.encode())
    line = f"assay energy run {output or CONFIG_NAME}"
    code = 0 if usable and len(usable) == len(checks) else MachineCannot.exit_code
    if flags.as_json:
        data = {
            "schema": SCHEMA_VERSION,
            "gpus": [check_of_gpu.as_json() for check_of_gpu in checks],
            "torch": torch_report.get("torch"),
            "note": metered_only_note(torch_report),
            "no_gpu_reason": None if checks else machine.gpu_note,
            "yaml": yaml,
            "command": line,
            "exit_code": code,
        }
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        before = "" if output is not None else f"assay energy check -o {CONFIG_NAME}\n"
        print_page(
            build_check_page(machine, checks, yaml, f"{before}{line}", metered_only_note(torch_report)),
            show.console(stderr=False),
        )
    if code:
        reason = f"Only {len(usable)} of {len(checks)} GPUs can be used" if checks else "No GPU can be used here"
        click.echo(f"assay: {reason}.", err=True)
    return code
