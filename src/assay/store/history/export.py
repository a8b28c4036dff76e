"""The history as a file: a row for each point, with all that is known of its run and its series."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from assay.core.durable import replace_by_parts
from assay.core.values import SCHEMA_VERSION
from assay.store.history.rows import key_of, run_of
from assay.store.history.tables import POINTS, RUNS, SERIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Select

    from assay.store.history.asking import Wanted
    from assay.store.history.series import Course

RUN = ("id", "experiment", "host", "hostname", "host_class", "driver", "git_commit", "git_dirty", "options_digest",
       "origin", "folder", "versions")  # fmt: skip
KEY = ("key", "workload", "impl", "params", "params_digest", "config", "project", "place", "gpu", "device",
       "device_kind", "conditions", "quantity", "unit", "method")  # fmt: skip
POINT = ("value", "low", "high", "n", "scope", "status", "reason", "disturbed")
AT_ONCE = 5000


def csv_lines(connection: Connection, wanted: Wanted) -> Iterator[str]:
    """Give the lines of a table with a row for each point, in the order of the runs; an empty cell is null."""
    yield _csv(["run", "started_at", *RUN[1:], *KEY, *POINT])
    runs = {row["number"]: row for row in connection.execute(select(RUNS)).mappings()}
    described = {row["number"]: row for row in connection.execute(select(SERIES)).mappings()}
    for row in connection.execute(_asked(wanted), execution_options={"yield_per": AT_ONCE}):
        run, series = runs[row.run], described[row.series]
        cells = [run["id"], run_of(run).started_at, *(run[name] for name in RUN[1:]), *(series[name] for name in KEY)]
        yield _csv([*cells, *row[2:]])


def json_lines(connection: Connection, wanted: Wanted) -> Iterator[str]:
    """Give the lines of a JSON document: runs and series by their names, and the points that join them."""
    run_ids: dict[int, str] = {}
    series_keys: dict[int, str] = {}
    yield f'{{"schema": {SCHEMA_VERSION},\n"runs": {{'
    query = select(RUNS).where(*wanted.of_runs).order_by(RUNS.c.started_s, RUNS.c.number)
    for row in connection.execute(query).mappings():
        run = run_of(row)
        content = {"started_at": run.started_at, **run.model_dump(mode="json", exclude={"id", "started_s"})}
        yield f"{',' if run_ids else ''}\n{_json(run.id)}: {_json(content)}"
        run_ids[row["number"]] = run.id
    yield '\n},\n"series": {'
    for row in connection.execute(select(SERIES).where(*wanted.of_series)).mappings():
        content = {**key_of(row).as_json(), "unit": row["unit"]}
        yield f"{',' if series_keys else ''}\n{_json(row['key'])}: {_json(content)}"
        series_keys[row["number"]] = row["key"]
    yield '\n},\n"points": ['
    for count, point in enumerate(connection.execute(_asked(wanted), execution_options={"yield_per": AT_ONCE})):
        content = {**dict(zip(POINT, point[2:], strict=True)), "disturbed": bool(point.disturbed)}
        content_row = {"run": run_ids[point.run], "key": series_keys[point.series], **content}
        yield f"{',' if count else ''}\n{_json(content_row)}"
    yield "\n]}\n"


def course_data(course: Course) -> dict[str, Any]:
    """Return a series as plain data: its key, and its points, the oldest first; null is not measured."""
    points = [
        {
            "run": run.id,
            "started_at": run.started_at,
            **{name: value if math.isfinite(value := float(getattr(course, name)[i])) else None for name in POINT[:3]},
            "n": int(course.n[i]),
            "status": str(course.status[i]),
            "reason": course.reason[i],
            "disturbed": bool(course.disturbed[i]),
            "host": run.host,
            "driver": run.driver,
            "git_commit": run.git_commit,
            "git_dirty": run.git_dirty,
            "origin": run.origin,
        }
        for i, run in enumerate(course.runs)
    ]
    return {"schema": SCHEMA_VERSION, "key": course.name, **course.key.as_json(), "unit": course.unit, "points": points}


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file as a whole: whoever reads it finds the old content or the new."""
    replace_by_parts(path, (line.encode() for line in lines))


def _asked(wanted: Wanted) -> Select[Any]:
    return (
        select(POINTS.c.series, POINTS.c.run, *(POINTS.c[name] for name in POINT))
        .join(RUNS, RUNS.c.number == POINTS.c.run)
        .join(SERIES, SERIES.c.number == POINTS.c.series)
        .where(*wanted.of_runs, *wanted.of_series)
        .order_by(RUNS.c.started_s, POINTS.c.run, POINTS.c.series)
    )


def _csv(cells: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
