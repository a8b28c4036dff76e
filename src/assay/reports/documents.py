"""A page as Markdown, and as one self-contained HTML file: no requests, no scripts, readable on a phone and on paper.

Markdown renders well on GitHub and is readable as plain text. In HTML each figure is drawn once; its colours are CSS
variables, so that it follows the theme of the screen and is light on paper. `write_report` writes the files of a
report: report.md, report.html and a PNG for every figure.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from assay.core.files import replace_atomically, translate_os_errors
from assay.core.format import typeset_minus
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.core.page import Cell, Column, Element, Figure, Page, Section, Tone
    from assay.core.results import Origin
    from assay.reports.figures import Drawing

_SPECIAL = re.compile(r"(?<![^\W_])_|_(?![^\W_])|[\\`*\[\]|~$]|(?<!\S)#|#(?!\S)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^(?:[-+](?=\s|$|-)|>|\d+(?=[.)](?:\s|$)))")


def to_markdown(page: Page, figure_paths: Mapping[str, str]) -> str:
    """Return the page; ``figure_paths`` maps a figure's name to the path of its image.

    A figure without a path is described in words.
    """
    blocks = [
        f"# {_md_inline(one_line(page.title))}",
        *_md_banner(page.origin),
        f"**{_md_marked(page.lead, page.lead_tone)}**",
    ]
    blocks += [_md_paragraph(_md_marked(line.text, line.tone)) for line in page.quality]
    for section in page.sections:
        blocks.append(f"## {_md_inline(one_line(section.title))}")
        blocks += [block for element in section.elements for block in _md_element(element, figure_paths)]
    if page.facts:
        blocks += ["---", _md_pipes(("About this run", ""), [False, False], [[n, v] for n, v in page.facts])]
    return "\n\n".join(blocks) + "\n"


def _md_banner(origin: Origin) -> list[str]:
    warning = origin_warning(origin)
    return [f"> [!WARNING]\n> **{warning}.** {WARNING_DETAIL}"] if warning else []


def _md_element(element: Element, figure_paths: Mapping[str, str]) -> list[str]:
    if isinstance(element, Text):
        return [_md_paragraph(_md_marked(element.text, element.tone))]
    if isinstance(element, Table):
        return _md_table(element)
    return _md_figure(element, figure_paths.get(element.name))


def _md_table(table: Table) -> list[str]:
    formatted = [format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    rows = [[column[index] for column in formatted] for index in range(len(table.rows))]
    for row, tone in zip(rows, row_tones(table), strict=True):
        row[0] = f"{TONE_MARKS[tone]} {row[0]}" if TONE_MARKS[tone] else row[0]
    heads = [column.title for column in table.columns]
    numeric = [column.numeric for column in table.columns]
    return [f"**{_md_inline(one_line(table.title))}**", _md_pipes(heads, numeric, rows), *_md_note(table.note)]


def _md_pipes(heads: Iterable[str], numeric: Iterable[bool], rows: Iterable[Iterable[str]]) -> str:
    """Return a table: headings, the line that aligns the columns, rows."""
    lines = [f"| {' | '.join(_md_inline(cell) for cell in row)} |" for row in (heads, *rows)]
    lines.insert(1, f"| {' | '.join('---:' if right else '---' for right in numeric)} |")
    return "\n".join(lines)


def _md_figure(figure: Figure, path: str | None) -> list[str]:
    if path is None:
        return [_md_paragraph(_md_inline(describe_figure(figure))), *_md_note(figure.note)]
    return [f"![{_md_inline(describe_figure(figure))}]({quote(path, safe='/._-~')})", *_md_note(figure.note)]


def _md_note(note: str | None) -> list[str]:
    return [f"<sub>{_md_inline(note)}</sub>"] if note and note.strip() else []


def _md_marked(text: str, tone: Tone) -> str:
    return f"{TONE_MARKS[tone]} {_md_inline(text)}".strip()


def _md_paragraph(inline: str) -> str:
    """Escape the first characters of a paragraph that would start a list, a quotation or a rule."""
    return _BLOCK_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", inline)


def _md_inline(text: str) -> str:
    """Escape Markdown and HTML syntax; lines are separated by ``<br>``."""
    lines = [" ".join(line.split()) for line in visible_text(text).strip().split("\n")]
    return "<br>".join(_md_with_code(line) for line in lines)


def _md_with_code(line: str) -> str:
    return "".join(f"`{part}`" if is_code else _md_escaped(part) for part, is_code in split_code(line))


def _md_escaped(line: str) -> str:
    line = _SPECIAL.sub(r"\\\g<0>", line)
    return _ENTITY.sub("&amp;", line).replace("<", "&lt;")


_SECURITY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Even if something slipped through the escaping, a browser would neither run nor fetch it."""

