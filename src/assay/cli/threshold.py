"""``assay threshold``: from which size on the fast path is faster; its verbs are loaded only when they are called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "apply": ("assay.cli.threshold_apply:command", "Decide from results that are there, and write the configuration."),
    "parse": ("assay.cli.threshold_parse:command", "Read the older bench's lines."),
    "run": ("assay.cli.threshold_run:command", "Measure both paths over a grid, and decide."),
}


@click.group("threshold", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """From which size on is the fast path really faster, here?"""
