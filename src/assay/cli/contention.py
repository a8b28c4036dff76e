"""``assay contention``: what company does to measurements; its verbs are loaded only when they are called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "matrix": ("assay.cli.contention_matrix:command", "Which load slows which workload, and what isolation cures."),
    "run": ("assay.cli.contention_run:command", "Alone, side by side, isolated, alone again: times and picks."),
    "variance": ("assay.cli.contention_variance:command", "Hold two groups of results against each other."),
}


@click.group("contention", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Does running side by side change what I measure, and what my tuner picks?"""
