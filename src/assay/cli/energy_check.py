"""``assay energy check``: GPUs detected, touched and told of, and a configuration that fits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import Listed, verb
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.machine.model import Machine

NAME = "energy.yaml"


@verb("check")
@click.option(
    "--gpus", cls=Listed, item=r"\d+|GPU-\S+", metavar="0,1", help="Which, by number or UUID.  [default: all]"
)
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write the configuration there.")
@click.option("--yes", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(**given: Any) -> int:
    """Look at the GPUs before anything is measured: are they there, do they compute, what do they do now?

    Each is touched through NVML, and by a kernel of PyTorch. What can be used is put into a configuration, 90 % of
    each GPU's memory as the model's limit. Exit code 3: no model can compute on a GPU, or there is none.

    \b
    assay energy check
    assay energy check --gpus 0,1 -o energy.yaml
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.machine.detect import detect
    from assay.machine.nvidia import touch
    from assay.worker.touch import ask

    return check(detect(), given, touch, ask)


def check(
    machine: Machine, given: dict[str, Any], touch: Callable[[str], None], ask: Callable[[], dict[str, Any]]
) -> int:
    """Look, tell and write; how GPUs are touched is handed in."""
    from assay.cli import show
    from assay.cli.energy_build import numbers
    from assay.core.durable import replace_atomically
    from assay.core.values import SCHEMA_VERSION
    from assay.experiments.energy.recommend import check_page, checked, only_metered, recommended
    from assay.reports.terminal import print_page

    output: Path | None = given["output"]
    if output is not None and output.exists() and not given["yes"]:
        raise BadInput(f"{output} is there already; --yes writes over it.")
    all_indices = sorted([*(gpu.index for gpu in machine.gpus), *(gpu.index for gpu in machine.lost)])
    indices = numbers(machine, given["gpus"]) if given["gpus"] else all_indices
    torch_report = ask() if machine.gpus else {}
    checks = checked(machine, indices, touch, torch_report)
    usable = {check_of_gpu.index for check_of_gpu in checks if check_of_gpu.usable}
    yaml = recommended(
        [gpu for gpu in machine.gpus if gpu.index in usable],
        metered=[check_of_gpu.index for check_of_gpu in checks if check_of_gpu.metered],
        without_torch=bool(machine.gpus) and torch_report.get("torch") is None,
    )
    if output is not None:
        replace_atomically(output, yaml.encode())
    line = f"assay energy run {output or NAME}"
    code = 0 if usable and len(usable) == len(checks) else MachineCannot.exit_code
    if given["as_json"]:
        data = {
            "schema": SCHEMA_VERSION,
            "gpus": [check_of_gpu.as_json() for check_of_gpu in checks],
            "torch": torch_report.get("torch"),
            "note": only_metered(torch_report),
            "why_none": None if checks else machine.gpu_note,
            "yaml": yaml,
            "command": line,
            "exit_code": code,
        }
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        before = "" if output is not None else f"assay energy check -o {NAME}\n"
        print_page(
            check_page(machine, checks, yaml, f"{before}{line}", only_metered(torch_report)), show.console(stderr=False)
        )
    if code:
        reason = f"Only {len(usable)} of {len(checks)} GPUs can be used" if checks else "No GPU can be used here"
        click.echo(f"assay: {reason}.", err=True)
    return code
