"""The words that every format shares: the warning about an origin, the marks of tones, figures in a sentence."""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import TYPE_CHECKING

from assay.core.page import HeatMap, Lines, Scatter, Strips
from assay.reports.numbers import write_cell, write_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.page import Dot, Figure, Line, Table, Timeline, Tone
    from assay.core.results import Origin

MARKS: Mapping[Tone, str] = {"plain": "", "good": "✓", "bad": "✗", "unsure": "?"}
"""A sign beside each tone, so that no reader depends on colour."""

_CONTROL = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROL |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "�") | {0x2028: "\n", 0x2029: "\n"}
_CODE = re.compile(r"(?<!`)`(?=[^`\s])([^`\n|]*[^`\s|])`(?!`)")
_MOST_IN_A_SENTENCE = 6
_PIECE = re.compile(r"(?:[^\s/_@.,:;=|-]|[.,](?=\d))*[\s/_@.,:;=|-]?")
"""A piece of a label ends after a space or a sign that parts names; a number is never parted."""


def visible(text: str) -> str:
    """Show control characters as pictures, so that no name can steer a terminal or break a file."""
    return text.replace("\r\n", "\n").replace("\t", " ").translate(_CONTROL)


def with_code(text: str) -> list[tuple[str, bool]]:
    """Part a text into what is words and what stands in backticks, which is code and shown without them."""
    parts = _CODE.split(text)
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


def one_line(text: str) -> str:
    """Return a visible text on one line."""
    return " ".join(visible(text).split())


def letters(text: str) -> int:
    """Return the width of a line in letters; those of Chinese, Japanese and Korean count twice."""
    return sum(_width(letter) for letter in text)


def wrapped(text: str, width: int) -> str:
    """Wrap a label, after spaces and the signs that part names where possible, inside a word where not."""
    lines = [""]
    for piece in _PIECE.findall(one_line(text)):
        if letters(lines[-1]) + letters(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while letters(lines[-1].rstrip()) > width and len(lines[-1]) > 1:
            fits = max(1, sum(reach <= width for reach in itertools.accumulate(map(_width, lines[-1]))))
            lines[-1:] = [lines[-1][:fits], lines[-1][fits:]]
    return "\n".join(line.strip() for line in lines)


def _width(letter: str) -> int:
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


def warning(origin: Origin) -> str | None:
    """Return the headline of the banner for numbers that no machine measured; null for real ones."""
    return None if origin == "real" else f"These numbers come from a {origin} source"


WARNING_DETAIL = "No hardware was measured. Use this page to check the report itself, not to decide anything."


def describe(figure: Figure) -> str:
    """Say in words what a figure shows, for those who cannot see it."""
    if isinstance(figure, Strips):
        return _describe_strips(figure)
    if isinstance(figure, Lines):
        return _sentence("Line chart", figure.title, [_describe_line(line) for line in figure.lines])
    if isinstance(figure, Scatter):
        axes = f"{one_line(figure.y_axis)} by {one_line(figure.x_axis)}"
        return _sentence("Scatter plot", figure.title, [axes, *(_describe_dot(dot) for dot in figure.dots)])
    if isinstance(figure, HeatMap):
        return _describe_heat_map(figure)
    return _describe_timeline(figure)


def _describe_strips(figure: Strips) -> str:
    unit = one_line(figure.unit)
    items = [
        f"{one_line(s.label)} {write_interval(s.value, s.low, s.high)} {unit}".strip()
        if s.value is not None
        else f"{one_line(s.label)}, {len(s.samples)} samples"
        for s in figure.strips
    ]
    return _sentence("Strip plot", figure.title, items)


def _describe_line(line: Line) -> str:
    values = [value for value in line.y if value is not None]
    if not values:
        return f"{one_line(line.label)}, nothing measured"
    return f"{one_line(line.label)} from {write_cell(min(values))} to {write_cell(max(values))}"


def _describe_dot(dot: Dot) -> str:
    name = ", ".join(part for part in (one_line(dot.group), one_line(dot.label)) if part)
    return f"{name} at {write_cell(dot.x)} and {write_interval(dot.y, dot.y_low, dot.y_high)}"


def _describe_heat_map(figure: HeatMap) -> str:
    values = [cell for row in figure.cells for cell in row if cell is not None]
    size = f"{len(figure.rows)} rows by {len(figure.columns)} columns"
    if not values:
        return _sentence("Heat map", figure.title, [f"{size}, nothing measured"])
    unit = one_line(figure.unit)
    span = f"values from {write_cell(min(values))} to {write_cell(max(values))} {unit}".strip()
    unsure = sum(doubt for row in figure.unsure or () for doubt in row)
    return _sentence("Heat map", figure.title, [size, span, *([f"{unsure} not decided"] if unsure else [])])


def _describe_timeline(figure: Timeline) -> str:
    lanes = list(dict.fromkeys(one_line(bar.lane) for bar in figure.bars))
    end = max(bar.end_s for bar in figure.bars)
    return _sentence("Timeline", figure.title, [f"{len(figure.bars)} spans until {write_cell(end)} s", *lanes])


def _sentence(kind: str, title: str, told: list[str]) -> str:
    more = len(told) - _MOST_IN_A_SENTENCE
    shown = told[:_MOST_IN_A_SENTENCE] + ([f"and {more} more"] if more > 0 else [])
    return f"{kind}: {one_line(title)}. {'; '.join(shown)}."
