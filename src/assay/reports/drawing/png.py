"""Shapes as a PNG in the light palette, drawn by Agg: no display, no global state, the same bytes every time."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D

from assay.reports.drawing.palette import LIGHT, parse_colour
from assay.reports.drawing.shapes import (
    HALO,
    MARKER_OUTLINES,
    Box,
    Dots,
    Label,
    Line,
    Marker,
    Polygon,
    font,
    text_width,
    without_glyph_warnings,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.reports.drawing.palette import Ink
    from assay.reports.drawing.shapes import Canvas, Shape
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
