"""``assay scaling``: what more GPUs buy; its verbs are loaded only when they are called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "analyse": ("assay.cli.scaling_analyse:command", "Figures and a report of results that are there; a gate."),
    "analyze": ("assay.cli.scaling_analyse:command", "The same as analyse."),
    "predict": ("assay.cli.scaling_predict:command", "What GPUs that are not here would take."),
    "run": ("assay.cli.scaling_run:command", "Measure one rank, then more: speedup, efficiency, communication."),
    "test": ("assay.cli.scaling_test:command", "Is the attention exact here, over ranks too?"),
}


@click.group("scaling", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """How does it scale over GPUs, and what does communication cost?"""
