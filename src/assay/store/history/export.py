"""Export the history as CSV or JSON: one row for each point, with its run and its series."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from assay.core.files import replace_from_chunks
from assay.core.values import SCHEMA_VERSION
from assay.store.history.tables import POINTS, RUNS, SERIES, key_from_row, run_from_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Select

    from assay.store.history.queries import PointFilter, SeriesHistory

RUN_COLUMNS = (
    "id",
    "experiment",
    "host",
    "hostname",
    "host_class",
    "driver",
    "git_commit",
    "git_dirty",
    "options_digest",
    "origin",
    "folder",
    "versions",
)
KEY_COLUMNS = (
    "key",
    "workload",
    "impl",
    "params",
    "params_digest",
    "config",
    "project",
    "location",
    "gpu",
    "device",
    "device_kind",
    "conditions",
    "quantity",
    "unit",
    "method",
)
POINT_COLUMNS = ("value", "low", "high", "n", "scope", "status", "reason", "disturbed")
ROWS_PER_BATCH = 5000


def csv_lines(connection: Connection, point_filter: PointFilter) -> Iterator[str]:
    """Yield the lines of a CSV table with a row for each point, in run order; an empty cell is null."""
    yield _csv_line(["run", "started_at", *RUN_COLUMNS[1:], *KEY_COLUMNS, *POINT_COLUMNS])
    runs = {row["number"]: row for row in connection.execute(select(RUNS)).mappings()}
    series_by_number = {row["number"]: row for row in connection.execute(select(SERIES)).mappings()}
    for row in connection.execute(_point_query(point_filter), execution_options={"yield_per": ROWS_PER_BATCH}):
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
    for count, point in enumerate(
        connection.execute(_point_query(point_filter), execution_options={"yield_per": ROWS_PER_BATCH})
    ):
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
            **{
                name: value if math.isfinite(value := float(getattr(series, name)[i])) else None
                for name in POINT_COLUMNS[:3]
            },
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


def _point_query(point_filter: PointFilter) -> Select[Any]:
    return (
        select(POINTS.c.series, POINTS.c.run, *(POINTS.c[name] for name in POINT_COLUMNS))
        .join(RUNS, RUNS.c.number == POINTS.c.run)
        .join(SERIES, SERIES.c.number == POINTS.c.series)
        .where(*point_filter.run_clauses, *point_filter.series_clauses)
        .order_by(RUNS.c.started_s, POINTS.c.run, POINTS.c.series)
    )


def _csv_line(cells: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
