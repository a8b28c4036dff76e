"""Line charts: lines with bands, told apart by colour, marker and dash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator

from assay.reports.drawing.sheet import AXIS_CHARACTERS, LogNumbers, Numbers, add_legend, new_sheet, number_axis
from assay.reports.numbers import write_count
from assay.reports.scales import Floats, decimate, finite
from assay.reports.wording import one_line, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from numpy.typing import NDArray

    from assay.core.page import Line, Lines
    from assay.reports.drawing.theme import Theme

MOST_POINTS = 1200
"""Points drawn per line; of longer lines the ends, lows and highs of equal stretches are drawn."""

_MOST_MARKED = 40
_MARKERS = "osD^vPX"
_LIMIT = (0, (4, 2.4))
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))


def draw_lines(lines: Lines, look: Theme) -> tuple[Figure, list[str]]:
    """Draw the lines; also return the remarks that belong under the drawing.

    A logarithmic axis that was asked for stays linear where a point is not positive: no point is lost.
    """
    figure = new_sheet(3.3, look)
    axes = figure.add_subplot()
    handles = add_lines(axes, lines.lines, look, markers=lines.markers)
    _scale_axes(axes, lines)
    axes.set_xlabel(wrapped(lines.x_axis, AXIS_CHARACTERS))
    axes.set_ylabel(wrapped(lines.y_axis, 38))
    if len(handles) > 1 or one_line(lines.lines[0].label) not in {"", one_line(lines.y_axis)}:
        add_legend(axes, handles, [line.label for line in lines.lines])
    return figure, thinning_remarks(lines.lines)


def add_lines(axes: Axes, lines: Sequence[Line], look: Theme, *, markers: bool) -> list[Line2D]:
    """Draw lines and their bands into axes; return a handle of each for the legend."""
    handles = []
    for index, line in enumerate(lines):
        colour = look.muted if line.limit else look.lines[index % len(look.lines)]
        dash = _LIMIT if line.limit else _DASHES[index // len(look.lines) % len(_DASHES)]
        marker = "" if line.limit else _marker(line, index, markers=markers)
        handles.append(_draw_line(axes, line, colour, dash, marker))
        handles[-1].set_markeredgecolor(look.background)
    axes.grid()
    return handles


def thinning_remarks(lines: Sequence[Line]) -> list[str]:
    """Return what to say about lines of which not every point is drawn."""
    most = max((len(line.x) for line in lines), default=0)
    if most <= MOST_POINTS:
        return []
    return [f"Of lines with up to {write_count(most)} points the lows and highs of equal stretches are drawn."]


def _marker(line: Line, index: int, *, markers: bool) -> str:
    """Return the marker of a line; a point without neighbours gets one in any case."""
    lonely = bool(np.any(_without_neighbours(np.isfinite(_array(line.y)))))
    return _MARKERS[index % len(_MARKERS)] if lonely or (markers and len(line.x) <= _MOST_MARKED) else ""


def _without_neighbours(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(known & ~np.append(known[1:], False) & ~np.append(False, known[:-1]), dtype=np.bool_)


def _draw_line(axes: Axes, line: Line, colour: str, dash: str | tuple[float, tuple[float, ...]], marker: str) -> Line2D:
    x, y = np.array(line.x, dtype=np.float64), _array(line.y)
    indices = decimate(x, y, MOST_POINTS)
    if line.low is not None and line.high is not None:
        low, high = _array(line.low), _array(line.high)
        axes.fill_between(x[indices], low[indices], high[indices], color=colour, alpha=0.18, linewidth=0)
        bare = _without_neighbours(np.isfinite(low) & np.isfinite(high))
        axes.vlines(x[bare], low[bare], high[bare], color=colour, linewidth=1.2, alpha=0.7)
    (handle,) = axes.plot(
        x[indices],
        y[indices],
        color=colour,
        linestyle=dash,
        linewidth=1.7 if len(x) <= 200 else 1.1,
        marker=marker,
        markersize=5.5,
        markeredgewidth=0.8,
    )
    return handle


def _array(values: Sequence[float | None]) -> Floats:
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def _scale_axes(axes: Axes, lines: Lines) -> None:
    xs = finite([x for line in lines.lines for x in line.x])
    ys = finite([y for line in lines.lines for part in (line.y, line.low or (), line.high or ()) for y in part])
    log_x = lines.log_x and len(xs) > 0 and float(xs.min()) > 0
    log_y = lines.log_y and len(ys) > 0 and float(ys.min()) > 0
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
    number_axis(axes.xaxis, log=log_x, whole=bool(np.all(xs == np.round(xs))))
    number_axis(axes.yaxis, log=log_y)
    if not len(ys):
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _tick_at_data(axes, np.unique(xs), log=log_x)


def _tick_at_data(axes: Axes, xs: Floats, *, log: bool) -> None:
    """Put the ticks where the points are when these are few and stand well apart."""
    if not 2 <= len(xs) <= 9:
        return
    positions = np.log(xs) if log else xs
    if float(np.diff(positions).min()) < 0.075 * float(positions[-1] - positions[0]):
        return
    axes.xaxis.set_major_locator(FixedLocator(list(xs)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(LogNumbers() if log else Numbers())
