"""Figures in a terminal: what can be said with block letters, with the numbers beside them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text as Words

from assay.core.page import HeatMap, Lines, Scatter, Strips, Timeline
from assay.reports.grid import Grid, fitted, print_grid, width_of
from assay.reports.numbers import write_cell, write_column, write_interval, write_matrix
from assay.reports.scales import Axis, density, finite, shades, strip_axis
from assay.reports.terminal_scatter import print_scatter
from assay.reports.wording import one_line, visible, with_unit, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from assay.core.page import Bar, Figure, Line, Tone
    from assay.reports.grid import Kind
    from assay.reports.scales import Floats

_BLOCKS = "▁▂▃▄▅▆▇█"
_BARS: dict[Tone, tuple[str, str]] = {
    "plain": ("▒", "cyan"),
    "good": ("█", "green"),
    "unsure": ("?", "yellow"),
    "bad": ("✗", "red"),
}
_MOST_ROWS = 16
_MOST_PARTS = 4
_NUMBER: Kind = "number"
_DRAWN: tuple[Kind, Kind, Kind] = ("drawing", "drawing", "drawing")


def print_figure(figure: Figure, console: Console) -> None:
    """Print a figure in letters."""
    if isinstance(figure, Strips):
        _print_strips(figure, console)
    elif isinstance(figure, Lines):
        _print_lines(figure, console)
    elif isinstance(figure, Scatter):
        print_scatter(figure, console)
    elif isinstance(figure, HeatMap):
        _print_heat_map(figure, console)
    else:
        _print_timeline(figure, console)


def sparkline(values: Sequence[float | None], width: int, axis: Axis | None = None) -> str:
    """Return values as blocks of rising height, averaged into at most so many; a gap where nothing is known.

    Without an axis the lowest and the highest block stand for the lowest and the highest value.
    """
    array = _array(values)
    means = [_mean(part) for part in np.array_split(array, min(width, len(array)))] if len(array) else []
    finite_means = finite(means)
    if not len(finite_means):
        return " " * len(means)
    low, high = (float(finite_means.min()), float(finite_means.max())) if axis is None else (axis.low, axis.high)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)


def histogram(samples: Floats, axis: Axis, width: int) -> str:
    """Return how samples are spread along an axis as blocks; any count above zero shows."""
    if not len(samples):
        return " " * width
    counts = density(samples, axis, width)
    top = int(counts.max())
    return "".join(" " if n == 0 else _BLOCKS[round((n / top) * (len(_BLOCKS) - 1))] for n in counts)


def resampled(line: Line, axis: Axis, width: int) -> list[float | None]:
    """Return a line's mean in each of so many equal stretches of an axis; between its points it is straight."""
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


