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
    format_rows,
    one_line,
    origin_warning,
    row_tones,
    split_code,
    visible_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.core.page import Cell, Column, Element, Page, Tone
    from assay.reports.figures import Drawing

_SPECIAL = re.compile(r"(?<![^\W_])_|_(?![^\W_])|[\\`*\[\]|~$]|(?<!\S)#|#(?!\S)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_BLOCK_START = re.compile(r"^(?:[-+](?=\s|$|-)|>|\d+(?=[.)](?:\s|$)))")


def to_markdown(page: Page, figure_paths: Mapping[str, str]) -> str:
    """Return the page; ``figure_paths`` maps a figure's name to the path of its image.

    A figure without a path is described in words.
    """
    blocks = [f"# {_md_inline(one_line(page.title))}"]
    if warning := origin_warning(page.origin):
        blocks.append(f"> [!WARNING]\n> **{warning}.** {WARNING_DETAIL}")
    blocks.append(f"**{_md_marked(page.lead, page.lead_tone)}**")
    blocks += [_md_paragraph(_md_marked(line.text, line.tone)) for line in page.quality]
    for section in page.sections:
        blocks.append(f"## {_md_inline(one_line(section.title))}")
        blocks += [block for element in section.elements for block in _md_element(element, figure_paths)]
    if page.facts:
        blocks += ["---", _md_pipes(("About this run", ""), [False, False], page.facts)]
    return "\n\n".join(blocks) + "\n"


def _md_element(element: Element, figure_paths: Mapping[str, str]) -> list[str]:
    if isinstance(element, Text):
        return [_md_paragraph(_md_marked(element.text, element.tone))]
    if isinstance(element, Table):
        rows = [
            (f"{TONE_MARKS[tone]} {first}" if TONE_MARKS[tone] else first, *others)
            for (first, *others), tone in zip(format_rows(element), row_tones(element), strict=True)
        ]
        heads = [column.title for column in element.columns]
        numeric = [column.numeric for column in element.columns]
        blocks = [f"**{_md_inline(one_line(element.title))}**", _md_pipes(heads, numeric, rows)]
    else:
        description, path = _md_inline(describe_figure(element)), figure_paths.get(element.name)
        blocks = [_md_paragraph(description) if path is None else f"![{description}]({quote(path, safe='/._-~')})"]
    return [*blocks, f"<sub>{_md_inline(element.note)}</sub>"] if element.note and element.note.strip() else blocks


def _md_pipes(heads: Iterable[str], numeric: Iterable[bool], rows: Iterable[Iterable[str]]) -> str:
    """Return a table: headings, the line that aligns the columns, rows."""
    lines = [f"| {' | '.join(_md_inline(cell) for cell in row)} |" for row in (heads, *rows)]
    lines.insert(1, f"| {' | '.join('---:' if right else '---' for right in numeric)} |")
    return "\n".join(lines)


def _md_marked(text: str, tone: Tone) -> str:
    return f"{TONE_MARKS[tone]} {_md_inline(text)}".strip()


def _md_paragraph(inline: str) -> str:
    """Escape the first characters of a paragraph that would start a list, a quotation or a rule."""
    return _BLOCK_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", inline)


def _md_inline(text: str) -> str:
    """Escape Markdown and HTML syntax outside of code; lines are separated by ``<br>``."""

    def escaped(part: str) -> str:
        return _ENTITY.sub("&amp;", _SPECIAL.sub(r"\\\g<0>", part)).replace("<", "&lt;")

    lines = [split_code(" ".join(line.split())) for line in visible_text(text).strip().split("\n")]
    return "<br>".join("".join(f"`{part}`" if is_code else escaped(part) for part, is_code in line) for line in lines)


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
        f'<aside class="banner" role="note"><strong>{warning}.</strong> {WARNING_DETAIL}</aside>' if warning else "",
        _paragraph(f"lead {page.lead_tone}", page.lead_tone, page.lead),
        *(_paragraph(f"quality {line.tone}", line.tone, line.text) for line in page.quality),
        "</header>",
    ]
    for section in page.sections:
        parts += ["<section>", f"<h2>{escape(one_line(section.title))}</h2>"]
        parts += ["\n".join(_element(element, remaining) for element in section.elements), "</section>"]
    if page.facts:
        pairs = (f"<div><dt>{_prose(name)}</dt><dd>{_prose(value)}</dd></div>" for name, value in page.facts)
        parts += ["<footer>", "<h2>About this run</h2>", "<dl>", *pairs, "</dl>", "</footer>"]
    return "\n".join(part for part in [*parts, "</main>", "</body>", "</html>"] if part) + "\n"


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
    mark = f'<span class="mark" role="img" aria-label="{tone}:">{TONE_MARKS[tone]}</span>&nbsp;'
    return mark if TONE_MARKS[tone] else ""


def _paragraph(css_class: str, tone: Tone, text: str) -> str:
    return f'<p class="{css_class}">{_mark(tone)}{_prose(text)}</p>'


def _element(element: Element, drawings: Iterator[Drawing]) -> str:
    """Return a paragraph; or a table or a figure with its title above and its note below."""
    if isinstance(element, Text):
        return _paragraph(element.tone, element.tone, element.text)
    if isinstance(element, Table):
        kind = next((kind for kind, least in _WIDE if len(element.columns) >= least), "table")
        content, note = _table(element), element.note
    else:
        drawing = next(drawings)
        label = escape(describe_figure(element))
        kind, content = "drawn", f'<div class="drawing" role="img" aria-label="{label}">{drawing.to_svg()}</div>'
        note = " ".join([*([element.note] if element.note else []), *drawing.remarks])
    # A container that scrolls separately, also by keyboard, when its content is too wide.
    scroller = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(one_line(element.title))}">'
    below = f'\n<p class="note">{_prose(note)}</p>' if note else ""
    caption = f"<figcaption>{_prose(element.title)}</figcaption>"
    return f'<figure class="{kind}">\n{caption}\n{scroller}{content}</div>{below}\n</figure>'


def _table(table: Table) -> str:
    heads = "".join(f"<th{_class(c)} scope=col>{escape(one_line(c.title))}</th>" for c in table.columns)
    rows = map(_row, [table] * len(table.rows), table.rows, format_rows(table), row_tones(table))
    body = "\n".join(rows)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _row(table: Table, cells: tuple[Cell, ...], texts: tuple[str, ...], tone: Tone) -> str:
    """Return a row; its first cell is its heading and carries the mark of its tone."""
    shown = [
        (_class(column, cell), _cell(cell, text))
        for column, cell, text in zip(table.columns, cells, texts, strict=True)
    ]
    (kind, first), *others = shown
    rest = "".join(f"<td{css_class}>{content}</td>" for css_class, content in others)
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
