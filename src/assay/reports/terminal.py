"""A page in a terminal, or in a text file: plain text that is readable without colour.

Tables never lose a column: one that is too wide is split into parts that repeat its first column. Figures are drawn
with block characters, with the numbers beside them; a scatter plot has a letter for each dot and a legend.
"""

from __future__ import annotations

import io
import itertools
import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text as Words

from assay.core.format import format_count, format_percent, format_time
from assay.core.page import HeatMap, LinePlot, ScatterPlot, StripPlot, Table, Text, Timeline
from assay.reports.scales import Axis, bin_counts, finite, shade_scale, strip_axis
from assay.reports.text import (
    DASH,
    TONE_MARKS,
    WARNING_DETAIL,
    display_width,
    dot_name,
    format_cell,
    format_column,
    format_interval,
    format_matrix,
    format_rows,
    one_line,
    origin_warning,
    row_tones,
    visible_text,
    with_unit,
    wrap_label,
)
from assay.timing.results import (
    QUANTITY_MEANINGS,
    Measurement,
    describe_precision,
    describe_slow_noise,
    format_clock,
    format_elapsed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from assay.core.page import Element, Figure, Page, PlotLine, TimelineBar, Tone
    from assay.core.results import Estimate
    from assay.reports.scales import Floats
    from assay.timing.results import Comparison

ColumnKind: TypeAlias = Literal["text", "number", "drawing"]
"""Text may be wrapped; numbers, which are right-aligned, and drawings may not."""

_NUMBER: ColumnKind = "number"
_DRAWING: ColumnKind = "drawing"
_GAP = 2
_MAX_TEXT_WIDTH = 28


@dataclass(frozen=True)
class Grid:
    """Headings, the kind of each column, rows, and a mark before each row if rows have marks."""

    heads: tuple[str, ...]
    kinds: tuple[ColumnKind, ...]
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
        """Return the width of each column."""
        return [
            max([text_width(self.heads[index]), *(text_width(row[index].plain) for row in self.rows)])
            for index in range(len(self.heads))
        ]


def text_width(text: str) -> int:
    """Return the width of a text in terminal columns."""
    return max(display_width(line) for line in text.split("\n"))


def split_to_width(grid: Grid, width: int) -> list[Grid]:
    """Return the grid with wrapped texts, in parts at most ``width`` wide; each begins with the first column."""
    wrapped = _wrap_texts(grid, width)
    widths = wrapped.widths()
    groups: list[list[int]] = [[0]]
    for index in range(1, len(widths)):
        used_width = sum(widths[i] + _GAP for i in groups[-1])
        if used_width + widths[index] > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return [wrapped.part(columns) for columns in groups]


def print_grid(grid: Grid, console: Console) -> None:
    """Print a grid, in parts if the console is too narrow for it."""
    for index, part in enumerate(split_to_width(grid, console.width)):
        if index:
            console.print()
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for head, kind, width in zip(part.heads, part.kinds, part.widths(), strict=True):
            justify: Literal["right", "left"] = "right" if kind == "number" else "left"
            table.add_column(Words(head), justify=justify, vertical="top", overflow="fold", no_wrap=True, width=width)
        for row in part.rows:
            table.add_row(*row)
        console.print(table)


def _wrap_texts(grid: Grid, width: int) -> Grid:
    limit = max(10, min(_MAX_TEXT_WIDTH, width // 3))
    marks = grid.marks or ("",) * len(grid.rows)
    rows = tuple(
        tuple(
            _hang_indent(mark if index == 0 else "", cell, limit) if kind == "text" else cell
            for index, (cell, kind) in enumerate(zip(row, grid.kinds, strict=True))
        )
        for row, mark in zip(grid.rows, marks, strict=True)
    )
    unheaded = replace(grid, heads=("",) * len(grid.heads), rows=rows, marks=())
    words = [max((display_width(word) for word in head.split()), default=0) for head in grid.heads]
    room = [max(width, min(16, word), 10) for width, word in zip(unheaded.widths(), words, strict=True)]
    indent = " " * max((len(mark) for mark in marks), default=0)
    heads = [wrap_label(head, size) for head, size in zip(grid.heads, room, strict=True)]
    heads[0] = indent + wrap_label(grid.heads[0], max(1, room[0] - len(indent))).replace("\n", f"\n{indent}")
    return replace(unheaded, heads=tuple(heads))


def _hang_indent(mark: str, cell: Words, limit: int) -> Words:
    """Return a wrapped text after its mark, with the further lines indented like the first."""
    lines = [part for line in cell.plain.split("\n") for part in wrap_label(line, limit).split("\n")]
    return Words(mark + f"\n{' ' * len(mark)}".join(lines), style=cell.style)


_SCATTER_ROWS = 14
_MAX_SCATTER_COLUMNS = 64
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_OVERLAP = "*"
"""Drawn where several dots fall on one character."""


def _print_scatter(figure: ScatterPlot, console: Console) -> None:
    """Print the field, its axes and the legend of its letters."""
    x = _scatter_axis([dot.x for dot in figure.dots], log=figure.log_x)
    y = _scatter_axis([dot.y for dot in figure.dots], log=figure.log_y)
    columns = max(20, min(_MAX_SCATTER_COLUMNS, console.width - 14))
    field = _scatter_field(figure, x, y, columns)
    top, bottom = format_column([y.high, y.low])
    width = max(len(top), len(bottom))
    console.print(Words(f"  {one_line(figure.y_axis)}", style="dim"))
    for row_index, line in enumerate(field):
        number = top if row_index == 0 else bottom if row_index == len(field) - 1 else ""
        console.print(Words.assemble((f"{number:>{width}} │", "dim"), (line, "cyan")), soft_wrap=True)
    left, right = format_column([x.low, x.high])
    axis = f"{left}{' ' * max(1, columns - len(left) - len(right))}{right}"
    console.print(Words(f"{'':{width}} └{'─' * columns}", style="dim"), soft_wrap=True)
    console.print(Words(f"{'':{width}}  {axis}", style="dim"), soft_wrap=True)
    console.print(Words(f"{'':{width}}  {one_line(figure.x_axis)}", style="dim"))
    _print_scatter_legend(figure, console)


def _scatter_axis(values: Sequence[float], *, log: bool) -> Axis:
    finite_values = finite(list(values))
    low, high = float(finite_values.min()), float(finite_values.max())
    log = log and low > 0
    if high > low:
        return Axis(low, high, log=log)
    return Axis(low / 2, high * 2, log=True) if log else Axis(low - 1, high + 1)


def _scatter_field(figure: ScatterPlot, x: Axis, y: Axis, columns: int) -> list[str]:
    rows = [[" "] * columns for _ in range(_SCATTER_ROWS)]
    across = x.position(np.array([dot.x for dot in figure.dots]))
    up = y.position(np.array([dot.y for dot in figure.dots]))
    for letter, right, high in zip(_dot_letters(figure), across, up, strict=True):
        row, column = _SCATTER_ROWS - 1 - round(float(high) * (_SCATTER_ROWS - 1)), round(float(right) * (columns - 1))
        rows[row][column] = letter if rows[row][column] == " " else _OVERLAP
    return ["".join(row) for row in rows]


def _dot_letters(figure: ScatterPlot) -> list[str]:
    return [_LETTERS[index] if index < len(_LETTERS) else "·" for index in range(len(figure.dots))]


def _print_scatter_legend(figure: ScatterPlot, console: Console) -> None:
    rows = []
    for letter, dot in zip(_dot_letters(figure), figure.dots, strict=True):
        cells = (
            f"{letter} {TONE_MARKS[dot.tone]}".strip(),
            dot_name(dot),
            format_interval(dot.x, dot.x_low, dot.x_high),
            format_interval(dot.y, dot.y_low, dot.y_high),
        )
        rows.append(tuple(Words(cell) for cell in cells))
    heads = ("", "", one_line(figure.x_axis), one_line(figure.y_axis))
    print_grid(Grid(heads, ("text", "text", "number", "number"), tuple(rows)), console)


_BLOCKS = "▁▂▃▄▅▆▇█"
_TONE_BARS: dict[Tone, tuple[str, str]] = {
    "plain": ("▒", "cyan"),
    "good": ("█", "green"),
    "unsure": ("?", "yellow"),
    "bad": ("✗", "red"),
}
_MAX_ROWS = 16
_MAX_PARTS = 4


def _print_figure(figure: Figure, console: Console) -> None:
    """Print a figure as text."""
    if isinstance(figure, StripPlot):
        _print_strips(figure, console)
    elif isinstance(figure, LinePlot):
        _print_lines(figure, console)
    elif isinstance(figure, ScatterPlot):
        _print_scatter(figure, console)
    elif isinstance(figure, HeatMap):
        _print_heat_map(figure, console)
    else:
        _print_timeline(figure, console)


def draw_sparkline(values: Sequence[float | None], width: int, axis: Axis | None = None) -> str:
    """Return values as blocks of rising height, averaged to at most ``width``; a space where a value is unknown.

    Without an axis the lowest and the highest block represent the lowest and the highest value.
    """
    array = _array(values)
    means = [_mean(part) for part in np.array_split(array, min(width, len(array)))] if len(array) else []
    finite_means = finite(means)
    if not len(finite_means):
        return " " * len(means)
    low, high = (float(finite_means.min()), float(finite_means.max())) if axis is None else (axis.low, axis.high)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)


def draw_histogram(samples: Floats, axis: Axis, width: int) -> str:
    """Return the distribution of samples along an axis as blocks; any count above zero shows."""
    if not len(samples):
        return " " * width
    counts = bin_counts(samples, axis, width)
    top = int(counts.max())
    return "".join(" " if n == 0 else _BLOCKS[round((n / top) * (len(_BLOCKS) - 1))] for n in counts)


def resample_line(line: PlotLine, axis: Axis, width: int) -> list[float | None]:
    """Return a line's mean in each of ``width`` equal segments of an axis, interpolated linearly between its points."""
    x, y = _array(line.x), _array(line.y)
    finite_mask = np.isfinite(x) & np.isfinite(y)
    if not finite_mask.any():
        return [None] * width
    order = np.argsort(x[finite_mask], kind="stable")
    x, y = x[finite_mask][order], y[finite_mask][order]
    edges = np.linspace(axis.low, axis.high, width + 1)
    between = np.interp((edges[:-1] + edges[1:]) / 2, x, y, left=np.nan, right=np.nan)
    inside = [y[(x >= start) & (x < end)] for start, end in itertools.pairwise(edges)]
    means = [_mean(part) if len(part) else float(middle) for part, middle in zip(inside, between, strict=True)]
    return [None if mean is None or np.isnan(mean) else mean for mean in means]


def _array(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _mean(part: Floats) -> float | None:
    finite_part = part[np.isfinite(part)]
    return float(finite_part.mean()) if len(finite_part) else None


def _wrap_labels(texts: Iterable[str], console: Console) -> list[str]:
    return [wrap_label(text, max(10, min(28, console.width // 4))) for text in texts]


def _drawing_width(console: Console, *columns: Sequence[str]) -> int:
    """Return the width left for a drawing beside columns of labels and numbers."""
    used_width = sum(max(text_width(text) for text in column) + 2 for column in columns)
    return max(10, min(60, console.width - used_width))


def _print_drawings(
    head: str,
    labels: Sequence[str],
    drawings: Sequence[Words],
    console: Console,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print a line for each drawing, with its label before it and its texts, by their headings, behind it."""
    texts = texts or {}
    cells = [[Words(text) for text in column] for column in texts.values()]
    rows = tuple(zip(map(Words, labels), drawings, *cells, strict=True))
    print_grid(Grid(("", head, *texts), ("text", *[_DRAWING] * (1 + len(texts))), rows), console)


def _axis_ends(axis: Axis, width: int) -> Words:
    """Return the limits of an axis, as far apart as the drawing is wide."""
    low, high = format_column([axis.low, axis.high])
    return Words(f"{low}{' ' * max(1, width - len(low) - len(high))}{high}", style="dim")


def _print_strips(figure: StripPlot, console: Console) -> None:
    axis = strip_axis(figure.strips, figure.centre)
    labels = _wrap_labels((strip.label for strip in figure.strips), console)
    estimates = [format_interval(strip.value, strip.low, strip.high) for strip in figure.strips]
    spans = [_value_range(strip.samples) for strip in figure.strips]
    width = _drawing_width(console, labels, [*estimates, "estimate"], [*spans, "min – max"])
    drawings = [Words(draw_histogram(finite(strip.samples), axis, width), style="cyan") for strip in figure.strips]
    head = with_unit(figure.axis, figure.unit) + (", logarithmic" if axis.log else "")
    texts = {"estimate": [*estimates, ""], "min – max": [*spans, ""]}
    _print_drawings(head, [*labels, ""], [*drawings, _axis_ends(axis, width)], console, texts)


def _value_range(values: Sequence[float | None]) -> str:
    finite_values = finite(values)
    if not len(finite_values):
        return "not measured"
    low, high = format_column([float(finite_values.min()), float(finite_values.max())])
    return f"{low} – {high}"


def _print_lines(figure: LinePlot, console: Console) -> None:
    console.print(Words(f"  {one_line(figure.y_axis)}", style="dim"))
    xs = figure.lines[0].x
    if len(xs) <= _MAX_ROWS and all(line.x == xs for line in figure.lines):
        columns = [format_column(xs), *(format_column(line.y) for line in figure.lines)]
        heads = (one_line(figure.x_axis), *(one_line(line.label) for line in figure.lines))
        cells = tuple(tuple(Words(cell) for cell in row) for row in zip(*columns, strict=True))
        print_grid(Grid(heads, (_NUMBER,) * len(heads), cells), console)
        return
    labels = _wrap_labels((line.label for line in figure.lines), console)
    spans = [_value_range(line.y) for line in figure.lines]
    width = _drawing_width(console, labels, [*spans, "min – max"])
    drawings = [Words(draw_sparkline(line.y, width), style="cyan") for line in figure.lines]
    head = f"{one_line(figure.x_axis)}: {_value_range([x for line in figure.lines for x in line.x])}"
    _print_drawings(head, labels, drawings, console, {"min – max": spans})


def _print_heat_map(figure: HeatMap, console: Console) -> None:
    cells = np.stack([_array(row) for row in figure.cells])
    unsure = np.zeros(cells.shape, dtype=bool) if figure.unsure is None else np.array(figure.unsure, dtype=bool)
    formatted = format_matrix([float(cell) for cell in cells.ravel()])
    marked = [f"{text}{'?' if doubt else ''}" for text, doubt in zip(formatted, unsure.ravel(), strict=True)]
    texts = np.array(marked).reshape(cells.shape)
    styles = _heat_styles(np.where(unsure, np.nan, cells), figure)
    rows = tuple(
        (Words(one_line(name)), *(Words(str(t), style=s) for t, s in zip(texts[i], styles[i], strict=True)))
        for i, name in enumerate(figure.rows)
    )
    heads = ("", *(one_line(name) for name in figure.columns))
    centre = "" if figure.centre is None else f"; {format_cell(figure.centre)} means no change"
    unsure_note = "; ?: the interval holds it" if centre and bool(unsure.any()) else ""
    console.print(Words(f"  {one_line(figure.unit)}{centre}{unsure_note}", style="dim"))
    grid = Grid(heads, ("text", *[_NUMBER] * len(figure.columns)), rows)
    if len(split_to_width(grid, console.width)) <= _MAX_PARTS:
        print_grid(grid, console)
    else:
        _print_large_heat_map(figure, cells, console)


def _print_large_heat_map(figure: HeatMap, cells: Floats, console: Console) -> None:
    """Print each row as a line of blocks, all rows on one scale."""
    labels = _wrap_labels(figure.rows, console)
    width = min(len(figure.columns), _drawing_width(console, labels))
    finite_values = finite(list(cells.ravel()))
    axis = Axis(float(finite_values.min()), float(finite_values.max())) if len(finite_values) else Axis(0.0, 1.0)
    drawings = [Words(draw_sparkline(row, width, axis)) for row in cells.tolist()]
    low, high = format_column([axis.low, axis.high])
    ends = f"{one_line(figure.columns[0])} – {one_line(figure.columns[-1])}"
    _print_drawings(f"{ends}, {_BLOCKS[0]} is {low}, {_BLOCKS[-1]} is {high}", labels, drawings, console)


def _heat_styles(cells: Floats, figure: HeatMap) -> list[list[str]]:
    """Return a style for each cell: stronger further from the centre, or from the minimum if there is none."""
    finite_values = finite(list(cells.ravel()))
    if figure.centre is not None:
        scale = shade_scale(cells, figure.centre, ratios="×" in figure.unit)
        return [[_heat_style(scale.strength(float(cell))) for cell in row] for row in cells]
    low, reach = (float(finite_values.min()), float(np.ptp(finite_values)) or 1.0) if len(finite_values) else (0.0, 1.0)
    return [[_heat_style((cell - low) / reach) for cell in row] for row in cells]


def _heat_style(strength: float) -> str:
    if not np.isfinite(strength):
        return "dim"
    if abs(strength) < 0.2:
        return ""
    background = (
        ("color(223)", "color(215)", "color(208)") if strength > 0 else ("color(153)", "color(111)", "color(75)")
    )
    return f"black on {background[min(2, int(abs(strength) * 3))]}"


def _print_timeline(figure: Timeline, console: Console) -> None:
    times = [time for bar in figure.bars for time in (bar.start_s, bar.end_s)]
    low, high = min(times), max(times)
    axis = Axis(low, high if high > low else low + 1.0)
    lanes: dict[str, list[TimelineBar]] = {}
    for bar in figure.bars:
        lanes.setdefault(one_line(bar.lane), []).append(bar)
    labels = _wrap_labels([*(line.label for line in figure.lines), *lanes], console)
    spans = [_value_range(line.y) for line in figure.lines]
    width = _drawing_width(console, labels, [*spans, ""])
    drawings = [Words(draw_sparkline(resample_line(line, axis, width), width), style="cyan") for line in figure.lines]
    drawings += [_draw_lane(bars, axis, width) for bars in lanes.values()]
    texts = {one_line(figure.lines_axis): [*spans, *("" for _ in lanes), ""]}
    _print_drawings("time (s)", [*labels, ""], [*drawings, _axis_ends(axis, width)], console, texts)
    for tone in (tone for tone in _TONE_BARS if tone != "plain"):
        names = list(dict.fromkeys(one_line(bar.label) for bar in figure.bars if bar.tone == tone))
        if names:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            console.print(Words(f"  {visible_text(f'{_TONE_BARS[tone][0]} {tone}: {shown}')}", style="dim"))


def _draw_lane(bars: Sequence[TimelineBar], axis: Axis, width: int) -> Words:
    """Return a lane as one line; where bars share a character the more serious tone is shown."""
    serious = list(_TONE_BARS)
    tones: list[Tone | None] = [None] * width
    for bar in sorted(bars, key=lambda bar: serious.index(bar.tone)):
        start, end = (axis.position(np.array([bar.start_s, bar.end_s])) * width).tolist()
        first = min(int(start), width - 1)
        for position in range(first, max(first + 1, min(width, round(end)))):
            tones[position] = bar.tone
    line = Words()
    for tone in tones:
        line.append(*((" ", "") if tone is None else _TONE_BARS[tone]))
    return line


TONE_STYLES: Mapping[Tone, str] = {"plain": "", "good": "green", "bad": "red", "unsure": "yellow"}

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
    """Print a page; an output with a limited encoding gets the nearest characters."""
    print_encodable(console, lambda target: _print_page(page, target))


def print_encodable(console: Console, draw: Callable[[Console], None]) -> None:
    """Draw on a console; with a limited encoding, replace characters by the nearest ones."""
    if console.encoding.lower().startswith("utf"):
        draw(console)
        return
    buffer = io.StringIO()
    draw(Console(file=buffer, width=console.width, color_system=None))
    plain = buffer.getvalue().translate(_ASCII)
    console.out(plain.encode(console.encoding, "replace").decode(console.encoding), end="", highlight=False)


def _print_page(page: Page, console: Console) -> None:
    console.print(Words(one_line(page.title), style="bold"))
    warning = origin_warning(page.origin)
    if warning:
        text = Words.assemble((f"{warning}.", "bold yellow"), f" {WARNING_DETAIL}")
        console.print(Panel(text, border_style="yellow", expand=False))
    console.print(_with_mark(page.lead, page.lead_tone), style="bold")
    for line in page.quality:
        console.print(_with_mark(line.text, line.tone))
    for section in page.sections:
        console.print()
        title = one_line(section.title)
        console.print(Words(title, style="bold"))
        console.print(Words("─" * min(Words(title).cell_len, console.width), style="dim"))
        for index, element in enumerate(section.elements):
            if index:
                console.print()
            _print_element(element, console)
    _print_facts(page.facts, console)


def _with_mark(text: str, tone: Tone) -> Words:
    mark = f"{TONE_MARKS[tone]} " if TONE_MARKS[tone] else ""
    return Words(f"{mark}{visible_text(text).strip()}", style=TONE_STYLES[tone])


def _print_element(element: Element, console: Console) -> None:
    if isinstance(element, Text):
        console.print(_with_mark(element.text, element.tone))
        return
    console.print(Words(one_line(element.title), style="italic"))
    if isinstance(element, Table):
        print_grid(_table_grid(element), console)
    else:
        _print_figure(element, console)
    if element.note:
        console.print(Padding(Words(visible_text(element.note).strip(), style="dim"), (0, 0, 0, 2), expand=False))


def _table_grid(table: Table) -> Grid:
    tones = row_tones(table)
    rows = tuple(
        tuple(Words(visible_text(text), style=TONE_STYLES[tone]) for text in row)
        for row, tone in zip(format_rows(table), tones, strict=True)
    )
    kinds: list[ColumnKind] = ["number" if column.numeric else "text" for column in table.columns]
    marks = tuple(f"{TONE_MARKS[tone] or ' '} " for tone in tones) if any(TONE_MARKS[tone] for tone in tones) else ()
    return Grid(tuple(column.title for column in table.columns), tuple(kinds), rows, marks)


def _print_facts(facts: Iterable[tuple[str, str]], console: Console, notes: Iterable[str] = ()) -> None:
    rows = [(Words(one_line(name)), value) for name, value in facts]
    rows += [(Words("note", style="yellow"), note) for note in notes]
    if not rows:
        return
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", max_width=20, overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Words(visible_text(value).strip()))
    console.print()
    console.print(grid)


_VERDICT_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad", "same": "plain", "unsure": "unsure"}


def print_measurement(measurement: Measurement, console: Console, quality: Text | None = None) -> None:
    """Print the times of a call with their intervals, how far they can be trusted, and how they were measured."""
    print_encodable(console, lambda target: _print_measurement(measurement, target, quality))


def print_comparison(comparison: Comparison, console: Console, quality: Text | None = None) -> None:
    """Print which functions are faster than the first, how far to trust that, and how it was measured."""
    print_encodable(console, lambda target: _print_comparison(comparison, target, quality))


def _print_measurement(measurement: Measurement, console: Console, quality: Text | None) -> None:
    _print_title(f"{measurement.name} on {measurement.device}, {measurement.cache} cache", quality, console)
    rows: list[tuple[str, ...]] = []
    styles = []
    for quantity, meaning in QUANTITY_MEANINGS.items():
        estimate: Estimate | None = getattr(measurement, quantity)
        if estimate is not None:
            rows.append((quantity.removesuffix("_us"), *_estimate_cells(estimate), meaning))
            styles.append("bold" if quantity == measurement.decisive else "")
    kinds: tuple[ColumnKind, ...] = ("text", "number", "number", "number", "text")
    centre = "median" if measurement.processes == 1 else "typical"
    _print_table(("time", centre, "±", "interval", "what it is"), kinds, rows, styles, console)
    reached = measurement.precision_reached is not None
    facts = [
        _interval_fact(measurement),
        ("precision", describe_precision(measurement) + (", with 95 % confidence" if reached else "")),
        ("samples", f"{measurement.samples:,} in {format_elapsed(measurement)}"),
        ("method", f"{measurement.method}: {measurement.why}"),
    ]
    if measurement.operations is not None and measurement.operations > 1:
        facts.append(("a call is", f"{measurement.operations} kernels, copies and fills"))
    if measurement.instrument_error_us is not None:
        facts.append(("instrument", f"good to ±{format_time(measurement.instrument_error_us)}, on top of the interval"))
    clock = format_clock(measurement.clock)
    if clock:
        cycles = f", {measurement.cycles.value:,.0f} cycles" if measurement.cycles is not None else ""
        facts.append(("clock", f"{clock}{cycles}"))
    _print_facts(facts, console, measurement.notes)


def _print_comparison(comparison: Comparison, console: Console, quality: Text | None) -> None:
    quantity = comparison.quantity.removesuffix("_us")
    many = format_count(1 + len(comparison.others), "function")
    _print_title(f"{many} in turns on {comparison.device}, {comparison.cache} cache", quality, console)
    rows: list[tuple[str, ...]] = [(comparison.first, *_estimate_cells(comparison.first_us)[:2], "1", "", "the first")]
    for other in comparison.others:
        within = DASH if other.low is None or other.high is None else f"{other.low:.4g} {DASH} {other.high:.4g}"
        rows.append((other.name, *_estimate_cells(other.time_us)[:2], f"{other.ratio:.4g}", within, other.verdict))
    tones: list[Tone] = ["plain", *(_VERDICT_TONES[other.verdict] for other in comparison.others)]
    kinds: tuple[ColumnKind, ...] = ("text", "number", "number", "number", "number", "text")
    heads = ("function", quantity, "±", "ratio", "interval", "verdict")
    marks = tuple(f"{TONE_MARKS[tone] or ' '} " for tone in tones)
    _print_table(heads, kinds, rows, [TONE_STYLES[tone] for tone in tones], console, marks=marks)
    methods = sorted(set(comparison.methods.values()))
    facts = [
        _interval_fact(comparison),
        ("compared by", f"{quantity}, {QUANTITY_MEANINGS[comparison.quantity]}; method {' and '.join(methods)}"),
        ("rounds", f"{comparison.pairs:,} in {format_elapsed(comparison)}, {comparison.stopped}"),
        ("the same", f"what differs by less than {format_percent(comparison.minimum_effect)}"),
    ]
    facts += [("not covered", describe_slow_noise())] if comparison.scope == "process" else []
    clock = format_clock(comparison.clock)
    facts += [("clock", clock)] if clock else []
    reasons = [f"{other.name}: {other.reason}" for other in comparison.others if other.reason]
    _print_facts(facts, console, (*reasons, *comparison.notes))


def _estimate_cells(estimate: Estimate) -> tuple[str, str, str]:
    """Return an estimate's value, its relative half-width and its interval."""
    half = estimate.relative_half_width
    if half is None or estimate.low is None or estimate.high is None:
        return format_time(estimate.value), DASH, DASH
    low, high = format_time(estimate.low), format_time(estimate.high)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return format_time(estimate.value), format_percent(half), f"{low} {DASH} {high}"


def _print_title(text: str, quality: Text | None, console: Console) -> None:
    console.print(Words(one_line(text), style="bold"))
    if quality is not None:
        console.print(_with_mark(quality.text, quality.tone))
    console.print()


def _print_table(
    heads: tuple[str, ...],
    kinds: tuple[ColumnKind, ...],
    rows: list[tuple[str, ...]],
    styles: list[str],
    console: Console,
    *,
    marks: tuple[str, ...] = (),
) -> None:
    cells = tuple(
        tuple(Words(visible_text(cell), style=style) for cell in row) for row, style in zip(rows, styles, strict=True)
    )
    print_grid(Grid(heads, kinds, cells, marks), console)


def _interval_fact(result: Measurement | Comparison) -> tuple[str, str]:
    """Return what the intervals cover: fresh starts, or this one process."""
    if result.scope == "process":
        return "interval", "of this one process and this window: a fresh start may differ by more (--processes 5)"
    name = result.decisive if isinstance(result, Measurement) else result.first
    values = [process.times[name].value for process in result.by_process if name in process.times]
    low, high = format_time(min(values)), format_time(max(values))
    of = "" if isinstance(result, Measurement) else f" of {result.first}"
    return "interval", f"over {result.processes} fresh processes, whose medians{of} are {low} to {high}"
