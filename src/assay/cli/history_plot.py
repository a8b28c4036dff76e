"""``assay history plot``: the course of a series as a figure."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.history_options import ORIGINS, origins_of
from assay.cli.params import verb
from assay.core.errors import BadInput


@verb("plot")
@click.argument("name", metavar="KEY", nargs=-1, required=True)
@click.option("--output", type=click.Path(path_type=Path), help="A .html or .png file.  [default: history-KEY.html]")
@click.option("--origin", type=click.Choice(ORIGINS), default="real", show_default=True, help="Of the numbers.")
def command(name: tuple[str, ...], output: Path | None, origin: str) -> int:
    """Draw a series over time with its intervals, and list its points.

    KEY is the key of a series, the beginning of it, or words that describe no other.

    \b
    assay history plot softmax@numpy call_us rows=4096
    assay history plot 3f2a91c04b7d --output softmax.png
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.core.durable import replace_atomically
    from assay.reports.figures import to_png
    from assay.reports.html import to_html
    from assay.store.history.database import Database
    from assay.store.history.page import line, series_page
    from assay.store.history.series import course_named

    if output is not None and output.suffix not in {".html", ".png"}:
        raise BadInput(f"--output {output}: name a .html or a .png file.")
    with Database.open().reading() as connection:
        course = course_named(connection, " ".join(name), origins_of(origin))
    page = series_page(course)
    path = output or Path(f"history-{course.name}.html")
    content = to_png(line(course), noted=True, origin=page.origin) if path.suffix == ".png" else to_html(page).encode()
    replace_atomically(path, content)
    show.console(stderr=True).print(f"{page.lead} Drawn: {show.short(path.absolute())}", markup=False, soft_wrap=True)
    return 0
