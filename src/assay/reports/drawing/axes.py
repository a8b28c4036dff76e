"""The plot area of a figure: scales, ticks, grid, titles of axes and legend.

      legend
title │ ticks  ┌────────────┐ room for notes
      │ labels │  the plot  │
               └────────────┘
                 tick labels
                    title
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import typeset_minus
from assay.reports.drawing.shapes import CAP_HEIGHT, LINE_HEIGHT, Box, Canvas, Label, text_height, text_width
from assay.reports.text import format_ticks, origin_warning, wrap_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import Origin
    from assay.reports.drawing.palette import Ink
    from assay.reports.scales import Axis, Floats

WIDTH = 453.6
"""Width of a figure, in points."""
MARGIN = 4.5
"""Free space around everything, in points."""
LABEL_CHARACTERS = 24
AXIS_CHARACTERS = 70
TITLE_SIZE, TICK_SIZE, LEGEND_SIZE, NOTE_SIZE = 9.0, 8.5, 8.5, 8.0
_HEAD_SIZE, _FOOT_SIZE = 10.5, 7.5
_TICK, _PAD = 3.0, 3.5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_SLACK = 1e-9


def linear_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` + 1 round numbers between two, ``whole`` ones where they count something."""
    width = high - low
    if not width > 0:
        return [low]
    decade = 10.0 ** math.floor(math.log10(width / most))
    steps = [step * decade for step in (*_STEPS, 20.0)]
    if whole:
        steps = [step for step in steps if step == round(step)] or [1.0]
    step = next((step for step in steps if width / step <= most), steps[-1])
    first, last = math.ceil(low / step - _SLACK), math.floor(high / step + _SLACK)
    return [round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return about ``most`` numbers between two, at least two: powers of ten, with 2 and 5 between if there is room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for every, factors in ((1, (1.0, 2.0, 5.0)), *((every, (1.0,)) for every in range(1, len(decades) + 1))):
        powers = (10.0**decade for decade in decades if decade % every == 0)
        finer, ticks = ticks, [factor * power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low * (1 - _SLACK) <= tick <= high * (1 + _SLACK)]
        if len(ticks) < 2:
            return finer or [tick for tick in linear_ticks(low, high, max(4, most)) if tick > 0]
        if len(ticks) <= most + 1:
            break
    return ticks


def tick_texts(ticks: Sequence[float], *, log: bool) -> tuple[str, ...]:
    """Format ticks like the cells of a table: alike, or each by itself where they differ in size."""
    if not log:
        return tuple(map(typeset_minus, format_ticks(ticks)))
    return tuple(typeset_minus(format_ticks([tick])[0].removeprefix("1×")) for tick in ticks)


@dataclass(frozen=True)
class Ticks:
    """An axis with its ticks, what is written at them, and its title."""

    axis: Axis
    values: tuple[float, ...]
    texts: tuple[str, ...]
    title: str = ""

    @classmethod
    def numbered(
        cls, axis: Axis, title: str = "", *, most: int = 6, whole: bool = False, values: Sequence[float] | None = None
    ) -> Ticks:
        """Return an axis with round numbers, or with the given ones."""
        if values is None:
            values = log_ticks(axis.low, axis.high, most) if axis.log else None
            values = values or linear_ticks(axis.low, axis.high, most, whole=whole)
        return cls(axis, tuple(values), tick_texts(values, log=axis.log), title)

    @property
    def left_room(self) -> float:
        """The width that its texts and its turned title take on the left of a plot."""
        texts = max((text_width(text, TICK_SIZE) for text in self.texts), default=0.0)
        return texts + _PAD + (_title_height(self.title) if self.title else 0.0)

    @property
    def right_edge(self) -> float:
        """The right edge of a plot over this axis: the last text may reach half its width beyond it."""
        return WIDTH - MARGIN - max([MARGIN, *(text_width(text, TICK_SIZE) / 2 for text in self.texts[-1:])])


def _title_height(title: str) -> float:
    return text_height(title, TITLE_SIZE) + 2 * _PAD


@dataclass(frozen=True)
class PlotArea:
    """The rectangle of a plot on a canvas; values are placed on it by two axes, the vertical one upwards."""

    canvas: Canvas
    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def across(self, values: Sequence[float] | Floats) -> Floats:
        """Return the horizontal positions of values, in points."""
        return self.left + self.x.position(np.asarray(values, dtype=np.float64)) * (self.right - self.left)

    def down(self, values: Sequence[float] | Floats) -> Floats:
        """Return the vertical positions of values, in points."""
        return self.bottom - self.y.position(np.asarray(values, dtype=np.float64)) * (self.bottom - self.top)

    def points(self, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Floats:
        """Return the positions of pairs of values."""
        return np.column_stack([self.across(x), self.down(y)])

    def draw_x_axis(self, ticks: Ticks, *, labelled: bool = True) -> None:
        """Draw the grid; below the plot, if it is ``labelled``, the axis with its texts and its title."""
        positions = [float(position) for position in self.across(ticks.values)]
        self.canvas.line([[(x, self.top), (x, self.bottom)] for x in positions], "rule", 0.7)
        if not labelled:
            return
        base, below = self.bottom, self.bottom + _TICK + _PAD
        runs = [[(self.left, base), (self.right, base)], *([(x, base), (x, base + _TICK)] for x in positions)]
        self.canvas.line(runs, "muted", 0.8)
        for x, text in zip(positions, ticks.texts, strict=True):
            self.canvas.write(text, (x, below), TICK_SIZE, anchor="middle")
        below += max((text_height(text, TICK_SIZE) for text in ticks.texts), default=0.0)
        if ticks.title:
            middle = (self.left + self.right) / 2
            half = text_width(ticks.title, TITLE_SIZE) / 2
            middle = max(min(middle, self.canvas.width - MARGIN - half), MARGIN + half)
            self.canvas.write(ticks.title, (middle, below + 2 * _PAD), TITLE_SIZE, anchor="middle")
            below += _title_height(ticks.title)
        self.canvas.height = max(self.canvas.height, below + MARGIN)

    def draw_y_axis(self, ticks: Ticks) -> None:
        """Draw the grid, and the texts and the title on the left."""
        positions = [float(position) for position in self.down(ticks.values)]
        self.canvas.line([[(self.left, y), (self.right, y)] for y in positions], "rule", 0.7)
        self.write_rows(zip(positions, ticks.texts, strict=True))
        lines = ticks.title.split("\n") if ticks.title else []
        for number, line in enumerate(lines):
            x = MARGIN + TITLE_SIZE * (CAP_HEIGHT + number * LINE_HEIGHT)
            middle = (self.top + self.bottom) / 2
            self.canvas.add(Label(line, x, middle, TITLE_SIZE, anchor="middle", degrees=90.0))

    def write_rows(self, rows: Iterable[tuple[float, str]]) -> None:
        """Write texts on the left, each around its vertical position."""
        for middle, text in rows:
            self.canvas.write(text, (self.left - _PAD, middle), TICK_SIZE, anchor="end", middle=True)


@dataclass(frozen=True)
class LegendEntry:
    """A label, and how its symbol is drawn around a point."""

    label: str
    draw: Callable[[Canvas, float, float], None]


_KEY_WIDTH, _KEY_GAP, _ENTRY_GAP = 16.0, 5.0, 14.0


def draw_legend(canvas: Canvas, entries: Sequence[LegendEntry], left: float, top: float) -> float:
    """Draw a legend in as many columns as fit, row by row; return the position below it."""
    texts = [wrap_label(entry.label, 40) for entry in entries]
    room = canvas.width - MARGIN - left
    widths = [_KEY_WIDTH + _KEY_GAP + text_width(text, LEGEND_SIZE) + _ENTRY_GAP for text in texts]
    if sum(widths) - _ENTRY_GAP > room:
        columns = max(1, int(room // max(widths)))
        widths = [max(widths[column::columns]) for column in range(columns)]
    rows = [range(start, min(start + len(widths), len(texts))) for start in range(0, len(texts), len(widths))]
    for row in rows:
        height = max(text_height(texts[index], LEGEND_SIZE) for index in row)
        x = left
        for index, width in zip(row, widths, strict=False):
            entries[index].draw(canvas, x + _KEY_WIDTH / 2, top + height / 2)
            canvas.write(texts[index], (x + _KEY_WIDTH + _KEY_GAP, top + height / 2), LEGEND_SIZE, middle=True)
            x += width
        top += height + LEGEND_SIZE * 0.6
    return top + LEGEND_SIZE * 0.4


def box_key(ink: Ink) -> Callable[[Canvas, float, float], None]:
    """Return a legend's coloured box."""
    return lambda canvas, x, y: canvas.add(Box(x - _KEY_WIDTH / 2, y - 3, _KEY_WIDTH, 6, ink))


def add_caption(canvas: Canvas, title: str, remarks: Sequence[str], origin: Origin) -> Canvas:
    """Return the drawing with a title above, and below the remarks and the warning about the numbers' origin."""
    captioned = Canvas(canvas.width, canvas.height, list(canvas.shapes))
    head = wrap_label(title, int(canvas.width / 6.9))
    captioned.top = -(text_height(head, _HEAD_SIZE) + 2 * MARGIN)
    captioned.write(head, (MARGIN, captioned.top + MARGIN), _HEAD_SIZE, bold=True)
    warning = origin_warning(origin)
    foot = wrap_label(" ".join(remarks), int(canvas.width / 4.4))
    for text, size, ink in ((foot, _FOOT_SIZE, "muted"), (f"{warning}." if warning else "", NOTE_SIZE, "warning")):
        if text:
            captioned.write(text, (MARGIN, captioned.height + MARGIN), size, ink, bold=ink == "warning")
            captioned.height += text_height(text, size) + 2.5 * MARGIN
    return captioned
