"""``assay energy``: what a token costs in joules, on one GPU or many; verbs are loaded only when called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "check": ("assay.cli.energy_check:command", "Look at the GPUs, and write a configuration that fits them."),
    "compare": ("assay.cli.energy_compare:command", "Tokens per second against joules: models, batches, placements."),
    "run": ("assay.cli.energy_run:command", "Measure a model or a server: joules, watts and time per token."),
}


@click.group("energy", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """What does a token cost in joules?"""