def _labels(texts: Iterable[str], console: Console) -> list[str]:
    return [wrapped(text, max(10, min(28, console.width // 4))) for text in texts]


def _room(console: Console, *beside: Sequence[str]) -> int:
    """Return the letters left for a drawing beside columns of labels and numbers."""
    used_width = sum(max(width_of(text) for text in column) + 2 for column in beside)
    return max(10, min(60, console.width - used_width))


def _scale(axis: Axis, width: int) -> Words:
    """Return the ends of an axis, as far apart as the drawing is wide."""
    low, high = write_column([axis.low, axis.high])
    return Words(f"{low}{' ' * max(1, width - len(low) - len(high))}{high}", style="dim")


def _print_strips(figure: Strips, console: Console) -> None:
    axis = strip_axis(figure.strips, figure.centre)
    labels = _labels((strip.label for strip in figure.strips), console)
    estimates = [write_interval(strip.value, strip.low, strip.high) for strip in figure.strips]
    spans = [_span(strip.samples) for strip in figure.strips]
    width = _room(console, labels, [*estimates, "estimate"], [*spans, "min – max"])
    rows = [
        (Words(label), Words(histogram(finite(strip.samples), axis, width), style="cyan"), Words(value), Words(span))
        for label, strip, value, span in zip(labels, figure.strips, estimates, spans, strict=True)
    ]
    rows.append((Words(""), _scale(axis, width), Words(""), Words("")))
    head = with_unit(figure.axis, figure.unit) + (", logarithmic" if axis.log else "")
    print_grid(Grid(("", head, "estimate", "min – max"), ("text", *_DRAWN), tuple(rows)), console)


def _span(values: Sequence[float | None]) -> str:
    finite_values = finite(values)
    if not len(finite_values):
        return "not measured"
    low, high = write_column([float(finite_values.min()), float(finite_values.max())])
    return f"{low} – {high}"


def _print_lines(figure: Lines, console: Console) -> None:
    console.print(Words(f"  {one_line(figure.y_axis)}", style="dim"))
    xs = figure.lines[0].x
    if len(xs) <= _MOST_ROWS and all(line.x == xs for line in figure.lines):
        columns = [write_column(xs), *(write_column(line.y) for line in figure.lines)]
        heads = (one_line(figure.x_axis), *(one_line(line.label) for line in figure.lines))
        cells = tuple(tuple(Words(cell) for cell in row) for row in zip(*columns, strict=True))
        print_grid(Grid(heads, tuple(_NUMBER for _ in heads), cells), console)
        return
    labels = _labels((line.label for line in figure.lines), console)
    spans = [_span(line.y) for line in figure.lines]
    width = _room(console, labels, [*spans, "min – max"])
    rows = [
        (Words(label), Words(sparkline(line.y, width), style="cyan"), Words(span))
        for label, line, span in zip(labels, figure.lines, spans, strict=True)
    ]
    head = f"{one_line(figure.x_axis)}: {_span([x for line in figure.lines for x in line.x])}"
    print_grid(Grid(("", head, "min – max"), ("text", *_DRAWN[:2]), tuple(rows)), console)


def _print_heat_map(figure: HeatMap, console: Console) -> None:
    cells = np.stack([_array(row) for row in figure.cells])
    unsure = np.zeros(cells.shape, dtype=bool) if figure.unsure is None else np.array(figure.unsure, dtype=bool)
    formatted = write_matrix([float(cell) for cell in cells.ravel()])
    marked = [f"{text}{'?' if doubt else ''}" for text, doubt in zip(formatted, unsure.ravel(), strict=True)]
    texts = np.array(marked).reshape(cells.shape)
    styles = _heat_styles(np.where(unsure, np.nan, cells), figure)
    rows = tuple(
        (Words(one_line(name)), *(Words(str(t), style=s) for t, s in zip(texts[i], styles[i], strict=True)))
        for i, name in enumerate(figure.rows)
    )
    heads = ("", *(one_line(name) for name in figure.columns))
    centre = "" if figure.centre is None else f"; {write_cell(figure.centre)} means no change"
    doubted = "; ?: the interval holds it" if centre and bool(unsure.any()) else ""
    console.print(Words(f"  {one_line(figure.unit)}{centre}{doubted}", style="dim"))
    grid = Grid(heads, ("text", *(_NUMBER for _ in figure.columns)), rows)
    if len(fitted(grid, console.width)) <= _MOST_PARTS:
        print_grid(grid, console)
    else:
        _print_large_heat_map(figure, cells, console)


def _print_large_heat_map(figure: HeatMap, cells: Floats, console: Console) -> None:
    """Print each row as a line of blocks, all rows on one scale."""
    labels = _labels(figure.rows, console)
    width = min(len(figure.columns), _room(console, labels))
    finite_values = finite(list(cells.ravel()))
    axis = Axis(float(finite_values.min()), float(finite_values.max())) if len(finite_values) else Axis(0.0, 1.0)
    rows = [
        (Words(label), Words(sparkline(row, width, axis))) for label, row in zip(labels, cells.tolist(), strict=True)
    ]
    low, high = write_column([axis.low, axis.high])
    ends = f"{one_line(figure.columns[0])} – {one_line(figure.columns[-1])}"
    head = f"{ends}, {_BLOCKS[0]} is {low}, {_BLOCKS[-1]} is {high}"
    print_grid(Grid(("", head), ("text", "drawing"), tuple(rows)), console)


def _heat_styles(cells: Floats, figure: HeatMap) -> list[list[str]]:
    """Return a style for each cell: stronger further from the centre, or from the lowest without one."""
    finite_values = finite(list(cells.ravel()))
    if figure.centre is not None:
        scale = shades(cells, figure.centre, ratios="×" in figure.unit)
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
    lanes: dict[str, list[Bar]] = {}
    for bar in figure.bars:
        lanes.setdefault(one_line(bar.lane), []).append(bar)
    labels = _labels([*(line.label for line in figure.lines), *lanes], console)
    spans = [_span(line.y) for line in figure.lines]
    width = _room(console, labels, [*spans, ""])
    drawings = [Words(sparkline(resampled(line, axis, width), width), style="cyan") for line in figure.lines]
    drawings += [_lane(bars, axis, width) for bars in lanes.values()]
    spans += [""] * len(lanes)
    rows = [(Words(label), line, Words(span)) for label, line, span in zip(labels, drawings, spans, strict=True)]
    rows.append((Words(""), _scale(axis, width), Words("")))
    print_grid(Grid(("", "time (s)", one_line(figure.lines_axis)), ("text", *_DRAWN[:2]), tuple(rows)), console)
    _print_tones(figure.bars, console)


def _lane(bars: Sequence[Bar], axis: Axis, width: int) -> Words:
    """Return a lane as one line; where bars share a letter the more serious tone is seen."""
    serious = list(_BARS)
    tones: list[Tone | None] = [None] * width
    for bar in sorted(bars, key=lambda bar: serious.index(bar.tone)):
        start, end = (axis.position(np.array([bar.start_s, bar.end_s])) * width).tolist()
        first = min(int(start), width - 1)
        for position in range(first, max(first + 1, min(width, round(end)))):
            tones[position] = bar.tone
    line = Words()
    for tone in tones:
        line.append(*((" ", "") if tone is None else _BARS[tone]))
    return line


def _print_tones(bars: Sequence[Bar], console: Console) -> None:
    used = [tone for tone in _BARS if tone != "plain" and any(bar.tone == tone for bar in bars)]
    tone_lines = [f"{_BARS[tone][0]} {tone}: {_names(bars, tone)}" for tone in used]
    for line in tone_lines:
        console.print(Words(f"  {visible(line)}", style="dim"))


def _names(bars: Sequence[Bar], tone: Tone) -> str:
    names = list(dict.fromkeys(one_line(bar.label) for bar in bars if bar.tone == tone))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
