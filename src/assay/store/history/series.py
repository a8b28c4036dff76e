"""Series as arrays: all points of each key in time order, thousands of series at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from assay.core.errors import BadInput
from assay.store.history.asking import Wanted, series_named
from assay.store.history.rows import key_of, run_of
from assay.store.history.tables import POINTS, RUNS, SERIES
from assay.store.history.uncollected import nothing_collected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import ColumnElement, Connection, Row

    from assay.core.results import Origin
    from assay.store.history.keys import Key
    from assay.store.history.points import Run

FEW = 500
"""So many runs or series are asked for by number; of more, all points are read and sorted out here."""

AT_ONCE = 20_000
"""Rows that are turned into columns at a time."""

_NUMBERS = ("series", "run", "value", "low", "high", "n", "disturbed")
_KINDS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("series", "run", "n"), np.int64),
    **dict.fromkeys(("value", "low", "high"), np.float64),
    "disturbed": np.bool_,
}
_OF_A_COURSE = (*_NUMBERS[2:], "status", "reason")


@dataclass(frozen=True)
class Course:
    """A series: one point a run, the oldest first. What was not measured is NaN; ``status`` and ``reason`` say why.

    ``value``, ``low`` and ``high`` are in ``unit``; ``low`` and ``high`` are NaN where there is no interval.
    """

    name: str
    key: Key
    unit: str
    runs: tuple[Run, ...]
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


def load(connection: Connection, wanted: Wanted) -> list[Course]:
    """Return the series that are meant, each with its points in time order; those without a point are left out."""
    query = select(RUNS).where(*wanted.of_runs).order_by(RUNS.c.started_s, RUNS.c.number)
    rows = connection.execute(query).mappings().all()
    runs = np.empty(len(rows), dtype=np.object_)
    runs[:] = [run_of(row) for row in rows]
    position_of = _places([row["number"] for row in rows])
    described = connection.execute(select(SERIES).where(*wanted.of_series).order_by(SERIES.c.number)).mappings().all()
    points = _points(connection, [row["number"] for row in described], [row["number"] for row in rows])
    series, position = points["series"], position_of[np.minimum(points["run"], len(position_of) - 1)]
    meant = (position >= 0) & np.isin(series, [row["number"] for row in described])
    order = np.flatnonzero(meant)[np.lexsort((position[meant], series[meant]))]
    numbers, starts = np.unique(series[order], return_index=True)
    parts = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else {}
    return [
        Course(
            name=row["key"],
            key=key_of(row),
            unit=row["unit"],
            runs=tuple(runs[position[part]]),
            **{name: points[name][part] for name in _OF_A_COURSE},
        )
        for row in described
        if (part := parts.get(row["number"])) is not None
    ]


def course_named(connection: Connection, text: str, origins: tuple[Origin, ...] | None) -> Course:
    """Return the one series that a key or words name, with its points of some origins.

    Raises:
        BadInput: There is no such series, there are several, or it has no such points.
    """
    key = series_named(connection, text)
    histories = load(connection, Wanted(keys=(key,), origins=origins))
    if not histories:
        raise BadInput(f"The series {key} has no {' or '.join(origins or ())} numbers; --origin all shows what it has.")
    return histories[0]


def _places(numbers: list[int]) -> NDArray[np.int64]:
    """Return for each number of a run its place in time order; -1 for those that are not meant."""
    positions = np.full(2 + max(numbers, default=0), -1, dtype=np.int64)
    positions[numbers] = np.arange(len(numbers))
    return positions


def _points(connection: Connection, series: list[int], runs: list[int]) -> dict[str, NDArray[Any]]:
    """Return points as columns: of some series or runs where these are few, otherwise all there are."""
    meant: list[ColumnElement[bool]] = []
    if len(runs) <= FEW:
        meant.append(POINTS.c.run.in_(runs))
    elif len(series) <= FEW:
        meant.append(POINTS.c.series.in_(series))
    query = select(*(POINTS.c[name] for name in _NUMBERS)).where(*meant)
    with nothing_collected():
        read = connection.execute(query, execution_options={"yield_per": AT_ONCE})
        parts = [_columns(part) for part in read.partitions()] or [_columns([])]
    columns: dict[str, NDArray[Any]] = {name: np.concatenate([part[name] for part in parts]) for name in _NUMBERS}
    return columns | _states(connection, meant, columns)


def _columns(rows: Sequence[Row[Any]]) -> dict[str, NDArray[Any]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(_NUMBERS)
    return {name: np.array(column, dtype=_KINDS[name]) for name, column in zip(_NUMBERS, columns, strict=True)}


def _states(
    connection: Connection, meant: list[ColumnElement[bool]], points: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return what became of each point, and why; most are ok, so that only the others are asked for."""
    count = len(points["value"])
    status, reason = np.full(count, "ok", dtype="<U7"), np.full(count, None, dtype=np.object_)
    without = np.flatnonzero(np.isnan(points["value"]))
    index_of = dict(zip(zip(points["series"][without], points["run"][without], strict=True), without, strict=True))
    query = select(POINTS.c.series, POINTS.c.run, POINTS.c.status, POINTS.c.reason)
    for row in connection.execute(query.where(POINTS.c.status != "ok", *meant)):
        if (at := index_of.get((row.series, row.run))) is not None:
            status[at], reason[at] = row.status, row.reason
    return {"status": status, "reason": reason}
