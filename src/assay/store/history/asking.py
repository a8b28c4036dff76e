"""Which runs and series are meant: filters, and names as people type them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import and_, func, or_, select

from assay.core.errors import AssayError, BadInput, nearest
from assay.core.results import Origin
from assay.core.values import Value
from assay.store.history.points import Run, state_of
from assay.store.history.rows import key_of, run_of
from assay.store.history.tables import POINTS, RUNS, SERIES
from assay.store.runs import RunFolder

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from assay.store.history.keys import Key

LATEST = "latest"
REAL: tuple[Origin, ...] = ("real",)
_MOST_NAMED = 5
_HASH = re.compile(r"[0-9a-f]{4,12}")


class Wanted(Value):
    """Which points are asked for. Null: all of them."""

    workload: str | None = None
    gpu: str | None = None
    since_s: float | None = None
    quantity: str | None = None
    keys: tuple[str, ...] | None = None
    run: str | None = None
    origins: tuple[Origin, ...] | None = REAL

    @property
    def of_series(self) -> list[ColumnElement[bool]]:
        """What must hold of a series."""
        clauses: list[ColumnElement[bool]] = []
        if self.workload is not None:
            full = SERIES.c.workload.concat("@").concat(SERIES.c.impl)
            clauses.append(or_(SERIES.c.workload == self.workload, full == self.workload))
        if self.gpu is not None:
            texts = (SERIES.c.gpu, SERIES.c.place)
            matches = [func.lower(text).contains(self.gpu.lower(), autoescape=True) for text in texts]
            clauses.append(and_(SERIES.c.device_kind == "cuda", or_(*matches)))
        if self.quantity is not None:
            clauses.append(SERIES.c.quantity == self.quantity)
        if self.keys is not None:
            clauses.append(SERIES.c.key.in_(self.keys))
        return clauses

    @property
    def of_runs(self) -> list[ColumnElement[bool]]:
        """What must hold of a run."""
        clauses: list[ColumnElement[bool]] = []
        if self.run is not None:
            clauses.append(RUNS.c.id == self.run)
        if self.since_s is not None:
            clauses.append(RUNS.c.started_s >= self.since_s)
        if self.origins is not None:
            clauses.append(RUNS.c.origin.in_(self.origins))
        return clauses


@dataclass(frozen=True)
class Listed:
    """A run in a list: what it has measured, and how many points it left."""

    run: Run
    workloads: tuple[str, ...]
    points: int


def runs(connection: Connection, wanted: Wanted, *, limit: int | None = None) -> list[Listed]:
    """Return the runs that are meant, the newest first.

    Raises:
        BadInput: There is no such workload or GPU in the history.
    """
    make_sure(connection, wanted)
    query = select(RUNS).where(*wanted.of_runs).order_by(RUNS.c.started_s.desc(), RUNS.c.number.desc()).limit(limit)
    if wanted.of_series:
        measured = select(POINTS.c.run).join(SERIES, SERIES.c.number == POINTS.c.series).where(*wanted.of_series)
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
        Listed(
            run_of(row),
            tuple(name for name, _ in workloads_by_run[row["number"]]),
            sum(n for _, n in workloads_by_run[row["number"]]),
        )
        for row in rows
    ]


def listed(connection: Connection, run: Run) -> Listed:
    """Return one run as it stands in a list."""
    return runs(connection, Wanted(run=run.id, origins=None))[0]


def make_sure(connection: Connection, wanted: Wanted) -> None:
    """Say so where a workload or a GPU is asked for that the history does not know."""
    for name, alone in (("workload", Wanted(workload=wanted.workload)), ("GPU", Wanted(gpu=wanted.gpu))):
        value = alone.workload or alone.gpu
        if value is None or connection.execute(select(SERIES.c.key).where(*alone.of_series).limit(1)).first():
            continue
        keys = all_keys(connection).values()
        texts = [(key.workload, f"{key.workload}@{key.impl}") for key in keys]
        if name == "GPU":
            texts = [(key.place, key.gpu or "") for key in keys if key.device_kind == "cuda"]
        raise BadInput(
            f"The history knows no {name} {value!r}.{nearest(value, {t for pair in texts for t in pair if t})}"
        )
    quantities = {key.quantity for key in all_keys(connection).values()}
    if wanted.quantity is not None and wanted.quantity not in quantities:
        near = (
            nearest(wanted.quantity, quantities) or f" It knows {', '.join(sorted(quantities))}." if quantities else ""
        )
        raise BadInput(f"The history knows no quantity {wanted.quantity!r}.{near}")


def all_keys(connection: Connection, wanted: Wanted | None = None) -> dict[str, Key]:
    """Return every series that is meant, by its key."""
    query = select(SERIES).where(*(wanted or Wanted()).of_series).order_by(SERIES.c.workload, SERIES.c.number)
    return {row["key"]: key_of(row) for row in connection.execute(query).mappings()}


def run_named(connection: Connection, text: str) -> Run | None:
    """Return the run that an id, the beginning of one, a folder or "latest" names; null where none is."""
    query = select(RUNS).order_by(RUNS.c.started_s.desc(), RUNS.c.number.desc())
    if text == LATEST:
        row = connection.execute(query.limit(1)).mappings().first()
        return None if row is None else run_of(row)
    path = Path(text)
    if (path / "plan.json").is_file():
        identity = _identity(path)
        query = query.where(RUNS.c.id == identity)
    elif _HASH.fullmatch(text):
        query = query.where(RUNS.c.id.startswith(text))
    else:
        query = query.where(RUNS.c.folder.endswith(f"/{text.strip('/')}", autoescape=True))
    rows = connection.execute(query).mappings().all()
    if len(rows) > 1:
        raise BadInput(f"{text} is {len(rows)} runs: {_some([row['id'] for row in rows])}; name one by its id.")
    return run_of(rows[0]) if rows else None


def series_named(connection: Connection, text: str) -> str:
    """Return the key of the one series that a key, the beginning of one, or words of its description name.

    Raises:
        BadInput: There is none, or there are several.
    """
    keys = all_keys(connection)
    if not keys:
        raise BadInput(f"There is no series {text!r}: the history is empty; `assay history import RUNS` fills it.")
    matches = [name for name in keys if _HASH.fullmatch(text) and name.startswith(text)]
    if not matches:
        words = text.lower().split()
        matches = [name for name, key in keys.items() if all(word in _described(key) for word in words)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = _some([f"{name} ({_distinct(keys[name])})" for name in matches])
        raise BadInput(f"{text!r} is {len(matches)} series; name one by its key: {choices}.")
    near = nearest(text, {*keys, *(key.label for key in keys.values()), *(key.workload for key in keys.values())})
    raise BadInput(f"There is no run or series {text!r} in the history.{near} `assay history list` shows the runs.")


def _identity(path: Path) -> str:
    try:
        return state_of(RunFolder.open(path)).id
    except AssayError as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def _distinct(key: Key) -> str:
    return f"{key.label}, {key.where}, {key.details}, by {key.method or 'a method that is not recorded'}"


def _described(key: Key) -> str:
    return f"{key.label} {key.where} {key.place} {key.project or ''} {key.details} {key.method}".lower()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
