"""Text that all report formats share.

Formatted numbers, tone marks, origin warnings, wrapped labels, figures in a sentence.

A number has three or four significant digits; a dash represents what was not measured.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from typing import TYPE_CHECKING

from assay.core.format import format_range
from assay.core.page import HeatMap, LinePlot, ScatterPlot, StripPlot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.page import Cell, Figure, ScatterPoint, Table, Tone
    from assay.core.results import Origin


DASH = "–"
_SMALLEST, _LARGEST = 1e-3, 1e6
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_cell(cell: Cell) -> str:
    """Format a single cell.

    A float has three or four significant digits (four, and the fourth is dropped when it is zero), all of
    its whole digits, and an exponent only below 0.001 and from a million on. NaN was not measured.
    """
    if cell is None:
        return DASH
    if isinstance(cell, float):
        return f"{cell:.0f}" if _is_plain(cell) and cell.is_integer() and abs(cell) < 1e4 else _format_float(cell)
    return str(cell)


def format_column(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Format the cells of a column, with the same number of decimals if they are similar in size."""
    floats = [cell for cell in cells if isinstance(cell, float)]
    if all(not math.isfinite(number) or number.is_integer() for number in floats):
        return tuple(format_cell(cell) for cell in cells)
    decimals = _common_decimals([number for number in floats if number != 0])
    return tuple(_format_float(cell, decimals) if isinstance(cell, float) else format_cell(cell) for cell in cells)


def format_rows(table: Table) -> list[tuple[str, ...]]:
    """Format the rows of a table, each column alike."""
    columns = [format_column([row[index] for row in table.rows]) for index in range(len(table.columns))]
    return list(zip(*columns, strict=True))


def format_matrix(numbers: Sequence[float]) -> tuple[str, ...]:
    """Format the numbers of a matrix alike: the largest has four digits, the others as many decimals."""
    nonzero = [number for number in numbers if math.isfinite(number) and number != 0]
    largest = max((abs(number) for number in nonzero), default=0.0)
    if largest and not _is_plain(largest):
        return tuple(_format_float(number) for number in numbers)
    decimals = max(0, 3 - _exponent(largest))
    while decimals and all(f"{number:.{decimals}f}".endswith("0") for number in nonzero):
        decimals -= 1
    return tuple(_format_float(number, decimals) for number in numbers)


def format_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Format an estimate and its interval: ``1.234 (1.220–1.251)``; without an interval the value alone."""
    if value is None:
        return DASH
    if low is None or high is None:
        return format_cell(value)
    middle, left, right = format_column([float(value), float(low), float(high)])
    return f"{middle} ({format_range(left, right)})"


def format_ticks(values: Sequence[float]) -> tuple[str, ...]:
    """Format an axis's ticks with as many decimals as distinguish them, and no more."""
    finite = [value for value in values if math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    if largest >= _LARGEST or 0 < largest < _SMALLEST:
        return tuple(_format_exponent(value, shortest=True) if value else "0" for value in values)
    decimals = next((d for d in range(7) if all(abs(round(v, d) - v) <= largest * 1e-9 for v in finite)), 7)
    return tuple(_format_fixed(value, decimals) for value in values)


def _is_plain(number: float) -> bool:
    """Return whether a number is written without an exponent."""
    return number == 0 or _SMALLEST <= abs(number) < _LARGEST


def _format_float(number: float, decimals: int | None = None) -> str:
    """Format a number with so many decimals; null: as many as its size needs."""
    if math.isnan(number):
        return DASH
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if decimals is not None:
        return _format_fixed(number, decimals)
    if number == 0:
        return "0"
    if not _is_plain(number):
        return _format_exponent(number)
    text = _format_fixed(number, max(0, 3 - _exponent(number)))
    return text[:-1].removesuffix(".") if "." in text and text.endswith("0") else text


def _format_fixed(number: float, decimals: int) -> str:
    """Format with fixed decimals; thousands separators from ten thousand on, and zero has no sign."""
    comma = "," if abs(number) >= 1e4 else ""
    return f"{number:z{comma}.{decimals}f}"


def _format_exponent(number: float, *, shortest: bool = False) -> str:
    mantissa, exponent = f"{number:.3e}".split("e")
    mantissa = f"{float(mantissa):g}" if shortest else mantissa.removesuffix("0")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def _exponent(number: float) -> int:
    """Return the power of ten of a number rounded to four digits."""
    return int(f"{abs(number):.3e}".split("e")[1])


def _common_decimals(numbers: Sequence[float]) -> int | None:
    """Return the decimals that give every number three or four digits; null if they differ too much in size.

    The last decimal is dropped where it is zero in all of them.
    """
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite or not all(_is_plain(number) for number in finite):
        return None
    exponents = [_exponent(number) for number in finite]
    if max(exponents) - min(exponents) > 1:
        return None
    decimals = max(0, 3 - max(exponents))
    spare = decimals > 0 and all(f"{number:.{decimals}f}".endswith("0") for number in finite)
    return decimals - 1 if spare else decimals


TONE_MARKS: Mapping[Tone, str] = {"plain": "", "good": "✓", "bad": "✗", "unsure": "?"}
"""A sign beside each tone, so that no reader depends on colour."""

_CONTROL = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROL |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "�") | {0x2028: "\n", 0x2029: "\n"}
_CODE = re.compile(r"(?<!`)`(?=[^`\s])([^`\n|]*[^`\s|])`(?!`)")
_MAX_ITEMS = 6
_PIECE = re.compile(r"(?:[^\s/_@.,:;=|-]|[.,](?=\d))*[\s/_@.,:;=|-]?")
"""A piece of a label ends after a space or a separator; a number is never split."""


