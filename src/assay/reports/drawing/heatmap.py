"""Heat maps: a matrix of coloured cells with their numbers; grey where undecided, hatched where not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import typeset_minus
from assay.reports.drawing.sheet import (
    CAP_HEIGHT,
    LABEL_CHARACTERS,
    LINE_HEIGHT,
    MARGIN,
    NOTE_SIZE,
    TICK_SIZE,
    TITLE_SIZE,
    WIDTH,
    Box,
    Canvas,
    Label,
    LegendEntry,
    Polygon,
    box_key,
    draw_legend,
    linear_ticks,
    readable_ink,
    text_height,
    text_width,
    tick_texts,
)
from assay.reports.scales import FULL_COLOUR, Axis, Floats, finite, shade_scale
from assay.reports.text import format_cell, format_matrix, one_line, wrap_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import HeatMap
    from assay.reports.drawing.sheet import Ink

_CELL, _SMALL_CELL, _CELL_HEIGHT, _GAP = 40.3, 12.2, 26.0, 1.2
_MAX_NUMBERED_COLUMNS = 20
"""Columns up to which each cell carries its number; a larger matrix has colours alone."""
_RATIO = "×"
"""Contained in the unit of a ratio."""
_RATIO_TICKS = {
    1.25: (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2),
    FULL_COLOUR: (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0),
}
"""The ratios that the colour bar labels, by how far the colours reach."""
_ALMOST = 1 - 1e-9
_BAR_GAP, _BAR_WIDTH, _BAR_STEPS, _MIN_BAR = 12.0, 12.0, 48, 60.0
_HATCH = 5.0
"""Distance of the lines of a hatched cell, in points."""


class _Shades:
    """What colour a number has: an ink over a ground, the more opaque the further from the centre or the lowest."""

    def __init__(self, heat_map: HeatMap, values: Floats) -> None:
        numbers = finite(list(values.ravel()))
        self.centre = heat_map.centre
        if self.centre is not None:
            self._scale = shade_scale(values, self.centre, ratios=_RATIO in heat_map.unit)
            self.low, self.high, self.log = self._scale.low, self._scale.high, self._scale.log
        else:
            self.low, self.high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
            self.high = self.high if self.high > self.low else self.low + (abs(self.low) or 1.0)
            self.log = False
        self.below = bool(len(numbers) and numbers.min() < self.low - abs(self.low) * (1 - _ALMOST))
        self.above = bool(len(numbers) and numbers.max() > self.high + abs(self.high) * (1 - _ALMOST))
        used = np.clip(finite([*numbers, self.centre]), self.low, self.high)
        ends = (float(used.min()), float(used.max())) if len(used) else (self.low, self.high)
        self.axis = Axis(*(ends if ends[1] > ends[0] else (self.low, self.high)), log=self.log)
        """The part of the scale that is in use."""

    def of(self, value: float) -> tuple[Ink, Ink, float]:
        """Return the ground, the ink over it, and its opacity."""
        if self.centre is None:
            return "faint", "strong", min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        strength = self._scale.strength(value)
        return "middle", "above" if strength > 0 else "below", abs(strength)

    def ticks(self) -> list[float]:
        """Return what the colour bar labels."""
        if self.centre is None or not self.log:
            return linear_ticks(self.axis.low, self.axis.high, 6)
        reach = self.high / self.centre
        ratios = next((ticks for limit, ticks in _RATIO_TICKS.items() if reach <= limit / _ALMOST), ())
        return [tick for ratio in ratios if self.axis.low <= (tick := self.centre * ratio) <= self.axis.high]


def draw_heat_map(heat_map: HeatMap) -> tuple[Canvas, list[str]]:
    """Draw the matrix; also return the remarks to print below it."""
    numbered = len(heat_map.columns) <= _MAX_NUMBERED_COLUMNS
    values = np.array([[np.nan if c is None else c for c in row] for row in heat_map.cells], dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    sure = values if heat_map.unsure is None else np.where(np.array(heat_map.unsure, dtype=bool), np.nan, values)
    shades = _Shades(heat_map, sure)
    rows = [wrap_label(name, LABEL_CHARACTERS) for name in heat_map.rows]
    height = max(_CELL_HEIGHT if numbered else _SMALL_CELL, max(text_height(row, TICK_SIZE) for row in rows) + 6)
    left = MARGIN + max(text_width(row, TICK_SIZE) for row in rows) + 5
    texts = tick_texts(shades.ticks(), log=shades.log)
    bar_room = _BAR_GAP + _BAR_WIDTH + 5 + max((text_width(text, NOTE_SIZE) for text in texts), default=0.0)
    bar_room += MARGIN + 2.5 * TITLE_SIZE
    cell = max((WIDTH - left - bar_room) / len(heat_map.columns), _CELL if numbered else _SMALL_CELL)
    right = left + cell * len(heat_map.columns)
    canvas = Canvas(right + bar_room)
    top = _draw_legend(canvas, left, values, sure, heat_map.centre) + (8 if shades.above else 0)
    bottom = top + height * len(rows)
    grid = _Grid(canvas, left, top, cell, height)
    grid.draw_cells(values, sure, shades, numbered=numbered)
    for index, row in enumerate(rows):
        canvas.write(row, (left - 5, top + (index + 0.5) * height), TICK_SIZE, anchor="end", middle=True)
    canvas.height = grid.label_columns(heat_map.columns, bottom) + MARGIN
    _draw_colour_bar(canvas, (right + _BAR_GAP, top, bottom), shades, texts, heat_map.unit)
    return canvas, _remarks(shades, numbered=numbered)


@dataclass(frozen=True)
class _Grid:
    """The cells of a matrix on a canvas."""

    canvas: Canvas
    left: float
    top: float
    width: float
    height: float
    """Of one cell."""

    def draw_cells(self, values: Floats, sure: Floats, shades: _Shades, *, numbered: bool) -> None:
        """Draw each cell and, if there is room, its number; undecided cells are grey, decided ones stand out."""
        doubted = _has_undecided(values, sure)
        texts = iter(format_matrix([float(value) for value in values.ravel()]))
        gap = _GAP if numbered else 0.0
        for (row, column), value in np.ndenumerate(values):
            text = next(texts)
            x, y = self.left + column * self.width, self.top + row * self.height
            if not np.isfinite(value):
                self.canvas.line(_hatch(x + 1, y + 1, self.width - 2, self.height - 2), "rule", 0.7)
                continue
            is_sure = bool(np.isfinite(sure[row, column]))
            ground, ink, opacity = shades.of(float(value)) if is_sure else ("rule", "rule", 0.0)
            cell = x + gap / 2, y + gap / 2, self.width - gap, self.height - gap
            self.canvas.add(Box(*cell, ground))
            if opacity > 0:
                self.canvas.add(Box(*cell, ink, opacity))
            if numbered:
                self.canvas.write(
                    typeset_minus(text),
                    (x + self.width / 2, y + self.height / 2),
                    NOTE_SIZE,
                    readable_ink(ground, ink, opacity) if is_sure else "muted",
                    "middle",
                    middle=True,
                    bold=is_sure and doubted,
                )

    def label_columns(self, columns: Sequence[str], bottom: float) -> float:
        """Write the columns' names below, inclined where they do not fit; return the position below them."""
        fits = max(1, int(self.width / 6.3))
        texts = [wrap_label(name, fits) for name in columns]
        broken = any(len(word) > fits for name in columns for word in one_line(name).replace("_", " ").split())
        middles = [self.left + (index + 0.5) * self.width for index in range(len(columns))]
        if not broken and fits >= 4 and max(text.count("\n") for text in texts) <= 2:
            for x, text in zip(middles, texts, strict=True):
                self.canvas.write(text, (x, bottom + 5), TICK_SIZE, anchor="middle")
            return bottom + 5 + max(text_height(text, TICK_SIZE) for text in texts)
        steep = self.width <= 21.6
        degrees = 90.0 if steep else 40.0
        names = [wrap_label(name, 60 if steep else LABEL_CHARACTERS).split("\n") for name in columns]
        for x, lines in zip(middles, names, strict=True):
            for index, line in enumerate(lines):
                across = x + CAP_HEIGHT * TICK_SIZE * (0.5 if steep else 0.8) + (index - (len(lines) - 1) / 2) * 10.6
                self.canvas.add(Label(line, across, bottom + 7, TICK_SIZE, anchor="end", degrees=degrees))
        longest = max(text_width(line, TICK_SIZE) for lines in names for line in lines)
        return bottom + 12 + longest * float(np.sin(np.deg2rad(degrees)))


