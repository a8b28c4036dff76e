from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from assay.core.page import HeatMap, StripPlot, StripRow, TimelineBar
from assay.reports.drawing.charts import stack_bars
from assay.reports.drawing.sheet import (
    DARK,
    LIGHT,
    LINE_INKS,
    Box,
    Dots,
    Label,
    add_caption,
    blend,
    contrast,
    linear_ticks,
    log_ticks,
    parse_colour,
    readable_ink,
    text_width,
)
from assay.reports.figures import draw_figure
from assay.reports.text import describe_figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.page import Figure, Page


def words(figure: Figure) -> str:
    """Return all that is written in a drawing and below it."""
    drawing = draw_figure(figure)
    root = ET.fromstring(drawing.to_svg())
    return "\n".join([*(element.text or "" for element in root.iter("text")), *drawing.remarks])


@pytest.mark.full
def test_a_png_is_the_same_every_time_and_its_edges_are_empty(figure: Figure) -> None:
    png = draw_figure(figure).to_png()
    assert png == draw_figure(figure).to_png()
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edges == 255).all(), "something reaches the edge of the sheet, so it may be clipped"


def test_an_svg_is_one_element_of_valid_xml_without_scripts_or_links(figure: Figure) -> None:
    svg = draw_figure(figure).to_svg()
    root = ET.fromstring(svg)
    assert root.tag == "svg"
    assert not re.search(r"<script|<style|<!--|href=|src=| id=|nan|inf(?!\w)", re.sub(r">[^<]*</text>", "", svg))
    assert set(re.findall(r"var\(--([^)]*)\)", svg)) <= LIGHT.keys() == DARK.keys()


def test_a_text_is_written_as_it_is() -> None:
    name = 'id="x" href="#y" url(#z) 1.23456 <b>'
    strips = StripPlot(title="t", name="n", axis=name, unit="", strips=(StripRow(label="a", samples=(1.0,)),))
    assert name in words(strips)


@pytest.mark.parametrize(("text", "bold"), [("Wide labels (ms)", False), ("1.93× (1.71–2.18)", True)])
def test_a_text_is_as_wide_as_it_is_measured(text: str, bold: bool) -> None:
    figure = StripPlot(title=text, name="n", axis="a", unit="", strips=(StripRow(label="a", samples=(1.0,)),))
    pixels = (
        draw_figure(figure).to_pixels()[:60]
        if bold
        else draw_figure(figure.model_copy(update={"title": "", "note": None, "axis": text})).to_pixels()[-45:]
    )
    inked = np.flatnonzero((pixels < 160).any(axis=(0, 2)))
    shown = (inked[-1] - inked[0]) * 72 / 200
    assert shown == pytest.approx(text_width(text, 10.5 if bold else 9.0, bold=bold), rel=0.05)


def test_drawing_leaves_the_users_settings_alone(page: Page) -> None:
    before = dict(mpl.rcParams)
    draw_figure(page.figures[0]).to_png()
    assert dict(mpl.rcParams) == before


def test_drawing_does_not_depend_on_the_users_settings(page: Page) -> None:
    drawing = draw_figure(page.figures[0])
    with mpl.rc_context({"text.hinting": "none", "path.simplify": False, "font.family": "serif"}):
        assert drawing.to_png() == draw_figure(page.figures[0]).to_png()
    assert drawing.to_png() == draw_figure(page.figures[0]).to_png()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(4, 8), st.booleans())
@settings(deadline=None)
def test_ticks_are_few_round_and_inside(low: float, width: float, most: int, whole: bool) -> None:
    ticks = linear_ticks(low, low + width, most, whole=whole)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)
    assert len(ticks) >= 2 or whole
    assert not whole or all(tick == round(tick) for tick in ticks)


@given(st.floats(-9, 9), st.floats(0.05, 12), st.integers(3, 8))
@example(-5.410806201483401, 3.0, 3)
@settings(deadline=None)
def test_a_logarithmic_axis_has_at_least_two_ticks_inside(low: float, decades: float, most: int) -> None:
    ticks = log_ticks(10**low, 10 ** (low + decades), most)
    assert 2 <= len(ticks) <= 3 * most
    assert all(10**low * 0.999 <= tick <= 10 ** (low + decades) * 1.001 for tick in ticks)


