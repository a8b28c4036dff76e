"""Scatter plots: dots with intervals in both directions, each labelled where there is room.

A label is placed near its dot, where it overlaps other labels, dots and intervals least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from assay.reports.drawing.sheet import AXIS_CHARACTERS, add_legend, new_sheet, number_axis
from assay.reports.scales import finite
from assay.reports.text import one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    from assay.core.page import ScatterPlot, ScatterPoint, Tone
    from assay.reports.drawing.sheet import Theme


LABEL_FONT = 8.0
_LABEL_WIDTH = 26
_MAX_LABEL_LINES = 3
_NEAR, _FAR = 8.0, 22.0
_MAX_OVERLAP = 0.35
"""A label covered by more than this share is left out."""
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_HORIZONTAL_ALIGNMENT = {-1: "right", 0: "center", 1: "left"}
_VERTICAL_ALIGNMENT = {-1: "top", 0: "center", 1: "bottom"}


@dataclass(frozen=True)
class DotLabel:
    """The label of the dot at (x, y), with the ends of its intervals; an empty label only reserves space."""

    text: str
    x: float
    y: float
    ends: tuple[float | None, float | None, float | None, float | None]


@dataclass(frozen=True)
class LabelBox:
    """A rectangle on the sheet, in points."""

    left: float
    low: float
    right: float
    high: float

    def shared(self, other: LabelBox) -> float:
        """Return the overlapping area."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.high, other.high) - max(self.low, other.low)
        return wide * tall if wide > 0 and tall > 0 else 0.0

    def outside(self, other: LabelBox) -> float:
        """Return the area of this box outside the other."""
        return (self.right - self.left) * (self.high - self.low) - self.shared(other)


def place_labels(axes: Axes, labels: Sequence[DotLabel], theme: Theme) -> int:
    """Write the labels that there is room for, each where it overlaps least; return the number of those left out."""
    figure = axes.get_figure(root=True)
    if figure is None:
        return 0
    figure.draw_without_rendering()
    sheet = _LabelSheet(axes, theme, 72.0 / figure.dpi)
    occupied = [box for label in labels for box in sheet.marks(label)]
    left_out = 0
    for label in sorted((label for label in labels if label.text), key=lambda label: (label.x, label.y)):
        covered = sheet.place_label(label, occupied)
        left_out += covered is None
        occupied += [covered] if covered is not None else []
    return left_out


