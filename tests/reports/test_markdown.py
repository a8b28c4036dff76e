from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from assay.core.page import Column, Page, Section, Table, Text
from assay.reports.documents import to_markdown
from assay.reports.text import one_line, split_code, visible_text

if TYPE_CHECKING:
    from assay.core.results import Origin

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
words = st.text(max_size=40) | st.text(alphabet="ab _*`#|\\<>[]()!&;-+=~$1.\n", max_size=25)


def rendered(page: Page) -> str:
    return str(GITHUB.render(to_markdown(page, {})))


def texts(html: str, tag: str) -> list[str]:
    """Return what a reader sees inside each such element, spaces made equal."""
    found = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, flags=re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", "", part.replace("<br>", " "))).split()) for part in found]


def seen(text: str) -> str:
    """Return what a reader sees of a text: what stands in backticks without them, spaces made equal."""
    lines = (" ".join(line.split()) for line in visible_text(text).strip().split("\n"))
    return " ".join("".join(part for part, _ in split_code(line)) for line in lines if line)


@given(words)
@settings(deadline=None)
def test_a_text_is_shown_as_it_was_written(text: str) -> None:
    page = Page(title=f"a {text}", lead="l", sections=(Section(title="s", elements=(Text(text=text),)),))
    html = rendered(page)
    assert texts(html, "h1") == [seen(one_line(f"a {text}"))]
    if seen(text):
        assert texts(html, "p")[-1] == seen(text)


@given(st.lists(words, min_size=1, max_size=3))
@settings(deadline=None)
def test_a_cell_is_shown_as_it_was_written(cells: list[str]) -> None:
    columns = tuple(Column(title=f"c{i}") for i in range(len(cells)))
    table = Table(title="t", columns=columns, rows=(tuple(cells),))
    html = rendered(Page(title="p", lead="l", sections=(Section(title="s", elements=(table,)),)))
    assert texts(html, "td") == [seen(cell) for cell in cells]


def test_nothing_in_a_hostile_page_becomes_markup(nasty: Page) -> None:
    html = rendered(nasty)
    assert "<script" not in html
    assert texts(html, "h1") == [seen(one_line(nasty.title))]


def test_what_stands_in_backticks_is_code() -> None:
    page = Page(title="t", lead="so `assay resume runs/a_b*c` goes on", sections=())
    assert texts(rendered(page), "code") == ["assay resume runs/a_b*c"]
    assert "so `assay resume runs/a_b*c` goes on" in to_markdown(page, {})
    lone = Page(title="t", lead="a lone ` stays, and so does `this | that`", sections=())
    assert "<code>" not in rendered(lone)


def test_tables_align_their_numbers_to_the_right(page: Page) -> None:
    assert "| --- | ---: | --- | ---: | ---: | ---: |" in to_markdown(page, {})
    assert "| ✓ softmax@triton | 1.019 | 1.012 – 1.027 | 12009 | 0.828 | 0.2711 |" in to_markdown(page, {})


def test_figures_are_images_where_a_path_is_known_and_words_elsewhere(page: Page) -> None:
    paths = {figure.name: f"my figures/{figure.name}.png" for figure in page.figures[1:]}
    images = re.findall(r'<img src="([^"]*)" alt="([^"]*)"', GITHUB.render(to_markdown(page, paths)))
    assert [path for path, _ in images] == [path.replace(" ", "%20") for path in paths.values()]
    assert all(figure.title in unescape(alt) for figure, (_, alt) in zip(page.figures[1:], images, strict=True))
    assert page.figures[0].title in to_markdown(page, paths)


@pytest.mark.parametrize("origin", ["fake", "simulated"])
def test_numbers_that_nobody_measured_are_announced(page: Page, origin: Origin) -> None:
    warned = to_markdown(page.model_copy(update={"origin": origin}), {})
    assert f"> [!WARNING]\n> **These numbers come from a {origin} source.**" in warned
    assert "These numbers come from" not in to_markdown(page, {})


def test_the_same_page_gives_the_same_text(page: Page) -> None:
    assert to_markdown(page, {}) == to_markdown(page.model_copy(deep=True), {})


def test_how_far_it_can_be_trusted_stands_right_under_the_answer() -> None:
    doubt = Text(text="2 of 12 trials disturbed: <b>ff*mpeg* (1.4 cores).", tone="unsure")
    page = Page(title="p", lead="the answer", quality=(doubt,), sections=(Section(title="s", elements=()),))
    text = to_markdown(page, {})
    assert text.index("the answer") < text.index("2 of 12 trials disturbed") < text.index("## s")
    assert texts(rendered(page), "p")[1].endswith(doubt.text)
