"""A figure as shapes: placed once, in points from the top left, then written as SVG (``svg``) or PNG (``png``)."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from assay.reports.drawing.palette import Ink
    from assay.reports.scales import Floats

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
    """One or more lines of the same look, which are not connected; each an array of x and y."""

    runs: tuple[Floats, ...]
    ink: Ink
    width: float = 0.7
    dash: tuple[float, ...] = ()
    """Lengths in line widths."""
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
