"""``assay power variability``: which GPUs are slow, hot or hungry, from runs that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import Fraction, verb
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Lines
    from assay.experiments.power.row_files import Gathered
    from assay.experiments.power.rows import GpuRow

FOLDER = "variability"


@verb("variability")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--minimum-effect", type=Fraction(), default="2%", show_default=True, help="What is smaller counts not.")
@click.option("--racks", type=click.Path(path_type=Path), help="Lines of host,rack, where runs do not know it.")
@click.option(
    "--output", "--output-dir", type=click.Path(path_type=Path), help="Where the report goes.  [default: by the runs]"
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(runs: tuple[Path, ...], **given: Any) -> int:
    """Say which GPUs are slow, hot or hungry, and which to ask for.

    RUN is a run folder of `assay power characterize`, a folder of such folders (a fleet), or a .jsonl or .csv file of
    their rows; by default runs/latest. What cannot be read is named, and the rest is used.

    \b
    assay power variability runs/latest
    assay power variability runs
    assay power variability fleet/rack1 fleet/rack2 --output fleet/report
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.cli.scaling_analyse import without_figures
    from assay.core.durable import replace_atomically
    from assay.experiments.power.racks import read_racks, with_racks
    from assay.experiments.power.row_files import gather
    from assay.experiments.power.rows import GPUS_FILE, GpuRow
    from assay.experiments.power.variability.analysis import look
    from assay.experiments.power.variability.findings import findings_of
    from assay.experiments.power.variability.fleet import fleets_of
    from assay.experiments.power.variability.page import page
    from assay.experiments.power.variability.written import CSV, gpus_csv
    from assay.reports.terminal import print_page
    from assay.reports.write import write_report

    paths = runs or (Path("runs/latest"),)
    racks = read_racks(given["racks"]) if given["racks"] is not None else None
    rows_read = gather(paths, GPUS_FILE, GpuRow)
    rows, strange = with_racks(rows_read.rows, racks) if racks is not None else (rows_read.rows, ())
    fleets = fleets_of(rows)
    notes = (*rows_read.notes, *strange, *fleets.notes)
    if not fleets.fleets:
        raise BadInput(f"Nothing can be used: {'; '.join([*rows_read.unusable, *notes]).rstrip('.')}.")
    analysis = [look(fleet, given["minimum_effect"]) for fleet in fleets.fleets]
    findings = findings_of(analysis)
    shown = page(
        analysis,
        findings,
        notes=notes,
        unusable=rows_read.unusable,
        over_time=over_time(rows_read),
        facts=(("runs", ", ".join(show.short(path) for path in paths[:5])), ("files", f"{len(rows_read.files):,}")),
        origin=rows_read.origin,
    )
    folder = given["output"] or beside(paths)
    written_files = write_report(shown, folder)
    replace_atomically(folder / CSV, gpus_csv(analysis).encode())
    if given["as_json"]:
        files = [str(file) for file in (*written_files, folder / CSV)]
        data = {**findings.as_json(), "unusable": rows_read.unusable, "notes": notes}
        click.echo(json.dumps({**data, "files": files}, indent=2, ensure_ascii=False))
    else:
        print_page(without_figures(shown), show.console(stderr=False))
    screen = show.console(stderr=True)
    screen.print(f"Report: {show.short(folder)}/report.html", markup=False, soft_wrap=True)
    return 0


def beside(paths: Sequence[Path], name: str = FOLDER) -> Path:
    """Return a folder next to the runs: within the folder that was named, or that all of them share."""
    import os

    real = [path.resolve() for path in paths if path.exists()]
    folders = [path if path.is_dir() else path.parent for path in real]
    common = Path(os.path.commonpath(folders))
    return (Path.cwd() if common == Path(common.anchor) else common) / name


def over_time(gathered: Gathered[GpuRow]) -> Lines | None:
    """Return the power of each GPU over the time of the run, where all rows are of one run that was recorded."""
    from assay.core.errors import AssayError, DamagedFile
    from assay.core.page import Lines
    from assay.experiments.watched import sensor_axis, sensor_lines
    from assay.store.runs import RunFolder

    if len(gathered.files) != 1:
        return None
    folder = gathered.files[0].parent.parent
    if not (folder / "plan.json").is_file():
        return None
    try:
        records = RunFolder.open(folder).records()
        lines = sensor_lines(records, min((record.window.start_ns for record in records), default=0))
        axis = sensor_axis(records)
    except DamagedFile:
        raise
    except AssayError:
        return None
    if not lines or "power" not in axis:
        return None
    title = f"{folder.name}: power over time"
    return Lines(title=title, name="power_time", x_axis="time (s)", y_axis=axis, lines=lines, markers=False)