def test_ticks_of_common_axes() -> None:
    assert linear_ticks(0.0, 1.0, 6) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear_ticks(1.0, 7.5, 6, whole=True) == [2.0, 4.0, 6.0]
    assert linear_ticks(5.0, 5.0, 6) == [5.0]
    assert log_ticks(0.9, 110.0, 6) == [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    assert log_ticks(1e-6, 1e6, 6) == [1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6]


def test_units_stand_on_the_axes() -> None:
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=(1.0, 2.0)),))
    assert "time (ms)" in words(strips)
    heat_map = HeatMap(title="t", name="n", rows=("a",), columns=("b",), cells=((None,),), unit="GB/s")
    assert "GB/s" in words(heat_map)
    assert "not measured" in words(heat_map)


def test_a_large_sample_is_thinned_and_says_so() -> None:
    samples = tuple(1 + (i * 7919 % 5000) / 5000 for i in range(5000))
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=samples),))
    drawing = draw_figure(strips)
    assert [len(shape.points) for shape in drawing.canvas.shapes if isinstance(shape, Dots)] == [300]
    assert drawing.remarks[0] == "300 dots per row, evenly ranked among up to 5,000 samples."


def test_strays_beyond_the_axis_are_counted() -> None:
    samples = (*(1 + i / 1000 for i in range(300)), 50.0)
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=samples),))
    assert "1, up to 50 ▸" in words(strips)


def test_an_interval_that_goes_on_beyond_the_axis_ends_in_an_arrow_and_says_so() -> None:
    vast = StripRow(label="a", samples=(0.5, 1.3), value=0.8, low=1e-3, high=600.0)
    strips = StripPlot(title="t", name="n", axis="time", unit="×", strips=(vast,), centre=1.0)
    assert "A bar with an arrowhead continues beyond the axis." in words(strips)
    narrow = strips.model_copy(update={"strips": (vast.model_copy(update={"low": 0.5, "high": 1.3}),)})
    assert "arrowhead" not in words(narrow)


def test_cells_that_are_not_decided_have_their_number_and_no_colour() -> None:
    told = {"title": "t", "name": "n", "rows": ("a",), "columns": ("b", "c"), "unit": "×", "centre": 1.0}
    heat_map = HeatMap(**told, cells=((1.31, 9.0),), unsure=((True, False),))
    boxes = [shape for shape in draw_figure(heat_map).canvas.shapes if isinstance(shape, Box)]
    cells = [box for box in boxes if box.width > 30]
    assert [(box.ink, box.opacity) for box in cells] == [("rule", 1.0), ("middle", 1.0), ("above", 1.0)]
    assert {"1.31", "9.00", "undecided: the interval contains 1"} <= set(words(heat_map).splitlines())
    assert "All ratios of 2 and more have the same colour." in words(heat_map)
    assert "1 not decided" in describe_figure(heat_map)
    with pytest.raises(ValueError, match="what is unsure does not fit"):
        HeatMap(**told, cells=((1.31, 9.0),), unsure=((True,),))


def test_a_drawing_of_numbers_that_nobody_measured_says_so(page: Page) -> None:
    drawing = draw_figure(page.figures[0])
    shown = add_caption(drawing.canvas, "title", drawing.remarks, "fake").shapes
    assert "These numbers come from a fake source." in [shape.text for shape in shown if isinstance(shape, Label)]


def test_bars_that_overlap_stand_below_each_other() -> None:
    bars = [TimelineBar(lane="a", label=str(i), start_s=i, end_s=i + 1.5) for i in range(4)]
    levels = stack_bars(bars)["a"]
    assert len(levels) == 2
    for level in levels:
        assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(level))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_ink_is_readable_on_its_background(palette: Mapping[str, str]) -> None:
    colours = {ink: parse_colour(colour) for ink, colour in palette.items()}
    assert contrast(colours["ink"], colours["background"]) > 10
    assert contrast(colours["muted"], colours["background"]) > 4.5
    assert all(contrast(colours[ink], colours["background"]) > 2.2 for ink in LINE_INKS)
    for ground, ink in (("middle", "below"), ("middle", "above"), ("faint", "strong")):
        for opacity in np.linspace(0, 1, 21):
            colour = blend(palette, ground, ink, float(opacity))
            assert contrast(colours[readable_ink(ground, ink, float(opacity))], colour) >= 4.5
    for tone in ("plain", "good", "bad", "unsure"):
        assert contrast(colours[readable_ink(f"tone-{tone}")], colours[f"tone-{tone}"]) >= 4.5