_SHORT = 24
"""Maximum length of a text that is not wrapped in a table."""

_WIDE = (("table vast", 15), ("table wide", 9))
"""Tables with this many columns are printed smaller, the widest in landscape."""


def to_html(page: Page, drawings: Sequence[Drawing] | None = None) -> str:
    """Return the page as a complete document; ``drawings`` are those of its figures, where they are drawn already."""
    warning = origin_warning(page.origin)
    title = escape(one_line(page.title))
    remaining = iter(_draw_figures(page) if drawings is None else drawings)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_SECURITY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}{f' ({page.origin} numbers)' if warning else ''}</title>",
        f"<style>\n{_style()}</style>",
        "</head>",
        "<body>",
        "<main>",
        "<header>",
        f"<h1>{title}</h1>",
        _banner(warning),
        f'<p class="lead {page.lead_tone}">{_mark(page.lead_tone)}{_prose(page.lead)}</p>',
        *(f'<p class="quality {line.tone}">{_mark(line.tone)}{_prose(line.text)}</p>' for line in page.quality),
        "</header>",
        *(_section(section, remaining) for section in page.sections),
        _facts(page.facts),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _draw_figures(page: Page) -> list[Drawing]:
    from assay.reports.figures import draw_figure  # loads matplotlib

    return [draw_figure(figure) for figure in page.figures]


@cache
def _style() -> str:
    from assay.reports.drawing.sheet import DARK, LIGHT, css_variables

    themes = f":root {{ {css_variables(LIGHT)} }}\n"
    themes += f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}\n"
    return themes + resources.files("assay.reports").joinpath("report.css").read_text(encoding="utf-8")


def _prose(text: str) -> str:
    parts = split_code(visible_text(text).strip())
    return "".join(f"<code>{escape(part)}</code>" if is_code else escape(part) for part, is_code in parts)


def _mark(tone: Tone) -> str:
    return (
        f'<span class="mark" role="img" aria-label="{tone}:">{TONE_MARKS[tone]}</span>&nbsp;'
        if TONE_MARKS[tone]
        else ""
    )


def _banner(warning: str | None) -> str:
    if warning is None:
        return ""
    return f'<aside class="banner" role="note"><strong>{warning}.</strong> {WARNING_DETAIL}</aside>'


def _section(section: Section, drawings: Iterator[Drawing]) -> str:
    content = "\n".join(_element(element, drawings) for element in section.elements)
    return f"<section>\n<h2>{escape(one_line(section.title))}</h2>\n{content}\n</section>"


def _element(element: Element, drawings: Iterator[Drawing]) -> str:
    if isinstance(element, Text):
        return f'<p class="{element.tone}">{_mark(element.tone)}{_prose(element.text)}</p>'
    if isinstance(element, Table):
        return _table(element)
    return _figure(next(drawings))


def _captioned(kind: str, title: str, content: str, note: str | None) -> str:
    """Return a block with its title above and its note below."""
    below = f'\n<p class="note">{_prose(note)}</p>' if note else ""
    return f'<figure class="{kind}">\n<figcaption>{_prose(title)}</figcaption>\n{content}{below}\n</figure>'


