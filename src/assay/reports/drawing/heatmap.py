"""Heat maps: a matrix of coloured cells with their numbers, hatched where nothing was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Patch, Rectangle

from assay.reports.drawing.sheet import LABEL_CHARACTERS, LINE_IN, WIDTH_IN, Numbers, add_legend, new_sheet
from assay.reports.drawing.theme import readable_on
from assay.reports.numbers import typeset, write_cell, write_matrix
from assay.reports.scales import Floats, finite
from assay.reports.wording import one_line, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.core.page import HeatMap
    from assay.reports.drawing.theme import Theme

_CELL_IN = 0.56
_SMALL_CELL_IN = 0.17
_MOST_NUMBERED = 20
"""Columns up to which each cell carries its number; the colours alone speak in a larger matrix."""


def draw_heat_map(heat_map: HeatMap, look: Theme) -> tuple[Figure, list[str]]:
    """Draw the matrix; also return the remarks that belong under the drawing."""
    numbered = len(heat_map.columns) <= _MOST_NUMBERED
    values = np.array([[np.nan if c is None else c for c in row] for row in heat_map.cells], dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    rows = [wrapped(name, LABEL_CHARACTERS) for name in heat_map.rows]
    aside_in = max(len(line) for row in rows for line in row.split("\n")) * 0.085 + 1.1
    width_in = max(WIDTH_IN, aside_in + len(heat_map.columns) * (_CELL_IN if numbered else _SMALL_CELL_IN))
    height_in = len(rows) * _row_height(rows, numbered=numbered)
    figure = new_sheet(height_in + 0.3, look, width_in=width_in)
    axes = figure.add_subplot(xlim=(-0.5, len(heat_map.columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    colours = _colours(values, heat_map.centre, look)
    _draw_cells(axes, values, colours, look, numbered=numbered)
    _label(axes, rows, heat_map.columns, (width_in - aside_in) / len(heat_map.columns))
    _add_colour_bar(axes, colours, values, heat_map, height_in)
    _hatch_missing(axes, values, look)
    return figure, _remarks(heat_map, numbered=numbered)


def _row_height(rows: list[str], *, numbered: bool) -> float:
    lines_in = max(row.count("\n") + 1 for row in rows) * LINE_IN
    return max(0.36, lines_in + 0.1) if numbered else max(_SMALL_CELL_IN, lines_in)


def _colours(values: Floats, centre: float | None, look: Theme) -> ScalarMappable:
    return ScalarMappable(_norm(values, centre), look.sequential if centre is None else look.diverging)


def _draw_cells(axes: Axes, values: Floats, colours: ScalarMappable, look: Theme, *, numbered: bool) -> None:
    """Draw each measured cell and, where there is room, its number."""
    texts = iter(write_matrix([float(value) for value in values.ravel()]))
    edge = 1.2 if numbered else 0.0
    for (row, column), value in np.ndenumerate(values):
        text = next(texts)
        if not np.isfinite(value):
            continue
        red, green, blue = (float(part) for part in colours.to_rgba(np.array([value]))[0][:3])
        corner = (column - 0.5, row - 0.5)
        face = (red, green, blue)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor=look.background, linewidth=edge))
        if numbered:
            ink = readable_on(face)
            axes.text(column, row, typeset(text), ha="center", va="center", fontsize=8.0, color=ink)


def _norm(values: Floats, centre: float | None) -> Normalize:
    """Return the scale of the colours; around a centre, equal steps up and down are equally strong."""
    known = finite(list(values.ravel()))
    if not len(known):
        return Normalize(0.0, 1.0)
    if centre is None:
        low, high = float(known.min()), float(known.max())
        return Normalize(low, high if high > low else low + (abs(low) or 1.0))
    reach = float(np.abs(known - centre).max()) or abs(centre) * 0.1 or 1.0
    return Normalize(centre - reach, centre + reach)


def _label(axes: Axes, rows: list[str], columns: tuple[str, ...], cell_in: float) -> None:
    """Name the rows on the left and the columns below; column names lean where they do not fit."""
    axes.set_yticks(range(len(rows)), rows)
    fits = max(1, int(cell_in / 0.088))
    texts = [wrapped(name, fits) for name in columns]
    broken = any(len(word) > fits for name in columns for word in one_line(name).replace("_", " ").split())
    if broken or fits < 4 or max(text.count("\n") for text in texts) > 2:
        steep = cell_in <= 0.3
        leaning = [wrapped(name, 60 if steep else LABEL_CHARACTERS) for name in columns]
        axes.set_xticks(range(len(columns)), leaning, rotation=90 if steep else 40, ha="right", va="center")
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
        extra = max(len(line) for text in leaning for line in text.split("\n")) * 0.06 + 0.1
    else:
        axes.set_xticks(range(len(columns)), texts)
        extra = (max(text.count("\n") for text in texts) + 1) * LINE_IN
    figure = cast("Figure", axes.get_figure())
    figure.set_figheight(figure.get_figheight() + extra)
    axes.tick_params(length=0, pad=5)
    axes.spines[:].set_visible(False)


def _add_colour_bar(axes: Axes, colours: ScalarMappable, values: Floats, heat_map: HeatMap, height_in: float) -> None:
    """Put the scale of the colours on the right, as far as the numbers reach."""
    figure = cast("Figure", axes.get_figure())
    aspect = min(20.0, max(6.0, height_in * 7))
    bar = figure.colorbar(colours, ax=axes, pad=0.02, fraction=0.05, aspect=aspect)
    bar.outline.set_visible(False)
    bar.set_label(wrapped(heat_map.unit, max(10, int(height_in * 11))))
    bar.ax.tick_params(length=0, labelsize=8.0)
    bar.ax.yaxis.set_major_formatter(Numbers())
    shown = finite([*values.ravel(), heat_map.centre])
    if len(shown) and float(shown.max()) > float(shown.min()):
        bar.ax.set_ylim(float(shown.min()), float(shown.max()))


def _hatch_missing(axes: Axes, values: Floats, look: Theme) -> None:
    missing = np.argwhere(~np.isfinite(values))
    if not len(missing):
        return
    for row, column in missing:
        axes.add_patch(_hatched(float(column), float(row), look))
    handle = Patch(facecolor="none", edgecolor=look.muted, hatch="////", linewidth=0.6)
    add_legend(axes, [handle], ["not measured"])


def _hatched(column: float, row: float, look: Theme) -> Rectangle:
    return Rectangle(
        (column - 0.47, row - 0.45), 0.94, 0.9, facecolor="none", edgecolor=look.rule, hatch="////", linewidth=0.0
    )


def _remarks(heat_map: HeatMap, *, numbered: bool) -> list[str]:
    told = []
    if heat_map.centre is not None:
        centre = typeset(write_cell(heat_map.centre))
        told.append(f"Blue is below {centre}, orange above.")
    if not numbered:
        told.append("Too many columns to write the numbers into the cells.")
    return told
