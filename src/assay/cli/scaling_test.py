"""``assay scaling test``.

Check that ring dilated attention is exact here, also across ranks, in float64 against a reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from assay.cli import show
from assay.cli.flags import DEVICE, GPU, JsonFlags, flag, verb
from assay.core.format import MAX_PROCESSES

if TYPE_CHECKING:
    from assay.experiments.scaling.self_test import SelfTestResult
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun


class ScalingTestFlags(JsonFlags):
    """What `assay scaling test` can be asked for."""

    nproc: int | None = flag(ge=1, le=MAX_PROCESSES, shown="1, or those of torchrun", help="Ranks.")
    gpus: tuple[str, ...] = flag(
        default=(), item=GPU, metavar="0,1", shown="one per rank", help="GPUs, by index or UUID."
    )
    devices: tuple[str, ...] = flag(
        "--device", default=(), item=DEVICE, metavar="cpu", help="Devices: cpu, cpu:0, cuda:1."
    )
    timeout_s: float = flag(default=120.0, gt=0, help="Worker response timeout.")
    seed: int = flag(default=0, help="Random seed.")


@verb("scaling test", ScalingTestFlags)
def test_ring_attention(flags: ScalingTestFlags) -> int:
    """Check outputs, gradients and bytes sent between ranks in float64 on a small problem.

    Exit code 0: all checks passed. 1: a check failed. 3: PyTorch is not installed.

        assay scaling test
        assay scaling test --nproc 2
        torchrun --nproc_per_node=2 -m assay scaling test
    """
    from importlib.util import find_spec

    from assay.core.errors import BadInput, MachineCannot
    from assay.launch.torchrun import serve_hub
    from assay.machine.detect import detect
    from assay.worker.rendezvous import Torchrun

    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    torchrun, machine = Torchrun.from_environment(), detect()
    if torchrun is not None and torchrun.rank > 0:
        return serve_hub(torchrun, machine)
    ranks = flags.nproc or (torchrun.world_size if torchrun is not None else 1)
    if torchrun is not None and ranks > torchrun.world_size:
        raise BadInput(f"--nproc {ranks} is more than the {torchrun.world_size} processes that torchrun started.")
    findings = run_checks(machine, torchrun, ranks, flags)
    if flags.as_json:
        show.print_json(findings.as_json())
    else:
        print_checks(findings, machine)
    if not findings.passed:
        click.echo("assay: Not every check passed.", err=True)
    return 0 if findings.passed else 1


def run_checks(machine: Machine, torchrun: Torchrun | None, ranks: int, flags: ScalingTestFlags) -> SelfTestResult:
    """Run the checks in workers of their own, and return what came of them."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from assay.cli.measuring import worker_starter
    from assay.core.errors import MachineCannot
    from assay.core.files import home_folder
    from assay.core.guardian import Guardian
    from assay.core.processes import stop_on_signals
    from assay.experiments.scaling.self_test import build_self_test, judge_self_test
    from assay.isolation.devices import choose_devices
    from assay.launch.torchrun import Hub
    from assay.launch.trial import Launcher

    home_folder()
    chosen = choose_devices(machine, gpus=flags.gpus, devices=flags.devices)
    trial = build_self_test(chosen, ranks, timeout_s=flags.timeout_s, seed=flags.seed)
    with TemporaryDirectory(prefix="assay-test-") as folder:
        for name in ("logs", "samples"):
            (Path(folder) / name).mkdir()
        with stop_on_signals(), Guardian(), worker_starter(torchrun, Path(folder), Path.cwd()) as starter:
            elsewhere = starter.machines if isinstance(starter, Hub) else {}
            outcome = Launcher(machine, starter, elsewhere).measure(trial)
            findings = judge_self_test(trial, outcome.evidence, outcome.reason)
            if isinstance(starter, Hub):
                starter.exit_code = 0 if findings.passed else 1
    if outcome.status == "refused":
        raise MachineCannot(f"The check could not run: {outcome.reason}.")
    return findings


def print_checks(findings: SelfTestResult, machine: Machine) -> None:
    """Print what was checked, on what, and what came of it."""
    ranks = f"{findings.ranks} rank{'' if findings.ranks == 1 else 's'} on {findings.devices}"
    click.echo(
        f"Dilated attention in float64, {ranks}, PyTorch {machine.versions.get('torch') or 'of unknown version'}"
    )
    for case in findings.cases:
        click.echo(f"  {'✓' if case.passed else '✗'} {case.name}: {case.outcome}")
    click.echo("All of it is right." if findings.passed else f"Wrong: {findings.reason}.", err=not findings.passed)
