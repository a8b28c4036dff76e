"""``assay history show``: what a run left in the history, or the points of a series."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from assay.cli.history_options import ORIGINS, origins_of
from assay.cli.params import verb

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.store.history.asking import Listed
    from assay.store.history.series import Course


@verb("show")
@click.argument("name", metavar="KEY|RUN", nargs=-1, required=True)
@click.option("--origin", type=click.Choice(ORIGINS), default="real", show_default=True, help="Of a series' numbers.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(name: tuple[str, ...], origin: str, as_json: bool) -> int:
    """Show the points of a series, or what a run left.

    A KEY is the key of a series, the beginning of it, or words that describe no other: a workload, a quantity, a
    parameter. A RUN is its id, its folder, or "latest".

    \b
    assay history show latest
    assay history show softmax@numpy call_us rows=4096
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.reports.terminal import print_page
    from assay.store.history.asking import Wanted, listed, run_named
    from assay.store.history.database import Database
    from assay.store.history.series import course_named, load

    text, origins = " ".join(name), origins_of(origin)
    with Database.open().reading() as connection:
        run = run_named(connection, text)
        if run is None:
            data, page = of_series(course_named(connection, text, origins))
        else:
            courses = load(connection, Wanted(run=run.id, origins=None))
            data, page = of_run(listed(connection, run), courses)
    if as_json:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        print_page(page, show.console(stderr=False))
    return 0


def of_series(course: Course) -> tuple[dict[str, Any], Page]:
    """Return a series as data and as a page."""
    from assay.store.history.export import course_data
    from assay.store.history.page import series_page

    return course_data(course), series_page(course)


def of_run(one: Listed, courses: list[Course]) -> tuple[dict[str, Any], Page]:
    """Return what a run left as data and as a page."""
    from assay.store.history.export import course_data
    from assay.store.history.page import run_page

    points = [course_data(course) for course in courses]
    return {"schema": 1, **one.run.as_json(), "points": points}, run_page(one, courses)
