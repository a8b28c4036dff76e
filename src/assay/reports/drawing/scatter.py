"""Scatter plots: dots with intervals in both directions, each labelled where there is room.

A label is placed near its dot, where it overlaps other labels, dots and intervals least.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from assay.reports.drawing.charts import MARKERS
from assay.reports.drawing.sheet import (
    AXIS_CHARACTERS,
    CAP_HEIGHT,
    DASHED,
    LINE_INKS,
    MARGIN,
    WIDTH,
    Canvas,
    LegendEntry,
    Marker,
    PlotArea,
    Ticks,
    draw_legend,
    text_height,
    text_width,
)
from assay.reports.scales import Axis, finite
from assay.reports.text import one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import ScatterPlot, ScatterPoint, Tone
    from assay.reports.drawing.sheet import Ink

MAX_LABELS = 28
"""Up to this many dots are all labelled; of more, only those on the path."""

_HEIGHT = 220.0
_SIZE = 7.0
_LABEL_SIZE, _LABEL_WIDTH, _MAX_LABEL_LINES = 8.0, 26, 3
_NEAR, _FAR = 8.0, 22.0
"""Distances of a label from its dot, in points; a far one has a line to its dot."""
_MAX_OVERLAP = 0.35
"""A label covered by more than this share is left out."""
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


@dataclass(frozen=True)
class LabelBox:
    """A rectangle on the canvas, in points."""

    left: float
    top: float
    right: float
    bottom: float

    def shared(self, other: LabelBox) -> float:
        """Return the overlapping area."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * tall if wide > 0 and tall > 0 else 0.0

    def outside(self, other: LabelBox) -> float:
        """Return the area of this box outside the other."""
        return (self.right - self.left) * (self.bottom - self.top) - self.shared(other)


def draw_scatter(scatter: ScatterPlot) -> tuple[Canvas, list[str]]:
    """Draw the dots; also return the remarks to print below them.

    A requested logarithmic axis stays linear if a dot is not positive, so that no dot is lost.
    """
    canvas = Canvas(WIDTH)
    dots = scatter.dots
    x_axis = _axis([end for dot in dots for end in (dot.x, dot.x_low, dot.x_high)], log=scatter.log_x)
    y_axis = _axis([end for dot in dots for end in (dot.y, dot.y_low, dot.y_high)], log=scatter.log_y)
    x = Ticks.numbered(x_axis, wrap_label(scatter.x_axis, AXIS_CHARACTERS))
    y = Ticks.numbered(y_axis, wrap_label(scatter.y_axis, 44))
    groups = list(dict.fromkeys(dot.group for dot in dots))
    left = MARGIN + y.left_room
    entries = _legend(scatter, groups)
    top = draw_legend(canvas, entries, left, MARGIN) if entries else MARGIN
    area = PlotArea(canvas, left, top, x.right_edge, top + _HEIGHT, x_axis, y_axis)
    area.draw_x_axis(x)
    area.draw_y_axis(y)
    path = [dots[index] for index in scatter.path]
    if len(path) > 1:
        canvas.line([area.points([dot.x for dot in path], [dot.y for dot in path])], "muted", 1.1, dash=DASHED)
    for dot in dots:
        _draw_dot(area, dot, groups.index(dot.group))
    labelled = set(range(len(dots))) if len(dots) <= MAX_LABELS else set(scatter.path[:MAX_LABELS])
    unnamed = len(dots) - len(labelled) + _place_labels(area, dots, labelled)
    return canvas, [f"{unnamed} of {len(dots)} dots are not labelled; the table lists all."] if unnamed else []


def _axis(numbers: Sequence[float | None], *, log: bool) -> Axis:
    """Return an axis on which every dot and interval lies well inside, with room for labels."""
    values = finite(numbers)
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        room = max((high / low) ** 0.12, 1.3)
        return Axis(low / room, high * room, log=True)
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return Axis(max(0.0, low - room) if low > 0 else low - room / 3, high + room)


def _ink(group: int) -> Ink:
    return LINE_INKS[group % len(LINE_INKS)]


def _draw_dot(area: PlotArea, dot: ScatterPoint, group: int) -> None:
    if dot.x_low is not None and dot.x_high is not None:
        area.canvas.line([area.points([dot.x_low, dot.x_high], [dot.y] * 2)], _ink(group), 1.3, opacity=0.75)
    if dot.y_low is not None and dot.y_high is not None:
        area.canvas.line([area.points([dot.x] * 2, [dot.y_low, dot.y_high])], _ink(group), 1.3, opacity=0.75)
    ((x, y),) = area.points([dot.x], [dot.y]).tolist()
    _mark(dot.tone, group, area.canvas, x, y)