def _hatch(x: float, y: float, width: float, height: float) -> list[list[tuple[float, float]]]:
    """Return diagonal lines that fill a rectangle, each from its lower left to its upper right end."""
    lines = []
    for number in range(1, int((width + height) / _HATCH) + 1):
        reach = number * _HATCH
        start = (x + max(0.0, reach - height), y + min(reach, height))
        end = (x + min(reach, width), y + max(0.0, reach - width))
        lines.append([start, end])
    return lines


def _has_undecided(values: Floats, sure: Floats) -> bool:
    """Return whether some measured cells are undecided."""
    return bool(np.any(np.isfinite(values) & ~np.isfinite(sure)))


def _draw_legend(canvas: Canvas, left: float, values: Floats, sure: Floats, centre: float | None) -> float:
    """Explain grey and hatched cells above the matrix; return the position below."""
    entries = []
    if _has_undecided(values, sure):
        neutral = "no change" if centre is None else typeset_minus(format_cell(centre))
        entries.append(LegendEntry(f"undecided: the interval contains {neutral}", box_key("rule")))
    if np.any(np.isnan(values)):
        entries.append(
            LegendEntry("not measured", lambda area, x, y: area.line(_hatch(x - 8, y - 4, 16, 8), "muted", 0.7))
        )
    return draw_legend(canvas, entries, left, MARGIN) if entries else MARGIN


