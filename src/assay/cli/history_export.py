"""``assay history export``: every point as a row of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from assay.cli.history_options import filtered, wanted
from assay.cli.params import verb
from assay.core.errors import BadInput


@verb("export")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--csv", "as_csv", is_flag=True, help="A table.  [default, unless FILE ends in .json]")
@click.option("--json", "as_json", is_flag=True, help="Runs, series and points.")
@filtered(origin="real")
def command(file: Path, as_csv: bool, as_json: bool, **given: Any) -> int:
    """Write every point with its run and its series to FILE; - is stdout.

    \b
    assay history export history.csv
    assay history export --workload softmax --since 90d softmax.json
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.store.history.asking import make_sure
    from assay.store.history.database import Database
    from assay.store.history.export import csv_lines, json_lines, write

    if as_csv and as_json:
        raise BadInput("--csv and --json are two formats; say one of the two.")
    as_json = as_json or (file.suffix == ".json" and not as_csv)
    with Database.open().reading() as connection:
        meant = wanted(given)
        make_sure(connection, meant)
        lines = json_lines(connection, meant) if as_json else csv_lines(connection, meant)
        if str(file) == "-":
            sys.stdout.writelines(lines)
        else:
            write(file, lines)
    return 0
