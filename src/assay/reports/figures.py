"""Figures as SVG elements for a page and as PNG files: placed once as shapes (``drawing``), then written.

SVG has real text in the page's font, and inks as CSS variables. A PNG is in the light palette, drawn by Agg: no
display, no global state, the same bytes every time. Several figures can be combined in one PNG.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D

from assay.core.page import HeatMap, LinePlot, ScatterPlot, StripPlot, Timeline
from assay.reports.drawing.charts import draw_line_plot, draw_strips, draw_timeline
from assay.reports.drawing.heatmap import draw_heat_map
from assay.reports.drawing.scatter import draw_scatter
from assay.reports.drawing.sheet import (
    HALO,
    LIGHT,
    MARKER_OUTLINES,
    Box,
    Dots,
    Label,
    Line,
    Marker,
    Polygon,
    add_caption,
    font,
    parse_colour,
    text_width,
    without_glyph_warnings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Figure
    from assay.core.results import Origin
    from assay.reports.drawing.sheet import Canvas, Shape
    from assay.reports.scales import Floats


def to_svg(canvas: Canvas) -> str:
    """Return the drawing, as wide as its container but not smaller than its letters allow."""
    width, height = _number(canvas.width), _number(canvas.height)
    shapes = "".join(map(_shape, canvas.shapes))
    return (
        f'<svg viewBox="0 0 {width} {height}" style="min-width: {canvas.width:.0f}px" '
        f'aria-hidden="true" focusable="false">{shapes}</svg>'
    )


def _shape(shape: Shape) -> str:
    match shape:
        case Label():
            return _label(shape)
        case Box():
            numbers = zip(("x", "y", "width", "height"), (shape.x, shape.y, shape.width, shape.height), strict=True)
            sides = "".join(f' {name}="{_number(value)}"' for name, value in numbers)
            return f'<rect{sides} fill="{_ink(shape.ink)}"{_faded(shape.opacity)} shape-rendering="crispEdges"/>'
        case Line():
            dash = " ".join(_number(part * shape.width) for part in shape.dash)
            dashed = f' stroke-dasharray="{dash}"' if dash else ""
            path = "".join(map(_run, shape.runs))
            return f'<path d="{path}"{_stroke(shape.ink, shape.width)}{dashed}{_faded(shape.opacity)}/>'
        case Polygon():
            return f'<path d="{_run(shape.points)}z" fill="{_ink(shape.ink)}"{_faded(shape.opacity)}/>'
        case Dots():
            path = "".join(f"M{x:g} {y:g}h0" for x, y in np.unique(np.round(shape.points, 1), axis=0).tolist())
            look = f"{_stroke(shape.ink, shape.size)}{_faded(shape.opacity)}"
            return f'<path d="{path}"{look} stroke-linecap="round"/>'
        case Marker():
            edge = f' stroke="{_ink(shape.edge)}" stroke-width="{_number(shape.edge_width)}"' if shape.edge else ""
            outline = MARKER_OUTLINES[shape.shape]
            if outline is None:
                form = f'circle cx="{_number(shape.x)}" cy="{_number(shape.y)}" r="{_number(shape.size / 2)}"'
            else:
                form = f'path d="{_run(outline * shape.size + (shape.x, shape.y))}z"'
            return f'<{form} fill="{_ink(shape.fill)}"{edge}/>'


def _label(label: Label) -> str:
    x, y = _number(label.x), _number(label.y)
    look = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    look += ' font-weight="700"' if label.bold else ""
    look += f' transform="rotate({-label.degrees:g} {x} {y})"' if label.degrees else ""
    if label.halo:
        look += f' paint-order="stroke" stroke="var(--background)" stroke-width="{HALO}" stroke-linejoin="round"'
    text = escape(label.text, quote=False)
    return f'<text x="{x}" y="{y}" font-size="{_number(label.size)}" fill="{_ink(label.ink)}"{look}>{text}</text>'


def _stroke(ink: str, width: float) -> str:
    return f' fill="none" stroke="{_ink(ink)}" stroke-width="{_number(width)}"'


def _faded(opacity: float) -> str:
    return f' opacity="{opacity:.3g}"' if opacity < 1 else ""


def _ink(ink: str) -> str:
    return f"var(--{ink})"


def _run(points: Floats) -> str:
    (x, y), *others = np.round(points, 1).tolist()
    return f"M{x:g} {y:g}" + "".join(f"L{x:g} {y:g}" for x, y in others)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.reports.drawing.sheet import Canvas, Ink, Shape
    from assay.reports.scales import Floats

    Pixels = NDArray[np.uint8]

DPI = 200
_SCALE = DPI / 72
_COMPRESSION = 4
"""Of zlib: a higher level takes twice the time for 4 % less."""
_SETTINGS = ("agg.path.chunksize", "path.simplify", "path.simplify_threshold", "text.hinting", "text.hinting_factor")
"""What Agg takes from the user's matplotlibrc."""


