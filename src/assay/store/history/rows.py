"""Values as rows of the tables, and rows as values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from assay.core.units import unit_of
from assay.store.history.keys import Key, short_hash
from assay.store.history.points import Run

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

    from assay.store.history.points import Point, Told

_RUN = tuple(Run.model_fields)
_KEY = tuple(Key.model_fields)
_DATA = frozenset({"params", "config", "conditions", "versions"})
"""Columns that hold JSON."""


def run_row(told: Told) -> dict[str, Any]:
    """Return a run's row, but its number."""
    run = told.run
    row = {**{name: getattr(run, name) for name in _RUN}, "lines": told.state.lines, "state": told.state.digest}
    return _storable({**row, "git_dirty": None if run.git_dirty is None else int(run.git_dirty)})


def series_row(number: int, name: str, key: Key) -> dict[str, Any]:
    """Return a series' row."""
    row = {field: getattr(key, field) for field in _KEY}
    more = {"number": number, "key": name, "params_digest": short_hash(key.params), "unit": unit_of(key.quantity)}
    return _storable({**row, **more})


def point_row(series: int, run: int, point: Point) -> tuple[Any, ...]:
    """Return a point's row, in the order of its table's columns."""
    reason = None if point.reason is None else clean(point.reason)
    return (
        series, run, point.value, point.low, point.high, point.n, point.scope, point.status, reason,
        int(point.disturbed),
    )  # fmt: skip


def run_of(row: RowMapping) -> Run:
    """Return the run that a row tells of."""
    dirty = row["git_dirty"]
    values = {name: _read(name, row[name]) for name in _RUN}
    return Run.model_construct(**{**values, "git_dirty": None if dirty is None else bool(dirty)})


def key_of(row: RowMapping) -> Key:
    """Return what the series of a row stands for."""
    return Key.model_construct(**{name: _read(name, row[name]) for name in _KEY})


def clean(text: str) -> str:
    """Return a text that every database can keep: no zero bytes, nothing that is not Unicode."""
    return text.replace("\0", "�").encode("utf-8", "backslashreplace").decode()


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    stored = {name: _text(value) if name in _DATA else value for name, value in row.items()}
    return {name: clean(value) if isinstance(value, str) else value for name, value in stored.items()}


def _text(content: object) -> str | None:
    return None if content is None else json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _read(name: str, value: Any) -> Any:
    return json.loads(value) if name in _DATA and value is not None else value
