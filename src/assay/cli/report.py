"""``assay report``: draw the report of a run or of a recording again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from assay.cli.params import verb


@verb("report")
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(run: Path, as_json: bool) -> int:
    """Draw the report of a run again, from its records, or that of a recording of `assay monitor`.

    RUN is a run folder or a recording; without it, the latest run under ./runs.
    """
    if run.is_file():
        return recording(run, as_json=as_json)
    from assay.cli.measure import shown
    from assay.core.errors import MachineCannot
    from assay.experiments.registry import find
    from assay.runner import conclude
    from assay.store.runs import RunFolder

    folder = RunFolder.open(run)
    if not folder.records():
        raise MachineCannot(f"{run} holds no record yet; `assay resume {run}` measures.")
    return shown(conclude(find(folder.plan.experiment), folder), folder.path, as_json=as_json)


def recording(path: Path, *, as_json: bool) -> int:
    """Show what a recording says, and draw it into a folder beside it."""
    from assay.cli import show
    from assay.monitor.page import page_of
    from assay.monitor.reading import read
    from assay.reports.terminal import print_page
    from assay.reports.write import write_report

    found, page = page_of(read(path), name=path.name)
    folder = path.with_name(f"{path.stem}-report")
    write_report(page, folder)
    if as_json:
        click.echo(json.dumps({**found.as_json(), "file": str(path)}, indent=2, ensure_ascii=False))
    else:
        print_page(page, show.console(stderr=False))
    show.console(stderr=True).print(f"Report: {folder}/report.html", markup=False, soft_wrap=True)
    return 0
