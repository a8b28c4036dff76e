"""A page as Markdown that renders well on GitHub and is readable as plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from assay.core.page import Table, Text
from assay.reports.text import (
    TONE_MARKS,
    WARNING_DETAIL,
    describe_figure,
    format_column,
    one_line,
    origin_warning,
    row_tones,
    split_code,
    visible_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.core.page import Element, Figure, Page, Tone
    from assay.core.results import Origin

_SPECIAL = re.compile(r"(?<![^\W_])_|_(?![^\W_])|[\\`*\[\]|~$]|(?<!\S)#|#(?!\S)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^(?:[-+](?=\s|$|-)|>|\d+(?=[.)](?:\s|$)))")


def to_markdown(page: Page, figure_paths: Mapping[str, str]) -> str:
    """Return the page; ``figure_paths`` maps a figure's name to the path of its image.

    A figure without a path is described in words.
    """
    blocks = [f"# {_inline(one_line(page.title))}", *_banner(page.origin), f"**{_marked(page.lead, page.lead_tone)}**"]
    blocks += [_paragraph(_marked(line.text, line.tone)) for line in page.quality]
    for section in page.sections:
        blocks.append(f"## {_inline(one_line(section.title))}")
        blocks += [block for element in section.elements for block in _element(element, figure_paths)]
    if page.facts:
        blocks += ["---", _pipes(("About this run", ""), [False, False], [[n, v] for n, v in page.facts])]
    return "\n\n".join(blocks) + "\n"


def _banner(origin: Origin) -> list[str]:
    warning = origin_warning(origin)
    return [f"> [!WARNING]\n> **{warning}.** {WARNING_DETAIL}"] if warning else []


def _element(element: Element, figure_paths: Mapping[str, str]) -> list[str]:
    if isinstance(element, Text):
        return [_paragraph(_marked(element.text, element.tone))]
    if isinstance(element, Table):
        return _table(element)
    return _figure(element, figure_paths.get(element.name))


def _table(table: Table) -> list[str]:
    formatted = [format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    rows = [[column[index] for column in formatted] for index in range(len(table.rows))]
    for row, tone in zip(rows, row_tones(table), strict=True):
        row[0] = f"{TONE_MARKS[tone]} {row[0]}" if TONE_MARKS[tone] else row[0]
    heads = [column.title for column in table.columns]
    numeric = [column.numeric for column in table.columns]
    return [f"**{_inline(one_line(table.title))}**", _pipes(heads, numeric, rows), *_note(table.note)]


def _pipes(heads: Iterable[str], numeric: Iterable[bool], rows: Iterable[Iterable[str]]) -> str:
    """Return a table: headings, the line that aligns the columns, rows."""
    lines = [f"| {' | '.join(_inline(cell) for cell in row)} |" for row in (heads, *rows)]
    lines.insert(1, f"| {' | '.join('---:' if right else '---' for right in numeric)} |")
    return "\n".join(lines)


def _figure(figure: Figure, path: str | None) -> list[str]:
    if path is None:
        return [_paragraph(_inline(describe_figure(figure))), *_note(figure.note)]
    return [f"![{_inline(describe_figure(figure))}]({quote(path, safe='/._-~')})", *_note(figure.note)]


def _note(note: str | None) -> list[str]:
    return [f"<sub>{_inline(note)}</sub>"] if note and note.strip() else []


def _marked(text: str, tone: Tone) -> str:
    return f"{TONE_MARKS[tone]} {_inline(text)}".strip()


def _paragraph(inline: str) -> str:
    """Escape the first characters of a paragraph that would start a list, a quotation or a rule."""
    return _BLOCK_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", inline)


def _inline(text: str) -> str:
    """Escape Markdown and HTML syntax; lines are separated by ``<br>``."""
    lines = [" ".join(line.split()) for line in visible_text(text).strip().split("\n")]
    return "<br>".join(_with_code(line) for line in lines)


def _with_code(line: str) -> str:
    return "".join(f"`{part}`" if is_code else _escaped(part) for part, is_code in split_code(line))


def _escaped(line: str) -> str:
    line = _SPECIAL.sub(r"\\\g<0>", line)
    return _ENTITY.sub("&amp;", line).replace("<", "&lt;")
