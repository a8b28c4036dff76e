"""A page in a terminal, or in a file where a terminal would be: plain text that is readable without colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text as Words

from assay.core.page import Table, Text
from assay.reports.grid import Grid, print_grid
from assay.reports.numbers import write_column
from assay.reports.terminal_figures import print_figure
from assay.reports.wording import MARKS, WARNING_DETAIL, one_line, row_tones, visible, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.page import Element, Page, Tone
    from assay.reports.grid import Kind

STYLES: Mapping[Tone, str] = {"plain": "", "good": "green", "bad": "red", "unsure": "yellow"}

_ASCII = str.maketrans(
    {
        **dict.fromkeys("▁▂", "."),
        **dict.fromkeys("▃▄", ":"),
        **dict.fromkeys("▅▆", "+"),
        **dict.fromkeys("▇█▓", "#"),
        **dict.fromkeys("░▒", "~"),
        **dict.fromkeys("–−─━", "-"),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("╭╮╰╯┌┐└┘", "+"),
        **dict(zip("✓✗×…◂▸µ", "+xx~<>u", strict=True)),
        "±": "+/-",
    }
)


def print_page(page: Page, console: Console) -> None:
    """Print a page; an output that cannot take every letter gets the nearest ones."""
    spelled(console, lambda target: _print(page, target))


def spelled(console: Console, draw: Callable[[Console], None]) -> None:
    """Draw on a console; on one that cannot take every letter, with the nearest ones."""
    if console.encoding.lower().startswith("utf"):
        draw(console)
        return
    buffer = io.StringIO()
    draw(Console(file=buffer, width=console.width, color_system=None))
    plain = buffer.getvalue().translate(_ASCII)
    console.out(plain.encode(console.encoding, "replace").decode(console.encoding), end="", highlight=False)


def _print(page: Page, console: Console) -> None:
    console.print(Words(one_line(page.title), style="bold"))
    warned = warning(page.origin)
    if warned:
        text = Words.assemble((f"{warned}.", "bold yellow"), f" {WARNING_DETAIL}")
        console.print(Panel(text, border_style="yellow", expand=False))
    console.print(_marked(page.lead, page.lead_tone), style="bold")
    for line in page.quality:
        console.print(_marked(line.text, line.tone))
    for section in page.sections:
        console.print()
        title = one_line(section.title)
        console.print(Words(title, style="bold"))
        console.print(Words("─" * min(Words(title).cell_len, console.width), style="dim"))
        for index, element in enumerate(section.elements):
            if index:
                console.print()
            _print_element(element, console)
    _print_facts(page, console)


def _marked(text: str, tone: Tone) -> Words:
    mark = f"{MARKS[tone]} " if MARKS[tone] else ""
    return Words(f"{mark}{visible(text).strip()}", style=STYLES[tone])


def _print_element(element: Element, console: Console) -> None:
    if isinstance(element, Text):
        console.print(_marked(element.text, element.tone))
        return
    console.print(Words(one_line(element.title), style="italic"))
    if isinstance(element, Table):
        print_grid(_grid(element), console)
    else:
        print_figure(element, console)
    if element.note:
        console.print(Padding(Words(visible(element.note).strip(), style="dim"), (0, 0, 0, 2), expand=False))


def _grid(table: Table) -> Grid:
    formatted = [write_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    tones = row_tones(table)
    rows = tuple(
        tuple(Words(visible(column[index]), style=STYLES[tone]) for column in formatted)
        for index, tone in enumerate(tones)
    )
    kinds: list[Kind] = ["number" if column.numeric else "text" for column in table.columns]
    marks = tuple(f"{MARKS[tone] or ' '} " for tone in tones) if any(MARKS[tone] for tone in tones) else ()
    return Grid(tuple(column.title for column in table.columns), tuple(kinds), rows, marks)


def _print_facts(page: Page, console: Console) -> None:
    if not page.facts:
        return
    console.print()
    facts = RichTable.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", max_width=20, overflow="fold")
    facts.add_column(overflow="fold")
    for name, value in page.facts:
        facts.add_row(Words(one_line(name)), Words(visible(value).strip()))
    console.print(facts)
