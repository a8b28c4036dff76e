from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from assay.core.page import Column, HeatMap, Page, Section, StripPlot, StripRow, Table, Text, Timeline, TimelineBar
from assay.reports.terminal import draw_sparkline, print_page

if TYPE_CHECKING:
    from assay.core.results import Origin


def printed(page: Page, *, width: int = 80, colour: bool = False) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    print_page(page, console)
    return buffer.getvalue()


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("which", ["page", "nasty"])
def test_no_line_is_wider_than_the_console(which: str, width: int, request: pytest.FixtureRequest) -> None:
    lines = printed(request.getfixturevalue(which), width=width).split("\n")
    assert max(cell_len(line) for line in lines) <= width


def test_without_a_terminal_there_are_no_control_codes(page: Page, nasty: Page) -> None:
    assert "\x1b" not in printed(page)
    assert "\x1b" not in printed(nasty)


def test_on_a_terminal_the_same_words_are_coloured(page: Page) -> None:
    coloured = printed(page, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == printed(page)


def test_every_element_is_shown(page: Page) -> None:
    shown = printed(page)
    for element in (element for section in page.sections for element in section.elements):
        assert squeezed(element.text if isinstance(element, Text) else element.title) in squeezed(shown)
    for name, value in page.facts:
        assert name in shown
        assert squeezed(value) in squeezed(shown)


@pytest.mark.parametrize("origin", ["fake", "simulated"])
def test_numbers_that_nobody_measured_are_announced(page: Page, origin: Origin) -> None:
    assert f"These numbers come from a {origin} source" in printed(page.model_copy(update={"origin": origin}))
    assert "These numbers come from" not in printed(page)


@given(st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=40))
@settings(deadline=None, max_examples=50)
def test_a_name_is_printed_as_it_is_written(name: str) -> None:
    page = Page(title=f"[bold]{name}[/bold]", lead=name, sections=(Section(title="s", elements=(Text(text=name),)),))
    shown = squeezed(printed(page, width=200))
    assert shown.count(squeezed(name)) >= 3
    assert squeezed(f"[bold]{name}[/bold]") in shown


def test_a_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in printed(Page(title="\x1b[31mred\x07", lead="\x9b31m"))


def test_a_table_too_wide_is_shown_in_parts_that_lose_nothing() -> None:
    columns = (Column(title="name"), *(Column(title=f"quantity{i}", numeric=True) for i in range(15)))
    table = Table(title="t", columns=columns, rows=(("row", *(1.5 + i for i in range(15))),))
    shown = printed(Page(title="p", lead="l", sections=(Section(title="s", elements=(table,)),)), width=60)
    assert all(f"quantity{i}" in shown for i in range(15))
    assert shown.count("row") > 1


def test_a_strip_shows_where_its_samples_lie() -> None:
    strips = StripPlot(
        title="t",
        name="n",
        axis="time",
        unit="ms",
        strips=(
            StripRow(label="low", samples=(1.0,) * 5, value=1.0, low=0.9, high=1.1),
            StripRow(label="high", samples=(2.0,) * 5),
        ),
    )
    lines = printed(Page(title="p", lead="l", sections=(Section(title="s", elements=(strips,)),))).split("\n")
    low, high = (next(line for line in lines if line.startswith(name)) for name in ("low", "high"))
    assert low.index("█") < high.index("█")
    assert "1.00 (0.90–1.10)" in low
    assert "2 – 2" in high


def test_a_cell_that_is_not_decided_is_marked_and_not_coloured() -> None:
    told = {"title": "t", "name": "n", "rows": ("a",), "columns": ("b", "c"), "unit": "×", "centre": 1.0}
    heat_map = HeatMap(**told, cells=((1.31, 9.02),), unsure=((True, False),))
    page = Page(title="t", lead="l", sections=(Section(title="s", elements=(heat_map,)),))
    shown = printed(page)
    assert "1 means no change; ?: the interval holds it" in shown
    assert re.search(r"1\.31\?\s+9\.02\s", shown)
    assert re.search(r"\x1b\[[^m]*48;5;208m9\.02", printed(page, colour=True))


def test_a_lane_shows_the_more_serious_of_two_bars() -> None:
    bars = (
        TimelineBar(lane="gpu", label="x", start_s=0, end_s=10),
        TimelineBar(lane="gpu", label="boom", start_s=9.9, end_s=10, tone="bad"),
    )
    timeline = Timeline(title="t", name="n", bars=bars)
    shown = printed(Page(title="p", lead="l", sections=(Section(title="s", elements=(timeline,)),)))
    assert re.search(r"gpu +▒+✗", shown)
    assert "✗ bad: boom" in shown


def test_a_sparkline_rises_with_its_values_and_leaves_gaps() -> None:
    assert draw_sparkline([0, 1, None, 7], 10) == "▁▂ █"
    assert draw_sparkline([3.0, 3.0], 10) == "▁▁"
    assert draw_sparkline([], 10) == ""
    assert len(draw_sparkline([float(i) for i in range(1000)], 20)) == 20


def test_an_output_that_knows_only_ascii_gets_ascii(page: Page, nasty: Page) -> None:
    for one in (page, nasty):
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding="ascii")
        print_page(one, Console(file=file, width=80))
        file.flush()
        assert raw.getvalue()


def test_how_far_it_can_be_trusted_stands_right_under_the_answer() -> None:
    doubt = Text(text="2 of 12 trials disturbed: ffmpeg (1.4 cores).", tone="unsure")
    lines = printed(Page(title="p", lead="the answer", quality=(doubt,))).splitlines()
    assert lines[:2] == ["p", "the answer"]
    assert re.fullmatch(rf"\S+ {re.escape(doubt.text)}", lines[2])
