"""Line charts with bands, and timelines: bars in lanes with sensor lines above, on the same time axis.

W  ╱╲__╱╲___      lines
───────────────
GPU 0  ▇▇▇ ▇▇▇▇   lanes
GPU 1     ▇▇▇▇
───────────────→ s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from assay.reports.drawing.sheet import (
    AXIS_CHARACTERS,
    LABEL_CHARACTERS,
    LINE_IN,
    LogNumberFormatter,
    NumberFormatter,
    add_legend,
    new_sheet,
    number_axis,
    readable_on,
)
from assay.reports.scales import Floats, decimate, finite
from assay.reports.text import one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from numpy.typing import NDArray

    from assay.core.page import LinePlot, PlotLine, Timeline, TimelineBar
    from assay.reports.drawing.sheet import Theme


MAX_POINTS = 1200
"""Points drawn per line; longer lines are reduced to the ends, lows and highs of equal segments."""

_MAX_MARKED = 40
_MARKERS = "osD^vPX"
_LIMIT_DASH = (0, (4, 2.4))
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))


def draw_lines(lines: LinePlot, theme: Theme) -> tuple[Figure, list[str]]:
    """Draw the lines; also return the remarks to print below them.

    A requested logarithmic axis stays linear if a point is not positive, so that no point is lost.
    """
    figure = new_sheet(3.3, theme)
    axes = figure.add_subplot()
    handles = add_lines(axes, lines.lines, theme, markers=lines.markers)
    _scale_axes(axes, lines)
    axes.set_xlabel(wrap_label(lines.x_axis, AXIS_CHARACTERS))
    axes.set_ylabel(wrap_label(lines.y_axis, 38))
    if len(handles) > 1 or one_line(lines.lines[0].label) not in {"", one_line(lines.y_axis)}:
        add_legend(axes, handles, [line.label for line in lines.lines])
    return figure, thinning_remarks(lines.lines)


def add_lines(axes: Axes, lines: Sequence[PlotLine], theme: Theme, *, markers: bool) -> list[Line2D]:
    """Draw lines and their bands into axes; return a legend handle for each."""
    handles = []
    for index, line in enumerate(lines):
        colour = theme.muted if line.limit else theme.lines[index % len(theme.lines)]
        dash = _LIMIT_DASH if line.limit else _DASHES[index // len(theme.lines) % len(_DASHES)]
        marker = "" if line.limit else _marker(line, index, markers=markers)
        handles.append(_draw_line(axes, line, colour, dash, marker))
        handles[-1].set_markeredgecolor(theme.background)
    axes.grid()
    return handles


def thinning_remarks(lines: Sequence[PlotLine]) -> list[str]:
    """Return a remark if not every point of a line is drawn."""
    longest = max((len(line.x) for line in lines), default=0)
    if longest <= MAX_POINTS:
        return []
    return [f"Of lines with up to {longest:,} points the lows and highs of equal stretches are drawn."]


def _marker(line: PlotLine, index: int, *, markers: bool) -> str:
    """Return the marker of a line; a line with an isolated point gets one in any case."""
    isolated = bool(np.any(_without_neighbours(np.isfinite(_array(line.y)))))
    return _MARKERS[index % len(_MARKERS)] if isolated or (markers and len(line.x) <= _MAX_MARKED) else ""


def _without_neighbours(finite_mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(
        finite_mask & ~np.append(finite_mask[1:], False) & ~np.append(False, finite_mask[:-1]), dtype=np.bool_
    )


def _draw_line(
    axes: Axes, line: PlotLine, colour: str, dash: str | tuple[float, tuple[float, ...]], marker: str
) -> Line2D:
    x, y = np.array(line.x, dtype=np.float64), _array(line.y)
    indices = decimate(x, y, MAX_POINTS)
    if line.low is not None and line.high is not None:
        low, high = _array(line.low), _array(line.high)
        axes.fill_between(x[indices], low[indices], high[indices], color=colour, alpha=0.18, linewidth=0)
        isolated = _without_neighbours(np.isfinite(low) & np.isfinite(high))
        axes.vlines(x[isolated], low[isolated], high[isolated], color=colour, linewidth=1.2, alpha=0.7)
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


def _scale_axes(axes: Axes, lines: LinePlot) -> None:
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
    """Put the ticks at the points if these are few and well separated."""
    if not 2 <= len(xs) <= 9:
        return
    positions = np.log(xs) if log else xs
    if float(np.diff(positions).min()) < 0.075 * float(positions[-1] - positions[0]):
        return
    axes.xaxis.set_major_locator(FixedLocator(list(xs)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(LogNumberFormatter() if log else NumberFormatter())


_BAR_IN = 0.26
_GAP_IN = 0.14
_LINES_IN = 1.7

LaneLevels: TypeAlias = "list[list[TimelineBar]]"
"""The bars of one lane, in levels without overlapping bars."""


@dataclass(frozen=True)
class _PlacedBar:
    """A bar, the height of its middle, and the time until which its level is free behind it."""

    bar: TimelineBar
    middle: float
    free_until: float


def draw_timeline(timeline: Timeline, theme: Theme) -> tuple[Figure, list[str]]:
    """Draw lanes and lines; also return the remarks to print below them."""
    lanes = stack_bars(timeline.bars)
    heights = {
        lane: max(len(levels) * _BAR_IN, (wrap_label(lane, LABEL_CHARACTERS).count("\n") + 1) * LINE_IN) + _GAP_IN
        for lane, levels in lanes.items()
    }
    lanes_in = sum(heights.values())
    figure = new_sheet(lanes_in + 0.5 + (_LINES_IN if timeline.lines else 0), theme)
    axes, upper = _timeline_axes(figure, timeline, lanes_in, theme)
    _set_time_axis(axes, timeline)
    placed_bars = _draw_lanes(axes, lanes, heights, theme)
    if upper is None:
        _add_tones(axes, timeline.bars, theme)
    return figure, [*thinning_remarks(timeline.lines), *_write_labels(figure, axes, placed_bars, theme)]


def stack_bars(bars: Sequence[TimelineBar]) -> dict[str, LaneLevels]:
    """Return the bars by lane, in the order in which the lanes first occur."""
    lanes: dict[str, LaneLevels] = {}
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        levels = lanes.setdefault(one_line(bar.lane), [])
        free = next((level for level in levels if level[-1].end_s <= bar.start_s), None)
        if free is None:
            levels.append([bar])
        else:
            free.append(bar)
    order = dict.fromkeys(one_line(bar.lane) for bar in bars)
    return {lane: lanes[lane] for lane in order}


def _timeline_axes(figure: Figure, timeline: Timeline, lanes_in: float, theme: Theme) -> tuple[Axes, Axes | None]:
    if not timeline.lines:
        return figure.add_subplot(), None
    grid = figure.add_gridspec(2, 1, height_ratios=[_LINES_IN, lanes_in])
    axes = figure.add_subplot(grid[1])
    upper = figure.add_subplot(grid[0], sharex=axes)
    handles: list[Patch] = list(add_lines(upper, timeline.lines, theme, markers=False))  # type: ignore[arg-type]
    number_axis(upper.yaxis, log=False, ticks=4)
    upper.set_ylabel(wrap_label(timeline.lines_axis, 20))
    upper.tick_params(labelbottom=False, bottom=False)
    upper.spines["bottom"].set_visible(False)
    tones = _tone_handles(timeline.bars, theme)
    add_legend(upper, [*handles, *tones.values()], [*(line.label for line in timeline.lines), *tones])
    return axes, upper


def _set_time_axis(axes: Axes, timeline: Timeline) -> None:
    times = [time for bar in timeline.bars for time in (bar.start_s, bar.end_s)]
    times += [time for line in timeline.lines for time in line.x]
    low, high = min(times), max(times)
    pad = (high - low) * 0.01 or 0.5
    axes.set_xlim(low - pad, high + pad)
    number_axis(axes.xaxis, log=False)
    axes.set_xlabel("time (s)")
    axes.grid(axis="x")


def _draw_lanes(
    axes: Axes, lanes: Mapping[str, LaneLevels], heights: Mapping[str, float], theme: Theme
) -> list[_PlacedBar]:
    """Draw every bar; return the bars with their positions."""
    top, middles, placed_bars = 0.0, [], []
    left, right = axes.get_xlim()
    for lane, levels in lanes.items():
        middles.append(top + heights[lane] / 2)
        first = middles[-1] - (len(levels) - 1) * _BAR_IN / 2
        for depth, level in enumerate(levels):
            nexts = [*(bar.start_s for bar in level[1:]), right]
            for bar, free_until in zip(level, nexts, strict=True):
                placed_bars.append(_PlacedBar(bar, first + depth * _BAR_IN, free_until))
                _draw_bar(axes, placed_bars[-1], (right - left) / 200, theme)
        top += heights[lane]
        axes.axhline(top, color=theme.rule, linewidth=0.7, zorder=0.5)
    axes.set_ylim(top, 0.0)
    axes.set_yticks(middles, [wrap_label(lane, LABEL_CHARACTERS) for lane in lanes])
    return placed_bars


def _draw_bar(axes: Axes, placed: _PlacedBar, least: float, theme: Theme) -> None:
    bar, height = placed.bar, _BAR_IN * 0.82
    axes.add_patch(
        Rectangle(
            (bar.start_s, placed.middle - height / 2),
            max(bar.end_s - bar.start_s, least),
            height,
            facecolor=theme.tones[bar.tone],
            edgecolor=theme.background,
            linewidth=0.5,
            zorder=2,
        )
    )


def _tone_handles(bars: Sequence[TimelineBar], theme: Theme) -> dict[str, Patch]:
    """Return legend handles for the tones in use, apart from plain."""
    used = {bar.tone for bar in bars} - {"plain"}
    return {tone: Patch(facecolor=colour, linewidth=0) for tone, colour in theme.tones.items() if tone in used}


def _add_tones(axes: Axes, bars: Sequence[TimelineBar], theme: Theme) -> None:
    tones = _tone_handles(bars, theme)
    if tones:
        add_legend(axes, list(tones.values()), list(tones))


def _write_labels(figure: Figure, axes: Axes, placed_bars: Sequence[_PlacedBar], theme: Theme) -> list[str]:
    """Write each label into its bar, or into the free space behind it; return a remark if one fits nowhere."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    labelled = [_write_label(axes, placed, theme) for placed in placed_bars if one_line(placed.bar.label)]
    return [] if all(labelled) else ["Bars too short for their label stand without it."]


def _write_label(axes: Axes, placed: _PlacedBar, theme: Theme) -> bool:
    bar = placed.bar
    ink = readable_on(theme.tones[bar.tone])
    text = axes.text(0, placed.middle, one_line(bar.label), va="center", fontsize=7.5, zorder=3, in_layout=False)
    needed = text.get_window_extent().width + 5
    start, end, free = (axes.transData.transform((x, 0))[0] for x in (bar.start_s, bar.end_s, placed.free_until))
    end = max(end, start + 3)
    if needed <= end - start:
        text.set(x=(bar.start_s + bar.end_s) / 2, horizontalalignment="center", color=ink)
    elif needed + 3 <= free - end:
        text.set(x=axes.transData.inverted().transform((end + 3, 0))[0], color=theme.ink)
    else:
        text.remove()
        return False
    return True