def _mark(tone: Tone, group: int | None, canvas: Canvas, x: float, y: float) -> None:
    """Draw a symbol: full, with a hollow core or hollow by its tone, with the colour and shape of its group."""
    ink, shape = ("muted", MARKERS[0]) if group is None else (_ink(group), MARKERS[group % len(MARKERS)])
    canvas.add(Marker(x, y, shape, _SIZE, ink if tone == "good" else "background", ink, 1.3))
    if tone == "unsure":
        canvas.add(Marker(x, y, shape, _SIZE * 0.45, ink))


def _legend(scatter: ScatterPlot, groups: Sequence[str]) -> list[LegendEntry]:
    entries = [LegendEntry(group, partial(_mark, "good", index)) for index, group in enumerate(groups)]
    entries = entries if len(groups) > 1 else []
    used = {dot.tone for dot in scatter.dots}
    entries += [LegendEntry(text, partial(_mark, tone, None)) for tone, text in scatter.tones.items() if tone in used]
    if len(scatter.path) > 1 and scatter.path_label:
        entries.append(
            LegendEntry(
                scatter.path_label,
                lambda canvas, x, y: canvas.line([[(x - 8, y), (x + 8, y)]], "muted", 1.1, dash=DASHED),
            )
        )
    return entries


def _place_labels(area: PlotArea, dots: Sequence[ScatterPoint], labelled: set[int]) -> int:
    """Write the labels that there is room for, each where it overlaps least; return the number of those left out."""
    occupied = [box for dot in dots for box in _covered(area, dot)]
    left_out = 0
    for dot in sorted((dots[index] for index in labelled), key=lambda dot: (dot.x, dot.y)):
        text = _shorten(one_line(dot.label))
        box = _place_label(area, dot, text, occupied) if text else None
        occupied += [box] if box is not None else []
        left_out += box is None and bool(text)
    return left_out


def _covered(area: PlotArea, dot: ScatterPoint) -> list[LabelBox]:
    """Return the boxes that a dot and its intervals cover."""
    ((x, y),) = area.points([dot.x], [dot.y]).tolist()
    boxes = [LabelBox(x - 5, y - 5, x + 5, y + 5)]
    if dot.x_low is not None and dot.x_high is not None:
        left, right = (float(end) for end in area.across([dot.x_low, dot.x_high]))
        boxes.append(LabelBox(left, y - 1.5, right, y + 1.5))
    if dot.y_low is not None and dot.y_high is not None:
        bottom, top = (float(end) for end in area.down([dot.y_low, dot.y_high]))
        boxes.append(LabelBox(x - 1.5, top, x + 1.5, bottom))
    return boxes


def _place_label(area: PlotArea, dot: ScatterPoint, text: str, occupied: Sequence[LabelBox]) -> LabelBox | None:
    """Write one label where it overlaps least, and return its box; null where there is no room for it."""
    ((x, y),) = area.points([dot.x], [dot.y]).tolist()
    size = text_width(text, _LABEL_SIZE), text_height(text, _LABEL_SIZE) + _LABEL_SIZE * (1 - CAP_HEIGHT)
    inside = LabelBox(area.left, area.top, area.right, area.bottom)
    boxes = [_label_box((x, y), size, side, reach) for reach in (_NEAR, _FAR) for side in _SIDES]
    covered = [sum(box.shared(other) for other in occupied) + 4 * box.outside(inside) for box in boxes]
    costs = [overlap + 0.4 * order for order, overlap in enumerate(covered)]
    best = costs.index(min(costs))
    if covered[best] > _MAX_OVERLAP * size[0] * size[1]:
        return None
    box, canvas = boxes[best], area.canvas
    if best >= len(_SIDES):
        end = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
        canvas.line([[(x, y), end]], "muted", 0.7)
        canvas.shapes.insert(0, canvas.shapes.pop())
    canvas.write(text, (box.left, box.top), _LABEL_SIZE, halo=True)
    return box


def _shorten(text: str) -> str:
    """Return a label in a few lines; a longer one ends in an ellipsis."""
    lines = wrap_label(text, _LABEL_WIDTH).split("\n")
    if len(lines) <= _MAX_LABEL_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[: _MAX_LABEL_LINES - 1], f"{lines[_MAX_LABEL_LINES - 1]}…"])


def _label_box(dot: tuple[float, float], size: tuple[float, float], side: tuple[int, int], reach: float) -> LabelBox:
    """Return the box of a label of some size on one side of a dot."""
    left, top = (
        middle + towards * reach - {-1: length, 0: length / 2, 1: 0.0}[towards]
        for middle, length, towards in zip(dot, size, side, strict=True)
    )
    return LabelBox(left, top, left + size[0], top + size[1])
