"""Runs and series of the history as pages: tables, and a series over time with its intervals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_value
from assay.core.page import Column, LinePlot, Page, PlotLine, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.page import Cell, Tone
    from assay.core.results import Origin
    from assay.store.history.queries import ListedRun, SeriesHistory

TIME_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
"""Time units of a series: the largest one of which it lasts at least two is used."""
MAX_ROWS = 200
"""Points of a series in its table, the newest; its line has all of them."""

_POINT_COLUMNS = ("value", "low", "high")
_RUN_COLUMNS = (
    Column(title="run"),
    Column(title="began (UTC)"),
    Column(title="experiment"),
    Column(title="measured"),
    Column(title="points", numeric=True),
    Column(title="host"),
    Column(title="commit"),
    Column(title="note"),
)


def runs_page(listed: Sequence[ListedRun], *, more: bool) -> Page:
    """Return runs as a table, in the order given."""
    rows = tuple(
        (
            entry.run.id,
            format_moment(entry.run.started_s),
            entry.run.experiment,
            ", ".join(entry.workloads) or "nothing",
            entry.points,
            entry.run.hostname or entry.run.host[:8],
            format_commit(entry.run.git_commit, dirty=entry.run.git_dirty),
            run_note(entry),
        )
        for entry in listed
    )
    count = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    table = Table(title="The newest first", columns=_RUN_COLUMNS, rows=rows)
    lead = f"{count}; there are more, see --limit." if more else f"{count}."
    return Page(title="assay history", lead=lead, sections=(Section(title="Runs", elements=(table,)),))


def run_page(entry: ListedRun, all_series: Sequence[SeriesHistory]) -> Page:
    """Return the page of a run: its points, with the keys of their series."""
    rows = tuple(
        (c.name, c.key.label, c.key.where, *_last_values(c), c.unit, c.key.details, _point_status(c, -1))
        for c in all_series
    )
    titles = ("key", "series", "on", "value", "low", "high", "unit", "with", "status")
    run = entry.run
    facts = (
        ("began", run.started_at),
        ("folder", run.folder),
        ("host", f"{run.hostname or run.host}, {run.host_class}"),
        ("driver", run.driver or "none"),
        ("commit", format_commit(run.git_commit, dirty=run.git_dirty) or "not known"),
    )
    table = Table(title="Its points, by the keys of their series", columns=_columns(titles), rows=rows)
    return Page(
        title=f"assay history: run {run.id} of {run.experiment}",
        lead=run.headline,
        sections=(Section(title="Points", elements=(table,)),),
        facts=facts,
        origin=run.origin,
    )


def series_list_page(all_series: Sequence[SeriesHistory]) -> Page:
    """Return series as a table: their keys, how many points they have, and the last."""
    titles = ("key", "series", "on", "runs", "last (UTC)", "value", "low", "high", "unit", "with")
    rows = tuple(
        (
            c.name,
            c.key.label,
            c.key.where,
            len(c),
            format_moment(c.runs[-1].started_s),
            *_last_values(c),
            c.unit,
            c.key.details,
        )
        for c in all_series
    )
    table = Table(title="Series, with their last point", columns=_columns(titles), rows=rows)
    lead = f"{len(rows)} series."
    return Page(title="assay history", lead=lead, sections=(Section(title="Series", elements=(table,)),))


def series_page(series: SeriesHistory) -> Page:
    """Return the page of a series: its line with intervals, and its points."""
    key = series.key
    return Page(
        title=f"assay history: {key.label} on {key.where}",
        lead=series_lead(series),
        sections=(
            Section(title="Course", elements=(series_line(series),)),
            Section(title="Points", elements=(points_table(series),)),
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
    runs = f"{len(series)} run{'' if len(series) == 1 else 's'} {when}"
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


def points_table(series: SeriesHistory) -> Table:
    """Return the points of a series, newest first."""
    titles = ("began (UTC)", "run", *_POINT_COLUMNS, "samples", "host", "driver", "commit", "status")
    newest = range(len(series) - 1, max(-1, len(series) - 1 - MAX_ROWS), -1)
    rows = tuple(_point_row(series, index) for index in newest)
    tones: tuple[Tone, ...] = tuple(_point_tone(series, index) for index in newest)
    omitted = len(series) - len(rows)
    table_note = f"The oldest {omitted} are left out; `assay history export` has all." if omitted else None
    return Table(
        title=f"In {series.unit or 'its own unit'}", columns=_columns(titles), rows=rows, tones=tones, note=table_note
    )


def _point_row(series: SeriesHistory, index: int) -> tuple[Cell, ...]:
    run = series.runs[index]
    return (
        format_moment(run.started_s),
        run.id,
        *(_finite_or_null(float(getattr(series, name)[index])) for name in _POINT_COLUMNS),
        int(series.n[index]),
        run.hostname or run.host[:8],
        run.driver,
        format_commit(run.git_commit, dirty=run.git_dirty),
        _point_status(series, index),
    )


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


def run_note(entry: ListedRun) -> str:
    """Return remarks about a run: numbers that are not real, trials that failed."""
    remarks = [] if entry.run.origin == "real" else [f"{entry.run.origin} numbers"]
    return ", ".join(
        [*remarks, *([f"{entry.run.failed} of {entry.run.trials} trials failed"] if entry.run.failed else [])]
    )


def series_origin(series: SeriesHistory) -> Origin:
    """Return the least real origin of a series' numbers."""
    origins: set[Origin] = {run.origin for run in series.runs}
    return "simulated" if "simulated" in origins else "fake" if "fake" in origins else "real"


def _columns(titles: Sequence[str]) -> tuple[Column, ...]:
    numeric = {*_POINT_COLUMNS, "samples", "runs"}
    return tuple(Column(title=title, numeric=title in numeric) for title in titles)


def _last_values(series: SeriesHistory) -> tuple[Cell, ...]:
    return tuple(_finite_or_null(float(getattr(series, name)[-1])) for name in _POINT_COLUMNS)


def _last_versions(series: SeriesHistory) -> str:
    return ", ".join(f"{name} {text}" for name, text in series.runs[-1].versions.items() if text) or "not known"


def _finite_or_null(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _finite_or_nulls(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(_finite_or_null(value) for value in values.tolist())