def _table(table: Table) -> str:
    heads = "".join(f"<th{_class(c)} scope=col>{escape(one_line(c.title))}</th>" for c in table.columns)
    formatted = [format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    rows = [
        _row(table, row, [column[index] for column in formatted], tone)
        for index, (row, tone) in enumerate(zip(table.rows, row_tones(table), strict=True))
    ]
    body = "\n".join(rows)
    content = f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    kind = next((kind for kind, least in _WIDE if len(table.columns) >= least), "table")
    return _captioned(kind, table.title, _scroller(content, table.title), table.note)


def _scroller(content: str, title: str) -> str:
    """Return a container that scrolls separately, also by keyboard, when its content is too wide."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(one_line(title))}">{content}</div>'


def _row(table: Table, cells: tuple[Cell, ...], texts: list[str], tone: Tone) -> str:
    """Return a row; its first cell is its heading and carries the mark of its tone."""
    shown = [
        f"{_class(column, cell)}>{_cell(cell, text)}"
        for column, cell, text in zip(table.columns, cells, texts, strict=True)
    ]
    kind, first = shown[0].split(">", 1)
    rest = "".join(f"<td{cell}</td>" for cell in shown[1:])
    return f'<tr class="{tone}"><th scope=row{kind}>{_mark(tone)}{first}</th>{rest}</tr>'


def _cell(cell: Cell, text: str) -> str:
    if cell is None:
        return f'<span class="missing" title="not measured">{text}</span>'
    return _prose(cell) if isinstance(cell, str) else escape(typeset_minus(text))


def _class(column: Column, cell: Cell = None) -> str:
    """Return the CSS class of a cell: numbers right-aligned, short texts on one line, long ones wrapped."""
    if column.numeric:
        return " class=number"
    if not isinstance(cell, str):
        return ""
    return " class=short" if len(cell) <= _SHORT else " class=long"


def _figure(drawing: Drawing) -> str:
    figure = drawing.figure
    picture = f'<div class="drawing" role="img" aria-label="{escape(describe_figure(figure))}">{drawing.to_svg()}</div>'
    note = " ".join([*([figure.note] if figure.note else []), *drawing.remarks])
    return _captioned("drawn", figure.title, _scroller(picture, figure.title), note)


def _facts(facts: tuple[tuple[str, str], ...]) -> str:
    if not facts:
        return ""
    pairs = "\n".join(f"<div><dt>{_prose(name)}</dt><dd>{_prose(value)}</dd></div>" for name, value in facts)
    return f"<footer>\n<h2>About this run</h2>\n<dl>\n{pairs}\n</dl>\n</footer>"


def write_report(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write ``report.md``, ``report.html`` and ``figures/NAME.png``; return their paths, the two reports first.

    Each file is replaced as a whole, the reports after the figures that they show.

    Raises:
        ValueError: Two figures of the page have the same name, and one would overwrite the other.
    """
    duplicates = [name for name, count in Counter(figure.name for figure in page.figures).items() if count > 1]
    if duplicates:
        raise ValueError(f"page {page.title!r} has more than one figure named {', '.join(duplicates)}")
    relative = {figure.name: f"figures/{figure.name}.png" for figure in page.figures}
    with translate_os_errors(folder):
        (folder / "figures" if relative else folder).mkdir(parents=True, exist_ok=True)
    drawings = _draw_figures(page)
    for drawing in drawings:
        replace_atomically(folder / relative[drawing.figure.name], drawing.to_png(origin=page.origin))
    markdown, html = folder / "report.md", folder / "report.html"
    replace_atomically(markdown, to_markdown(page, relative).encode())
    replace_atomically(html, to_html(page, drawings).encode())
    return (markdown, html, *(folder / path for path in relative.values()))
