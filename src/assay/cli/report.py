"""``assay report``: draw the report of a run again."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.params import verb


@verb("report")
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(run: Path, as_json: bool) -> int:
    """Draw the report of a run again, from its records.

    RUN is a run folder; without it, the latest under ./runs.
    """
    from assay.cli.measure import shown
    from assay.core.errors import MachineCannot
    from assay.experiments.registry import find
    from assay.runner import conclude
    from assay.store.runs import RunFolder

    folder = RunFolder.open(run)
    if not folder.records():
        raise MachineCannot(f"{run} holds no record yet; `assay resume {run}` measures.")
    return shown(conclude(find(folder.plan.experiment), folder), folder.path, as_json=as_json)
