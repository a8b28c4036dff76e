"""Runs and series of the history as pages: tables, and the line of a series with its intervals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Column, Line, Lines, Page, Section, Table
from assay.core.units import format_time, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.page import Cell, Tone
    from assay.core.results import Origin
    from assay.store.history.asking import Listed
    from assay.store.history.series import Course

SPANS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
"""What the time of a series is told in: the largest of which it lasts at least two."""
MOST_ROWS = 200
"""Points of a series in its table, the newest; its line has all of them."""

_POINT = ("value", "low", "high")
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


def runs_page(listed: Sequence[Listed], *, more: bool) -> Page:
    """Return runs as a table, in the order given."""
    rows = tuple(
        (
            one.run.id,
            moment(one.run.started_s),
            one.run.experiment,
            ", ".join(one.workloads) or "nothing",
            one.points,
            one.run.hostname or one.run.host[:8],
            commit(one.run.git_commit, dirty=one.run.git_dirty),
            note(one),
        )
        for one in listed
    )
    count = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    table = Table(title="The newest first", columns=_RUN_COLUMNS, rows=rows)
    lead = f"{count}; there are more, see --limit." if more else f"{count}."
    return Page(title="assay history", lead=lead, sections=(Section(title="Runs", elements=(table,)),))


def run_page(one: Listed, courses: Sequence[Course]) -> Page:
    """Return what a run left in the history, with the keys of the series that its points belong to."""
    rows = tuple((c.name, c.key.label, c.key.where, *_last(c), c.unit, c.key.details, _state(c, -1)) for c in courses)
    titles = ("key", "series", "on", "value", "low", "high", "unit", "with", "status")
    run = one.run
    facts = (
        ("began", run.started_at),
        ("folder", run.folder),
        ("host", f"{run.hostname or run.host}, {run.host_class}"),
        ("driver", run.driver or "none"),
        ("commit", commit(run.git_commit, dirty=run.git_dirty) or "not known"),
    )
    table = Table(title="Its points, by the keys of their series", columns=_columns(titles), rows=rows)
    return Page(
        title=f"assay history: run {run.id} of {run.experiment}",
        lead=run.headline,
        sections=(Section(title="Points", elements=(table,)),),
        facts=facts,
        origin=run.origin,
    )


def series_list(courses: Sequence[Course]) -> Page:
    """Return series as a table: their keys, how many points they have, and the last."""
    titles = ("key", "series", "on", "runs", "last (UTC)", "value", "low", "high", "unit", "with")
    rows = tuple(
        (c.name, c.key.label, c.key.where, len(c), moment(c.runs[-1].started_s), *_last(c), c.unit, c.key.details)
        for c in courses
    )
    table = Table(title="Series, with their last point", columns=_columns(titles), rows=rows)
    lead = f"{len(rows)} series."
    return Page(title="assay history", lead=lead, sections=(Section(title="Series", elements=(table,)),))


def series_page(course: Course) -> Page:
    """Return a series: its line with intervals, and its points."""
    key = course.key
    return Page(
        title=f"assay history: {key.label} on {key.where}",
        lead=lead(course),
        sections=(
            Section(title="Course", elements=(line(course),)),
            Section(title="Points", elements=(points(course),)),
        ),
        facts=(
            ("key", course.name),
            ("with", key.details or "nothing"),
            ("method", key.method or "not recorded"),
            ("place", key.place),
            ("versions", _last_versions(course)),
        ),
        origin=origin(course),
    )


def lead(course: Course) -> str:
    """Return what a series holds in a sentence."""
    measured = np.flatnonzero(np.isfinite(course.value))
    first, last = moment(course.runs[0].started_s), moment(course.runs[-1].started_s)
    when = f"on {first}" if len(course) == 1 else f"from {first} to {last} (UTC)"
    runs = f"{len(course)} run{'' if len(course) == 1 else 's'} {when}"
    if not len(measured):
        return f"{runs}; none of them measured it."
    missing = len(course) - len(measured)
    lacking = f", {missing} without a value" if missing else ""
    return f"{runs}{lacking}; the last value is {_written(float(course.value[measured[-1]]), course.unit)}."


def line(course: Course) -> Lines:
    """Return the line of a series over time, with a band where its points have intervals."""
    first = course.runs[0].started_s
    since = course.started_s - first
    unit, seconds = next(((name, s) for name, s in SPANS if since[-1] >= 2 * s), SPANS[-1])
    low, high = _nulls(course.low), _nulls(course.high)
    banded = any(bound is not None for bound in low)
    label = f"{course.key.quantity} ({course.unit})" if course.unit else course.key.quantity
    return Lines(
        title=f"{course.key.label} on {course.key.where}",
        name="course",
        x_axis=f"{unit} since {moment(first)} UTC",
        y_axis=label,
        lines=(
            Line(
                label=label,
                x=tuple((since / seconds).tolist()),
                y=_nulls(course.value),
                low=low if banded else None,
                high=high if banded else None,
            ),
        ),
        note="The band is the 95 % interval of each run; a gap is a run that has no value." if banded else None,
    )


def points(course: Course) -> Table:
    """Return the points of a series, the newest first."""
    titles = ("began (UTC)", "run", *_POINT, "samples", "host", "driver", "commit", "status")
    newest = range(len(course) - 1, max(-1, len(course) - 1 - MOST_ROWS), -1)
    rows = tuple(_row(course, index) for index in newest)
    tones: tuple[Tone, ...] = tuple(_tone(course, index) for index in newest)
    left = len(course) - len(rows)
    table_note = f"The oldest {left} are left out; `assay history export` has all." if left else None
    return Table(
        title=f"In {course.unit or 'its own unit'}", columns=_columns(titles), rows=rows, tones=tones, note=table_note
    )


def _row(course: Course, place: int) -> tuple[Cell, ...]:
    run = course.runs[place]
    return (
        moment(run.started_s),
        run.id,
        *(_null(float(getattr(course, name)[place])) for name in _POINT),
        int(course.n[place]),
        run.hostname or run.host[:8],
        run.driver,
        commit(run.git_commit, dirty=run.git_dirty),
        _state(course, place),
    )


def _state(course: Course, place: int) -> str:
    """Say what became of a point: ok, disturbed by others, or why it has no value."""
    status, reason = str(course.status[place]), course.reason[place]
    if status == "ok":
        return "disturbed" if course.disturbed[place] else "ok"
    return f"{status}: {reason}" if reason else status


def _tone(course: Course, place: int) -> Tone:
    if course.status[place] != "ok":
        return "bad"
    return "unsure" if course.disturbed[place] else "plain"


def moment(seconds: float) -> str:
    """Write a moment to the minute, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def commit(name: str | None, *, dirty: bool | None) -> str | None:
    """Write a commit shortly; a plus says that files differed from it."""
    return None if name is None else f"{name[:10]}{'+' if dirty else ''}"


def note(one: Listed) -> str:
    """Say what to know about a run: numbers that are not real, trials that failed."""
    remarks = [] if one.run.origin == "real" else [f"{one.run.origin} numbers"]
    return ", ".join([*remarks, *([f"{one.run.failed} of {one.run.trials} trials failed"] if one.run.failed else [])])


def origin(course: Course) -> Origin:
    """Return where the least real of a series' numbers come from."""
    origins: set[Origin] = {run.origin for run in course.runs}
    return "simulated" if "simulated" in origins else "fake" if "fake" in origins else "real"


def _columns(titles: Sequence[str]) -> tuple[Column, ...]:
    numeric = {*_POINT, "samples", "runs"}
    return tuple(Column(title=title, numeric=title in numeric) for title in titles)


def _last(course: Course) -> tuple[Cell, ...]:
    return tuple(_null(float(getattr(course, name)[-1])) for name in _POINT)


def _last_versions(course: Course) -> str:
    return ", ".join(f"{name} {text}" for name, text in course.runs[-1].versions.items() if text) or "not known"


def _written(value: float, unit: str) -> str:
    return format_time(value) if unit == "µs" else f"{significant(value)} {unit}".rstrip()


def _null(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _nulls(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(_null(value) for value in values.tolist())
