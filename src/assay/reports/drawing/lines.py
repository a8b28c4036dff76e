"""Line charts with bands. A line with gaps is drawn in parts; an isolated point is always marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.reports.drawing.axes import (
    AXIS_CHARACTERS,
    MARGIN,
    NOTE_SIZE,
    WIDTH,
    LegendEntry,
    PlotArea,
    Ticks,
    draw_legend,
)
from assay.reports.drawing.palette import LINE_INKS
from assay.reports.drawing.shapes import DASHED, Canvas, Marker, Polygon
from assay.reports.scales import Axis, Floats, decimate, finite
from assay.reports.text import one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.page import LinePlot, PlotLine
    from assay.reports.drawing.palette import Ink
    from assay.reports.drawing.shapes import MarkerShape


MAX_POINTS = 1200
"""Points drawn per line; longer lines are reduced to the ends, lows and highs of equal segments."""

_HEIGHT = 185.0
"""Of the plot, in points."""
_MAX_MARKED = 40
MARKERS: tuple[MarkerShape, ...] = ("o", "s", "D", "^", "v", "P", "X")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5))


def draw_line_plot(plot: LinePlot) -> tuple[Canvas, list[str]]:
    """Draw the lines; also return the remarks to print below them.

    A requested logarithmic axis stays linear if a point is not positive, so that no point is lost.
    """
    canvas = Canvas(WIDTH)
    x, y = _ticks(plot)
    left = MARGIN + y.left_room
    bottom_of_legend = MARGIN
    if len(plot.lines) > 1 or one_line(plot.lines[0].label) not in {"", one_line(plot.y_axis)}:
        bottom_of_legend = draw_legend(canvas, legend_entries(plot.lines, markers=plot.markers), left, MARGIN)
    area = PlotArea(canvas, left, bottom_of_legend, x.right_edge, bottom_of_legend + _HEIGHT, x.axis, y.axis)
    area.draw_x_axis(x)
    area.draw_y_axis(y)
    if not y.values:
        middle = (area.left + area.right) / 2, (area.top + area.bottom) / 2
        canvas.write("not measured", middle, NOTE_SIZE, "muted", "middle", middle=True)
    draw_lines(area, plot.lines, markers=plot.markers)
    return canvas, thinning_remarks(plot.lines)


def _ticks(plot: LinePlot) -> tuple[Ticks, Ticks]:
    """Return both axes; without any number, the vertical one has no ticks, and neither has the other."""
    x_title, y_title = wrap_label(plot.x_axis, AXIS_CHARACTERS), wrap_label(plot.y_axis, 38)
    xs = finite([x for line in plot.lines for x in line.x])
    ys = finite([y for line in plot.lines for part in (line.y, line.low or (), line.high or ()) for y in part])
    if not len(ys):
        empty = Axis(0.0, 1.0)
        return Ticks(empty, (), (), x_title), Ticks(empty, (), (), y_title)
    x_axis, y_axis = padded_axis(xs, log=plot.log_x), padded_axis(ys, log=plot.log_y)
    whole = bool(np.all(xs == np.round(xs)))
    values = _ticks_at_data(np.unique(xs), log=x_axis.log)
    return Ticks.numbered(x_axis, x_title, whole=whole, values=values), Ticks.numbered(y_axis, y_title)


def padded_axis(values: Floats, *, log: bool, share: float = 0.05) -> Axis:
    """Return an axis that reaches a share of its length beyond the values; logarithmic if all are positive."""
    low, high = float(values.min()), float(values.max())
    log = log and low > 0
    if log:
        pad = (high / low) ** share if high > low else 1.3
        return Axis(low / pad, high * pad, log=True)
    pad = (high - low) * share or abs(high) * share or 1.0
    return Axis(low - pad, high + pad)


def _ticks_at_data(xs: Floats, *, log: bool) -> list[float] | None:
    """Return the points as ticks if these are few and well separated."""
    if not 2 <= len(xs) <= 9:
        return None
    positions = np.log(xs) if log else xs
    if float(np.diff(positions).min()) < 0.075 * float(positions[-1] - positions[0]):
        return None
    return [float(x) for x in xs]


def thinning_remarks(lines: Sequence[PlotLine]) -> list[str]:
    """Return a remark if not every point of a line is drawn."""
    longest = max((len(line.x) for line in lines), default=0)
    if longest <= MAX_POINTS:
        return []
    return [f"Of lines with up to {longest:,} points, only the lows and highs of equal segments are drawn."]


def legend_entries(lines: Sequence[PlotLine], *, markers: bool) -> list[LegendEntry]:
    """Return an entry for each line."""
    looks = [_Look(line, index, markers=markers) for index, line in enumerate(lines)]
    return [LegendEntry(look.label, look.draw_key) for look in looks]


class _Look:
    """How a line is drawn, by its place among the others."""

    def __init__(self, line: PlotLine, index: int, *, markers: bool) -> None:
        self.label = line.label
        self.ink: Ink = "muted" if line.limit else LINE_INKS[index % len(LINE_INKS)]
        self.dash = DASHED if line.limit else _DASHES[index // len(LINE_INKS) % len(_DASHES)]
        self.width = 1.7 if len(line.x) <= 200 else 1.1
        isolated = bool(_isolated(np.isfinite(_array(line.y))).any())
        marked = isolated or (markers and len(line.x) <= _MAX_MARKED)
        self.marker = MARKERS[index % len(MARKERS)] if marked and not line.limit else None

    def mark(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw the symbol of a point, if points have one."""
        if self.marker is not None:
            canvas.add(Marker(x, y, self.marker, 5.5, self.ink, "background", 0.8))

    def draw_key(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw the symbol of the legend."""
        canvas.line([[(x - 8, y), (x + 8, y)]], self.ink, self.width, dash=self.dash)
        self.mark(canvas, x, y)


def draw_lines(area: PlotArea, lines: Sequence[PlotLine], *, markers: bool) -> None:
    """Draw lines and their bands."""
    for index, line in enumerate(lines):
        _draw_line(area, line, _Look(line, index, markers=markers))


def _draw_line(area: PlotArea, line: PlotLine, look: _Look) -> None:
    x, y = np.array(line.x, dtype=np.float64), _array(line.y)
    shown = decimate(x, y, MAX_POINTS)
    if line.low is not None and line.high is not None:
        _draw_band(area, (x, _array(line.low), _array(line.high)), shown, look.ink)
    runs = [area.points(x[shown][run], y[shown][run]) for run in _runs(np.isfinite(y[shown]))]
    area.canvas.line([run for run in runs if len(run) > 1], look.ink, look.width, dash=look.dash)
    for run in runs if look.marker else ():
        for across, down in run.tolist():
            look.mark(area.canvas, across, down)


def _draw_band(area: PlotArea, band: tuple[Floats, Floats, Floats], shown: NDArray[np.intp], ink: Ink) -> None:
    """Draw the interval around a line: an area, and a bar where a point has no neighbours."""
    x, low, high = band
    for run in _runs(np.isfinite(low[shown]) & np.isfinite(high[shown])):
        indices = shown[run]
        if len(indices) > 1:
            lower, upper = area.points(x[indices], low[indices]), area.points(x[indices], high[indices])
            area.canvas.add(Polygon(np.concatenate([upper, lower[::-1]]), ink, 0.18))
    alone = np.flatnonzero(_isolated(np.isfinite(low) & np.isfinite(high)))
    bars = [area.points([x[index]] * 2, [low[index], high[index]]) for index in alone]
    area.canvas.line(bars, ink, 1.2, opacity=0.7)


def _runs(mask: NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the stretches in which a mask is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    for start, end in edges.reshape(-1, 2).tolist():
        yield slice(start, end)


def _isolated(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a mask is true and its neighbours are false."""
    before, after = np.append(False, mask[:-1]), np.append(mask[1:], False)
    return np.asarray(mask & ~before & ~after, dtype=np.bool_)


def _array(values: Sequence[float | None]) -> Floats:
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)
