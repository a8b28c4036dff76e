from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.page import Column, Page, Section, Table, Text
from assay.reports.documents import to_html
from assay.reports.drawing.sheet import DARK, LIGHT, parse_colour
from assay.reports.text import one_line, split_code, visible_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.core.results import Origin


OURS = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "p", "section", "figure"}
OURS |= {"figcaption", "div", "table", "thead", "tbody", "tr", "th", "code"}


class Reader(HTMLParser):
    """Collects the tags of a document, and the text inside each kind."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "use", "path"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.text[tag] = self.text.get(tag, "") + data


@pytest.mark.full
@pytest.mark.parametrize("which", ["page_html", "nasty_html"])
def test_a_report_needs_nothing_but_itself(which: str, request: pytest.FixtureRequest) -> None:
    document: str = request.getfixturevalue(which)
    reader = Reader(document)
    names = {tag for tag, _ in reader.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert not re.search(r"url\((?!#)|@import", document)


def test_a_report_has_what_readers_and_browsers_rely_on(page: Page, page_html: str) -> None:
    reader = Reader(page_html)
    assert ("html", {"lang": "en"}) in reader.tags
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in reader.tags)
    assert [tag for tag, _ in reader.tags].count("h1") == 1
    assert [tag for tag, _ in reader.tags].count("h2") == len(page.sections) + 1
    told = [str(attributes["aria-label"]) for _, attributes in reader.tags if attributes.get("class") == "drawing"]
    assert all(figure.title in text for figure, text in zip(page.figures, told, strict=True))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_element_is_shown(page: Page, page_html: str) -> None:
    reader = Reader(page_html)
    for element in (element for section in page.sections for element in section.elements):
        if isinstance(element, Text):
            assert element.text in reader.text["p"]
        else:
            assert element.title in reader.text["figcaption"]
            assert (element.note or "") in reader.text["p"]
    assert "12009" in reader.text["td"]
    assert all(value in reader.text["dd"] for _, value in page.facts)


@given(st.text(min_size=1, max_size=40) | st.text(alphabet="<>&\"'/!-=scripta ", min_size=1, max_size=25))
@settings(deadline=None)
def test_a_text_is_shown_as_it_was_written(text: str) -> None:
    table = Table(title=text, columns=(Column(title=text),), rows=((text,),), note=text)
    page = Page(title=text, lead=text, sections=(Section(title=text, elements=(Text(text=text), table)),))
    reader = Reader(to_html(page))
    assert {tag for tag, _ in reader.tags} <= OURS
    assert reader.text.get("h1", "") == one_line(text)
    shown = "".join(part for part, _ in split_code(visible_text(text).strip()))
    assert reader.text.get("p", "").startswith(shown)
    assert shown in reader.text.get("th", "")


def test_what_stands_in_backticks_is_code_and_still_escaped() -> None:
    reader = Reader(to_html(Page(title="t", lead="say `assay run <b>` now", sections=())))
    assert reader.text["code"] == "assay run <b>"
    assert reader.text["p"] == "say assay run <b> now"


@pytest.mark.parametrize("origin", ["fake", "simulated"])
def test_numbers_that_nobody_measured_are_announced(page: Page, origin: Origin) -> None:
    warned = Reader(to_html(page.model_copy(update={"origin": origin, "sections": ()})))
    assert f"These numbers come from a {origin} source" in warned.text["aside"]
    assert origin in warned.text["title"]
    assert "aside" not in Reader(to_html(page.model_copy(update={"sections": ()}))).text


@pytest.mark.full
def test_the_same_page_gives_the_same_bytes(page: Page, page_html: str) -> None:
    assert to_html(page.model_copy(deep=True)) == page_html


MEASURE = """
<script>
onload = () => {
  const frames = [...document.querySelectorAll("iframe")].map(frame => {
    const root = frame.contentDocument.documentElement;
    const drawings = [...root.querySelectorAll("svg")].filter(svg => svg.getClientRects().length);
    const colour = (element, name) => frame.contentWindow.getComputedStyle(element)[name];
    return {
      window: frame.contentWindow.innerWidth, page: root.scrollWidth, title: root.querySelector("h1").textContent,
      drawings: drawings.length, ground: colour(frame.contentDocument.body, "background-color"),
      inks: drawings.map(svg => colour(svg.querySelector("text"), "fill")),
      scripts: frame.contentDocument.scripts.length,
    };
  });
  document.body.innerHTML = "<pre>" + JSON.stringify(frames).replace(/</g, "&lt;") + "</pre>";
};
</script>
"""


def measured(documents: list[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Show pages 360 pixels wide in Chromium and return what it found there."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        if os.environ.get("ASSAY_CI") == "1":
            pytest.fail("Chromium is not installed, and continuous integration must not skip this test")
        pytest.skip("Chromium is not installed")
    frames = "".join(f'<iframe width=360 height=700 srcdoc="{html.escape(one)}"></iframe>' for one in documents)
    (folder / "frames.html").write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{MEASURE}", encoding="utf-8")
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [chromium, "--headless", "--no-sandbox", *quiet.split(), "--disable-sync", *options]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", (folder / "frames.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    found = re.search(r"<pre>(.*?)</pre>", dom, flags=re.DOTALL)
    assert found, dom[-2000:]
    result: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return result


@pytest.mark.full
def test_on_a_phone_the_page_never_scrolls_sideways(
    page: Page, nasty: Page, page_html: str, nasty_html: str, tmp_path: Path
) -> None:
    for one, found in zip((page, nasty), measured([page_html, nasty_html], tmp_path), strict=True):
        assert found["window"] == 360
        assert found["page"] <= 360
        assert found["title"] == one_line(one.title)
        assert found["scripts"] == 0
        assert found["drawings"] == len(one.figures)


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(round(part * 255)) for part in parse_colour(colour))})"


@pytest.mark.full
@pytest.mark.parametrize(("theme", "palette"), [(1, LIGHT), (0, DARK)], ids=["light", "dark"])
def test_drawings_take_the_colours_of_the_screen(
    page: Page, page_html: str, tmp_path: Path, theme: int, palette: Mapping[str, str]
) -> None:
    (found,) = measured([page_html], tmp_path, f"--blink-settings=preferredColorScheme={theme}")
    assert found["ground"] == rgb(palette["background"])
    assert found["drawings"] == len(page.figures)
    assert set(found["inks"]) <= {rgb(palette["ink"]), rgb(palette["muted"])}


def test_how_far_it_can_be_trusted_stands_right_under_the_answer() -> None:
    doubt = Text(text="2 of 12 trials disturbed: <b>ffmpeg (1.4 cores).", tone="unsure")
    html = to_html(Page(title="p", lead="the answer", quality=(doubt,), sections=(Section(title="s", elements=()),)))
    assert html.index("the answer") < html.index("disturbed: &lt;b&gt;ffmpeg (1.4 cores).") < html.index("</header>")