@dataclass(frozen=True)
class _LabelSheet:
    """Axes with a finished layout, and the size of a pixel in points."""

    axes: Axes
    theme: Theme
    scale: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a dot."""
        across, up = self.axes.transData.transform((x, y))
        return float(across) * self.scale, float(up) * self.scale

    def marks(self, label: DotLabel) -> list[LabelBox]:
        """Return the boxes that a dot and its intervals cover."""
        x, y = self.at(label.x, label.y)
        boxes = [LabelBox(x - 5, y - 5, x + 5, y + 5)]
        x_low, x_high, y_low, y_high = label.ends
        if x_low is not None and x_high is not None:
            boxes.append(LabelBox(self.at(x_low, label.y)[0], y - 1.5, self.at(x_high, label.y)[0], y + 1.5))
        if y_low is not None and y_high is not None:
            boxes.append(LabelBox(x - 1.5, self.at(label.x, y_low)[1], x + 1.5, self.at(label.x, y_high)[1]))
        return boxes

    def place_label(self, label: DotLabel, occupied: Sequence[LabelBox]) -> LabelBox | None:
        """Write one label where it overlaps least, and return its box; null where there is no room for it."""
        annotation = self.write(label, (1, 0), _NEAR)
        extent = annotation.get_window_extent()
        size = extent.width * self.scale, extent.height * self.scale
        annotation.remove()
        frame = self.axes.get_window_extent()
        inside = LabelBox(*(float(end) * self.scale for end in (frame.x0, frame.y0, frame.x1, frame.y1)))
        positions = [(side, reach) for reach in (_NEAR, _FAR) for side in _SIDES]
        boxes = [_label_box(self.at(label.x, label.y), size, side, reach) for side, reach in positions]
        covered = [sum(box.shared(other) for other in occupied) + 4 * box.outside(inside) for box in boxes]
        costs = [area + 0.4 * order for order, area in enumerate(covered)]
        best = costs.index(min(costs))
        if covered[best] > _MAX_OVERLAP * size[0] * size[1]:
            return None
        self.write(label, *positions[best])
        return boxes[best]

    def write(self, label: DotLabel, side: tuple[int, int], reach: float) -> Annotation:
        """Write a label on one side of its dot; a distant one gets a line to the dot."""
        line = {"arrowstyle": "-", "color": self.theme.muted, "linewidth": 0.7, "shrinkB": 4}
        return self.axes.annotate(
            _shorten(label.text),
            (label.x, label.y),
            xytext=(side[0] * reach, side[1] * reach),
            textcoords="offset points",
            ha=_HORIZONTAL_ALIGNMENT[side[0]],
            va=_VERTICAL_ALIGNMENT[side[1]],
            fontsize=LABEL_FONT,
            color=self.theme.ink,
            path_effects=[withStroke(linewidth=2.4, foreground=self.theme.background)],
            arrowprops=line if reach > _NEAR else None,
            zorder=5,
        )


def _shorten(text: str) -> str:
    """Return a label in a few lines; a longer one ends in an ellipsis."""
    lines = wrap_label(text, _LABEL_WIDTH).split("\n")
    return "\n".join(
        lines if len(lines) <= _MAX_LABEL_LINES else [*lines[: _MAX_LABEL_LINES - 1], f"{lines[_MAX_LABEL_LINES - 1]}…"]
    )


def _label_box(dot: tuple[float, float], size: tuple[float, float], side: tuple[int, int], reach: float) -> LabelBox:
    """Return the box of a label of some size on one side of a dot."""
    left, low = (
        middle + towards * reach - {-1: length, 0: length / 2, 1: 0.0}[towards]
        for middle, length, towards in zip(dot, size, side, strict=True)
    )
    return LabelBox(left, low, left + size[0], low + size[1])


MAX_LABELS = 28
"""Up to this many dots are all labelled; of more, only those on the path."""

_HEIGHT_IN = 3.9
_SIZE = 7.0
_MARKERS = "osD^vPX"
_FILLS: dict[Tone, str] = {"good": "full", "unsure": "left", "plain": "none", "bad": "none"}


def draw_scatter(scatter: ScatterPlot, theme: Theme) -> tuple[Figure, list[str]]:
    """Draw the dots; also return the remarks to print below them.

    A requested logarithmic axis stays linear if a dot is not positive, so that no dot is lost.
    """
    figure = new_sheet(_HEIGHT_IN, theme)
    axes = figure.add_subplot()
    _set_axes(axes, scatter)
    axes.set_xlabel(wrap_label(scatter.x_axis, AXIS_CHARACTERS))
    axes.set_ylabel(wrap_label(scatter.y_axis, 44))
    axes.grid()
    groups = list(dict.fromkeys(dot.group for dot in scatter.dots))
    _draw_path(axes, scatter, theme)
    for dot in scatter.dots:
        _draw_dot(axes, dot, groups.index(dot.group), theme)
    handles, names = _legend(scatter, groups, theme)
    if names:
        add_legend(axes, handles, names)
    named = _labelled_dots(scatter)
    left = len(scatter.dots) - len(named)
    left += place_labels(axes, [_dot_label(dot, shown=index in named) for index, dot in enumerate(scatter.dots)], theme)
    return figure, [f"{left} of {len(scatter.dots)} dots are not named; the table has them all."] if left else []


def _labelled_dots(scatter: ScatterPlot) -> set[int]:
    if len(scatter.dots) <= MAX_LABELS:
        return set(range(len(scatter.dots)))
    return set(scatter.path[:MAX_LABELS])


def _colour(group: int, theme: Theme) -> str:
    return theme.lines[group % len(theme.lines)]


def _set_axes(axes: Axes, scatter: ScatterPlot) -> None:
    """Set the axis limits so that every dot and interval lies well inside, with room for labels."""
    low, high, log_x = _axis_limits(
        [end for dot in scatter.dots for end in (dot.x, dot.x_low, dot.x_high)], log=scatter.log_x
    )
    axes.set_xscale("log" if log_x else "linear")
    axes.set_xlim(low, high)
    low, high, log_y = _axis_limits(
        [end for dot in scatter.dots for end in (dot.y, dot.y_low, dot.y_high)], log=scatter.log_y
    )
    axes.set_yscale("log" if log_y else "linear")
    axes.set_ylim(low, high)
    number_axis(axes.xaxis, log=log_x)
    number_axis(axes.yaxis, log=log_y)


def _axis_limits(numbers: Sequence[float | None], *, log: bool) -> tuple[float, float, bool]:
    """Return both limits of an axis, and whether it can be logarithmic."""
    values = finite(numbers)
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        room = max((high / low) ** 0.12, 1.3)
        return low / room, high * room, True
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return (max(0.0, low - room) if low > 0 else low - room / 3), high + room, False


def _draw_path(axes: Axes, scatter: ScatterPlot, theme: Theme) -> None:
    joined = [scatter.dots[index] for index in scatter.path]
    if len(joined) > 1:
        axes.plot(
            [dot.x for dot in joined],
            [dot.y for dot in joined],
            color=theme.muted,
            linewidth=1.1,
            linestyle=(0, (4, 2.4)),
            zorder=1.5,
        )


def _draw_dot(axes: Axes, dot: ScatterPoint, group: int, theme: Theme) -> None:
    colour = _colour(group, theme)
    if dot.x_low is not None and dot.x_high is not None:
        axes.plot([dot.x_low, dot.x_high], [dot.y, dot.y], color=colour, linewidth=1.3, alpha=0.75, zorder=2)
    if dot.y_low is not None and dot.y_high is not None:
        axes.plot([dot.x, dot.x], [dot.y_low, dot.y_high], color=colour, linewidth=1.3, alpha=0.75, zorder=2)
    axes.add_line(_marker(dot.tone, group, theme, at=(dot.x, dot.y)))


def _marker(tone: Tone, group: int | None, theme: Theme, *, at: tuple[float, float] | None = None) -> Line2D:
    """Return a marker: full, half or hollow by its tone, with the colour and shape of its group."""
    colour = theme.muted if group is None else _colour(group, theme)
    return Line2D(
        [] if at is None else [at[0]],
        [] if at is None else [at[1]],
        linestyle="none",
        marker="o" if group is None else _MARKERS[group % len(_MARKERS)],
        markersize=_SIZE,
        fillstyle=_FILLS[tone],  # type: ignore[arg-type]
        color=colour,
        markerfacecoloralt=theme.background,
        markeredgecolor=colour,
        markeredgewidth=1.3,
        zorder=3,
    )


def _legend(scatter: ScatterPlot, groups: Sequence[str], theme: Theme) -> tuple[list[Artist], list[str]]:
    handles: list[Artist] = []
    names: list[str] = []
    if len(groups) > 1:
        handles += [_marker("good", index, theme) for index in range(len(groups))]
        names += groups
    used = {dot.tone for dot in scatter.dots}
    for tone, meaning in scatter.tones.items():
        if tone in used:
            handles.append(_marker(tone, None, theme))
            names.append(meaning)
    if len(scatter.path) > 1 and scatter.path_label:
        handles.append(Line2D([], [], color=theme.muted, linewidth=1.1, linestyle=(0, (4, 2.4))))
        names.append(scatter.path_label)
    return handles, names


def _dot_label(dot: ScatterPoint, *, shown: bool) -> DotLabel:
    ends = (dot.x_low, dot.x_high, dot.y_low, dot.y_high)
    return DotLabel(one_line(dot.label) if shown else "", dot.x, dot.y, ends)
