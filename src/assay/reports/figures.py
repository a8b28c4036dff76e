"""Figures as matplotlib drawings, PNG and SVG: no display, no global state, the same bytes every time.

Matplotlib's SVG is reduced to one element that can be embedded in a page: unique IDs, the page's font, short numbers.
Several figures can be combined in one PNG.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.image import imread, imsave

from assay.core.files import replace_atomically
from assay.core.page import HeatMap, LinePlot, ScatterPlot, StripPlot
from assay.reports.drawing.heatmap import draw_heat_map
from assay.reports.drawing.lines import draw_lines, draw_timeline
from assay.reports.drawing.scatter import draw_scatter
from assay.reports.drawing.sheet import LIGHT, add_remarks, add_title, drawing_settings, select_theme
from assay.reports.drawing.strips import draw_strips

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure as Drawing
    from numpy.typing import NDArray

    from assay.core.page import Figure
    from assay.core.results import Origin
    from assay.reports.drawing.sheet import Theme


_ROOT_STYLE = "stroke-linejoin: round; stroke-linecap: butt; font-family: system-ui, sans-serif"
_TAG = re.compile(r"<[^<>]*>")
_BETWEEN_TAGS = re.compile(r">\s+<")
_SIZE = re.compile(r' (?:width|height)="[^"]*pt"')
_REFERENCE = re.compile(r'\bhref="#([^"]*)"')
_URL = re.compile(r"url\(#([^)]*)\)")
_ID = re.compile(r' id="([^"]*)"')
_DIGITS = re.compile(r"(\.\d{2})\d+")
_FONT = re.compile(r" ?font-family: [^;\"]*;?")


def embeddable_svg(svg: str, prefix: str) -> str:
    """Return the ``<svg>`` element of a file that matplotlib wrote; each of its IDs starts with ``prefix``.

    Only tags are changed: the text between them is the user's.
    """
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    start, end = svg.split(">", 1)
    start = _SIZE.sub("", start).replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    body = _TAG.sub(lambda tag: _tidy_tag(tag.group(), prefix), end)
    body = _BETWEEN_TAGS.sub("><", body).strip()
    return f'{start} style="{_ROOT_STYLE}">{body}'


def _tidy_tag(tag: str, prefix: str) -> str:
    """Prefix a tag's IDs, and remove what the page defines or what is invisible."""
    if tag.startswith("<g"):
        tag = _ID.sub("", tag)
    tag = _ID.sub(rf' id="{prefix}\1"', tag)
    tag = tag.replace(" xlink:href=", " href=")
    tag = _REFERENCE.sub(rf'href="#{prefix}\1"', tag)
    tag = _URL.sub(rf"url(#{prefix}\1)", tag)
    return _DIGITS.sub(r"\1", _FONT.sub("", tag))


_DPI = 200
_NO_SVG_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw_figure(
    figure: Figure, *, dark: bool, titled: bool = True, noted: bool = False, origin: Origin = "real"
) -> Drawing:
    """Draw a figure; ``titled`` and ``noted`` include the title and note, where no caption is shown beside it."""
    drawing_theme = select_theme(dark=dark)
    with drawing_settings(drawing_theme):
        drawing, remarks = _draw_by_kind(figure, drawing_theme)
        if titled:
            add_title(drawing, figure.title, drawing_theme)
        add_remarks(drawing, [figure.note, *remarks] if noted and figure.note else remarks, origin, drawing_theme)
        return drawing


def to_png(figure: Figure, *, noted: bool = False, origin: Origin = "real") -> bytes:
    """Return a figure as a PNG on white, with its title, at twice the usual resolution."""
    drawing = draw_figure(figure, dark=False, noted=noted, origin=origin)
    buffer = io.BytesIO()
    with drawing_settings(LIGHT):
        drawing.set_dpi(_DPI)
        # Not savefig, which draws everything twice to lay it out.
        FigureCanvasAgg(drawing).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def save_png(figure: Figure, path: Path, *, origin: Origin = "real") -> None:
    """Write a figure's PNG, whole or not at all."""
    replace_atomically(path, to_png(figure, origin=origin))


def to_svg(figure: Figure, *, dark: bool) -> str:
    """Return a figure as one ``<svg>`` element, without title and background, for embedding."""
    drawing = draw_figure(figure, dark=dark, titled=False)
    return _svg(drawing, select_theme(dark=dark), f"{figure.name}-{'dark' if dark else 'light'}-")


def svg_and_remarks(figure: Figure, *, dark: bool, prefix: str) -> tuple[str, list[str]]:
    """Return the bare drawing like ``to_svg``, and separately the remarks that its caption must contain.

    ``prefix`` makes its IDs unique among the drawings in the same document.
    """
    drawing_theme = select_theme(dark=dark)
    with drawing_settings(drawing_theme):
        drawing, remarks = _draw_by_kind(figure, drawing_theme)
    return _svg(drawing, drawing_theme, prefix), remarks


def _svg(drawing: Drawing, drawing_theme: Theme, prefix: str) -> str:
    buffer = io.StringIO()
    with drawing_settings(drawing_theme):
        drawing.patch.set_visible(False)
        FigureCanvasSVG(drawing).print_svg(buffer, metadata=_NO_SVG_METADATA)  # type: ignore[no-untyped-call]
    return embeddable_svg(buffer.getvalue(), prefix)


def _draw_by_kind(figure: Figure, drawing_theme: Theme) -> tuple[Drawing, list[str]]:
    if isinstance(figure, StripPlot):
        return draw_strips(figure, drawing_theme)
    if isinstance(figure, LinePlot):
        return draw_lines(figure, drawing_theme)
    if isinstance(figure, ScatterPlot):
        return draw_scatter(figure, drawing_theme)
    if isinstance(figure, HeatMap):
        return draw_heat_map(figure, drawing_theme)
    return draw_timeline(figure, drawing_theme)


if TYPE_CHECKING:
    Image = NDArray[np.float32]

MAX_PANEL_COLUMNS = 2
PANEL_MARGIN = 24


def save_panels(figures: Sequence[Figure], path: Path, *, origin: Origin = "real") -> None:
    """Write figures as one PNG, whole or not at all: in two columns, each row as high as its highest figure."""
    replace_atomically(path, to_panels(figures, origin=origin))


def to_panels(figures: Sequence[Figure], *, origin: Origin = "real") -> bytes:
    """Return figures as one PNG; each states the origin of its numbers, if not hardware."""
    if not figures:
        raise ValueError("a sheet has at least one figure")
    images: list[Image] = [
        imread(io.BytesIO(to_png(figure, noted=True, origin=origin)))[:, :, :3] for figure in figures
    ]
    columns = min(MAX_PANEL_COLUMNS, len(images))
    width = max(image.shape[1] for image in images)
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    sheet = np.concatenate([_panel_row(row, width, columns) for row in rows], axis=0)
    buffer = io.BytesIO()
    imsave(buffer, sheet, format="png", metadata={"Software": None})  # type: ignore[dict-item]  # null: say nothing
    return buffer.getvalue()


def _panel_row(images: Sequence[Image], width: int, columns: int) -> Image:
    """Return images side by side on white, with a margin around each."""
    height = max(image.shape[0] for image in images)
    sheet = np.ones((height + 2 * PANEL_MARGIN, columns * (width + 2 * PANEL_MARGIN), 3), dtype=np.float32)
    for number, image in enumerate(images):
        left = number * (width + 2 * PANEL_MARGIN) + PANEL_MARGIN
        sheet[PANEL_MARGIN : PANEL_MARGIN + image.shape[0], left : left + image.shape[1]] = image
    return sheet
