"""``assay list``, ``assay report`` and ``assay resume``.

What can be measured and what has been; redraw a report; continue a run.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.host_flags import HostFlags, dispatch_remote
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from assay.store.records import Records


Kind = Literal["workloads", "devices", "runs"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class ListFlags(cli.JsonFlags):
    """What `assay list` can be asked for."""

    kinds: tuple[Kind, ...] = cli.argument("[workloads|devices|runs]...", default=())
    output_dir: Path = cli.output_dir_flag()


@cli.verb("list", ListFlags)
def list_measurable(flags: ListFlags) -> int:
    """List workloads, devices and runs, or only one of these kinds."""
    rows_of: dict[Kind, Callable[[], list[dict[str, Any]]]]
    rows_of = {"workloads": workload_rows, "devices": device_rows, "runs": partial(run_folder_rows, flags.output_dir)}
    rows_by_kind = {kind: rows_of[kind]() for kind in flags.kinds or KINDS}
    if flags.as_json:
        show.print_json(rows_by_kind)
        return 0
    screen = show.console(stderr=False)
    for kind, rows in rows_by_kind.items():
        screen.print(_list_table(kind, rows) if rows else f"No {kind} yet.")
    return 0


def workload_rows() -> list[dict[str, Any]]:
    """Return every registered workload with its parameters on this machine; one that cannot be loaded says why."""
    from assay.machine.detect import detect
    from assay.workloads.registry import registered_workloads

    usual = "cuda" if detect().gpus else "cpu"
    rows: list[dict[str, Any]] = []
    for key, entry in registered_workloads().items():
        try:
            workload = entry.load()
        except ImportError as error:
            rows.append({"workload": key, "parameters": None, "configurations": None, "about": f"not here: {error}"})
            continue
        params = workload.defaults(usual if usual in workload.device_kinds else min(workload.device_kinds))
        rows.append(
            {
                "workload": key,
                "parameters": " ".join(f"{name}={value}" for name, value in params.items()),
                "configurations": len(workload.configs(params)),
                "about": workload.summary,
            }
        )
    return rows


def device_rows() -> list[dict[str, Any]]:
    """Return the GPUs and the groups of cores that runs may name."""
    from assay.isolation.placement import allot_cores, list_devices
    from assay.machine.detect import detect
    from assay.machine.devices import gpu_targets

    machine = detect()
    gpus = {name: target.title for name, target in gpu_targets(machine).items()}
    rows: list[dict[str, Any]] = []
    for name in list_devices(machine):
        cpus = None if name in gpus else allot_cores(machine, (name,), "cpu").of(name).cpus
        rows.append({"device": name, "is": gpus.get(name) or f"cores {','.join(map(str, cpus or ()))}"})
    return rows


def run_folder_rows(output_dir: Path) -> list[dict[str, Any]]:
    """Return the runs under a folder, oldest first."""
    from assay.store.run_folder import RunFolder, run_paths

    rows: list[dict[str, Any]] = []
    for path in run_paths(output_dir):
        try:
            folder = RunFolder.open(path)
            states = [record.status for record in folder.counting()]
        except BadInput as error:
            rows.append({"run": str(path), "begun": None, "trials": None, "failed": None, "state": str(error)})
            continue
        rows.append(
            {
                "run": str(path),
                "begun": folder.plan.created_at,
                "trials": len(states),
                "failed": states.count("failed"),
                "state": "finished" if (path / "findings.json").exists() else "unfinished",
            }
        )
    return rows


def _list_table(kind: str, rows: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=kind.capitalize(), box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        shown = {**row, "begun": f"{row['begun'] or '–'}"[:16].replace("T", " ")} if "begun" in row else row
        table.add_row(*("–" if value is None else escape(str(value)) for value in shown.values()))
    return table


class ReportFlags(cli.JsonFlags):
    """What `assay report` can be asked for."""

    run: Path = cli.argument("[RUN]", default=cli.LATEST_RUN)
    perfetto: Path | None = cli.output_flag(metavar="FILE", help="Also write a trace for ui.perfetto.dev.")


@cli.verb("report", ReportFlags)
def redraw_report(flags: ReportFlags) -> int:
    """Redraw the report of a run from its records, or of a recording of `assay monitor`.

    RUN is a run folder, a fleet or a recording; by default runs/latest.
    """
    run, perfetto, as_json = flags.run, flags.perfetto, flags.as_json
    if run.is_file():
        return report_recording(run, perfetto, as_json=as_json)
    from assay.experiments.base import conclude, find_experiment
    from assay.hosts.fleet import is_fleet
    from assay.store.run_folder import RunFolder

    if is_fleet(run):
        from assay.cli import fleet

        if perfetto is not None:
            raise BadInput(f"{run} is a fleet; --perfetto draws one of the runs in it.")
        return fleet.report_fleet(run, as_json=as_json)
    folder = RunFolder.open(run)
    if not folder.records():
        raise BadInput(f"{run} has no records yet; `assay resume {run}` measures them.")
    if perfetto is not None:
        write_run_trace(folder.records(), run, perfetto)
    return show.show_result(conclude(find_experiment(folder.plan.experiment), folder), folder.path, as_json=as_json)


def write_run_trace(records: Records, run: Path, path: Path) -> None:
    """Write what was recorded beside a run as a trace: counters, and a slice for each trial."""
    from assay.monitor.perfetto import write_trace

    if all(record.sensors is None for record in records):
        raise MachineCannot(f"{run} was not monitored, so there is nothing to trace.")
    write_trace(records.watched(), path)


def report_recording(path: Path, perfetto: Path | None, *, as_json: bool) -> int:
    """Show what a recording says, and draw it into a folder beside it."""
    from assay.monitor.perfetto import write_trace
    from assay.monitor.recording_file import read_recording
    from assay.monitor.report import recording_page
    from assay.reports.documents import write_report

    if perfetto is not None:
        write_trace(read_recording(path), perfetto)
    summary, page = recording_page(read_recording(path), name=path.name)
    folder = path.with_name(f"{path.stem}-report")
    write_report(page, folder)
    show.print_result({**summary.as_json(), "file": str(path)}, page, as_json=as_json)
    click.echo(f"Report: {folder}/report.html", err=True)
    return 0


class ResumeFlags(HostFlags):
    """What `assay resume` can be asked for."""

    run: Path = cli.argument("[RUN]", default=cli.LATEST_RUN)


@cli.verb("resume", ResumeFlags)
def resume_run(flags: ResumeFlags) -> int:
    """Resume a run that was stopped or failed.

    Complete blocks are kept. A block that is incomplete or has a failed trial is measured again; the records keep the
    previous attempt. Resuming on a different machine is refused. RUN may be a fleet: then only its missing nodes are
    measured.
    """
    from assay.cli import measuring
    from assay.experiments.base import find_experiment
    from assay.hosts.fleet import is_fleet
    from assay.machine.detect import detect
    from assay.store.run_folder import RunFolder

    if is_fleet(flags.run):
        from assay.cli.fleet import resume_fleet

        return resume_fleet(flags, flags.run)
    folder = RunFolder.open(flags.run)
    folder.verify(lost_samples=True)
    if (code := dispatch_remote(flags)) is not None:
        return code
    experiment = find_experiment(folder.plan.experiment)
    try:
        os.chdir(folder.plan.cwd)
    except OSError as error:
        raise MachineCannot(f"The run was started from {folder.plan.cwd}: {error.strerror}.") from None
    before = len(folder.decisions())
    machine = detect(name_host=folder.machine.hostname is not None)
    with measuring.checkouts_for_resume(experiment, folder, machine):
        code = measuring.continue_run(experiment, folder, machine, as_json=flags.as_json, remembered=flags.history)
    if len(folder.decisions()) == before:
        click.echo("Nothing was left to measure.", err=True)
    if experiment.name == "energy":
        from assay.cli.energy_reporters import write_run_reports

        return write_run_reports(folder.path, code)
    return code
