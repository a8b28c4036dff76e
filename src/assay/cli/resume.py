"""``assay resume``: go on with a run that was stopped, killed, or had failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from assay.cli.on_host import hosted, sent
from assay.cli.params import remembering, verb


@verb("resume")
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@remembering
@hosted()
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Go on with a run that was stopped or failed.

    Blocks that were measured whole are kept as they are. A block that is incomplete, or in which a trial failed, is
    measured again as a whole; what it replaces stays in the records. On a machine other than the one the run was
    begun on, it is refused. RUN may be a fleet: then only the nodes that are missing measure again.
    """
    import os

    from assay.cli import measure
    from assay.cli.checked_out import as_needed
    from assay.core.errors import MachineCannot
    from assay.experiments.registry import find
    from assay.hosts.fleet.folder import is_fleet
    from assay.machine.detect import detect
    from assay.store.runs import RunFolder

    if is_fleet(given["run"]):
        from assay.cli import power_fleet

        return power_fleet.resumed(ctx, given)
    folder = RunFolder.open(given["run"])
    folder.verify(lost_samples=True)
    if (code := sent(ctx, given)) is not None:
        return code
    experiment = find(folder.plan.experiment)
    try:
        os.chdir(folder.plan.cwd)
    except OSError as error:
        raise MachineCannot(f"The run was started from {folder.plan.cwd}: {error.strerror}.") from None
    before = len(folder.decisions())
    machine = detect(name_host=folder.machine.hostname is not None)
    with as_needed(experiment, folder, machine):
        code = measure.go_on(experiment, folder, machine, as_json=given["as_json"], remembered=given["history"])
    if len(folder.decisions()) == before:
        click.echo("Nothing was left to measure.", err=True)
    if experiment.name == "energy":
        from assay.cli.energy_after import reported

        return reported(folder.path, code)
    return code
