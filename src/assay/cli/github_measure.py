"""``assay github measure``: one kind of GPU for one commit, as the job that holds the providers' keys does it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from assay.cli.ordering import Dollars
from assay.cli.params import verb

FILE = click.Path(path_type=Path)


@verb("measure")
@click.argument("subject", type=FILE)
@click.option("--gpu-type", required=True, metavar="L4", help="One kind of GPU.")
@click.option("--out", type=FILE, required=True, help="An empty folder for what the next job reads.")
@click.option("--thresholds", metavar="FILE", help="Within the commit.  [default: both NSA branches]")
@click.option("--trusted", type=FILE, help="The folder whose file of that name is taken in its place.")
@click.option("--on", default="auto", show_default=True, metavar="HOST")
@click.option("--max-cost", type=Dollars(), default=1.0, show_default=True, metavar="USD")
@click.option("--time", "limit", default="30m", show_default=True)
def command(**given: Any) -> int:
    """Measure thresholds of SUBJECT, a checked-out commit, on a rented GPU. Nothing of it runs here.

    Runs `assay threshold run --on HOST`, and leaves results.json, exit-code, rentals.jsonl, the report and the run in
    --out. A commit of Assay itself is measured as it is: its own package is sent.
    """
    from assay.core.errors import AssayError, BadInput
    from assay.core.home import home
    from assay.github import grammar, measuring
    from assay.github.proposal import checked_path
    from assay.hosts.remote.parcel import SEND

    (gpu,) = names if len(names := grammar.kinds(given["gpu_type"])) == 1 else (None,)
    if gpu is None:
        raise BadInput("--gpu-type takes one kind of GPU here; each has a job of its own.")
    thresholds = checked_path(given["thresholds"]) if given["thresholds"] else None
    trusted = None if thresholds is None or given["trusted"] is None else (given["trusted"] / thresholds).resolve()
    out, subject = measuring.fresh(given["out"]), given["subject"].resolve()
    try:
        measuring.prepare(subject, thresholds, trusted)
    except AssayError as error:
        measuring.leave(out, error.exit_code, home() / "rentals.jsonl")
        raise
    job = measuring.Job(gpu=gpu, on=given["on"], max_cost_usd=given["max_cost"], limit=given["limit"])
    if thresholds is None and measuring.is_assay(subject):
        os.environ[SEND] = str(subject / "src/assay")
    os.environ["PYTHONSAFEPATH"] = "1"  # processes of ours must not import from where they start
    os.chdir(subject)
    code = measured(measuring.words(job, thresholds, out))
    measuring.leave(out, code, home() / "rentals.jsonl")
    return code


def measured(words: list[str]) -> int:
    """Run another command line of Assay in this process, and return its exit code."""
    from assay.cli.main import main

    return main(words)
