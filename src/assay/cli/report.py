"""``assay report``: draw the report of a run or of a recording again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb

if TYPE_CHECKING:
    from assay.store.records import Records


@verb("report")
@click.argument("run", type=click.Path(path_type=Path), default="runs/latest")
@click.option("--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Also a trace for ui.perfetto.dev.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(run: Path, perfetto: Path | None, as_json: bool) -> int:
    """Draw the report of a run again, from its records, or that of a recording of `assay monitor`.

    RUN is a run folder, a fleet or a recording; without it, the latest run under ./runs.
    """
    if run.is_file():
        return recording(run, perfetto, as_json=as_json)
    from assay.cli.measure import shown
    from assay.core.errors import BadInput
    from assay.experiments.registry import find
    from assay.hosts.fleet.folder import is_fleet
    from assay.runner import conclude
    from assay.store.runs import RunFolder

    if is_fleet(run):
        from assay.cli import fleet_show

        if perfetto is not None:
            raise BadInput(f"{run} is a fleet; --perfetto draws one of the runs in it.")

        return fleet_show.report(run, as_json=as_json)
    folder = RunFolder.open(run)
    if not folder.records():
        raise BadInput(f"{run} holds no record yet; `assay resume {run}` measures.")
    if perfetto is not None:
        trace(folder.records(), run, perfetto)
    return shown(conclude(find(folder.plan.experiment), folder), folder.path, as_json=as_json)


def trace(records: Records, run: Path, path: Path) -> None:
    """Write what was recorded beside a run as a trace: counters, and a slice for each trial."""
    from assay.core.errors import MachineCannot
    from assay.monitor.perfetto import write_trace

    if all(record.sensors is None for record in records):
        raise MachineCannot(f"No monitor watched {run}, so that there is nothing to trace.")
    write_trace(records.watched(), path)


def recording(path: Path, perfetto: Path | None, *, as_json: bool) -> int:
    """Show what a recording says, and draw it into a folder beside it."""
    from assay.cli import show
    from assay.monitor.page import page_of
    from assay.monitor.perfetto import write_trace
    from assay.monitor.reading import read
    from assay.reports.terminal import print_page
    from assay.reports.write import write_report

    if perfetto is not None:
        write_trace(read(path), perfetto)
    summary, page = page_of(read(path), name=path.name)
    folder = path.with_name(f"{path.stem}-report")
    write_report(page, folder)
    if as_json:
        click.echo(json.dumps({**summary.as_json(), "file": str(path)}, indent=2, ensure_ascii=False))
    else:
        print_page(page, show.console(stderr=False))
    show.console(stderr=True).print(f"Report: {folder}/report.html", markup=False, soft_wrap=True)
    return 0
