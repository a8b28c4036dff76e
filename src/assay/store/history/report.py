"""Runs and series of the history as pages, and its export as CSV or JSON: one row for each point."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from assay.core.files import replace_from_chunks
from assay.core.format import format_count, format_value
from assay.core.page import LinePlot, Page, PlotLine, Row, Section, build_table
from assay.core.values import SCHEMA_VERSION
from assay.store.history.database import POINTS, RUNS, SERIES, key_from_row, run_from_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sqlalchemy import Connection, CursorResult

    from assay.core.page import Cell, Table, Tone
    from assay.core.results import Origin
    from assay.store.history.queries import ListedRun, PointFilter, SeriesHistory

TIME_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
"""Time units of a series: the largest one of which it lasts at least two is used."""
MAX_ROWS = 200
"""Points of a series in its table, the newest; its line has all of them."""

_VALUES = ("value", "low", "high")
_NUMERIC = (*_VALUES, "samples", "runs", "points")


def _history_table(
    title: str, rows: Iterable[Row], columns: Mapping[str, Callable[[Row], Cell]], note: str | None = None
) -> Table:
    return build_table(title, rows, columns, numeric=[name for name in columns if name in _NUMERIC], note=note)


def runs_page(listed: Sequence[ListedRun], *, more: bool) -> Page:
    """Return runs as a table, in the order given."""
    columns: dict[str, Callable[[ListedRun], Cell]] = {
        "run": lambda entry: entry.run.id,
        "began (UTC)": lambda entry: format_moment(entry.run.started_s),
        "experiment": lambda entry: entry.run.experiment,
        "measured": lambda entry: ", ".join(entry.workloads) or "nothing",
        "points": lambda entry: entry.points,
        "host": lambda entry: entry.run.hostname or entry.run.host[:8],
        "commit": lambda entry: format_commit(entry.run.git_commit, dirty=entry.run.git_dirty),
        "note": _run_note,
    }
    table = _history_table("The newest first", listed, columns)
    count = format_count(len(listed), "run")
    lead = f"{count}; there are more, see --limit." if more else f"{count}."
    return Page(title="assay history", lead=lead, sections=(Section(title="Runs", elements=(table,)),))


def _last_values() -> dict[str, Callable[[SeriesHistory], Cell]]:
    return {name: partial(_value_at, name=name, index=-1) for name in _VALUES}


def run_page(entry: ListedRun, all_series: Sequence[SeriesHistory]) -> Page:
    """Return the page of a run: its points, with the keys of their series."""
    columns: dict[str, Callable[[SeriesHistory], Cell]] = {
        "key": lambda series: series.name,
        "series": lambda series: series.key.label,
        "on": lambda series: series.key.where,
        **_last_values(),
        "unit": lambda series: series.unit,
        "with": lambda series: series.key.details,
        "status": lambda series: _point_status(series, -1),
    }
    run = entry.run
    facts = (
        ("began", run.started_at),
        ("folder", run.folder),
        ("host", f"{run.hostname or run.host}, {run.host_class}"),
        ("driver", run.driver or "none"),
        ("commit", format_commit(run.git_commit, dirty=run.git_dirty) or "not known"),
    )
    table = _history_table("Its points, by the keys of their series", all_series, columns)
    return Page(
        title=f"assay history: run {run.id} of {run.experiment}",
        lead=run.headline,
        sections=(Section(title="Points", elements=(table,)),),
        facts=facts,
        origin=run.origin,
    )


def series_list_page(all_series: Sequence[SeriesHistory]) -> Page:
    """Return series as a table: their keys, how many points they have, and the last."""
    columns: dict[str, Callable[[SeriesHistory], Cell]] = {
        "key": lambda series: series.name,
        "series": lambda series: series.key.label,
        "on": lambda series: series.key.where,
        "runs": len,
        "last (UTC)": lambda series: format_moment(series.runs[-1].started_s),
        **_last_values(),
        "unit": lambda series: series.unit,
        "with": lambda series: series.key.details,
    }
    table = _history_table("Series, with their last point", all_series, columns)
    lead = f"{len(all_series)} series."
    return Page(title="assay history", lead=lead, sections=(Section(title="Series", elements=(table,)),))


def series_page(series: SeriesHistory) -> Page:
    """Return the page of a series: its line with intervals, and its points."""
    key = series.key
    return Page(
        title=f"assay history: {key.label} on {key.where}",
        lead=series_lead(series),
        sections=(
            Section(title="Course", elements=(series_line(series),)),
            Section(title="Points", elements=(_points_table(series),)),
        ),
        facts=(
            ("key", series.name),
            ("with", key.details or "nothing"),
            ("method", key.method or "not recorded"),
            ("location", key.location),
            ("versions", _last_versions(series)),
        ),
        origin=series_origin(series),
    )


def series_lead(series: SeriesHistory) -> str:
    """Return a one-sentence summary of a series."""
    measured = np.flatnonzero(np.isfinite(series.value))
    first, last = format_moment(series.runs[0].started_s), format_moment(series.runs[-1].started_s)
    when = f"on {first}" if len(series) == 1 else f"from {first} to {last} (UTC)"
    runs = f"{format_count(len(series), 'run')} {when}"
    if not len(measured):
        return f"{runs}; none of them measured it."
    missing = len(series) - len(measured)
    missing_text = f", {missing} without a value" if missing else ""
    return f"{runs}{missing_text}; the last value is {format_value(float(series.value[measured[-1]]), series.unit)}."


def series_line(series: SeriesHistory) -> LinePlot:
    """Return the line of a series over time, with a band where its points have intervals."""
    first = series.runs[0].started_s
    since = series.started_s - first
    unit, seconds = next(((name, s) for name, s in TIME_UNITS if since[-1] >= 2 * s), TIME_UNITS[-1])
    low, high = _finite_or_nulls(series.low), _finite_or_nulls(series.high)
    banded = any(bound is not None for bound in low)
    label = f"{series.key.quantity} ({series.unit})" if series.unit else series.key.quantity
    return LinePlot(
        title=f"{series.key.label} on {series.key.where}",
        name="course",
        x_axis=f"{unit} since {format_moment(first)} UTC",
        y_axis=label,
        lines=(
            PlotLine(
                label=label,
                x=tuple((since / seconds).tolist()),
                y=_finite_or_nulls(series.value),
                low=low if banded else None,
                high=high if banded else None,
            ),
        ),
        note="The band is the 95 % interval of each run; a gap is a run that has no value." if banded else None,
    )


def _points_table(series: SeriesHistory) -> Table:
    """Return the points of a series, newest first."""
    runs = series.runs
    columns: dict[str, Callable[[int], Cell]] = {
        "began (UTC)": lambda index: format_moment(runs[index].started_s),
        "run": lambda index: runs[index].id,
        **{name: partial(_value_at, series, name) for name in _VALUES},
        "samples": lambda index: int(series.n[index]),
        "host": lambda index: runs[index].hostname or runs[index].host[:8],
        "driver": lambda index: runs[index].driver,
        "commit": lambda index: format_commit(runs[index].git_commit, dirty=runs[index].git_dirty),
        "status": partial(_point_status, series),
    }
    newest = range(len(series) - 1, max(-1, len(series) - 1 - MAX_ROWS), -1)
    omitted = len(series) - len(newest)
    note = f"The oldest {omitted} are left out; `assay history export` has all." if omitted else None
    table = _history_table(f"In {series.unit or 'its own unit'}", newest, columns, note)
    return table.model_copy(update={"tones": tuple(_point_tone(series, index) for index in newest)})


def _point_status(series: SeriesHistory, index: int) -> str:
    """Return the status of a point: ok, disturbed, or why it has no value."""
    status, reason = str(series.status[index]), series.reason[index]
    if status == "ok":
        return "disturbed" if series.disturbed[index] else "ok"
    return f"{status}: {reason}" if reason else status


def _point_tone(series: SeriesHistory, index: int) -> Tone:
    if series.status[index] != "ok":
        return "bad"
    return "unsure" if series.disturbed[index] else "plain"


def format_moment(seconds: float) -> str:
    """Format a time to the minute, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def format_commit(name: str | None, *, dirty: bool | None) -> str | None:
    """Abbreviate a commit; a plus means that the working tree differed from it."""
    return None if name is None else f"{name[:10]}{'+' if dirty else ''}"


