"""A scatter plot in a terminal: a letter for each thing on a field of letters, and what the letters mean."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text as Words

from assay.reports.grid import Grid, print_grid
from assay.reports.numbers import write_column, write_interval
from assay.reports.scales import Axis, finite
from assay.reports.wording import MARKS, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from assay.core.page import Scatter

_ROWS = 14
_MOST_COLUMNS = 64
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_SHARED = "*"
"""Where several dots fall on one letter."""


def print_scatter(figure: Scatter, console: Console) -> None:
    """Print the field, its axes and the letters' meanings."""
    x = _axis([dot.x for dot in figure.dots], log=figure.log_x)
    y = _axis([dot.y for dot in figure.dots], log=figure.log_y)
    columns = max(20, min(_MOST_COLUMNS, console.width - 14))
    field = _field(figure, x, y, columns)
    top, bottom = write_column([y.high, y.low])
    wide = max(len(top), len(bottom))
    console.print(Words(f"  {one_line(figure.y_axis)}", style="dim"))
    for row_index, line in enumerate(field):
        number = top if row_index == 0 else bottom if row_index == len(field) - 1 else ""
        console.print(Words.assemble((f"{number:>{wide}} │", "dim"), (line, "cyan")), soft_wrap=True)
    left, right = write_column([x.low, x.high])
    axis = f"{left}{' ' * max(1, columns - len(left) - len(right))}{right}"
    console.print(Words(f"{'':{wide}} └{'─' * columns}", style="dim"), soft_wrap=True)
    console.print(Words(f"{'':{wide}}  {axis}", style="dim"), soft_wrap=True)
    console.print(Words(f"{'':{wide}}  {one_line(figure.x_axis)}", style="dim"))
    _print_letters(figure, console)


def _axis(values: Sequence[float], *, log: bool) -> Axis:
    finite_values = finite(list(values))
    low, high = float(finite_values.min()), float(finite_values.max())
    log = log and low > 0
    if high > low:
        return Axis(low, high, log=log)
    return Axis(low / 2, high * 2, log=True) if log else Axis(low - 1, high + 1)


def _field(figure: Scatter, x: Axis, y: Axis, columns: int) -> list[str]:
    rows = [[" "] * columns for _ in range(_ROWS)]
    across = x.position(np.array([dot.x for dot in figure.dots]))
    up = y.position(np.array([dot.y for dot in figure.dots]))
    for letter, right, high in zip(_letters(figure), across, up, strict=True):
        row, column = _ROWS - 1 - round(float(high) * (_ROWS - 1)), round(float(right) * (columns - 1))
        rows[row][column] = letter if rows[row][column] == " " else _SHARED
    return ["".join(row) for row in rows]


def _letters(figure: Scatter) -> list[str]:
    return [_LETTERS[index] if index < len(_LETTERS) else "·" for index in range(len(figure.dots))]


def _print_letters(figure: Scatter, console: Console) -> None:
    rows = []
    for letter, dot in zip(_letters(figure), figure.dots, strict=True):
        name = ", ".join(part for part in (one_line(dot.group), one_line(dot.label)) if part)
        cells = (
            f"{letter} {MARKS[dot.tone]}".strip(),
            name,
            write_interval(dot.x, dot.x_low, dot.x_high),
            write_interval(dot.y, dot.y_low, dot.y_high),
        )
        rows.append(tuple(Words(cell) for cell in cells))
    heads = ("", "", one_line(figure.x_axis), one_line(figure.y_axis))
    print_grid(Grid(heads, ("text", "text", "number", "number"), tuple(rows)), console)
