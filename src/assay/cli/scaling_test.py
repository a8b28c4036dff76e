"""``assay scaling test``: is ring dilated attention exact here, over ranks too? In float64, against a reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import PROCESSES, Duration, Listed, verb
from assay.cli.run import DEVICE, GPU

if TYPE_CHECKING:
    from assay.experiments.scaling.installed import Tested
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun


@verb("test")
@click.option("--nproc", type=PROCESSES, help="So many ranks.  [default: 1, or as torchrun has]")
@click.option("--gpus", cls=Listed, item=GPU, metavar="0,1", help="Which GPUs.  [default: as many as ranks]")
@click.option("--device", "devices", cls=Listed, item=DEVICE, metavar="cpu", help="cpu, cpu:0, cuda:1.")
@click.option("--timeout", type=Duration(), default="120", show_default=True, help="For a worker to answer.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(**given: Any) -> int:
    """Check forward, gradients and the bytes between ranks, in float64, on a small problem.

    Exit code 0: all of it is right. 1: something is wrong. 3: this machine cannot, as PyTorch is not there.

    \b
    assay scaling test
    assay scaling test --nproc 2
    torchrun --nproc_per_node=2 -m assay scaling test
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from importlib.util import find_spec

    from assay.core.errors import BadInput, MachineCannot
    from assay.launch.agent import serve
    from assay.machine.detect import detect
    from assay.worker.rendezvous import Torchrun

    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    torchrun, machine = Torchrun.found(), detect()
    if torchrun is not None and torchrun.rank > 0:
        return serve(torchrun, machine)
    ranks = given["nproc"] or (torchrun.world_size if torchrun is not None else 1)
    if torchrun is not None and ranks > torchrun.world_size:
        raise BadInput(f"--nproc {ranks} is more than the {torchrun.world_size} processes that torchrun started.")
    findings = tried(machine, torchrun, ranks, given)
    if given["as_json"]:
        click.echo(json.dumps(findings.as_json(), indent=2, ensure_ascii=False))
    else:
        shown(findings, machine)
    if not findings.passed:
        click.echo("assay: Not every check passed.", err=True)
    return 0 if findings.passed else 1


def tried(machine: Machine, place: Torchrun | None, ranks: int, given: dict[str, Any]) -> Tested:
    """Run the checks in workers of their own, and return what came of them."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from assay.cli.measure import starter_for
    from assay.core.errors import MachineCannot
    from assay.core.guardian import Guardian
    from assay.core.home import home
    from assay.core.stopping import stop_on_signals
    from assay.experiments.scaling.installed import judged, trial_for
    from assay.isolation.devices import choose
    from assay.launch.hub import Hub
    from assay.launch.trial import Launcher

    home()
    chosen = choose(machine, gpus=given["gpus"], devices=given["devices"])
    trial = trial_for(chosen, ranks, timeout_s=given["timeout"], seed=given["seed"])
    with TemporaryDirectory(prefix="assay-test-") as folder:
        for name in ("logs", "samples"):
            (Path(folder) / name).mkdir()
        with stop_on_signals(), Guardian(), starter_for(place, Path(folder), Path.cwd()) as starter:
            elsewhere = starter.machines if isinstance(starter, Hub) else {}
            outcome = Launcher(machine, starter, elsewhere).measure(trial)
            findings = judged(trial, outcome.evidence, outcome.reason)
            if isinstance(starter, Hub):
                starter.exit_code = 0 if findings.passed else 1
    if outcome.status == "refused":
        raise MachineCannot(f"It could not be tried: {outcome.reason}.")
    return findings


def shown(found: Tested, machine: Machine) -> None:
    """Print what was checked, on what, and what came of it."""
    ranks = f"{found.ranks} rank{'' if found.ranks == 1 else 's'} on {found.on}"
    click.echo(
        f"Dilated attention in float64, {ranks}, PyTorch {machine.versions.get('torch') or 'of unknown version'}"
    )
    for case in found.cases:
        click.echo(f"  {'✓' if case.passed else '✗'} {case.name}: {case.said}")
    click.echo("All of it is right." if found.passed else f"Wrong: {found.reason}.", err=not found.passed)
