"""``assay history``: what was measured before; its verbs are loaded only when they are called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "export": ("assay.cli.history_export:command", "Write every point to a file, as CSV or JSON."),
    "import": ("assay.cli.history_import:command", "Put runs that are there into the history, or rebuild it."),
    "list": ("assay.cli.history_list:command", "Show the runs, the newest first, or the series."),
    "plot": ("assay.cli.history_plot:command", "Draw a series with its intervals."),
    "regressions": ("assay.cli.history_regressions:command", "Find since when something is slower, or faster."),
    "show": ("assay.cli.history_show:command", "Show what a run left, or the points of a series."),
}


@click.group("history", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """What was measured before, and has anything changed?"""
