"""``assay power variability`` and ``assay power budget``.

From existing runs, which GPUs are slow, hot or power-hungry, and which caps give the most work within a power budget.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.commands import OTHER
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import LinePlot
    from assay.experiments.power.budget import BudgetPlan
    from assay.experiments.power.rows import GpuRow, LoadedRows


VARIABILITY_FOLDER = "variability"


class PowerReportFlags(cli.JsonFlags):
    """What reports on power are made of, and where they go."""

    runs: tuple[Path, ...] = cli.argument("[RUN]...", default=())
    output: Path | None = cli.flag("--output -o", metavar="DIR", shown="next to the runs", help="Folder of the report.")


class VariabilityFlags(PowerReportFlags):
    """What `assay power variability` can be asked for."""

    minimum_effect: float = cli.min_effect_flag(0.02, OTHER)
    racks: Path | None = cli.flag(metavar="FILE", help="CSV of host,rack, for runs without a rack.")


@cli.verb("power variability", VariabilityFlags)
def analyse_variability(flags: VariabilityFlags) -> int:
    """Find GPUs that are slow, hot or power-hungry, and which to request instead.

    RUN is a run folder of `assay power characterize`, a folder of such folders (a fleet), or a .jsonl or .csv file of
    their rows; by default runs/latest. Unreadable files are reported and skipped.

        assay power variability runs/latest
        assay power variability runs
        assay power variability fleet/rack1 fleet/rack2 -o fleet/report
    """
    from assay.core.files import replace_atomically
    from assay.experiments.power.rows import GPUS_FILE, GpuRow, add_racks, load_rows, read_racks
    from assay.experiments.power.variability.analysis import analyse_fleet
    from assay.experiments.power.variability.findings import fleet_findings
    from assay.experiments.power.variability.fleet import group_fleets
    from assay.experiments.power.variability.report import GPUS_CSV_NAME, build_page, gpus_csv
    from assay.reports.documents import write_report

    paths = flags.runs or (cli.LATEST_RUN,)
    racks = read_racks(flags.racks) if flags.racks is not None else None
    rows_read = load_rows(paths, GPUS_FILE, GpuRow)
    rows, strange = add_racks(rows_read.rows, racks) if racks is not None else (rows_read.rows, ())
    fleets = group_fleets(rows)
    notes = (*rows_read.notes, *strange, *fleets.notes)
    if not fleets.fleets:
        raise BadInput(f"Nothing can be used: {'; '.join([*rows_read.unusable, *notes]).rstrip('.')}.")
    analysis = [analyse_fleet(fleet, flags.minimum_effect) for fleet in fleets.fleets]
    findings = fleet_findings(analysis)
    shown = build_page(
        analysis,
        findings,
        notes=notes,
        unusable=rows_read.unusable,
        over_time=power_over_time(rows_read),
        facts=(
            ("runs", ", ".join(show.short_path(path) for path in paths[:5])),
            ("files", f"{len(rows_read.files):,}"),
        ),
        origin=rows_read.origin,
    )
    folder = flags.output or output_folder(paths)
    written_files = write_report(shown, folder)
    replace_atomically(folder / GPUS_CSV_NAME, gpus_csv(analysis).encode())
    files = [str(file) for file in (*written_files, folder / GPUS_CSV_NAME)]
    data = {**findings.as_json(), "unusable": rows_read.unusable, "notes": notes, "files": files}
    show.print_result(data, show.text_only_page(shown), as_json=flags.as_json)
    click.echo(f"Report: {show.short_path(folder)}/report.html", err=True)
    return 0


def output_folder(paths: Sequence[Path], name: str = VARIABILITY_FOLDER) -> Path:
    """Return a folder next to the runs: within the folder that was named, or that all of them share."""
    import os

    real = [path.resolve() for path in paths if path.exists()]
    folders = [path if path.is_dir() else path.parent for path in real]
    common = Path(os.path.commonpath(folders))
    return (Path.cwd() if common == Path(common.anchor) else common) / name


def power_over_time(rows_read: LoadedRows[GpuRow]) -> LinePlot | None:
    """Return the power of each GPU over the time of the run, where all rows are of one run that was recorded."""
    from assay.core.errors import AssayError, DamagedFile
    from assay.core.page import LinePlot
    from assay.experiments.reporting import sensor_axis, sensor_lines
    from assay.store.run_folder import RunFolder

    if len(rows_read.files) != 1:
        return None
    folder = rows_read.files[0].parent.parent
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
    return LinePlot(title=title, name="power_time", x_axis="time (s)", y_axis=axis, lines=lines, markers=False)


BUDGET_FOLDER = "budget"


class BudgetFlags(PowerReportFlags):
    """What `assay power budget` can be asked for."""

    watts: float = cli.flag(
        required=True, gt=0, allow_inf_nan=False, metavar="W", help="Power budget of the node or rack."
    )
    overhead_w: float = cli.flag(
        default=0.0, ge=0, allow_inf_nan=False, metavar="W", help="Watts not available to the GPUs."
    )
    min_share: float | None = cli.flag(gt=0, lt=1, help="Keep every GPU at this share of its full rate.")
    workload: str | None = cli.flag(metavar="NAME", help="Workload, if several were swept.")


@cli.verb("power budget", BudgetFlags)
def plan_power_budget(flags: BudgetFlags) -> int:
    """Find the power limits with the most throughput under a power budget; sets nothing.

    RUN is a run folder of `assay power sweep --limits`, a folder of such folders, or a .jsonl or .csv file of their
    rows; by default runs/latest. GPUs that were only characterized get the median curve of their model.

        assay power budget --watts 2400 runs/latest
        assay power budget --watts 10200 --overhead 1800 --min-share 70% rack7
    """
    from assay.experiments.power.budget import (
        budget_findings,
        build_page,
        command_script,
        fit_curves,
        plan_budget,
        select_work,
    )
    from assay.experiments.power.rows import GPUS_FILE, SWEEP_FILE, GpuRow, SweepRow, has_no_sweep_rows, load_rows
    from assay.reports.documents import write_report

    paths = flags.runs or (cli.LATEST_RUN,)
    others = load_rows([path for path in paths if path.is_dir() or has_no_sweep_rows(path)], GPUS_FILE, GpuRow)
    sweeps = load_rows([path for path in paths if not has_no_sweep_rows(path)], SWEEP_FILE, SweepRow)
    if not sweeps.rows:
        raise BadInput(f"Nothing can be used: {'; '.join(sweeps.unusable) or 'there is no row of a sweep'}.")
    work, rows = select_work(sweeps.rows, flags.workload)
    curves, notes = fit_curves(rows, others.rows)
    plan = plan_budget(curves, flags.watts, flags.overhead_w, flags.min_share)
    findings = budget_findings(plan, work)
    shown = build_page(plan, work, notes=(*sweeps.notes, *notes), unusable=sweeps.unusable)
    folder = flags.output or output_folder(paths, BUDGET_FOLDER)
    written_files = write_report(shown, folder)
    data = {
        **findings.as_json(),
        **budget_data(plan),
        "unusable": sweeps.unusable,
        "notes": [*sweeps.notes, *notes],
        "files": [str(file) for file in written_files],
    }
    brief = show.text_only_page(shown)
    sections = tuple(section for section in brief.sections if section.title != "Commands")
    show.print_result(data, brief.model_copy(update={"sections": sections}), as_json=flags.as_json)
    if plan.binds and not flags.as_json:
        click.echo(f"\n# Nothing was set. Run as root:\n{command_script(plan)}")
    click.echo(f"Report: {show.short_path(folder)}/report.html", err=True)
    return 0


def budget_data(plan: BudgetPlan) -> dict[str, object]:
    """Return the caps as plain data."""
    from assay.experiments.power.budget import cap_commands

    return {
        "binds": plan.binds,
        "least_w": plan.least_w,
        "needed_w": plan.needed_w + plan.overhead_w,
        "loss": plan.loss.as_json(),
        "against_equal": None if plan.against_equal is None else plan.against_equal.as_json(),
        "caps": [
            {
                **vars(share.curve.gpu),
                "cap_w": share.cap_w if plan.binds else None,
                "counted_w": share.watts,
                "calls_per_s": share.rate,
                "share": share.share,
                "own_curve": not share.curve.peers,
            }
            for share in plan.shares
        ],
        "commands": [line for _, line in cap_commands(plan)],
    }