def _run_note(entry: ListedRun) -> str:
    """Return remarks about a run: numbers that are not real, trials that failed."""
    remarks = [] if entry.run.origin == "real" else [f"{entry.run.origin} numbers"]
    remarks += [f"{entry.run.failed} of {entry.run.trials} trials failed"] if entry.run.failed else []
    return ", ".join(remarks)


def series_origin(series: SeriesHistory) -> Origin:
    """Return the least real origin of a series' numbers."""
    origins: set[Origin] = {run.origin for run in series.runs}
    return "simulated" if "simulated" in origins else "fake" if "fake" in origins else "real"


def _value_at(series: SeriesHistory, name: str, index: int) -> float | None:
    value = float(getattr(series, name)[index])
    return value if math.isfinite(value) else None


def _last_versions(series: SeriesHistory) -> str:
    return ", ".join(f"{name} {text}" for name, text in series.runs[-1].versions.items() if text) or "not known"


def _finite_or_nulls(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values.tolist())


RUN_COLUMNS = (
    "id", "experiment", "host", "hostname", "host_class", "driver", "git_commit", "git_dirty", "options_digest",
    "origin", "folder", "versions",
)  # fmt: skip
KEY_COLUMNS = (
    "key", "workload", "impl", "params", "params_digest", "config", "project", "location", "gpu", "device",
    "device_kind", "conditions", "quantity", "unit", "method",
)  # fmt: skip
POINT_COLUMNS = ("value", "low", "high", "n", "scope", "status", "reason", "disturbed")
ROWS_PER_BATCH = 5000


