"""Figures as matplotlib drawings, PNG and SVG: no display, no global state, the same bytes every time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG

from assay.core.durable import replace_atomically
from assay.core.page import HeatMap, Lines, Scatter, Strips
from assay.reports.drawing.heatmap import draw_heat_map
from assay.reports.drawing.lines import draw_lines
from assay.reports.drawing.scatter import draw_scatter
from assay.reports.drawing.sheet import add_remarks, add_title
from assay.reports.drawing.strips import draw_strips
from assay.reports.drawing.theme import LIGHT, settings, theme
from assay.reports.drawing.timeline import draw_timeline
from assay.reports.svg import element

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure as Drawing

    from assay.core.page import Figure
    from assay.core.results import Origin
    from assay.reports.drawing.theme import Theme

_DPI = 200
_NO_SVG_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw(figure: Figure, *, dark: bool, titled: bool = True, noted: bool = False, origin: Origin = "real") -> Drawing:
    """Draw a figure; ``titled`` and ``noted`` put title and note on the sheet, where no caption stands beside it."""
    drawing_theme = theme(dark=dark)
    with settings(drawing_theme):
        drawing, remarks = _draw(figure, drawing_theme)
        if titled:
            add_title(drawing, figure.title, drawing_theme)
        add_remarks(drawing, [figure.note, *remarks] if noted and figure.note else remarks, origin, drawing_theme)
        return drawing


def to_png(figure: Figure, *, noted: bool = False, origin: Origin = "real") -> bytes:
    """Return a figure as a PNG on white, with its title, at twice the usual resolution."""
    drawing = draw(figure, dark=False, noted=noted, origin=origin)
    buffer = io.BytesIO()
    with settings(LIGHT):
        drawing.set_dpi(_DPI)
        # Not savefig, which draws everything twice to lay it out.
        FigureCanvasAgg(drawing).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def save_png(figure: Figure, path: Path, *, origin: Origin = "real") -> None:
    """Write a figure's PNG, whole or not at all."""
    replace_atomically(path, to_png(figure, origin=origin))


def to_svg(figure: Figure, *, dark: bool) -> str:
    """Return a figure as one ``<svg>`` element, without title or background, for a place that has both."""
    drawing = draw(figure, dark=dark, titled=False)
    return _svg(drawing, theme(dark=dark), f"{figure.name}-{'dark' if dark else 'light'}-")


def svg_and_remarks(figure: Figure, *, dark: bool, prefix: str) -> tuple[str, list[str]]:
    """Return the bare drawing as ``to_svg`` does, and apart from it the remarks that its caption must carry.

    ``prefix`` keeps its ids apart from those of other drawings in the same document.
    """
    drawing_theme = theme(dark=dark)
    with settings(drawing_theme):
        drawing, remarks = _draw(figure, drawing_theme)
    return _svg(drawing, drawing_theme, prefix), remarks


def _svg(drawing: Drawing, look: Theme, prefix: str) -> str:
    buffer = io.StringIO()
    with settings(look):
        drawing.patch.set_visible(False)
        FigureCanvasSVG(drawing).print_svg(buffer, metadata=_NO_SVG_METADATA)  # type: ignore[no-untyped-call]
    return element(buffer.getvalue(), prefix)


def _draw(figure: Figure, look: Theme) -> tuple[Drawing, list[str]]:
    if isinstance(figure, Strips):
        return draw_strips(figure, look)
    if isinstance(figure, Lines):
        return draw_lines(figure, look)
    if isinstance(figure, Scatter):
        return draw_scatter(figure, look)
    if isinstance(figure, HeatMap):
        return draw_heat_map(figure, look)
    return draw_timeline(figure, look)
