"""The sheet that figures are drawn on: colours, shapes, and the plot area with its axes, ticks, titles and legend.

A figure is placed once, as shapes in points from the top left; ``figures`` writes them as SVG or PNG. A shape names its
ink: a PNG takes the light colours, in HTML an ink is a CSS variable, so that one drawing suits white and dark pages.
The colours are distinguishable for every kind of colour vision.

      legend
title │ ticks  ┌────────────┐ room for notes
      │ labels │  the plot  │
               └────────────┘
                 tick labels
                    title
"""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from assay.core.format import typeset_minus
from assay.reports.text import format_ticks, origin_warning, wrap_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from assay.core.results import Origin
    from assay.reports.scales import Axis, Floats

Ink: TypeAlias = str
"""A name in both palettes."""
Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, from 0 to 1."""

LINE_INKS = tuple(f"line-{number}" for number in range(1, 8))

_INKS: Mapping[Ink, tuple[str, str]] = {
    "background": ("#ffffff", "#14181d"),
    "ink": ("#1d232b", "#e6eaee"),
    "muted": ("#5b6673", "#9aa5b1"),
    "rule": ("#e3e7ec", "#2b323a"),
    "dot": ("#5b9bd0", "#4f8fc4"),
    "warning": ("#a33b00", "#ffab73"),
    "line-1": ("#0072b2", "#6cb6f0"),
    "line-2": ("#d55e00", "#f08a4b"),
    "line-3": ("#009e73", "#3fc79a"),
    "line-4": ("#b5598f", "#e39cc8"),
    "line-5": ("#b98500", "#e0b040"),
    "line-6": ("#3d4852", "#c3ccd5"),
    "line-7": ("#56b4e9", "#9b9bff"),
    "tone-plain": ("#a9c8e3", "#2f5b80"),
    "tone-good": ("#7fcdb4", "#1f6e57"),
    "tone-bad": ("#f0a07a", "#8c4420"),
    "tone-unsure": ("#ecd27f", "#75601a"),
    "below": ("#2f7fbf", "#5aa9e6"),
    "middle": ("#f7f7f5", "#262b31"),
    "above": ("#dd7a1f", "#f0913a"),
    "faint": ("#eef4fa", "#1e2a36"),
    "strong": ("#155a96", "#86c3f5"),
}

_BLACK, _WHITE = "#000000", "#ffffff"
_ON: Mapping[tuple[str, str], Ink] = {
    (light, dark): f"{'black' if light == _BLACK else 'white'}-{'black' if dark == _BLACK else 'white'}"
    for light in (_BLACK, _WHITE)
    for dark in (_BLACK, _WHITE)
}
"""The inks of text on a coloured ground, by the colour that is readable on white pages and on dark ones."""

LIGHT: Mapping[Ink, str] = {name: light for name, (light, _) in _INKS.items()} | {ink: on[0] for on, ink in _ON.items()}
DARK: Mapping[Ink, str] = {name: dark for name, (_, dark) in _INKS.items()} | {ink: on[1] for on, ink in _ON.items()}


def css_variables(palette: Mapping[Ink, str]) -> str:
    """Return the declarations of a palette, to be put into a rule."""
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


@cache
def parse_colour(text: str) -> Colour:
    """Return the colour that ``#rrggbb`` denotes."""
    red, green, blue = (int(text[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def blend(palette: Mapping[Ink, str], ground: Ink, ink: Ink, opacity: float) -> Colour:
    """Return the colour of an ink over a ground, as a screen mixes it."""
    pairs = zip(parse_colour(palette[ground]), parse_colour(palette[ink]), strict=True)
    red, green, blue = (below + (above - below) * opacity for below, above in pairs)
    return red, green, blue


def readable_ink(ground: Ink, ink: Ink | None = None, opacity: float = 1.0) -> Ink:
    """Return the ink of text on a ground, or on an ink over it: black or white, by palette."""
    grounds = (blend(palette, ground, ink or ground, opacity) for palette in (LIGHT, DARK))
    light, dark = (readable_on(colour) for colour in grounds)
    return _ON[light, dark]


def luminance(colour: Colour) -> float:
    """Return the relative luminance of a colour as WCAG defines it, from 0 (black) to 1 (white)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def readable_on(colour: Colour) -> str:
    """Return black or white, whichever contrasts more: on any background the ratio is at least 4.5."""
    return max(_BLACK, _WHITE, key=lambda ink: contrast(parse_colour(ink), colour))


FONT = "DejaVu Sans"
LINE_HEIGHT = 1.25
"""Distance of two lines of text, in font sizes."""
CAP_HEIGHT = 0.73
"""Height of a capital letter or a digit, in font sizes."""

HALO = 2.4
"""Width of the outline that keeps a text apart from what lies below it."""

Anchor: TypeAlias = Literal["start", "middle", "end"]
MarkerShape: TypeAlias = Literal["o", "s", "D", "^", "v", "P", "X", "<", ">"]

DASHED = (4.0, 2.4)


@dataclass(frozen=True)
class Line:
    """One or more lines of the same look, which are not connected; each an array of x and y.

    The lengths of ``dash`` are in line widths.
    """

    runs: tuple[Floats, ...]
    ink: Ink
    width: float = 0.7
    dash: tuple[float, ...] = ()
    opacity: float = 1.0


@dataclass(frozen=True)
class Polygon:
    """A filled area."""

    points: Floats
    ink: Ink
    opacity: float = 1.0


@dataclass(frozen=True)
class Box:
    """A filled rectangle, not antialiased."""

    x: float
    y: float
    width: float
    height: float
    ink: Ink
    opacity: float = 1.0


@dataclass(frozen=True)
class Dots:
    """Many small round dots of one look."""

    points: Floats
    ink: Ink
    size: float
    opacity: float = 1.0


@dataclass(frozen=True)
class Marker:
    """One symbol, with an outline where it has an ``edge``."""

    x: float
    y: float
    shape: MarkerShape
    size: float
    fill: Ink
    edge: Ink | None = None
    edge_width: float = 1.0


@dataclass(frozen=True)
class Label:
    """One line of text; (x, y) is the ``anchor`` on its baseline. It is turned around it, counter-clockwise."""

    text: str
    x: float
    y: float
    size: float
    ink: Ink = "ink"
    anchor: Anchor = "start"
    bold: bool = False
    degrees: float = 0.0
    halo: bool = False
    """Whether it has an outline in the background's colour."""


Shape: TypeAlias = Line | Polygon | Box | Dots | Marker | Label


@dataclass
class Canvas:
    """Shapes in the order in which they cover each other."""

    width: float
    height: float = 0.0
    """Its lower edge; the upper one is at ``top``."""
    shapes: list[Shape] = field(default_factory=list)
    top: float = 0.0

    def add(self, *shapes: Shape) -> None:
        """Draw on top of what is there."""
        self.shapes += shapes

    def line(
        self,
        runs: Iterable[Floats | Sequence[tuple[float, float]]],
        ink: Ink,
        width: float,
        *,
        dash: tuple[float, ...] = (),
        opacity: float = 1.0,
    ) -> None:
        """Draw unconnected lines of one look."""
        arrays = tuple(np.asarray(run, dtype=np.float64) for run in runs)
        if arrays:
            self.add(Line(arrays, ink, width, dash, opacity))

    def write(
        self,
        text: str,
        at: tuple[float, float],
        size: float,
        ink: Ink = "ink",
        anchor: Anchor = "start",
        *,
        middle: bool = False,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Write lines of text below each other, the first one's capitals below y; or, in the ``middle``, around y."""
        x, y = at
        if middle:
            y -= text_height(text, size) / 2
        for number, line in enumerate(text.split("\n")):
            baseline = y + size * (CAP_HEIGHT + number * LINE_HEIGHT)
            if line:
                self.add(Label(line, x, baseline, size, ink, anchor, bold=bold, halo=halo))


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of the longest line, in points."""
    return max(sum(_advance(letter, bold=bold) for letter in line) for line in text.split("\n")) * size


def text_height(text: str, size: float) -> float:
    """Return the height from the capitals of the first line to the baseline of the last, in points."""
    return size * (CAP_HEIGHT + text.count("\n") * LINE_HEIGHT)


@cache
def font(*, bold: bool = False) -> FontProperties:
    """Return the font of figures, at a size of one point."""
    return FontProperties(family=FONT, weight="bold" if bold else "normal", size=1.0)


@cache
def _advance(letter: str, *, bold: bool) -> float:
    """Return how far a letter moves the next one, in font sizes."""
    with without_glyph_warnings():
        alone, between = (
            text_to_path.get_text_width_height_descent(text, font(bold=bold), ismath=False)[0]
            for text in ("nn", f"n{letter}n")
        )
    return float(between - alone)


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Let matplotlib draw a box for a letter that its font does not have, and say nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _plus(turn_degrees: float) -> list[tuple[float, float]]:
    """Return the corners of a thick plus sign, turned."""
    thick, reach, turn = 0.19, 0.55, np.deg2rad(turn_degrees)
    arm = [(reach, -thick), (reach, thick), (thick, thick)]
    angles = [turn + quarter * np.pi / 2 for quarter in range(4)]
    return [(x * np.cos(a) - y * np.sin(a), x * np.sin(a) + y * np.cos(a)) for a in angles for x, y in arm]


MARKER_OUTLINES: Mapping[MarkerShape, Floats | None] = {
    "o": None,
    "s": np.array([(-0.45, -0.45), (0.45, -0.45), (0.45, 0.45), (-0.45, 0.45)]),
    "D": np.array([(0, -0.65), (0.65, 0), (0, 0.65), (-0.65, 0)]),
    "^": np.array([(0, -0.55), (0.55, 0.5), (-0.55, 0.5)]),
    "v": np.array([(0, 0.55), (0.55, -0.5), (-0.55, -0.5)]),
    "P": np.array(_plus(0)),
    "X": np.array(_plus(45)),
    "<": np.array([(-0.5, 0), (0.5, -0.5), (0.5, 0.5)]),
    ">": np.array([(0.5, 0), (-0.5, -0.5), (-0.5, 0.5)]),
}
"""The corners of markers of size 1 around the origin, y downwards; null for the circle."""


WIDTH = 453.6
"""Width of a figure, in points."""
MARGIN = 4.5
"""Free space around everything, in points."""
LABEL_CHARACTERS = 24
AXIS_CHARACTERS = 70
TITLE_SIZE, TICK_SIZE, LEGEND_SIZE, NOTE_SIZE = 9.0, 8.5, 8.5, 8.0
_HEAD_SIZE, _FOOT_SIZE = 10.5, 7.5
_TICK, _PAD = 3.0, 3.5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_SLACK = 1e-9


def linear_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` + 1 round numbers between two, ``whole`` ones where they count something."""
    width = high - low
    if not width > 0:
        return [low]
    decade = 10.0 ** math.floor(math.log10(width / most))
    steps = [step * decade for step in (*_STEPS, 20.0)]
    if whole:
        steps = [step for step in steps if step == round(step)] or [1.0]
    step = next((step for step in steps if width / step <= most), steps[-1])
    first, last = math.ceil(low / step - _SLACK), math.floor(high / step + _SLACK)
    return [round(number * step, 12 - math.floor(math.log10(step))) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return about ``most`` numbers between two, at least two: powers of ten, with 2 and 5 between if there is room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for every, factors in ((1, (1.0, 2.0, 5.0)), *((every, (1.0,)) for every in range(1, len(decades) + 1))):
        powers = (10.0**decade for decade in decades if decade % every == 0)
        finer, ticks = ticks, [factor * power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low * (1 - _SLACK) <= tick <= high * (1 + _SLACK)]
        if len(ticks) < 2:
            return finer or [tick for tick in linear_ticks(low, high, max(4, most)) if tick > 0]
        if len(ticks) <= most + 1:
            break
    return ticks


def tick_texts(ticks: Sequence[float], *, log: bool) -> tuple[str, ...]:
    """Format ticks like the cells of a table: alike, or each by itself where they differ in size."""
    if not log:
        return tuple(map(typeset_minus, format_ticks(ticks)))
    return tuple(typeset_minus(format_ticks([tick])[0].removeprefix("1×")) for tick in ticks)


@dataclass(frozen=True)
class Ticks:
    """An axis with its ticks, what is written at them, and its title."""

    axis: Axis
    values: tuple[float, ...]
    texts: tuple[str, ...]
    title: str = ""

    @classmethod
    def numbered(
        cls, axis: Axis, title: str = "", *, most: int = 6, whole: bool = False, values: Sequence[float] | None = None
    ) -> Ticks:
        """Return an axis with round numbers, or with the given ones."""
        if values is None:
            values = log_ticks(axis.low, axis.high, most) if axis.log else None
            values = values or linear_ticks(axis.low, axis.high, most, whole=whole)
        return cls(axis, tuple(values), tick_texts(values, log=axis.log), title)

    @property
    def left_room(self) -> float:
        """The width that its texts and its turned title take on the left of a plot."""
        texts = max((text_width(text, TICK_SIZE) for text in self.texts), default=0.0)
        return texts + _PAD + (_title_height(self.title) if self.title else 0.0)

    @property
    def right_edge(self) -> float:
        """The right edge of a plot over this axis: the last text may reach half its width beyond it."""
        return WIDTH - MARGIN - max([MARGIN, *(text_width(text, TICK_SIZE) / 2 for text in self.texts[-1:])])


def _title_height(title: str) -> float:
    return text_height(title, TITLE_SIZE) + 2 * _PAD


@dataclass(frozen=True)
class PlotArea:
    """The rectangle of a plot on a canvas; values are placed on it by two axes, the vertical one upwards."""

    canvas: Canvas
    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def across(self, values: Sequence[float] | Floats) -> Floats:
        """Return the horizontal positions of values, in points."""
        return self.left + self.x.position(np.asarray(values, dtype=np.float64)) * (self.right - self.left)

    def down(self, values: Sequence[float] | Floats) -> Floats:
        """Return the vertical positions of values, in points."""
        return self.bottom - self.y.position(np.asarray(values, dtype=np.float64)) * (self.bottom - self.top)

    def points(self, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Floats:
        """Return the positions of pairs of values."""
        return np.column_stack([self.across(x), self.down(y)])

    def draw_x_axis(self, ticks: Ticks, *, labelled: bool = True) -> None:
        """Draw the grid; below the plot, if it is ``labelled``, the axis with its texts and its title."""
        positions = [float(position) for position in self.across(ticks.values)]
        self.canvas.line([[(x, self.top), (x, self.bottom)] for x in positions], "rule", 0.7)
        if not labelled:
            return
        base, below = self.bottom, self.bottom + _TICK + _PAD
        runs = [[(self.left, base), (self.right, base)], *([(x, base), (x, base + _TICK)] for x in positions)]
        self.canvas.line(runs, "muted", 0.8)
        for x, text in zip(positions, ticks.texts, strict=True):
            self.canvas.write(text, (x, below), TICK_SIZE, anchor="middle")
        below += max((text_height(text, TICK_SIZE) for text in ticks.texts), default=0.0)
        if ticks.title:
            middle = (self.left + self.right) / 2
            half = text_width(ticks.title, TITLE_SIZE) / 2
            middle = max(min(middle, self.canvas.width - MARGIN - half), MARGIN + half)
            self.canvas.write(ticks.title, (middle, below + 2 * _PAD), TITLE_SIZE, anchor="middle")
            below += _title_height(ticks.title)
        self.canvas.height = max(self.canvas.height, below + MARGIN)

    def draw_y_axis(self, ticks: Ticks) -> None:
        """Draw the grid, and the texts and the title on the left."""
        positions = [float(position) for position in self.down(ticks.values)]
        self.canvas.line([[(self.left, y), (self.right, y)] for y in positions], "rule", 0.7)
        self.write_rows(zip(positions, ticks.texts, strict=True))
        lines = ticks.title.split("\n") if ticks.title else []
        for number, line in enumerate(lines):
            x = MARGIN + TITLE_SIZE * (CAP_HEIGHT + number * LINE_HEIGHT)
            middle = (self.top + self.bottom) / 2
            self.canvas.add(Label(line, x, middle, TITLE_SIZE, anchor="middle", degrees=90.0))

    def write_rows(self, rows: Iterable[tuple[float, str]]) -> None:
        """Write texts on the left, each around its vertical position."""
        for middle, text in rows:
            self.canvas.write(text, (self.left - _PAD, middle), TICK_SIZE, anchor="end", middle=True)


@dataclass(frozen=True)
class LegendEntry:
    """A label, and how its symbol is drawn around a point."""

    label: str
    draw: Callable[[Canvas, float, float], None]


_KEY_WIDTH, _KEY_GAP, _ENTRY_GAP = 16.0, 5.0, 14.0


def draw_legend(canvas: Canvas, entries: Sequence[LegendEntry], left: float, top: float) -> float:
    """Draw a legend in as many columns as fit, row by row; return the position below it."""
    texts = [wrap_label(entry.label, 40) for entry in entries]
    room = canvas.width - MARGIN - left
    widths = [_KEY_WIDTH + _KEY_GAP + text_width(text, LEGEND_SIZE) + _ENTRY_GAP for text in texts]
    if sum(widths) - _ENTRY_GAP > room:
        columns = max(1, int(room // max(widths)))
        widths = [max(widths[column::columns]) for column in range(columns)]
    rows = [range(start, min(start + len(widths), len(texts))) for start in range(0, len(texts), len(widths))]
    for row in rows:
        height = max(text_height(texts[index], LEGEND_SIZE) for index in row)
        x = left
        for index, width in zip(row, widths, strict=False):
            entries[index].draw(canvas, x + _KEY_WIDTH / 2, top + height / 2)
            canvas.write(texts[index], (x + _KEY_WIDTH + _KEY_GAP, top + height / 2), LEGEND_SIZE, middle=True)
            x += width
        top += height + LEGEND_SIZE * 0.6
    return top + LEGEND_SIZE * 0.4


def box_key(ink: Ink) -> Callable[[Canvas, float, float], None]:
    """Return a legend's coloured box."""
    return lambda canvas, x, y: canvas.add(Box(x - _KEY_WIDTH / 2, y - 3, _KEY_WIDTH, 6, ink))


def add_caption(canvas: Canvas, title: str, remarks: Sequence[str], origin: Origin) -> Canvas:
    """Return the drawing with a title above, and below the remarks and the warning about the numbers' origin."""
    captioned = Canvas(canvas.width, canvas.height, list(canvas.shapes))
    head = wrap_label(title, int(canvas.width / 6.9))
    captioned.top = -(text_height(head, _HEAD_SIZE) + 2 * MARGIN)
    captioned.write(head, (MARGIN, captioned.top + MARGIN), _HEAD_SIZE, bold=True)
    warning = origin_warning(origin)
    foot = wrap_label(" ".join(remarks), int(canvas.width / 4.4))
    for text, size, ink in ((foot, _FOOT_SIZE, "muted"), (f"{warning}." if warning else "", NOTE_SIZE, "warning")):
        if text:
            captioned.write(text, (MARGIN, captioned.height + MARGIN), size, ink, bold=ink == "warning")
            captioned.height += text_height(text, size) + 2.5 * MARGIN
    return captioned
