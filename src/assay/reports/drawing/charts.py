"""Charts over one horizontal axis: strip plots, line charts with bands, and timelines.

         ·:.::.                                                W  ╱╲__╱╲___      lines
softmax  ·:|━◆━|:·   ·     1, up to 50 ▸   1.23 (1.21–1.25)    GPU 0  ▇▇▇ ▇▇▇▇   lanes
                                                               ───────────────→ s

Strips show every sample as a dot, with the estimate and its interval on top; strays are counted at the edge. A line
with gaps is drawn in parts; an isolated point is always marked. A timeline has bars in lanes, and sensor lines above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from assay.core.format import typeset_minus
from assay.reports.drawing.sheet import (
    AXIS_CHARACTERS,
    DASHED,
    LABEL_CHARACTERS,
    LINE_INKS,
    MARGIN,
    NOTE_SIZE,
    TICK_SIZE,
    WIDTH,
    Box,
    Canvas,
    Dots,
    LegendEntry,
    Marker,
    PlotArea,
    Polygon,
    Ticks,
    box_key,
    draw_legend,
    readable_ink,
    text_height,
    text_width,
)
from assay.reports.scales import Axis, Floats, bin_counts, decimate, finite, strip_axis, thin_samples
from assay.reports.text import format_cell, format_interval, one_line, with_unit, wrap_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.page import LinePlot, PlotLine, StripPlot, StripRow, Timeline, TimelineBar
    from assay.reports.drawing.sheet import Ink, MarkerShape

MAX_DOTS = 300
"""Dots drawn per strip; more would only make the file large and the strip black."""

_FEW_DOTS = 12
"""Up to this many dots are drawn in a row above the bar of their interval."""

_ARROW = 0.01
"""Distance of an arrow from the edge of the axis, as a share of its length."""

_ROW = 33.0
"""Height of a row, in points."""
_NOTE_WIDTH = 90.0
"""Maximum width of an estimate on one line, in points."""
_EDGE_SIZE = 7.0
_ARROWS: tuple[MarkerShape, MarkerShape] = ("<", ">")
_GOLDEN = 0.6180339887498949


def draw_strips(strips: StripPlot) -> tuple[Canvas, list[str]]:
    """Draw the strips below each other; also return the remarks to print below them."""
    labels = [wrap_label(strip.label, LABEL_CHARACTERS) for strip in strips.strips]
    notes = [_estimate_note(strip) for strip in strips.strips]
    axis = strip_axis(strips.strips, strips.centre)
    title = with_unit(strips.axis, strips.unit)
    ticks = Ticks.numbered(axis, wrap_label(f"{title}, logarithmic" if axis.log else title, AXIS_CHARACTERS))
    heights = [max(_ROW, text_height(label, TICK_SIZE) + 9) for label in labels]
    canvas = Canvas(WIDTH)
    left = MARGIN + max(text_width(label, TICK_SIZE) for label in labels) + 3.5
    right = WIDTH - MARGIN - max(max(text_width(note, NOTE_SIZE) for note in notes) + 8, 8)
    area = PlotArea(canvas, left, MARGIN, right, MARGIN + sum(heights), axis, Axis(0.0, 1.0))
    area.draw_x_axis(ticks)
    middles = [float(middle) for middle in area.top + np.cumsum(heights) - np.array(heights) / 2]
    canvas.line([[(left, middle), (right, middle)] for middle in middles], "rule", 0.7)
    if strips.centre is not None:
        x = float(area.across([strips.centre])[0])
        canvas.line([[(x, area.top), (x, area.bottom)]], "muted", 1.0, dash=DASHED)
    for strip, middle, note in zip(strips.strips, middles, notes, strict=True):
        _draw_strip(area, strip, middle)
        canvas.write(note, (right + 8, middle), NOTE_SIZE, middle=True)
    area.write_rows(zip(middles, labels, strict=True))
    return canvas, _remarks(strips, axis)


def _estimate_note(strip: StripRow) -> str:
    if strip.value is None:
        return ""
    text = typeset_minus(format_interval(strip.value, strip.low, strip.high))
    return text if text_width(text, NOTE_SIZE) <= _NOTE_WIDTH else text.replace(" (", "\n(")


def _draw_strip(area: PlotArea, strip: StripRow, middle: float) -> None:
    samples, axis = finite(strip.samples), area.x
    dots = thin_samples(samples[(samples >= axis.low) & (samples <= axis.high)], MAX_DOTS)
    if len(dots):
        # A few dots are lifted above their line, so that the interval's bar does not hide them.
        lift = -0.4 if len(dots) <= _FEW_DOTS and strip.low is not None else 0.0
        heights = middle + (_dot_spread(dots, axis) + lift) * _ROW * 0.62
        area.canvas.add(Dots(np.column_stack([area.across(dots), heights]), "dot", 3.4, 0.55))
    _draw_estimate(area, strip, middle)
    _note_strays(area, samples, middle)
    if strip.value is None and not len(samples):
        area.canvas.write("not measured", (area.left + 2, middle), _EDGE_SIZE, "muted", middle=True, halo=True)


def _dot_spread(dots: Floats, axis: Axis) -> Floats:
    """Return the offset of each dot from its line, from -0.5 to 0.5: wider where dots are denser."""
    bins = 48
    counts = np.convolve(bin_counts(dots, axis, bins), [0.25, 0.5, 0.25], mode="same")
    bin_index = np.clip((axis.position(dots) * bins).astype(np.intp), 0, bins - 1)
    room = counts[bin_index] / max(float(counts.max()), 1.0)
    if len(dots) <= _FEW_DOTS:
        room = np.zeros(len(dots))
    sequence = np.mod(np.arange(1, len(dots) + 1) * _GOLDEN, 1.0) - 0.5
    return np.asarray(sequence * room, dtype=np.float64)


def _draw_estimate(area: PlotArea, strip: StripRow, middle: float) -> None:
    """Draw the value and its interval; an end beyond the axis is an arrow at its edge."""
    canvas, axis = area.canvas, area.x
    if strip.low is not None and strip.high is not None:
        shown = [max(strip.low, axis.at(_ARROW)), min(strip.high, axis.at(1 - _ARROW))]
        left, right = (float(x) for x in area.across(shown))
        canvas.line([[(left, middle), (right, middle)]], "background", 4.6)
        canvas.line([[(left, middle), (right, middle)]], "ink", 2.0)
        for end, position, x, arrow in zip((strip.low, strip.high), shown, (left, right), _ARROWS, strict=True):
            if end == position:
                canvas.line([[(x, middle - 6), (x, middle + 6)]], "ink", 1.4)
            else:
                canvas.add(Marker(x, middle, arrow, 6.5, "ink"))
    if strip.value is not None:
        canvas.add(Marker(float(area.across([strip.value])[0]), middle, "D", 4.6, "ink", "background"))


def _note_strays(area: PlotArea, samples: Floats, middle: float) -> None:
    """Note at the edges how many samples lie beyond them and how far they reach."""
    below, above = samples[samples < area.x.low], samples[samples > area.x.high]
    y = middle - 9
    if len(below):
        note = f"◂ {len(below):,}, down to {typeset_minus(format_cell(float(below.min())))}"
        area.canvas.write(note, (area.left + 2, y), _EDGE_SIZE, "muted", middle=True, halo=True)
    if len(above):
        note = f"{len(above):,}, up to {typeset_minus(format_cell(float(above.max())))} ▸"
        area.canvas.write(note, (area.right - 2, y), _EDGE_SIZE, "muted", "end", middle=True, halo=True)


def _remarks(strips: StripPlot, axis: Axis) -> list[str]:
    arrays = [finite(strip.samples) for strip in strips.strips]
    largest = max(len(samples) for samples in arrays)
    remarks = []
    if largest > MAX_DOTS:
        remarks.append(f"{MAX_DOTS} dots per row, evenly ranked among up to {largest:,} samples.")
    if any(np.any((samples < axis.low) | (samples > axis.high)) for samples in arrays):
        remarks.append("▸ counts samples beyond the axis.")
    if any(strip.low is not None for strip in strips.strips):
        remarks.append("◆ is the estimate, the bar its interval.")
    bounds = [(s.low, s.high) for s in strips.strips if s.low is not None and s.high is not None]
    if any(low < axis.at(_ARROW) or high > axis.at(1 - _ARROW) for low, high in bounds):
        remarks.append("A bar with an arrowhead continues beyond the axis.")
    return remarks


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
        bottom_of_legend = draw_legend(canvas, _legend_entries(plot.lines, markers=plot.markers), left, MARGIN)
    area = PlotArea(canvas, left, bottom_of_legend, x.right_edge, bottom_of_legend + _HEIGHT, x.axis, y.axis)
    area.draw_x_axis(x)
    area.draw_y_axis(y)
    if not y.values:
        middle = (area.left + area.right) / 2, (area.top + area.bottom) / 2
        canvas.write("not measured", middle, NOTE_SIZE, "muted", "middle", middle=True)
    _draw_lines(area, plot.lines, markers=plot.markers)
    return canvas, _thinning_remarks(plot.lines)


def _ticks(plot: LinePlot) -> tuple[Ticks, Ticks]:
    """Return both axes; without any number, the vertical one has no ticks, and neither has the other."""
    x_title, y_title = wrap_label(plot.x_axis, AXIS_CHARACTERS), wrap_label(plot.y_axis, 38)
    xs = finite([x for line in plot.lines for x in line.x])
    ys = finite([y for line in plot.lines for part in (line.y, line.low or (), line.high or ()) for y in part])
    if not len(ys):
        empty = Axis(0.0, 1.0)
        return Ticks(empty, (), (), x_title), Ticks(empty, (), (), y_title)
    x_axis, y_axis = _padded_axis(xs, log=plot.log_x), _padded_axis(ys, log=plot.log_y)
    whole = bool(np.all(xs == np.round(xs)))
    values = _ticks_at_data(np.unique(xs), log=x_axis.log)
    return Ticks.numbered(x_axis, x_title, whole=whole, values=values), Ticks.numbered(y_axis, y_title)


def _padded_axis(values: Floats, *, log: bool, share: float = 0.05) -> Axis:
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


def _thinning_remarks(lines: Sequence[PlotLine]) -> list[str]:
    """Return a remark if not every point of a line is drawn."""
    longest = max((len(line.x) for line in lines), default=0)
    if longest <= MAX_POINTS:
        return []
    return [f"Of lines with up to {longest:,} points, only the lows and highs of equal segments are drawn."]


def _legend_entries(lines: Sequence[PlotLine], *, markers: bool) -> list[LegendEntry]:
    """Return an entry for each line."""
    return [LegendEntry(line.label, _Look(line, n, markers=markers).draw_key) for n, line in enumerate(lines)]


class _Look:
    """How a line is drawn, by its place among the others."""

    def __init__(self, line: PlotLine, index: int, *, markers: bool) -> None:
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


def _draw_lines(area: PlotArea, lines: Sequence[PlotLine], *, markers: bool) -> None:
    """Draw lines and their bands."""
    for index, line in enumerate(lines):
        look = _Look(line, index, markers=markers)
        x, y = np.array(line.x, dtype=np.float64), _array(line.y)
        shown = decimate(x, y, MAX_POINTS)
        if line.low is not None and line.high is not None:
            _draw_band(area, (x, _array(line.low), _array(line.high)), shown, look.ink)
        runs = [area.points(x[shown][run], y[shown][run]) for run in _runs(np.isfinite(y[shown]))]
        area.canvas.line([run for run in runs if len(run) > 1], look.ink, look.width, dash=look.dash)
        for across, down in (point for run in runs for point in run.tolist()):
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


_BAR, _GAP, _LINES, _BETWEEN = 18.7, 10.0, 112.0, 14.0
_BAR_SHARE = 0.82
_LABEL_SIZE, _LABEL_PAD = 7.5, 2.5
_SHORTEST = 1 / 200
"""Minimum width of a bar, as a share of the axis."""

LaneLevels: TypeAlias = "list[list[TimelineBar]]"
"""The bars of one lane, in levels without overlapping bars."""


def draw_timeline(timeline: Timeline) -> tuple[Canvas, list[str]]:
    """Draw lanes and lines; also return the remarks to print below them."""
    canvas = Canvas(WIDTH)
    lanes = {wrap_label(lane, LABEL_CHARACTERS): levels for lane, levels in stack_bars(timeline.bars).items()}
    times = [time for bar in timeline.bars for time in (bar.start_s, bar.end_s)]
    times += [time for line in timeline.lines for time in line.x]
    x = Ticks.numbered(_padded_axis(finite(times), log=False, share=0.01), "time (s)")
    y = _line_ticks(timeline)
    left = MARGIN + max([*(text_width(lane, TICK_SIZE) + 3.5 for lane in lanes), y.left_room if y else 0.0])
    entries = _legend_entries(timeline.lines, markers=False)
    used = {bar.tone for bar in timeline.bars} - {"plain"}
    entries += [LegendEntry(tone, box_key(f"tone-{tone}")) for tone in ("good", "bad", "unsure") if tone in used]
    top = draw_legend(canvas, entries, left, MARGIN) if entries else MARGIN
    if y is not None:
        upper = PlotArea(canvas, left, top, x.right_edge, top + _LINES, x.axis, y.axis)
        upper.draw_x_axis(x, labelled=False)
        upper.draw_y_axis(y)
        _draw_lines(upper, timeline.lines, markers=False)
        top += _LINES + _BETWEEN
    heights = [max(len(levels) * _BAR, text_height(lane, TICK_SIZE)) + _GAP for lane, levels in lanes.items()]
    area = PlotArea(canvas, left, top, x.right_edge, top + sum(heights), x.axis, Axis(0.0, 1.0))
    area.draw_x_axis(x)
    unlabelled = _draw_lanes(area, lanes, heights)
    remarks = ["Bars that are too short for their label are shown without it."] if unlabelled else []
    return canvas, [*_thinning_remarks(timeline.lines), *remarks]


def stack_bars(bars: Sequence[TimelineBar]) -> dict[str, LaneLevels]:
    """Return the bars by lane, in the order in which the lanes first occur."""
    lanes: dict[str, LaneLevels] = {one_line(bar.lane): [] for bar in bars}
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        levels = lanes[one_line(bar.lane)]
        free = next((level for level in levels if level[-1].end_s <= bar.start_s), None)
        if free is None:
            levels.append(free := [])
        free.append(bar)
    return lanes


def _line_ticks(timeline: Timeline) -> Ticks | None:
    """Return the vertical axis of the lines; null where there are none."""
    if not timeline.lines:
        return None
    title, values = wrap_label(timeline.lines_axis, 20), finite([y for line in timeline.lines for y in line.y])
    if not len(values):
        return Ticks(Axis(0.0, 1.0), (), (), title)
    return Ticks.numbered(_padded_axis(values, log=False), title, most=4)


def _draw_lanes(area: PlotArea, lanes: dict[str, LaneLevels], heights: Sequence[float]) -> int:
    """Draw every bar with its label; return the number of labels that fit nowhere."""
    top, unlabelled = area.top, 0
    for (lane, levels), height in zip(lanes.items(), heights, strict=True):
        middle = top + height / 2
        area.write_rows([(middle, lane)])
        first = middle - (len(levels) - 1) * _BAR / 2
        for depth, level in enumerate(levels):
            nexts = [*(float(x) for x in area.across([bar.start_s for bar in level[1:]])), area.right]
            for bar, free_until in zip(level, nexts, strict=True):
                unlabelled += not _draw_bar(area, bar, first + depth * _BAR, free_until)
        top += height
        area.canvas.line([[(area.left, top), (area.right, top)]], "rule", 0.7)
    return unlabelled


def _draw_bar(area: PlotArea, bar: TimelineBar, middle: float, free_until: float) -> bool:
    """Draw a bar and write its label into it, or into the free space behind it; return whether there is room."""
    start, end = (float(x) for x in area.across([bar.start_s, bar.end_s]))
    end = max(end, start + (area.right - area.left) * _SHORTEST)
    height, ink, text = _BAR * _BAR_SHARE, f"tone-{bar.tone}", one_line(bar.label)
    area.canvas.add(Box(start, middle - height / 2, max(end - start - 0.5, 0.5), height, ink))
    needed = text_width(text, _LABEL_SIZE) + 2 * _LABEL_PAD if text else 0.0
    if needed <= end - start:
        area.canvas.write(text, ((start + end) / 2, middle), _LABEL_SIZE, readable_ink(ink), "middle", middle=True)
    elif needed <= free_until - end:
        area.canvas.write(text, (end + _LABEL_PAD, middle), _LABEL_SIZE, middle=True)
    else:
        return False
    return True
