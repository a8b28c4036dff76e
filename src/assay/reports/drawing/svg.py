"""Shapes as one ``<svg>`` element for a page: real text in the page's font, inks as CSS variables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from assay.reports.drawing.shapes import HALO, MARKER_OUTLINES, Box, Dots, Label, Line, Marker, Polygon

if TYPE_CHECKING:
    from assay.reports.drawing.shapes import Canvas, Shape
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
            return _marker(shape)


def _marker(marker: Marker) -> str:
    edge = f' stroke="{_ink(marker.edge)}" stroke-width="{_number(marker.edge_width)}"' if marker.edge else ""
    outline = MARKER_OUTLINES[marker.shape]
    if outline is None:
        form = f'circle cx="{_number(marker.x)}" cy="{_number(marker.y)}" r="{_number(marker.size / 2)}"'
    else:
        form = f'path d="{_run(outline * marker.size + (marker.x, marker.y))}z"'
    return f'<{form} fill="{_ink(marker.fill)}"{edge}/>'


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