def to_pixels(canvas: Canvas) -> Pixels:
    """Return the drawing on white, as rows of red, green and blue."""
    defaults: Any = mpl.rcParamsDefault
    settings: Any = {name: defaults[name] for name in _SETTINGS if name in defaults}
    with mpl.rc_context(settings), without_glyph_warnings():
        raster = _Raster(canvas)
        for shape in canvas.shapes:
            raster.draw(shape)
        return raster.pixels()


def encode_png(pixels: Pixels) -> bytes:
    """Return an image file; rows are not filtered, as flat colours compress better without."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), _COMPRESSION)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


class _Raster:
    """Pixels on which shapes are drawn one after another."""

    def __init__(self, canvas: Canvas) -> None:
        height_pt = canvas.height - canvas.top
        width, height = (round(length * _SCALE) for length in (canvas.width, height_pt))
        self._top = canvas.top
        self._agg: Any = RendererAgg(width, height, DPI)  # type: ignore[no-untyped-call]
        self._flip = Affine2D().translate(0, -canvas.top).scale(_SCALE, -_SCALE).translate(0, height)
        self.draw(Box(-1, canvas.top - 1, canvas.width + 2, height_pt + 2, "background"))

    def pixels(self) -> Pixels:
        """Return what is drawn so far."""
        return np.asarray(self._agg.buffer_rgba(), dtype=np.uint8)[:, :, :3]

    def draw(self, shape: Shape) -> None:
        """Draw a shape over the others."""
        match shape:
            case Box():
                left, top, right, bottom = shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
                corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
                self._fill(corners, shape.ink, shape.opacity, snap=True)
            case Polygon():
                self._fill(shape.points, shape.ink, shape.opacity)
            case Line():
                self._stroke(shape)
            case Dots():
                gc = self._context(shape.ink, 0.0, shape.opacity)
                circle = Affine2D().scale(shape.size / 2 * _SCALE)
                face = parse_colour(LIGHT[shape.ink])
                self._agg.draw_markers(gc, Path.unit_circle(), circle, Path(shape.points), self._flip, face)
            case Marker():
                self._mark(shape)
            case Label():
                self._write(shape)

    def _context(self, ink: Ink, width: float, opacity: float = 1.0, *, snap: bool | None = None) -> Any:
        gc = self._agg.new_gc()
        gc.set_foreground((*parse_colour(LIGHT[ink]), 1.0), isRGBA=True)
        gc.set_alpha(opacity)
        gc.set_linewidth(width)
        gc.set_joinstyle("round")
        gc.set_snap(snap)
        return gc

    def _fill(self, points: Floats, ink: Ink, opacity: float, *, snap: bool | None = False) -> None:
        gc = self._context(ink, 0.0, opacity, snap=snap)
        self._agg.draw_path(gc, Path(points, closed=False), self._flip, parse_colour(LIGHT[ink]))

    def _stroke(self, line: Line) -> None:
        gc = self._context(line.ink, line.width, line.opacity)
        if line.dash:
            gc.set_dashes(0.0, [part * line.width for part in line.dash])
        for run in line.runs:
            self._agg.draw_path(gc, Path(run), self._flip)

    def _mark(self, marker: Marker) -> None:
        corners = MARKER_OUTLINES[marker.shape]
        outline = Path.circle(radius=0.5) if corners is None else Path(np.vstack([corners, corners[:1]]), closed=True)
        gc = self._context(marker.edge or marker.fill, marker.edge_width if marker.edge else 0.0)
        placed = Affine2D().scale(marker.size).translate(marker.x, marker.y) + self._flip
        self._agg.draw_path(gc, outline, placed, parse_colour(LIGHT[marker.fill]))

    def _write(self, label: Label) -> None:
        shift = {"start": 0.0, "middle": -0.5, "end": -1.0}[label.anchor]
        shift *= text_width(label.text, label.size, bold=label.bold) if shift else 0.0
        turn = np.deg2rad(label.degrees)
        x, y = label.x + shift * float(np.cos(turn)), label.y - shift * float(np.sin(turn))
        properties = font(bold=label.bold).copy()
        properties.set_size(label.size)
        if label.halo:
            vertices, codes = text_to_path.get_text_path(properties, label.text)
            outline = Path(np.asarray(vertices), np.asarray(codes))
            glyphs = label.size / text_to_path.FONT_SCALE
            placed = Affine2D().scale(glyphs, -glyphs).rotate(-turn).translate(x, y) + self._flip
            self._agg.draw_path(self._context("background", HALO), outline, placed)
        gc = self._context(label.ink, 0.0)
        self._agg.draw_text(gc, x * _SCALE, (y - self._top) * _SCALE, label.text, properties, label.degrees)


@dataclass(frozen=True)
class Drawing:
    """A figure as it is drawn, and the remarks that its caption must contain."""

    figure: Figure
    canvas: Canvas
    remarks: tuple[str, ...]

    def to_svg(self) -> str:
        """Return one ``<svg>`` element without title and remarks, in the colours of the page."""
        return to_svg(self.canvas)

    def to_pixels(self, *, noted: bool = False, origin: Origin = "real") -> Pixels:
        """Return the drawing on white with its title and remarks; ``noted`` adds the note."""
        remarks = (self.figure.note, *self.remarks) if noted and self.figure.note else self.remarks
        return to_pixels(add_caption(self.canvas, self.figure.title, remarks, origin))

    def to_png(self, *, noted: bool = False, origin: Origin = "real") -> bytes:
        """Return the same as the content of a PNG file, at twice the usual resolution."""
        return encode_png(self.to_pixels(noted=noted, origin=origin))


def draw_figure(figure: Figure) -> Drawing:
    """Place everything that a figure shows."""
    match figure:
        case StripPlot():
            canvas, remarks = draw_strips(figure)
        case LinePlot():
            canvas, remarks = draw_line_plot(figure)
        case ScatterPlot():
            canvas, remarks = draw_scatter(figure)
        case HeatMap():
            canvas, remarks = draw_heat_map(figure)
        case Timeline():
            canvas, remarks = draw_timeline(figure)
    return Drawing(figure, canvas, tuple(remarks))


MAX_PANEL_COLUMNS = 2
PANEL_MARGIN = 24
"""Around each figure of a sheet, in pixels."""


def to_panels(figures: Sequence[Figure], *, origin: Origin = "real") -> bytes:
    """Return figures as one PNG: in two columns, each row as high as its highest figure."""
    if not figures:
        raise ValueError("a sheet has at least one figure")
    images = [draw_figure(figure).to_pixels(noted=True, origin=origin) for figure in figures]
    columns = min(MAX_PANEL_COLUMNS, len(images))
    width = max(image.shape[1] for image in images)
    sheets: list[Pixels] = []
    for row in (images[start : start + columns] for start in range(0, len(images), columns)):
        height = max(image.shape[0] for image in row)
        sheet = np.full((height + 2 * PANEL_MARGIN, columns * (width + 2 * PANEL_MARGIN), 3), 255, dtype=np.uint8)
        for number, image in enumerate(row):
            left = number * (width + 2 * PANEL_MARGIN) + PANEL_MARGIN
            sheet[PANEL_MARGIN : PANEL_MARGIN + image.shape[0], left : left + image.shape[1]] = image
        sheets.append(sheet)
    return encode_png(np.concatenate(sheets, axis=0))
