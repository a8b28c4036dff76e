"""``assay history list``: the runs, or the series, that the history holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from assay.cli.history_options import filtered, wanted
from assay.cli.params import CALLS, verb

if TYPE_CHECKING:
    from assay.core.page import Page

EMPTY = (
    "Nothing of it is in the history yet; finished runs enter it, and `assay history import RUNS` brings older ones."
)


@verb("list")
@filtered(origin="all")
@click.option("--series", "as_series", is_flag=True, help="Series with their keys, instead of runs.")
@click.option("--limit", type=CALLS, default=20, show_default=True, help="Runs, at most.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(as_series: bool, as_json: bool, **given: Any) -> int:
    """Show the runs, the newest first, or with --series what they have measured again and again.

    \b
    assay history list --since 30d
    assay history list --workload softmax --series
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.reports.terminal import print_page

    rows, page = listed_series(given) if as_series else listed_runs(given)
    if as_json:
        click.echo(json.dumps({"schema": 1, "series" if as_series else "runs": rows}, indent=2, ensure_ascii=False))
    elif rows:
        print_page(page, show.console(stderr=False))
    else:
        click.echo(EMPTY, err=True)
    return 0


def listed_runs(given: dict[str, Any]) -> tuple[list[dict[str, Any]], Page]:
    """Return the runs that are meant, as data and as a page."""
    from assay.store.history.asking import runs
    from assay.store.history.database import Database
    from assay.store.history.page import runs_page

    with Database.open().reading() as connection:
        matching = runs(connection, wanted(given), limit=given["limit"] + 1)
    shown = matching[: given["limit"]]
    rows = [{**entry.run.as_json(), "workloads": entry.workloads, "points": entry.points} for entry in shown]
    return rows, runs_page(shown, more=len(matching) > len(shown))


def listed_series(given: dict[str, Any]) -> tuple[list[dict[str, Any]], Page]:
    """Return the series that are meant, as data and as a page."""
    from assay.store.history.asking import make_sure
    from assay.store.history.database import Database
    from assay.store.history.page import series_list
    from assay.store.history.series import load

    with Database.open().reading() as connection:
        make_sure(connection, wanted(given))
        courses = load(connection, wanted(given))
    rows = [{"key": c.name, **c.key.as_json(), "unit": c.unit, "runs": len(c)} for c in courses]
    return rows, series_list(courses)
