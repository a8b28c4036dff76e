"""Queries of the history: filters, runs and series by name, and series as arrays.

All points of each key are returned in time order, for thousands of series at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import and_, func, or_, select

from assay.core.errors import AssayError, BadInput, suggest_nearest
from assay.core.format import format_list
from assay.core.results import Origin
from assay.core.values import Value
from assay.store.history.database import (
    POINTS,
    RUNS,
    SERIES,
    HistoryRun,
    garbage_collection_paused,
    key_from_row,
    run_from_row,
)
from assay.store.history.importing import run_state
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import ColumnElement, Connection, Row

    from assay.store.identity import SeriesKey


LATEST = "latest"
REAL_ORIGIN: tuple[Origin, ...] = ("real",)
_MAX_NAMES = 5
_HASH = re.compile(r"[0-9a-f]{4,12}")


class PointFilter(Value):
    """Selects points. Null: no restriction."""

    workload: str | None = None
    gpu: str | None = None
    since_s: float | None = None
    quantity: str | None = None
    keys: tuple[str, ...] | None = None
    run: str | None = None
    origins: tuple[Origin, ...] | None = REAL_ORIGIN

    @property
    def series_clauses(self) -> list[ColumnElement[bool]]:
        """The conditions on a series."""
        clauses: list[ColumnElement[bool]] = []
        if self.workload is not None:
            full = SERIES.c.workload.concat("@").concat(SERIES.c.impl)
            clauses.append(or_(SERIES.c.workload == self.workload, full == self.workload))
        if self.gpu is not None:
            texts = (SERIES.c.gpu, SERIES.c.location)
            matches = [func.lower(text).contains(self.gpu.lower(), autoescape=True) for text in texts]
            clauses.append(and_(SERIES.c.device_kind == "cuda", or_(*matches)))
        if self.quantity is not None:
            clauses.append(SERIES.c.quantity == self.quantity)
        if self.keys is not None:
            clauses.append(SERIES.c.key.in_(self.keys))
        return clauses

    @property
    def run_clauses(self) -> list[ColumnElement[bool]]:
        """The conditions on a run."""
        clauses: list[ColumnElement[bool]] = []
        if self.run is not None:
            clauses.append(RUNS.c.id == self.run)
        if self.since_s is not None:
            clauses.append(RUNS.c.started_s >= self.since_s)
        if self.origins is not None:
            clauses.append(RUNS.c.origin.in_(self.origins))
        return clauses


@dataclass(frozen=True)
class ListedRun:
    """A run in a list: the workloads it measured, and its number of points."""

    run: HistoryRun
    workloads: tuple[str, ...]
    points: int


def list_runs(connection: Connection, point_filter: PointFilter, *, limit: int | None = None) -> list[ListedRun]:
    """Return the matching runs, newest first.

    Raises:
        BadInput: There is no such workload or GPU in the history.
    """
    check_filter(connection, point_filter)
    query = (
        select(RUNS)
        .where(*point_filter.run_clauses)
        .order_by(RUNS.c.started_s.desc(), RUNS.c.number.desc())
        .limit(limit)
    )
    if point_filter.series_clauses:
        measured = (
            select(POINTS.c.run).join(SERIES, SERIES.c.number == POINTS.c.series).where(*point_filter.series_clauses)
        )
        query = query.where(RUNS.c.number.in_(measured))
    rows = connection.execute(query).mappings().all()
    workloads_by_run: dict[int, list[tuple[str, int]]] = {row["number"]: [] for row in rows}
    run_numbers = query.with_only_columns(RUNS.c.number).subquery()
    counted = (
        select(POINTS.c.run, SERIES.c.workload, SERIES.c.impl, func.count())
        .join(SERIES, SERIES.c.number == POINTS.c.series)
        .join(run_numbers, run_numbers.c.number == POINTS.c.run)
        .group_by(POINTS.c.run, SERIES.c.workload, SERIES.c.impl)
        .order_by(SERIES.c.workload, SERIES.c.impl)
    )
    for run, workload, impl, points in connection.execute(counted):
        workloads_by_run[run].append((workload if impl in {"python", "command"} else f"{workload}@{impl}", points))
    return [
        ListedRun(
            run_from_row(row),
            tuple(name for name, _ in workloads_by_run[row["number"]]),
            sum(n for _, n in workloads_by_run[row["number"]]),
        )
        for row in rows
    ]


def list_run(connection: Connection, run: HistoryRun) -> ListedRun:
    """Return one run as an entry of a list."""
    return list_runs(connection, PointFilter(run=run.id, origins=None))[0]


def check_filter(connection: Connection, point_filter: PointFilter) -> None:
    """Raise BadInput if a workload, GPU or quantity is not in the history."""
    for name, single in (
        ("workload", PointFilter(workload=point_filter.workload)),
        ("GPU", PointFilter(gpu=point_filter.gpu)),
    ):
        value = single.workload or single.gpu
        if value is None or connection.execute(select(SERIES.c.key).where(*single.series_clauses).limit(1)).first():
            continue
        keys = all_keys(connection).values()
        texts = [(key.workload, f"{key.workload}@{key.impl}") for key in keys]
        if name == "GPU":
            texts = [(key.location, key.gpu or "") for key in keys if key.device_kind == "cuda"]
        raise BadInput(
            f"The history knows no {name} {value!r}.{suggest_nearest(value, {t for pair in texts for t in pair if t})}"
        )
    quantities = {key.quantity for key in all_keys(connection).values()}
    if point_filter.quantity is not None and point_filter.quantity not in quantities:
        suggestion = (
            suggest_nearest(point_filter.quantity, quantities) or f" It knows {', '.join(sorted(quantities))}."
            if quantities
            else ""
        )
        raise BadInput(f"The history knows no quantity {point_filter.quantity!r}.{suggestion}")


def all_keys(connection: Connection, point_filter: PointFilter | None = None) -> dict[str, SeriesKey]:
    """Return every matching series, by its key."""
    query = (
        select(SERIES)
        .where(*(point_filter or PointFilter()).series_clauses)
        .order_by(SERIES.c.workload, SERIES.c.number)
    )
    return {row["key"]: key_from_row(row) for row in connection.execute(query).mappings()}


def find_run(connection: Connection, text: str) -> HistoryRun | None:
    """Return the run for an ID, an ID prefix, a folder or "latest"; null where there is none."""
    query = select(RUNS).order_by(RUNS.c.started_s.desc(), RUNS.c.number.desc())
    if text == LATEST:
        row = connection.execute(query.limit(1)).mappings().first()
        return None if row is None else run_from_row(row)
    path = Path(text)
    if (path / "plan.json").is_file():
        try:
            query = query.where(RUNS.c.id == run_state(RunFolder.open(path)).id)
        except AssayError as error:
            raise BadInput(f"{path} cannot be read: {error}") from None
    elif _HASH.fullmatch(text):
        query = query.where(RUNS.c.id.startswith(text))
    else:
        query = query.where(RUNS.c.folder.endswith(f"/{text.strip('/')}", autoescape=True))
    rows = connection.execute(query).mappings().all()
    if len(rows) > 1:
        raise BadInput(
            f"{text} is {len(rows)} runs: {format_list([row['id'] for row in rows], _MAX_NAMES)}; name one by its id."
        )
    return run_from_row(rows[0]) if rows else None


def find_series(connection: Connection, text: str) -> str:
    """Return the key of the one series that matches a key, a key prefix, or words of its description.

    Raises:
        BadInput: There is none, or there are several.
    """
    keys = all_keys(connection)
    if not keys:
        raise BadInput(f"There is no series {text!r}: the history is empty; `assay history import RUNS` fills it.")
    matches = [name for name in keys if _HASH.fullmatch(text) and name.startswith(text)]
    if not matches:
        words = text.lower().split()
        matches = [name for name, key in keys.items() if all(word in _search_text(key) for word in words)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        described = [
            f"{name} ({key.label}, {key.where}, {key.details}, by {key.method or 'a method that is not recorded'})"
            for name, key in keys.items()
            if name in matches
        ]
        choices = format_list(described, _MAX_NAMES)
        raise BadInput(f"{text!r} is {len(matches)} series; name one by its key: {choices}.")
    suggestion = suggest_nearest(
        text, {*keys, *(key.label for key in keys.values()), *(key.workload for key in keys.values())}
    )
    raise BadInput(
        f"There is no run or series {text!r} in the history.{suggestion} `assay history list` shows the runs."
    )


def _search_text(key: SeriesKey) -> str:
    return f"{key.label} {key.where} {key.location} {key.project or ''} {key.details} {key.method}".lower()


MAX_NUMBERS_PER_QUERY = 500
"""At most this many runs or series are queried by number; for more, all points are read and filtered here."""

ROWS_PER_BATCH = 20_000
"""Rows that are converted to columns at a time."""

_NUMERIC_COLUMNS = ("series", "run", "value", "low", "high", "n", "disturbed")
_DTYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("series", "run", "n"), np.int64),
    **dict.fromkeys(("value", "low", "high"), np.float64),
    "disturbed": np.bool_,
}
_SERIES_COLUMNS = (*_NUMERIC_COLUMNS[2:], "status", "reason")


@dataclass(frozen=True)
class SeriesHistory:
    """A series: one point per run, oldest first. What was not measured is NaN; ``status`` and ``reason`` say why.

    ``value``, ``low`` and ``high`` are in ``unit``; ``low`` and ``high`` are NaN where there is no interval.
    """

    name: str
    key: SeriesKey
    unit: str
    runs: tuple[HistoryRun, ...]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: NDArray[np.int64]
    status: NDArray[np.str_]
    reason: NDArray[np.object_]
    disturbed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def started_s(self) -> NDArray[np.float64]:
        """When each run began, in seconds since 1970, UTC."""
        return np.array([run.started_s for run in self.runs], dtype=np.float64)


def load_series(connection: Connection, point_filter: PointFilter) -> list[SeriesHistory]:
    """Return the matching series, each with its points in time order; those without a point are left out."""
    query = select(RUNS).where(*point_filter.run_clauses).order_by(RUNS.c.started_s, RUNS.c.number)
    rows = connection.execute(query).mappings().all()
    runs = np.empty(len(rows), dtype=np.object_)
    runs[:] = [run_from_row(row) for row in rows]
    run_numbers = [row["number"] for row in rows]
    position_of = np.full(2 + max(run_numbers, default=0), -1, dtype=np.int64)  # in time order; -1: no match
    position_of[run_numbers] = np.arange(len(run_numbers))
    series_rows = (
        connection.execute(select(SERIES).where(*point_filter.series_clauses).order_by(SERIES.c.number))
        .mappings()
        .all()
    )
    series_numbers = [row["number"] for row in series_rows]
    points = _point_columns(connection, series_numbers, run_numbers)
    series, position = points["series"], position_of[np.minimum(points["run"], len(position_of) - 1)]
    selected = (position >= 0) & np.isin(series, series_numbers)
    order = np.flatnonzero(selected)[np.lexsort((position[selected], series[selected]))]
    numbers, starts = np.unique(series[order], return_index=True)
    parts = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else {}
    return [
        SeriesHistory(
            name=row["key"],
            key=key_from_row(row),
            unit=row["unit"],
            runs=tuple(runs[position[part]]),
            **{name: points[name][part] for name in _SERIES_COLUMNS},
        )
        for row in series_rows
        if (part := parts.get(row["number"])) is not None
    ]


def load_named_series(connection: Connection, text: str, origins: tuple[Origin, ...] | None) -> SeriesHistory:
    """Return the one series that matches a key or words, with its points of some origins.

    Raises:
        BadInput: There is no such series, there are several, or it has no such points.
    """
    key = find_series(connection, text)
    histories = load_series(connection, PointFilter(keys=(key,), origins=origins))
    if not histories:
        raise BadInput(f"The series {key} has no {' or '.join(origins or ())} numbers; --origin all shows what it has.")
    return histories[0]


def _point_columns(connection: Connection, series: list[int], runs: list[int]) -> dict[str, NDArray[Any]]:
    """Return points as columns: filtered by run or series if these are few, otherwise all."""
    conditions: list[ColumnElement[bool]] = []
    if len(runs) <= MAX_NUMBERS_PER_QUERY:
        conditions.append(POINTS.c.run.in_(runs))
    elif len(series) <= MAX_NUMBERS_PER_QUERY:
        conditions.append(POINTS.c.series.in_(series))
    query = select(*(POINTS.c[name] for name in _NUMERIC_COLUMNS)).where(*conditions)
    with garbage_collection_paused():
        result = connection.execute(query, execution_options={"yield_per": ROWS_PER_BATCH})
        parts = [_columns(part) for part in result.partitions()] or [_columns([])]
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([part[name] for part in parts]) for name in _NUMERIC_COLUMNS
    }
    return columns | _point_states(connection, conditions, columns)


def _columns(rows: Sequence[Row[Any]]) -> dict[str, NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(_NUMERIC_COLUMNS)
    return {name: np.array(column, dtype=_DTYPES[name]) for name, column in zip(_NUMERIC_COLUMNS, columns, strict=True)}


def _point_states(
    connection: Connection, conditions: list[ColumnElement[bool]], points: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the status and reason of each point; most are ok, so only the others are queried."""
    count = len(points["value"])
    status, reason = np.full(count, "ok", dtype="<U7"), np.full(count, None, dtype=np.object_)
    missing = np.flatnonzero(np.isnan(points["value"]))
    index_of = dict(zip(zip(points["series"][missing], points["run"][missing], strict=True), missing, strict=True))
    query = select(POINTS.c.series, POINTS.c.run, POINTS.c.status, POINTS.c.reason)
    for row in connection.execute(query.where(POINTS.c.status != "ok", *conditions)):
        if (index := index_of.get((row.series, row.run))) is not None:
            status[index], reason[index] = row.status, row.reason
    return {"status": status, "reason": reason}