def csv_lines(connection: Connection, point_filter: PointFilter) -> Iterator[str]:
    """Yield the lines of a CSV table with a row for each point, in run order; an empty cell is null."""
    yield _csv_line(["run", "started_at", *RUN_COLUMNS[1:], *KEY_COLUMNS, *POINT_COLUMNS])
    runs = {row["number"]: row for row in connection.execute(select(RUNS)).mappings()}
    series_by_number = {row["number"]: row for row in connection.execute(select(SERIES)).mappings()}
    for row in _point_rows(connection, point_filter):
        run, series = runs[row.run], series_by_number[row.series]
        cells = [
            run["id"],
            run_from_row(run).started_at,
            *(run[name] for name in RUN_COLUMNS[1:]),
            *(series[name] for name in KEY_COLUMNS),
        ]
        yield _csv_line([*cells, *row[2:]])


def json_lines(connection: Connection, point_filter: PointFilter) -> Iterator[str]:
    """Yield the lines of a JSON document: runs and series by name, and the points that join them."""
    run_ids: dict[int, str] = {}
    series_keys: dict[int, str] = {}
    yield f'{{"schema": {SCHEMA_VERSION},\n"runs": {{'
    query = select(RUNS).where(*point_filter.run_clauses).order_by(RUNS.c.started_s, RUNS.c.number)
    for row in connection.execute(query).mappings():
        run = run_from_row(row)
        content = {"started_at": run.started_at, **run.model_dump(mode="json", exclude={"id", "started_s"})}
        yield f"{',' if run_ids else ''}\n{_json(run.id)}: {_json(content)}"
        run_ids[row["number"]] = run.id
    yield '\n},\n"series": {'
    for row in connection.execute(select(SERIES).where(*point_filter.series_clauses)).mappings():
        content = {**key_from_row(row).as_json(), "unit": row["unit"]}
        yield f"{',' if series_keys else ''}\n{_json(row['key'])}: {_json(content)}"
        series_keys[row["number"]] = row["key"]
    yield '\n},\n"points": ['
    for count, point in enumerate(_point_rows(connection, point_filter)):
        content = {**dict(zip(POINT_COLUMNS, point[2:], strict=True)), "disturbed": bool(point.disturbed)}
        content_row = {"run": run_ids[point.run], "key": series_keys[point.series], **content}
        yield f"{',' if count else ''}\n{_json(content_row)}"
    yield "\n]}\n"


def series_data(series: SeriesHistory) -> dict[str, Any]:
    """Return a series as plain data: its key, and its points, oldest first; null is not measured."""
    points = [
        {
            "run": run.id,
            "started_at": run.started_at,
            **{name: _value_at(series, name, i) for name in POINT_COLUMNS[:3]},
            "n": int(series.n[i]),
            "status": str(series.status[i]),
            "reason": series.reason[i],
            "disturbed": bool(series.disturbed[i]),
            "host": run.host,
            "driver": run.driver,
            "git_commit": run.git_commit,
            "git_dirty": run.git_dirty,
            "origin": run.origin,
        }
        for i, run in enumerate(series.runs)
    ]
    return {"schema": SCHEMA_VERSION, "key": series.name, **series.key.as_json(), "unit": series.unit, "points": points}


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file atomically: a reader finds the old content or the new."""
    replace_from_chunks(path, (line.encode() for line in lines))


def _point_rows(connection: Connection, point_filter: PointFilter) -> CursorResult[Any]:
    query = (
        select(POINTS.c.series, POINTS.c.run, *(POINTS.c[name] for name in POINT_COLUMNS))
        .join(RUNS, RUNS.c.number == POINTS.c.run)
        .join(SERIES, SERIES.c.number == POINTS.c.series)
        .where(*point_filter.run_clauses, *point_filter.series_clauses)
        .order_by(RUNS.c.started_s, POINTS.c.run, POINTS.c.series)
    )
    return connection.execute(query, execution_options={"yield_per": ROWS_PER_BATCH})


def _csv_line(cells: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
