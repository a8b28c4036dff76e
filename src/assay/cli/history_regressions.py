"""``assay history regressions``: steps in all series of the history; a gate where one is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.history_options import Since, filtered, wanted
from assay.cli.params import Fraction, verb
from assay.core.errors import BadInput, GateSaysNo

if TYPE_CHECKING:
    from assay.core.page import Page

SUFFIXES = {".html", ".md"}


@verb("regressions")
@filtered(origin="real")
@click.option("--quantity", metavar="call_us", help="Of this quantity only.")
@click.option(
    "--new", "new_s", type=Since(), metavar="14d", help="Only steps that began since: a date, or how long ago."
)
@click.option(
    "--false", "false_share", type=Fraction(), default="5%", show_default=True, help="Of the steps told, at most."
)
@click.option("--minimum-effect", type=Fraction(), default="1%", show_default=True, help="Smaller steps do not count.")
@click.option(
    "--fail-on-regression",
    "gate",
    is_flag=True,
    help="Exit with 1 where there is a regression.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="The report as .html or .md.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(**given: Any) -> int:
    """Find the runs since which something is slower, or faster, in all that was measured again and again.

    Each step is named with its first run and commit, its size with an interval, and what else changed with it: where a
    host or a driver is new, the step is confounded and no regression.

    \b
    assay history regressions
    assay history regressions --workload softmax --output steps.html
    assay history regressions --new 7d --fail-on-regression
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.cli import show
    from assay.experiments.regressions.look import look
    from assay.experiments.regressions.page import page
    from assay.reports.terminal import print_page
    from assay.store.history.asking import make_sure
    from assay.store.history.database import Database
    from assay.store.history.series import load

    output: Path | None = given["output"]
    if output is not None and output.suffix not in SUFFIXES:
        raise BadInput(f"--output {output}: name a .html or a .md file.")
    filters = wanted(given).model_copy(update={"quantity": given["quantity"]})
    with Database.open().reading() as connection:
        make_sure(connection, filters)
        courses = load(connection, filters)
    analysis = look(
        courses,
        false_share=given["false_share"],
        minimum_effect=given["minimum_effect"],
        since_s=given["new_s"],
    )
    if given["gate"] and not analysis.series:
        raise BadInput(f"The gate has nothing it could decide on. {analysis.headline}")
    if output is not None:
        write(page(analysis, courses), output)
    if given["as_json"]:
        click.echo(json.dumps(analysis.as_json(), indent=2, ensure_ascii=False))
    else:
        print_page(page(analysis, ()), show.console(stderr=False))
    if output is not None:
        show.console(stderr=True).print(f"Report: {show.short(output.absolute())}", markup=False, soft_wrap=True)
    if given["gate"] and analysis.regressions:
        raise GateSaysNo(f"The gate says no. {analysis.headline}")
    return 0


def write(page: Page, output: Path) -> None:
    """Write the report; what a name ends in says how."""
    from assay.core.durable import replace_atomically
    from assay.reports.html import to_html
    from assay.reports.markdown import to_markdown

    replace_atomically(output, (to_html(page) if output.suffix == ".html" else to_markdown(page, {})).encode())
