from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.page import Page, Section
from assay.reports.documents import write_report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def small(page: Page) -> Page:
    """Return a page with two figures that are quickly drawn."""
    figures = tuple(figure for figure in page.figures if figure.name in {"bandwidth", "throughput"})
    return page.model_copy(update={"sections": (Section(title="Figures", elements=figures),)})


@pytest.mark.full
def test_a_report_is_two_documents_and_a_png_for_each_figure(small: Page, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    paths = write_report(small, folder)
    figures = [f"figures/{figure.name}.png" for figure in small.figures]
    assert [path.relative_to(folder).as_posix() for path in paths] == ["report.md", "report.html", *figures]
    assert sorted(paths) == sorted(path for path in folder.rglob("*") if path.is_file())
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert all(f"({path})" in markdown for path in figures)


@pytest.mark.full
def test_writing_again_replaces_every_file_with_the_same_bytes(small: Page, tmp_path: Path) -> None:
    first = {path: path.read_bytes() for path in write_report(small, tmp_path)}
    assert {path: path.read_bytes() for path in write_report(small, tmp_path)} == first


def test_a_page_without_figures_needs_no_folder_for_them(tmp_path: Path) -> None:
    assert len(write_report(Page(title="t", lead="l"), tmp_path)) == 2
    assert not (tmp_path / "figures").exists()


def test_two_figures_of_one_name_are_refused_before_anything_is_written(page: Page, tmp_path: Path) -> None:
    twice = Page(title="t", lead="l", sections=(Section(title="s", elements=page.figures[:1] * 2),))
    with pytest.raises(ValueError, match=f"more than one figure named {page.figures[0].name}"):
        write_report(twice, tmp_path)
    assert list(tmp_path.iterdir()) == []
