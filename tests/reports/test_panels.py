"""Several figures on one sheet: two columns, none cut off, the same bytes every time."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.image import imread

from assay.core.page import LinePlot, PlotLine
from assay.reports.figures import PANEL_MARGIN, draw_figure, to_panels


def lines(note: str | None = None) -> LinePlot:
    return LinePlot(
        title="Speedup",
        name="speedup",
        x_axis="ranks",
        y_axis="speedup, ×",
        lines=(PlotLine(label="a", x=(1.0, 2.0), y=(1.0, 1.8)),),
        note=note,
    )


def size(png: bytes) -> tuple[int, int]:
    height, width = imread(io.BytesIO(png)).shape[:2]
    return height, width


@pytest.mark.full
@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 2)])
def test_figures_stand_in_two_columns(count: int, rows: int, columns: int) -> None:
    height, width = size(draw_figure(lines()).to_png())
    sheet = size(to_panels([lines()] * count))
    assert sheet == (rows * (height + 2 * PANEL_MARGIN), columns * (width + 2 * PANEL_MARGIN))


def test_a_note_is_on_the_sheet_as_no_caption_stands_beside_it() -> None:
    assert size(to_panels([lines("Bands are intervals.")]))[0] > size(to_panels([lines()]))[0]


def test_numbers_that_no_hardware_gave_are_called_that_on_the_sheet() -> None:
    assert size(to_panels([lines()], origin="fake"))[0] > size(to_panels([lines()]))[0]


def test_a_sheet_is_the_same_every_time_and_is_never_empty() -> None:
    assert to_panels([lines()]) == to_panels([lines()])
    with pytest.raises(ValueError, match="at least one figure"):
        to_panels([])


def test_an_interval_without_neighbours_is_drawn() -> None:
    bare = lines().model_copy(update={"lines": (PlotLine(label="a", x=(1.0, 2.0), y=(1.0, 1.8)),)})
    one = bare.model_copy(
        update={"lines": (PlotLine(label="a", x=(1.0, 2.0), y=(1.0, 1.8), low=(None, 1.75), high=(None, 1.79)),)}
    )
    pixels = [np.asarray(imread(io.BytesIO(draw_figure(each).to_png()))) for each in (bare, one)]
    assert not np.array_equal(pixels[0], pixels[1])