def visible_text(text: str) -> str:
    """Replace control characters with symbols, so that no name can control a terminal or break a file."""
    return text.replace("\r\n", "\n").replace("\t", " ").translate(_CONTROL)


def split_code(text: str) -> list[tuple[str, bool]]:
    """Split a text into plain parts and code, which is enclosed in backticks; these are removed."""
    parts = _CODE.split(text)
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


def one_line(text: str) -> str:
    """Return a visible text on one line."""
    return " ".join(visible_text(text).split())


def display_width(text: str) -> int:
    """Return the width of a line in columns; Chinese, Japanese and Korean characters count twice."""
    return sum(_character_width(letter) for letter in text)


def wrap_label(text: str, width: int) -> str:
    """Wrap a label, after spaces and separators where possible, else inside a word."""
    lines = [""]
    for piece in _PIECE.findall(one_line(text)):
        if display_width(lines[-1]) + display_width(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while display_width(lines[-1].rstrip()) > width and len(lines[-1]) > 1:
            fitting = max(1, sum(reach <= width for reach in itertools.accumulate(map(_character_width, lines[-1]))))
            lines[-1:] = [lines[-1][:fitting], lines[-1][fitting:]]
    return "\n".join(line.strip() for line in lines)


def _character_width(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in {"Cf", "Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def row_tones(table: Table) -> tuple[Tone, ...]:
    """Return one tone per row; a table without tones is plain."""
    plain: Tone = "plain"
    return table.tones if table.tones is not None else tuple(plain for _ in table.rows)


def with_unit(axis: str, unit: str) -> str:
    """Return an axis's title with its unit, once."""
    axis, unit = one_line(axis), one_line(unit)
    return axis if not unit or axis.endswith(f"({unit})") else f"{axis} ({unit})".strip()


def origin_warning(origin: Origin) -> str | None:
    """Return the headline of the banner for numbers that no machine measured; null for real ones."""
    return None if origin == "real" else f"These numbers come from a {origin} source"


WARNING_DETAIL = "No hardware was measured. Use this page to check the report itself, not to decide anything."


def describe_figure(figure: Figure) -> str:
    """Describe in words what a figure shows, for those who cannot see it."""
    if isinstance(figure, StripPlot):
        kind, unit = "Strip plot", one_line(figure.unit)
        items = [
            f"{one_line(s.label)} {format_interval(s.value, s.low, s.high)} {unit}".strip()
            if s.value is not None
            else f"{one_line(s.label)}, {len(s.samples)} samples"
            for s in figure.strips
        ]
    elif isinstance(figure, LinePlot):
        kind, items = "Line chart", [f"{one_line(line.label)}{_describe_range(line.y)}" for line in figure.lines]
    elif isinstance(figure, ScatterPlot):
        kind, items = "Scatter plot", [f"{one_line(figure.y_axis)} by {one_line(figure.x_axis)}"]
        items += [
            f"{dot_name(dot)} at {format_cell(dot.x)} and {format_interval(dot.y, dot.y_low, dot.y_high)}"
            for dot in figure.dots
        ]
    elif isinstance(figure, HeatMap):
        kind, items = "Heat map", _describe_heat_map(figure)
    else:
        end = format_cell(max(bar.end_s for bar in figure.bars))
        lanes = dict.fromkeys(one_line(bar.lane) for bar in figure.bars)
        kind, items = "Timeline", [f"{len(figure.bars)} spans until {end} s", *lanes]
    shown = items[:_MAX_ITEMS] + ([f"and {len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else [])
    return f"{kind}: {one_line(figure.title)}. {'; '.join(shown)}."


def _describe_range(values: Sequence[float | None]) -> str:
    measured = [value for value in values if value is not None]
    return f" from {format_cell(min(measured))} to {format_cell(max(measured))}" if measured else ", nothing measured"


def _describe_heat_map(figure: HeatMap) -> list[str]:
    size = f"{len(figure.rows)} rows by {len(figure.columns)} columns"
    values = [cell for row in figure.cells for cell in row]
    if all(value is None for value in values):
        return [f"{size}, nothing measured"]
    unsure = sum(doubt for row in figure.unsure or () for doubt in row)
    span = f"values{_describe_range(values)} {one_line(figure.unit)}".strip()
    return [size, span, *([f"{unsure} not decided"] if unsure else [])]


def dot_name(dot: ScatterPoint) -> str:
    """Return the group and the label of a point."""
    return ", ".join(part for part in (one_line(dot.group), one_line(dot.label)) if part)
