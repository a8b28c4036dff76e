from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from assay.core.page import HeatMap, StripPlot, StripRow, TimelineBar
from assay.reports.drawing.lines import stack_bars
from assay.reports.drawing.sheet import DARK, LIGHT, contrast, readable_on
from assay.reports.figures import draw_figure, save_png, svg_and_remarks, to_png, to_svg
from assay.reports.text import describe_figure

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.page import Figure, Page
    from assay.reports.drawing.sheet import Theme


def words(figure: Figure) -> str:
    """Return all that is written in a drawing."""
    root = ET.fromstring(to_svg(figure, dark=False))
    return "\n".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.full
def test_a_png_is_the_same_every_time_and_its_edges_are_empty(figure: Figure) -> None:
    png = to_png(figure)
    assert png == to_png(figure)
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edges == 255).all(), "something reaches the edge of the sheet, so it may be clipped"


@pytest.mark.parametrize("dark", [False, True])
def test_an_svg_is_one_element_of_valid_xml_without_scripts_or_links(figure: Figure, dark: bool) -> None:
    svg = to_svg(figure, dark=dark)
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"<script|<style|<!--", svg)
    assert re.findall(r'(?:href|src)="(?!#|data:image/png)', svg) == []
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_text_between_the_tags_is_not_touched() -> None:
    name = 'id="x" href="#y" url(#z) 1.23456 font-family: a;'
    strips = StripPlot(title="t", name="n", axis=name, unit="", strips=(StripRow(label="a", samples=(1.0,)),))
    assert name in words(strips)


def test_drawing_leaves_the_users_settings_alone(page: Page) -> None:
    before = dict(mpl.rcParams)
    draw_figure(page.figures[0], dark=True)
    to_svg(page.figures[0], dark=True)
    assert dict(mpl.rcParams) == before


def test_units_stand_on_the_axes() -> None:
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=(1.0, 2.0)),))
    assert "time (ms)" in words(strips)
    heat_map = HeatMap(title="t", name="n", rows=("a",), columns=("b",), cells=((None,),), unit="GB/s")
    assert "GB/s" in words(heat_map)
    assert "not measured" in words(heat_map)


def test_a_large_sample_is_thinned_and_says_so() -> None:
    samples = tuple(1 + (i * 7919 % 5000) / 5000 for i in range(5000))
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=samples),))
    assert to_svg(strips, dark=False).count("<use") < 400
    assert "300 dots per row, evenly ranked among up to 5,000 samples." in words(strips)
    assert svg_and_remarks(strips, dark=False, prefix="p")[1][0].startswith("300 dots per row")


def test_strays_beyond_the_axis_are_counted() -> None:
    samples = (*(1 + i / 1000 for i in range(300)), 50.0)
    strips = StripPlot(title="t", name="n", axis="time", unit="ms", strips=(StripRow(label="a", samples=samples),))
    assert "1, up to 50 ▸" in words(strips)


def test_an_interval_that_goes_on_beyond_the_axis_ends_in_an_arrow_and_says_so() -> None:
    vast = StripRow(label="a", samples=(0.5, 1.3), value=0.8, low=1e-3, high=600.0)
    strips = StripPlot(title="t", name="n", axis="time", unit="×", strips=(vast,), centre=1.0)
    assert "A bar that ends in an arrow goes on beyond the axis." in words(strips)
    narrow = strips.model_copy(update={"strips": (vast.model_copy(update={"low": 0.5, "high": 1.3}),)})
    assert "arrow" not in words(narrow)


def test_cells_that_are_not_decided_have_their_number_and_no_colour() -> None:
    told = {"title": "t", "name": "n", "rows": ("a",), "columns": ("b", "c"), "unit": "×", "centre": 1.0}
    heat_map = HeatMap(**told, cells=((1.31, 9.0),), unsure=((True, False),))
    drawing = draw_figure(heat_map, dark=False)
    faces = [patch.get_facecolor() for patch in drawing.axes[0].patches]
    assert mpl.colors.same_color(faces[0], LIGHT.rule)
    assert mpl.colors.same_color(faces[1], LIGHT.above)
    assert {"1.31", "9.00", "not decided: the interval has 1 in it"} <= set(words(heat_map).splitlines())
    assert "From 2-fold on, the colour does not grow." in words(heat_map)
    assert "1 not decided" in describe_figure(heat_map)
    with pytest.raises(ValueError, match="what is unsure does not fit"):
        HeatMap(**told, cells=((1.31, 9.0),), unsure=((True,),))


def test_a_drawing_of_numbers_that_nobody_measured_says_so(page: Page) -> None:
    told = [text.get_text() for text in draw_figure(page.figures[0], dark=False, origin="fake").texts]
    assert "These numbers come from a fake source." in told


def test_bars_that_overlap_stand_below_each_other() -> None:
    bars = [TimelineBar(lane="a", label=str(i), start_s=i, end_s=i + 1.5) for i in range(4)]
    levels = stack_bars(bars)["a"]
    assert len(levels) == 2
    for level in levels:
        assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(level))


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_every_ink_is_readable_on_its_background(look: Theme) -> None:
    assert contrast(look.ink, look.background) > 10
    assert contrast(look.muted, look.background) > 4.5
    assert all(contrast(colour, look.background) > 2.2 for colour in look.lines)
    for colours in (look.diverging, look.sequential):
        for place in np.linspace(0, 1, 21):
            red, green, blue = colours(float(place))[:3]
            assert contrast(readable_on((red, green, blue)), (red, green, blue)) >= 4.5
    for tone in look.tones.values():
        assert contrast(readable_on(tone), tone) >= 4.5


def test_a_png_is_saved_whole(page: Page, tmp_path: Path) -> None:
    save_png(page.figures[0], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes() == to_png(page.figures[0])
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
