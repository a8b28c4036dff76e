"""``assay threshold parse``: the text of an older bench as rows of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.params import verb
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from assay.experiments.threshold.older_lines import Read

STDIN = Path("-")
AT_MOST = 5
"""So many lines are named; of more, how many there are."""


@verb("parse")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--output", type=click.Path(path_type=Path), help="Write the JSON to this file.  [default: stdout]")
def command(file: Path, output: Path | None) -> int:
    """Read what an older bench printed, and write its rows as JSON.

    FILE is a text file, or - for stdin. What is read are lines such as

    \b
    S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20
    S=256 l=32 d=16 compressed masked 0.12 ms  fa2 0.10 ms  speedup x1.20

    `assay threshold apply` and `assay compare` take the result. Whether the results of both paths were the same, and on
    which GPU it was, such lines do not say: these stay null.
    """  # noqa: D301 - click reads the backspace as "keep these lines as they are"
    from assay.core.durable import replace_atomically
    from assay.experiments.threshold.older_lines import parse

    name = "stdin" if file == STDIN else str(file)
    parsed = parse(text_of(file))
    if not parsed.rows:
        raise BadInput(nothing(parsed, name))
    for note in remarks(parsed):
        click.echo(f"{name}: {note}.", err=True)
    data = {"device_info": None, "recommendation": None, "results": [row.as_json() for row in parsed.rows]}
    text = json.dumps({**data, "parity_passed": None}, indent=2)
    if output is None:
        click.echo(text)
        return 0
    replace_atomically(output, f"{text}\n".encode())
    click.echo(f"{len(parsed.rows)} {'row' if len(parsed.rows) == 1 else 'rows'} written to {output}.", err=True)
    return 0


def text_of(file: Path) -> str:
    """Return the text of a file or of stdin."""
    from assay.core.durable import read_text

    if file != STDIN:
        return read_text(file).removeprefix("\ufeff")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("What came on stdin is not UTF-8 text.") from None


def nothing(found: Read, name: str) -> str:
    """Say that there is no row, and what there is instead."""
    if not found.others:
        return f"{name} is empty: it holds no line of the older bench."
    broken = f"; line {found.broken[0]} begins like one, but is not whole" if found.broken else ""
    return (
        f"None of the {found.others} lines of {name} is one of the older bench, such as "
        f"`S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20`{broken}."
    )


def remarks(found: Read) -> list[str]:
    """Return what must be told of what was read."""
    notes: list[str] = []
    if found.others:
        were = "line was" if found.others == 1 else "lines were"
        notes.append(f"{found.others} other {were} left out")
    if found.broken:
        notes.append(f"{_lines(found.broken)} like a row, but not whole: left out")
    more = [f"and {len(found.odd) - AT_MOST} more such remarks"] if len(found.odd) > AT_MOST else []
    return [*notes, *found.odd[:AT_MOST], *more]


def _lines(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:AT_MOST])) + (" …" if len(numbers) > AT_MOST else "")
    return f"line {shown} begins" if len(numbers) == 1 else f"lines {shown} begin"
