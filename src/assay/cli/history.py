"""``assay history``: list, show, plot, export and import what was measured before, and find regressions in it."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.core.errors import AssayError, BadInput, GateFailed, StopRequested
from assay.core.format import MAX_CALLS

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.results import Origin
    from assay.store.history.importing import ImportProgress, ImportResult
    from assay.store.history.queries import PointFilter


PROGRESS_INTERVAL_S = 5.0


class HistoryImportFlags(cli.JsonFlags):
    """What `assay history import` can be asked for."""

    folders: tuple[Path, ...] = cli.argument("DIR...", default=(), required=True)
    rebuild: bool = cli.flag(default=False, help="Delete the history and import these runs.")
    yes: bool = cli.flag(default=False, help="With --rebuild: also drop runs whose folders are missing.")


@cli.verb("history import", HistoryImportFlags)
def import_history(flags: HistoryImportFlags) -> int:
    """Import the finished runs in folders and their subfolders into the history.

    A run that is already imported is skipped unless it was resumed since. Unreadable folders are reported and the rest
    is imported; if a folder is damaged, the exit code is 2 and its stored points are kept.

        assay history import runs
        assay history import --rebuild runs /data/older-runs
    """
    folders = flags.folders
    if flags.yes and not flags.rebuild:
        raise BadInput("--yes needs --rebuild.")
    if flags.rebuild:
        result = rebuild_history(folders, forget=flags.yes)
    else:
        from assay.store.history.database import HistoryDatabase
        from assay.store.history.importing import import_runs

        result = import_runs(HistoryDatabase.open(), folders, import_progress())
    for path, reason in result.unreadable:
        click.echo(f"Left out: {path}: {reason}", err=True)
    for path in result.unfinished:
        click.echo(f"Left out: {path} is not finished; `assay resume {path}` goes on.", err=True)
    if not result.read:
        problem = "can be read" if result.unreadable else "is finished" if result.unfinished else "was found"
        raise BadInput(f"No run {problem} in {', '.join(map(str, folders))}.")
    if flags.as_json:
        click.echo(json.dumps(import_data(result), indent=2))
    else:
        click.echo(import_summary(result))
    return BadInput.exit_code if result.damaged else 0


def rebuild_history(folders: tuple[Path, ...], *, forget: bool) -> ImportResult:
    """Rebuild the history; a damaged file is set aside."""
    from assay.store.history.database import (
        HistoryDamaged,
        HistoryDatabase,
        move_damaged_aside,
        require_history_location,
    )
    from assay.store.history.importing import rebuild_history

    path, progress = require_history_location(), import_progress()
    try:
        return rebuild_history(HistoryDatabase.open(path), folders, forget=forget, progress=progress)
    except HistoryDamaged:
        click.echo(f"The damaged history is set aside as {move_damaged_aside(path)}.", err=True)
        return rebuild_history(HistoryDatabase.open(path), folders, forget=forget, progress=progress)


def import_progress() -> ImportProgress:
    """Return a callback that prints the progress of an import every few seconds."""
    last = [time.monotonic()]

    def tell(done: int, of: int) -> None:
        if time.monotonic() - last[0] >= PROGRESS_INTERVAL_S:
            last[0] = time.monotonic()
            click.echo(f"{done:,} of {of:,} run folders read.", err=True)

    return tell


def import_data(result: ImportResult) -> dict[str, object]:
    """Return the result of an import as plain data."""
    counts = {name: getattr(result, name) for name in ("new", "replaced", "unchanged", "forgotten", "points")}
    unreadable = [{"folder": str(path), "reason": why} for path, why in result.unreadable]
    return {"schema": 1, **counts, "unfinished": [str(path) for path in result.unfinished], "unreadable": unreadable}


def import_summary(result: ImportResult) -> str:
    """Return the result of an import as a sentence."""
    parts = [f"{result.new} new run{'' if result.new == 1 else 's'} with {result.points} points"]
    parts += [f"{result.replaced} replaced by their newer state"] if result.replaced else []
    parts += [f"{result.unchanged} unchanged"] if result.unchanged else []
    parts += [f"{result.forgotten} forgotten"] if result.forgotten else []
    return f"{', '.join(parts)}."


OriginChoice = Literal["real", "fake", "simulated", "all"]
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([hdwmy])")
_HOURS = {"h": 1.0, "d": 24.0, "w": 7 * 24.0, "m": 30 * 24.0, "y": 365 * 24.0}


def parse_since(text: str) -> float:
    """Return seconds since 1970 from a date, a time, or how long ago: "2026-11-01", "90d", "2w"."""
    word = text.strip().lower()
    try:
        if back := _AGO.fullmatch(word):
            return (datetime.now(UTC) - timedelta(hours=float(back[1]) * _HOURS[back[2]])).timestamp()
        moment = datetime.fromisoformat(word)
        return (moment if moment.tzinfo else moment.astimezone()).timestamp()
    except OverflowError:
        raise BadInput(f"{text} is out of range for a date.") from None
    except ValueError:
        raise BadInput(f"{text} is not a time; write a date (2026-11-01) or a period (12h, 30d, 8w, 6m, 1y).") from None


def origin_flag(default: OriginChoice) -> Any:
    """Return the flag of where numbers come from."""
    return cli.flag("--origin", default=default, help="Origin of the numbers.")


class HistoryFilterFlags(cli.Flags):
    """Which points of the history to select."""

    workload: str | None = cli.flag(metavar="NAME", help="Only this workload, such as softmax@numpy.")
    gpu: str | None = cli.flag(metavar="NAME", help="Only this GPU: part of its name or UUID.")
    since_s: float | None = cli.flag(
        metavar="30d", parse=parse_since, help="Only runs since a date, or within a period."
    )
    origin: OriginChoice = origin_flag("real")

    def as_filter(self, quantity: str | None = None) -> PointFilter:
        """Return the filter of points that the flags mean."""
        from assay.store.history.queries import PointFilter

        origins = parse_origins(self.origin)
        return PointFilter(
            workload=self.workload, gpu=self.gpu, since_s=self.since_s, quantity=quantity, origins=origins
        )


def parse_origins(origin: OriginChoice) -> tuple[Origin, ...] | None:
    """Return the selected origins; null: all of them."""
    return None if origin == "all" else (origin,)


EMPTY_MESSAGE = (
    "No run in the history matches. Finished runs are added automatically; `assay history import DIR` adds older ones."
)


class HistoryListFlags(HistoryFilterFlags, cli.JsonFlags):
    """What `assay history list` can be asked for."""

    origin: OriginChoice = origin_flag("all")
    as_series: bool = cli.flag("--series", default=False, help="List series with their keys instead of runs.")
    limit: int = cli.flag(default=20, ge=1, le=MAX_CALLS, help="Maximum number of runs.")


@cli.verb("history list", HistoryListFlags)
def list_history(flags: HistoryListFlags) -> int:
    """List runs, newest first, or with --series what they measured repeatedly.

    assay history list --since 30d
    assay history list --workload softmax --series
    """
    rows, page = series_rows(flags) if flags.as_series else run_rows(flags)
    if rows or flags.as_json:
        data = {"schema": 1, "series" if flags.as_series else "runs": rows}
        show.print_result(data, page, as_json=flags.as_json)
    else:
        click.echo(EMPTY_MESSAGE, err=True)
    return 0


def run_rows(flags: HistoryListFlags) -> tuple[list[dict[str, Any]], Page]:
    """Return the selected runs, as data and as a page."""
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import list_runs
    from assay.store.history.report import runs_page

    with HistoryDatabase.open().reading() as connection:
        matching = list_runs(connection, flags.as_filter(), limit=flags.limit + 1)
    shown = matching[: flags.limit]
    rows = [{**entry.run.as_json(), "workloads": entry.workloads, "points": entry.points} for entry in shown]
    return rows, runs_page(shown, more=len(matching) > len(shown))


def series_rows(flags: HistoryListFlags) -> tuple[list[dict[str, Any]], Page]:
    """Return the selected series, as data and as a page."""
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import check_filter, load_series
    from assay.store.history.report import series_list_page

    with HistoryDatabase.open().reading() as connection:
        check_filter(connection, flags.as_filter())
        courses = load_series(connection, flags.as_filter())
    rows = [{"key": c.name, **c.key.as_json(), "unit": c.unit, "runs": len(c)} for c in courses]
    return rows, series_list_page(courses)


class HistoryShowFlags(cli.JsonFlags):
    """What `assay history show` can be asked for."""

    name: tuple[str, ...] = cli.argument("KEY|RUN", default=(), required=True)
    origin: OriginChoice = origin_flag("real")


@cli.verb("history show", HistoryShowFlags)
def show_history(flags: HistoryShowFlags) -> int:
    """Show the points of a series or the results of a run.

    A KEY is the key of a series, a prefix of it, or words that identify it: a workload, a quantity, a
    parameter. A RUN is its id, its folder, or "latest".

        assay history show latest
        assay history show softmax@numpy call_us rows=4096
    """
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import PointFilter, find_run, list_run, load_named_series, load_series
    from assay.store.history.report import run_page, series_data, series_page

    text, origins = " ".join(flags.name), parse_origins(flags.origin)
    with HistoryDatabase.open().reading() as connection:
        run = find_run(connection, text)
        if run is None:
            course = load_named_series(connection, text, origins)
            data, page = series_data(course), series_page(course)
        else:
            courses = load_series(connection, PointFilter(run=run.id, origins=None))
            listed = list_run(connection, run)
            data = {"schema": 1, **listed.run.as_json(), "points": [series_data(course) for course in courses]}
            page = run_page(listed, courses)
    show.print_result(data, page, as_json=flags.as_json)
    return 0


class HistoryPlotFlags(cli.Flags):
    """What `assay history plot` can be asked for."""

    name: tuple[str, ...] = cli.argument("KEY", default=(), required=True)
    output: Path | None = cli.flag("--output -o", metavar="FILE", shown="history-KEY.html", help="Write .html or .png.")
    origin: OriginChoice = origin_flag("real")


@cli.verb("history plot", HistoryPlotFlags)
def plot_series(flags: HistoryPlotFlags) -> int:
    """Plot a series over time with its confidence intervals, and list its points.

    KEY is the key of a series, a prefix of it, or words that identify it.

        assay history plot softmax@numpy call_us rows=4096
        assay history plot 3f2a91c04b7d -o softmax.png
    """
    from assay.core.files import replace_atomically
    from assay.reports.documents import to_html
    from assay.reports.figures import draw_figure
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import load_named_series
    from assay.store.history.report import series_line, series_page

    output = flags.output
    if output is not None and output.suffix not in {".html", ".png"}:
        raise BadInput(f"--output {output} must be a .html or .png file.")
    with HistoryDatabase.open().reading() as connection:
        course = load_named_series(connection, " ".join(flags.name), parse_origins(flags.origin))
    page = series_page(course)
    path = output or Path(f"history-{course.name}.html")
    if path.suffix == ".png":
        replace_atomically(path, draw_figure(series_line(course)).to_png(noted=True, origin=page.origin))
    else:
        replace_atomically(path, to_html(page).encode())
    click.echo(f"{page.lead} Drawn: {show.short_path(path.absolute())}", err=True)
    return 0


REPORT_SUFFIXES = {".html", ".md"}


class RegressionFlags(HistoryFilterFlags, cli.RegressionGateFlags, cli.JsonFlags):
    """What `assay history regressions` can be asked for."""

    quantity: str | None = cli.flag(metavar="NAME", help="Only this quantity, such as call_us.")
    new_since_s: float | None = cli.flag(
        metavar="14d", parse=parse_since, help="Only changes since a date, or within a period."
    )
    fdr: float = cli.decide_flag(default=0.05, gt=0, lt=1, help="False-discovery rate.")
    minimum_effect: float = cli.min_effect_flag(0.01)
    output: cli.OutputFile | None = cli.output_flag(
        "--output -o", metavar="FILE", help="Write the report as .html or .md."
    )


@cli.verb("history regressions", RegressionFlags)
def find_regressions(flags: RegressionFlags) -> int:
    """Report the run and commit that made something slower or faster, in all series.

    Each change point is reported with its first run and commit, its size with an interval, and what else changed:
    with a new host or driver it is confounded, and not a regression.

        assay history regressions
        assay history regressions --workload softmax -o changes.html
        assay history regressions --new-since 7d --fail-on-regression
    """
    from assay.core.files import replace_atomically
    from assay.experiments.regressions import build_page, detect_regressions
    from assay.reports.documents import to_html, to_markdown
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import check_filter, load_series

    output = flags.output
    if output is not None and output.suffix not in REPORT_SUFFIXES:
        raise BadInput(f"--output {output} must be a .html or .md file.")
    filters = flags.as_filter(flags.quantity)
    with HistoryDatabase.open().reading() as connection:
        check_filter(connection, filters)
        courses = load_series(connection, filters)
    analysis = detect_regressions(
        courses, fdr=flags.fdr, minimum_effect=flags.minimum_effect, since_s=flags.new_since_s
    )
    if flags.fail_on_regression and not analysis.series:
        raise BadInput(f"The gate has nothing to decide on. {analysis.headline}")
    if output is not None:
        page = build_page(analysis, courses)
        text = to_html(page) if output.suffix == ".html" else to_markdown(page, {})
        replace_atomically(output, text.encode())
    show.print_result(analysis.as_json(), build_page(analysis, ()), as_json=flags.as_json)
    if output is not None:
        click.echo(f"Report: {show.short_path(output.absolute())}", err=True)
    if flags.fail_on_regression and analysis.regressions:
        raise GateFailed(f"The gate failed. {analysis.headline}")
    return 0


class HistoryExportFlags(HistoryFilterFlags):
    """What `assay history export` can be asked for."""

    file: Path = cli.argument("FILE", required=True)
    as_csv: bool = cli.flag("--csv", default=False, shown="unless FILE ends in .json", help="Write a CSV table.")
    as_json: bool = cli.flag("--json", default=False, help="Write runs, series and points as JSON.")


@cli.verb("history export", HistoryExportFlags)
def export_history(flags: HistoryExportFlags) -> int:
    """Export every point with its run and series to FILE; - is stdout.

    assay history export history.csv
    assay history export --workload softmax --since 90d softmax.json
    """
    from assay.store.history.database import HistoryDatabase
    from assay.store.history.queries import check_filter
    from assay.store.history.report import csv_lines, json_lines, write_lines

    file = flags.file
    if flags.as_csv and flags.as_json:
        raise BadInput("--csv and --json exclude each other; give one.")
    as_json = flags.as_json or (file.suffix == ".json" and not flags.as_csv)
    with HistoryDatabase.open().reading() as connection:
        filters = flags.as_filter()
        check_filter(connection, filters)
        lines = json_lines(connection, filters) if as_json else csv_lines(connection, filters)
        if str(file) == "-":
            sys.stdout.writelines(lines)
        else:
            write_lines(file, lines)
    return 0


def import_into_history(folder: Path) -> None:
    """Put a finished run into the history, unless that is switched off; a failure is one line and harms nothing.

    Raises:
        StopRequested: A signal arrived; the message says how to import the run later.
    """
    try:
        from assay.store.history.database import history_location
        from assay.store.history.importing import import_run

        if (location := history_location()) is not None:
            import_run(folder, location)
    except StopRequested as stopped:
        hint = f"`assay history import {show.short_path(folder)}` enters it into the history"
        raise StopRequested(f"{stopped}; everything measured is kept, and {hint}.") from None
    except Exception as error:  # noqa: BLE001 - the run is measured and kept, whatever this is
        message = str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"
        hint = f"`assay history import {show.short_path(folder)}` tries again"
        reason = " ".join(message.split()).rstrip(".")
        click.echo(f"warning: this run is not in the history: {reason}; {hint}", err=True)
