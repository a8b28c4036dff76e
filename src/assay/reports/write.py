"""The report of a run as files: Markdown, one HTML page, and a PNG for every figure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors, replace_atomically
from assay.reports.figures import save_png
from assay.reports.html import to_html
from assay.reports.markdown import to_markdown

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.page import Page


def write_report(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write ``report.md``, ``report.html`` and ``figures/NAME.png``; return their paths, the two reports first.

    Each file is replaced as a whole, the reports after the figures that they show.

    Raises:
        ValueError: Two figures of the page have the same name, and one would overwrite the other.
    """
    twice = [name for name, count in Counter(figure.name for figure in page.figures).items() if count > 1]
    if twice:
        raise ValueError(f"page {page.title!r} has more than one figure named {', '.join(twice)}")
    relative = {figure.name: f"figures/{figure.name}.png" for figure in page.figures}
    with friendly_os_errors(folder):
        (folder / "figures" if relative else folder).mkdir(parents=True, exist_ok=True)
    for figure in page.figures:
        save_png(figure, folder / relative[figure.name], origin=page.origin)
    markdown, html = folder / "report.md", folder / "report.html"
    replace_atomically(markdown, to_markdown(page, relative).encode())
    replace_atomically(html, to_html(page).encode())
    return (markdown, html, *(folder / path for path in relative.values()))