def _draw_colour_bar(
    canvas: Canvas, position: tuple[float, float, float], shades: _Shades, texts: Sequence[str], unit: str
) -> None:
    """Put the colour scale on the right, as far as the numbers reach; an arrow where they go beyond it."""
    left, top, bottom = position
    bottom = max(bottom, top + _MIN_BAR)
    step = (bottom - top) / _BAR_STEPS
    for number in range(_BAR_STEPS):
        ground, ink, opacity = shades.of(shades.axis.at(1 - (number + 0.5) / _BAR_STEPS))
        part = left, top + number * step, _BAR_WIDTH, step
        canvas.add(Box(*part, ground), Box(*part, ink, opacity))
    for beyond, tip, base in ((shades.above, top - 8, top), (shades.below, bottom + 8, bottom)):
        if beyond:
            corners = [(left, base), (left + _BAR_WIDTH, base), (left + _BAR_WIDTH / 2, tip)]
            canvas.add(Polygon(np.array(corners), "above" if tip < base else "below"))
    right = left + _BAR_WIDTH + 5
    for tick, text in zip(shades.ticks(), texts, strict=True):
        y = bottom - float(shades.axis.position(np.array([tick]))[0]) * (bottom - top)
        canvas.write(text, (right, y), NOTE_SIZE, middle=True)
    title = wrap_label(unit, max(10, int((bottom - top) / 6)))
    for index, line in enumerate(reversed(title.split("\n"))):
        x = canvas.width - MARGIN - index * TITLE_SIZE * LINE_HEIGHT
        canvas.add(Label(line, x, (top + bottom) / 2, TITLE_SIZE, anchor="middle", degrees=90.0))
    canvas.height = max(canvas.height, bottom + 2 * MARGIN)


def _remarks(shades: _Shades, *, numbered: bool) -> list[str]:
    remarks = []
    if shades.centre is not None:
        centre = typeset_minus(format_cell(shades.centre))
        remarks.append(f"Blue is below {centre}, orange above.")
        if shades.log and (shades.below or shades.above):
            remarks.append(f"All ratios of {FULL_COLOUR:g} and more have the same colour.")
    if not numbered:
        remarks.append("Too many columns to write the numbers into the cells.")
    return remarks
