"""Rows as figures: what more ranks buy, what they hold, and all of it at a glance. Values; the reports draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from assay.core.page import HeatMap, Line, Lines
from assay.experiments.scaling.rows import Span, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.experiments.scaling.rows import Row

    Value = Callable[[Row], Span | None]

RANKS = "ranks"
BANDS = "Bands are 95 % intervals."
NO_BANDS = "The sources have no intervals."
NOT_COMPARABLE = "Speedups of the older tool mean nothing: its rings computed another function than one rank."


class Drawn(NamedTuple):
    """The figures of each sheet; a sheet of which nothing is known has none."""

    scaling: tuple[Lines, ...]
    memory: tuple[Lines, ...]
    heat_maps: tuple[HeatMap, ...]

    @property
    def all(self) -> tuple[Lines | HeatMap, ...]:
        """Every figure."""
        return (*self.scaling, *self.memory, *self.heat_maps)


def not_known(title: str, name: str) -> Lines:
    """Return a figure that says that nothing is known."""
    nothing = Line(label="", x=(1.0,), y=(None,))
    return Lines(
        title=title, name=name, x_axis=RANKS, y_axis="", lines=(nothing,), note="No source says anything of it."
    )


def figures(rows: Sequence[Row]) -> Drawn:
    """Return the figures of rows, each shape once."""
    return Drawn(_scaling(rows), _memory(rows), _heat_maps(rows))


def _scaling(rows: Sequence[Row]) -> tuple[Lines, ...]:
    words, scale = _rate(rows)
    figures = (
        _lines(rows, "Throughput", "throughput", words, lambda row: _times(row.throughput, scale), log_y=True),
        _lines(rows, "Speedup", "speedup", "×", lambda row: row.speedup, log_y=True, against_one=True),
        _lines(rows, "Efficiency", "efficiency", "%", lambda row: _percent(row.efficiency), against_one=True),
        _lines(rows, "Time of a call", "time", "ms", lambda row: row.time_ms, log_y=True),
    )
    return tuple(figure for figure in figures if figure is not None)


def _rate(rows: Sequence[Row]) -> tuple[str, float]:
    """Return the unit in which throughputs read best, and what makes it of the plain one."""
    things = "tokens/s" if all(row.tokens for row in rows) else "calls/s"
    most = max((row.throughput.value for row in rows if row.throughput is not None), default=0.0)
    scale, word = next(((s, w) for s, w in ((1e6, "million "), (1e3, "thousand ")) if most >= 2 * s), (1.0, ""))
    return f"{word}{things}", 1 / scale


def _memory(rows: Sequence[Row]) -> tuple[Lines, ...]:
    return tuple(
        figure
        for figure in (
            _lines(rows, "Peak memory of a rank", "memory", "GiB", lambda row: _point(row.memory_gib), log_y=True),
            _lines(rows, "Peak memory to a token of a rank", "memory_per_token", "KiB", _per_token),
        )
        if figure is not None
    )


def _heat_maps(rows: Sequence[Row]) -> tuple[HeatMap, ...]:
    words, scale = _rate(rows)
    own = any(row.by is not None for row in rows)
    sheets: tuple[tuple[str, str, str, Value], ...] = (
        ("Throughput", "map_throughput", words, lambda row: _times(row.throughput, scale)),
        ("Efficiency", "map_efficiency", "%", lambda row: _percent(row.efficiency) if row.by or not own else None),
        ("Transfers alone", "map_transfers", "% of the time of a call", _transfers),
        ("Peak memory of a rank", "map_memory", "GiB", lambda row: _point(row.memory_gib)),
    )
    length_of = labels(rows)
    lengths = list(dict.fromkeys(label for _, label in sorted((row.asked, length_of[row]) for row in rows)))
    columns = list(dict.fromkeys((row.world, row.ring) for row in sorted(rows, key=lambda r: (r.world, -r.ring))))
    names = {(row.world, row.ring): _column(row) for row in rows}
    cells = {(length_of[row], (row.world, row.ring)): row for row in rows}
    maps = []
    for title, name, unit, value in sheets:
        spans = {position: value(row) for position, row in cells.items()}
        if any(span is not None for span in spans.values()):
            matrix = tuple(
                tuple(span.value if (span := spans.get((length, c))) is not None else None for c in columns)
                for length in lengths
            )
            maps.append(
                HeatMap(
                    title=f"{title}, by length and ranks",
                    name=name,
                    rows=tuple(lengths),
                    columns=tuple(names[c] for c in columns),
                    cells=matrix,
                    unit=unit,
                    note=" ".join(_notes(rows)) or None if name == "map_efficiency" and not own else None,
                )
            )
    return tuple(maps)


def _column(row: Row) -> str:
    if row.world == 1:
        return "1 rank"
    return f"{row.world} ranks" if row.ring == row.world else f"{row.world} ranks, {row.grouping}"


def _lines(
    rows: Sequence[Row],
    title: str,
    name: str,
    unit: str,
    value: Value,
    *,
    log_y: bool = False,
    against_one: bool = False,
) -> Lines | None:
    """Return lines over the number of ranks; null where nothing of it is known.

    What is held ``against_one`` rank has an ideal, and no meaning for rows of the older tool: they say so.
    """
    points = {
        label: line
        for label, of_line in _grouped(rows, against_one=against_one).items()
        if (line := {row.world: span for row in of_line if (span := value(row)) is not None})
    }
    if not points:
        return None
    spans = [span for line in points.values() for span in line.values()]
    banded = any(span.low is not None and span.low != span.high for span in spans)
    lines = [_line(label, line) for label, line in points.items()]
    worlds = sorted({row.world for row in rows})
    if against_one:
        best = [100.0 if unit == "%" else float(world) for world in worlds]
        lines.append(Line(label="ideal", x=tuple(map(float, worlds)), y=tuple(best)))
    return Lines(
        title=f"{title} over ranks",
        name=name,
        x_axis=RANKS,
        y_axis=f"{title[0].lower()}{title[1:]}, {unit}",
        lines=tuple(lines),
        log_x=worlds[-1] > worlds[0],
        log_y=log_y,
        note=" ".join([BANDS if banded else NO_BANDS, *(_notes(rows) if against_one else ())]),
    )


def _grouped(rows: Sequence[Row], *, against_one: bool) -> dict[str, list[Row]]:
    """Return the rows of each line by its name: a length over ranks that are grouped alike, from one rank on."""
    groups: dict[str, list[Row]] = {}
    names = labels(rows)
    ones = {names[row]: row for row in rows if row.world == 1}
    for row in rows:
        suffix = f", {row.grouping}" if row.ring < row.world else ""
        invalid = ": means nothing" if against_one and row.by is None else ""
        line = groups.setdefault(f"{names[row]}{suffix}{invalid}", [])
        line += [ones[names[row]]] if suffix and not line and names[row] in ones else []
        line.append(row)
    return groups


def _line(label: str, points: dict[int, Span]) -> Line:
    worlds = sorted(points)
    return Line(
        label=label,
        x=tuple(map(float, worlds)),
        y=tuple(points[world].value for world in worlds),
        low=tuple(points[world].low for world in worlds),
        high=tuple(points[world].high for world in worlds),
    )


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    return (NOT_COMPARABLE,) if any(row.by is None for row in rows) else ()


def _point(value: float | None) -> Span | None:
    return None if value is None else Span(value)


def _percent(span: Span | None) -> Span | None:
    return _times(span, 100.0)


def _transfers(row: Row) -> Span | None:
    return None if row.communication_ms is None else Span(100 * row.communication_ms / row.time_ms.value)


def _times(span: Span | None, scale: float) -> Span | None:
    if span is None:
        return None
    low, high = (None if end is None else end * scale for end in (span.low, span.high))
    return span._replace(value=span.value * scale, low=low, high=high)


def _per_token(row: Row) -> Span | None:
    if row.memory_gib is None or not row.tokens or row.batch is None:
        return None
    return _point(row.memory_gib * 2**20 / (row.batch * row.tokens / row.ring))
