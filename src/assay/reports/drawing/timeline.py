"""Timelines: bars in lanes, with sensor lines above on the same time axis.

W  ╱╲__╱╲___      lines
───────────────
GPU 0  ▇▇▇ ▇▇▇▇   lanes
GPU 1     ▇▇▇▇
───────────────→ s
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from assay.reports.drawing.axes import (
    LABEL_CHARACTERS,
    MARGIN,
    TICK_SIZE,
    WIDTH,
    LegendEntry,
    PlotArea,
    Ticks,
    box_key,
    draw_legend,
)
from assay.reports.drawing.lines import draw_lines, legend_entries, padded_axis, thinning_remarks
from assay.reports.drawing.palette import readable_ink
from assay.reports.drawing.shapes import Box, Canvas, text_height, text_width
from assay.reports.scales import Axis, finite
from assay.reports.text import one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Timeline, TimelineBar

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
    x = Ticks.numbered(padded_axis(finite(times), log=False, share=0.01), "time (s)")
    y = _line_ticks(timeline)
    left = MARGIN + max([*(text_width(lane, TICK_SIZE) + 3.5 for lane in lanes), y.left_room if y else 0.0])
    entries = legend_entries(timeline.lines, markers=False)
    used = {bar.tone for bar in timeline.bars} - {"plain"}
    entries += [LegendEntry(tone, box_key(f"tone-{tone}")) for tone in ("good", "bad", "unsure") if tone in used]
    top = draw_legend(canvas, entries, left, MARGIN) if entries else MARGIN
    if y is not None:
        upper = PlotArea(canvas, left, top, x.right_edge, top + _LINES, x.axis, y.axis)
        upper.draw_x_axis(x, labelled=False)
        upper.draw_y_axis(y)
        draw_lines(upper, timeline.lines, markers=False)
        top += _LINES + _BETWEEN
    heights = [max(len(levels) * _BAR, text_height(lane, TICK_SIZE)) + _GAP for lane, levels in lanes.items()]
    area = PlotArea(canvas, left, top, x.right_edge, top + sum(heights), x.axis, Axis(0.0, 1.0))
    area.draw_x_axis(x)
    unlabelled = _draw_lanes(area, lanes, heights)
    remarks = ["Bars that are too short for their label are shown without it."] if unlabelled else []
    return canvas, [*thinning_remarks(timeline.lines), *remarks]


def stack_bars(bars: Sequence[TimelineBar]) -> dict[str, LaneLevels]:
    """Return the bars by lane, in the order in which the lanes first occur."""
    lanes: dict[str, LaneLevels] = {one_line(bar.lane): [] for bar in bars}
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        levels = lanes[one_line(bar.lane)]
        free = next((level for level in levels if level[-1].end_s <= bar.start_s), None)
        if free is None:
            levels.append([bar])
        else:
            free.append(bar)
    return lanes


def _line_ticks(timeline: Timeline) -> Ticks | None:
    """Return the vertical axis of the lines; null where there are none."""
    if not timeline.lines:
        return None
    title, values = wrap_label(timeline.lines_axis, 20), finite([y for line in timeline.lines for y in line.y])
    if not len(values):
        return Ticks(Axis(0.0, 1.0), (), (), title)
    return Ticks.numbered(padded_axis(values, log=False), title, most=4)


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
    if not text:
        return True
    if needed <= end - start:
        area.canvas.write(text, ((start + end) / 2, middle), _LABEL_SIZE, readable_ink(ink), "middle", middle=True)
        return True
    if needed <= free_until - end:
        area.canvas.write(text, (end + _LABEL_PAD, middle), _LABEL_SIZE, middle=True)
        return True
    return False
