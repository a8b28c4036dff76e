"""Names beside dots: each where it covers no other name, dot or interval, and near to its own dot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.patheffects import withStroke

from assay.reports.wording import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

    from assay.reports.drawing.theme import Theme

FONT = 8.0
_WIDTH = 26
_MOST_LINES = 3
_NEAR, _FAR = 8.0, 22.0
_TOO_MUCH = 0.35
"""A name of which so much would be covered helps nobody."""
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_ALIGNED = {-1: "right", 0: "center", 1: "left"}
_RISEN = {-1: "top", 0: "center", 1: "bottom"}


@dataclass(frozen=True)
class Label:
    """A name for the dot at (x, y), with the ends of its intervals; without a name the dot is only in the way."""

    text: str
    x: float
    y: float
    ends: tuple[float | None, float | None, float | None, float | None]


@dataclass(frozen=True)
class Box:
    """A rectangle on the sheet, in points."""

    left: float
    low: float
    right: float
    high: float

    def shared(self, other: Box) -> float:
        """Return the area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.high, other.high) - max(self.low, other.low)
        return wide * tall if wide > 0 and tall > 0 else 0.0

    def outside(self, other: Box) -> float:
        """Return how much of this one lies beyond the other."""
        return (self.right - self.left) * (self.high - self.low) - self.shared(other)


def place_labels(axes: Axes, labels: Sequence[Label], look: Theme) -> int:
    """Write the names that there is room for, each where it covers least; return how many there is none for."""
    figure = axes.get_figure(root=True)
    if figure is None:
        return 0
    figure.draw_without_rendering()
    sheet = _Sheet(axes, look, 72.0 / figure.dpi)
    occupied = [box for label in labels for box in sheet.marks(label)]
    left_out = 0
    for label in sorted((label for label in labels if label.text), key=lambda label: (label.x, label.y)):
        covered = sheet.place(label, occupied)
        left_out += covered is None
        occupied += [covered] if covered is not None else []
    return left_out


@dataclass(frozen=True)
class _Sheet:
    """Axes that are laid out, and how many points a pixel of them is."""

    axes: Axes
    look: Theme
    scale: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a dot is."""
        across, up = self.axes.transData.transform((x, y))
        return float(across) * self.scale, float(up) * self.scale

    def marks(self, label: Label) -> list[Box]:
        """Return what a dot and its intervals cover."""
        x, y = self.at(label.x, label.y)
        boxes = [Box(x - 5, y - 5, x + 5, y + 5)]
        x_low, x_high, y_low, y_high = label.ends
        if x_low is not None and x_high is not None:
            boxes.append(Box(self.at(x_low, label.y)[0], y - 1.5, self.at(x_high, label.y)[0], y + 1.5))
        if y_low is not None and y_high is not None:
            boxes.append(Box(x - 1.5, self.at(label.x, y_low)[1], x + 1.5, self.at(label.x, y_high)[1]))
        return boxes

    def place(self, label: Label, taken: Sequence[Box]) -> Box | None:
        """Write one name where it covers least, and return what it covers; null where there is no room for it."""
        annotation = self.write(label, (1, 0), _NEAR)
        extent = annotation.get_window_extent()
        size = extent.width * self.scale, extent.height * self.scale
        annotation.remove()
        frame = self.axes.get_window_extent()
        inside = Box(*(float(end) * self.scale for end in (frame.x0, frame.y0, frame.x1, frame.y1)))
        positions = [(side, reach) for reach in (_NEAR, _FAR) for side in _SIDES]
        boxes = [_beside(self.at(label.x, label.y), size, side, reach) for side, reach in positions]
        covered = [sum(box.shared(other) for other in taken) + 4 * box.outside(inside) for box in boxes]
        costs = [area + 0.4 * order for order, area in enumerate(covered)]
        best = costs.index(min(costs))
        if covered[best] > _TOO_MUCH * size[0] * size[1]:
            return None
        self.write(label, *positions[best])
        return boxes[best]

    def write(self, label: Label, side: tuple[int, int], reach: float) -> Annotation:
        """Write a name on one side of its dot; one that is far from it has a line to it."""
        line = {"arrowstyle": "-", "color": self.look.muted, "linewidth": 0.7, "shrinkB": 4}
        return self.axes.annotate(
            _short(label.text),
            (label.x, label.y),
            xytext=(side[0] * reach, side[1] * reach),
            textcoords="offset points",
            ha=_ALIGNED[side[0]],
            va=_RISEN[side[1]],
            fontsize=FONT,
            color=self.look.ink,
            path_effects=[withStroke(linewidth=2.4, foreground=self.look.background)],
            arrowprops=line if reach > _NEAR else None,
            zorder=5,
        )


def _short(text: str) -> str:
    """Return a name in a few lines; one that is longer ends in dots."""
    lines = wrapped(text, _WIDTH).split("\n")
    return "\n".join(lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]}…"])


def _beside(dot: tuple[float, float], size: tuple[float, float], side: tuple[int, int], reach: float) -> Box:
    """Return what a name of some size covers on one side of a dot."""
    left, low = (
        middle + towards * reach - {-1: length, 0: length / 2, 1: 0.0}[towards]
        for middle, length, towards in zip(dot, size, side, strict=True)
    )
    return Box(left, low, left + size[0], low + size[1])
