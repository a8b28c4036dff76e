"""Heat maps: a matrix of coloured cells with their numbers; grey where undecided, hatched where not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator

from assay.core.format import typeset_minus
from assay.reports.drawing.sheet import (
    LABEL_CHARACTERS,
    LINE_IN,
    WIDTH_IN,
    NumberFormatter,
    add_legend,
    new_sheet,
    readable_on,
)
from assay.reports.scales import FULL_COLOUR, Floats, finite, shade_scale
from assay.reports.text import format_cell, format_matrix, one_line, wrap_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from assay.core.page import HeatMap
    from assay.reports.drawing.sheet import Colour, Theme

_CELL_IN = 0.56
_SMALL_CELL_IN = 0.17
_RATIO = "×"
"""Contained in the unit of a ratio."""
_TICKS = {1.25: (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2), FULL_COLOUR: (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)}
"""The ratios that the colour bar labels, by how far the colours reach."""
_ALMOST = 1 - 1e-9
_MAX_NUMBERED_COLUMNS = 20
"""Columns up to which each cell carries its number; a larger matrix has colours alone."""


def draw_heat_map(heat_map: HeatMap, theme: Theme) -> tuple[Figure, list[str]]:
    """Draw the matrix; also return the remarks to print below it."""
    numbered = len(heat_map.columns) <= _MAX_NUMBERED_COLUMNS
    values = np.array([[np.nan if c is None else c for c in row] for row in heat_map.cells], dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    rows = [wrap_label(name, LABEL_CHARACTERS) for name in heat_map.rows]
    aside_in = max(len(line) for row in rows for line in row.split("\n")) * 0.085 + 1.1
    width_in = max(WIDTH_IN, aside_in + len(heat_map.columns) * (_CELL_IN if numbered else _SMALL_CELL_IN))
    height_in = len(rows) * _row_height(rows, numbered=numbered)
    figure = new_sheet(height_in + 0.3, theme, width_in=width_in)
    axes = figure.add_subplot(xlim=(-0.5, len(heat_map.columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    sure = values if heat_map.unsure is None else np.where(np.array(heat_map.unsure, dtype=bool), np.nan, values)
    colours = _cell_colours(sure, heat_map, theme)
    _draw_cells(axes, values, sure, colours, theme, numbered=numbered)
    _label_axes(axes, rows, heat_map.columns, (width_in - aside_in) / len(heat_map.columns))
    _add_colour_bar(axes, colours, sure, heat_map, height_in)
    _add_explanations(axes, values, sure, heat_map, theme)
    return figure, _remarks(heat_map, sure, numbered=numbered)


def _row_height(rows: list[str], *, numbered: bool) -> float:
    lines_in = max(row.count("\n") + 1 for row in rows) * LINE_IN
    return max(0.36, lines_in + 0.1) if numbered else max(_SMALL_CELL_IN, lines_in)


def _cell_colours(sure: Floats, heat_map: HeatMap, theme: Theme) -> ScalarMappable:
    """Return the colour mapping; around a centre, equal steps up and down are equally strong."""
    finite_values = finite(list(sure.ravel()))
    if heat_map.centre is not None:
        scale = shade_scale(sure, heat_map.centre, ratios=_RATIO in heat_map.unit)
        norm = (LogNorm if scale.log else Normalize)(scale.low, scale.high, clip=True)
        return ScalarMappable(norm, theme.diverging)
    low, high = (float(finite_values.min()), float(finite_values.max())) if len(finite_values) else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high if high > low else low + (abs(low) or 1.0)), theme.sequential)


def _draw_cells(
    axes: Axes, values: Floats, sure: Floats, colours: ScalarMappable, theme: Theme, *, numbered: bool
) -> None:
    """Draw each measured cell and, if there is room, its number; undecided cells are grey, decided ones stand out."""
    doubted = _has_undecided(values, sure)
    texts = iter(format_matrix([float(value) for value in values.ravel()]))
    edge = 1.2 if numbered else 0.0
    for (row, column), value in np.ndenumerate(values):
        text = next(texts)
        if not np.isfinite(value):
            continue
        is_sure = bool(np.isfinite(sure[row, column]))
        red, green, blue = (float(part) for part in colours.to_rgba(np.array([value]))[0][:3])
        face: Colour = (red, green, blue) if is_sure else theme.rule
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor=theme.background, linewidth=edge))
        if numbered:
            ink = readable_on(face) if is_sure else theme.muted
            weight = "bold" if is_sure and doubted else "normal"
            axes.text(
                column, row, typeset_minus(text), ha="center", va="center", fontsize=8.0, color=ink, weight=weight
            )


def _label_axes(axes: Axes, rows: list[str], columns: tuple[str, ...], cell_in: float) -> None:
    """Label the rows on the left and the columns below; column labels are rotated where they do not fit."""
    axes.set_yticks(range(len(rows)), rows)
    fits = max(1, int(cell_in / 0.088))
    texts = [wrap_label(name, fits) for name in columns]
    broken = any(len(word) > fits for name in columns for word in one_line(name).replace("_", " ").split())
    if broken or fits < 4 or max(text.count("\n") for text in texts) > 2:
        steep = cell_in <= 0.3
        leaning = [wrap_label(name, 60 if steep else LABEL_CHARACTERS) for name in columns]
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


def _add_colour_bar(axes: Axes, colours: ScalarMappable, sure: Floats, heat_map: HeatMap, height_in: float) -> None:
    """Put the colour scale on the right, as far as the numbers reach; an arrow where they go beyond it."""
    figure = cast("Figure", axes.get_figure())
    aspect = min(20.0, max(6.0, height_in * 7))
    finite_values, low, high = finite(list(sure.ravel())), *(float(end or 0.0) for end in colours.get_clim())
    beyond = (
        len(finite_values) and finite_values.min() < low * _ALMOST,
        len(finite_values) and finite_values.max() > high / _ALMOST,
    )
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get((bool(beyond[0]), bool(beyond[1])))
    bar = figure.colorbar(colours, ax=axes, pad=0.02, fraction=0.05, aspect=aspect, extend=extend or "neither")
    bar.outline.set_visible(False)
    bar.set_label(wrap_label(heat_map.unit, max(10, int(height_in * 11))))
    bar.ax.tick_params(length=0, labelsize=8.0)
    shown = np.clip(finite([*finite_values, heat_map.centre]), low, high)
    if len(shown) and float(shown.max()) > float(shown.min()):
        bar.ax.set_ylim(float(shown.min()), float(shown.max()))
    if heat_map.centre is not None and isinstance(colours.norm, LogNorm):
        start, end = bar.ax.get_ylim()
        ratios = next((ticks for reach, ticks in _TICKS.items() if high / heat_map.centre <= reach), ())
        bar.set_ticks([tick for ratio in ratios if start <= (tick := heat_map.centre * ratio) <= end])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(NumberFormatter())


def _add_explanations(axes: Axes, values: Floats, sure: Floats, heat_map: HeatMap, theme: Theme) -> None:
    """Hatch what was not measured, and explain grey and hatched cells above."""
    missing = np.argwhere(~np.isfinite(values))
    for row, column in missing:
        axes.add_patch(_hatched(float(column), float(row), theme))
    legend = {}
    if _has_undecided(values, sure):
        centre = "no change" if heat_map.centre is None else typeset_minus(format_cell(heat_map.centre))
        legend[f"not decided: the interval has {centre} in it"] = Patch(facecolor=theme.rule)
    if len(missing):
        legend["not measured"] = Patch(facecolor="none", edgecolor=theme.muted, hatch="////", linewidth=0.6)
    if legend:
        add_legend(axes, list(legend.values()), list(legend))


def _has_undecided(values: Floats, sure: Floats) -> bool:
    """Return whether some measured cells are undecided."""
    return bool(np.any(np.isfinite(values) & ~np.isfinite(sure)))


def _hatched(column: float, row: float, theme: Theme) -> Rectangle:
    return Rectangle(
        (column - 0.47, row - 0.45), 0.94, 0.9, facecolor="none", edgecolor=theme.rule, hatch="////", linewidth=0.0
    )


def _remarks(heat_map: HeatMap, sure: Floats, *, numbered: bool) -> list[str]:
    remarks = []
    if heat_map.centre is not None:
        centre = typeset_minus(format_cell(heat_map.centre))
        remarks.append(f"Blue is below {centre}, orange above.")
        scale, finite_values = (
            shade_scale(sure, heat_map.centre, ratios=_RATIO in heat_map.unit),
            finite(list(sure.ravel())),
        )
        if (
            scale.log
            and len(finite_values)
            and (finite_values.max() > scale.high / _ALMOST or finite_values.min() < scale.low * _ALMOST)
        ):
            remarks.append(f"From {FULL_COLOUR:g}-fold on, the colour does not grow.")
    if not numbered:
        remarks.append("Too many columns to write the numbers into the cells.")
    return remarks
