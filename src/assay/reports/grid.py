"""Tables in a terminal that never lose a column: one too wide is broken into parts that repeat its first column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich import box
from rich.table import Table as RichTable
from rich.text import Text as Words

from assay.reports.wording import letters, wrapped

if TYPE_CHECKING:
    from rich.console import Console

Kind: TypeAlias = Literal["text", "number", "drawing"]
"""A text may be wrapped; numbers, set to the right, and drawings may not."""

_GAP = 2
_WIDEST_TEXT = 28


@dataclass(frozen=True)
class Grid:
    """Headings, the kind of each column, rows, and a mark before each row where rows have marks."""

    heads: tuple[str, ...]
    kinds: tuple[Kind, ...]
    rows: tuple[tuple[Words, ...], ...]
    marks: tuple[str, ...] = ()

    def part(self, columns: list[int]) -> Grid:
        """Return the grid with some of its columns."""
        return Grid(
            tuple(self.heads[i] for i in columns),
            tuple(self.kinds[i] for i in columns),
            tuple(tuple(row[i] for i in columns) for row in self.rows),
        )

    def widths(self) -> list[int]:
        """Return how wide each column is."""
        return [
            max([width_of(self.heads[index]), *(width_of(row[index].plain) for row in self.rows)])
            for index in range(len(self.heads))
        ]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return max(letters(line) for line in text.split("\n"))


def fitted(grid: Grid, width: int) -> list[Grid]:
    """Return the grid with its texts wrapped, in parts that fit so many letters; each begins with the first column."""
    whole = _wrapped(grid, width)
    widths = whole.widths()
    groups: list[list[int]] = [[0]]
    for index in range(1, len(widths)):
        used_width = sum(widths[i] + _GAP for i in groups[-1])
        if used_width + widths[index] > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return [whole.part(columns) for columns in groups]


def print_grid(grid: Grid, console: Console) -> None:
    """Print a grid, in parts when the console is too narrow for it."""
    for index, part in enumerate(fitted(grid, console.width)):
        if index:
            console.print()
        console.print(_rich(part))


def _wrapped(grid: Grid, width: int) -> Grid:
    limit = max(10, min(_WIDEST_TEXT, width // 3))
    marks = grid.marks or ("",) * len(grid.rows)
    rows = tuple(
        tuple(
            _hanging(mark if index == 0 else "", cell, limit) if kind == "text" else cell
            for index, (cell, kind) in enumerate(zip(row, grid.kinds, strict=True))
        )
        for row, mark in zip(grid.rows, marks, strict=True)
    )
    unheaded = replace(grid, heads=("",) * len(grid.heads), rows=rows, marks=())
    room = [
        max(column_width, _head_width(head)) for column_width, head in zip(unheaded.widths(), grid.heads, strict=True)
    ]
    indent = " " * max((len(mark) for mark in marks), default=0)
    heads = [wrapped(head, size) for head, size in zip(grid.heads, room, strict=True)]
    heads[0] = indent + wrapped(grid.heads[0], max(1, room[0] - len(indent))).replace("\n", f"\n{indent}")
    return replace(unheaded, heads=tuple(heads))


def _head_width(head: str) -> int:
    """Return the least width of a heading: its longest word, within reason."""
    return max(10, min(16, max((letters(word) for word in head.split()), default=0)))


def _hanging(mark: str, cell: Words, limit: int) -> Words:
    """Return a wrapped text behind its mark, the further lines indented like the first."""
    lines = [part for line in cell.plain.split("\n") for part in wrapped(line, limit).split("\n")]
    return Words(mark + f"\n{' ' * len(mark)}".join(lines), style=cell.style)


def _rich(grid: Grid) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for head, kind, width in zip(grid.heads, grid.kinds, grid.widths(), strict=True):
        justify: Literal["right", "left"] = "right" if kind == "number" else "left"
        table.add_column(Words(head), justify=justify, vertical="top", overflow="fold", no_wrap=True, width=width)
    for row in grid.rows:
        table.add_row(*row)
    return table
