"""Figures: each is placed once as shapes (``drawing``), then written as a PNG and as an SVG element for a page.

Several figures can be combined in one PNG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import HeatMap, LinePlot, ScatterPlot, StripPlot
from assay.reports.drawing.axes import add_caption
from assay.reports.drawing.heatmap import draw_heat_map
from assay.reports.drawing.lines import draw_line_plot
from assay.reports.drawing.png import encode_png, to_pixels
from assay.reports.drawing.scatter import draw_scatter
from assay.reports.drawing.strips import draw_strips
from assay.reports.drawing.svg import to_svg
from assay.reports.drawing.timeline import draw_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Figure
    from assay.core.results import Origin
    from assay.reports.drawing.png import Pixels
    from assay.reports.drawing.shapes import Canvas


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
    if isinstance(figure, StripPlot):
        canvas, remarks = draw_strips(figure)
    elif isinstance(figure, LinePlot):
        canvas, remarks = draw_line_plot(figure)
    elif isinstance(figure, ScatterPlot):
        canvas, remarks = draw_scatter(figure)
    elif isinstance(figure, HeatMap):
        canvas, remarks = draw_heat_map(figure)
    else:
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
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    return encode_png(np.concatenate([_panel_row(row, width, columns) for row in rows], axis=0))


def _panel_row(images: Sequence[Pixels], width: int, columns: int) -> Pixels:
    """Return images side by side on white, with a margin around each."""
    height = max(image.shape[0] for image in images)
    sheet = np.full((height + 2 * PANEL_MARGIN, columns * (width + 2 * PANEL_MARGIN), 3), 255, dtype=np.uint8)
    for number, image in enumerate(images):
        left = number * (width + 2 * PANEL_MARGIN) + PANEL_MARGIN
        sheet[PANEL_MARGIN : PANEL_MARGIN + image.shape[0], left : left + image.shape[1]] = image
    return sheet
