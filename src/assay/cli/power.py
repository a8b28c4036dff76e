"""``assay power``: how watts shape performance, and how unequal GPUs are; verbs are loaded only when called."""

from __future__ import annotations

import click

from assay.cli.lazy import LazyGroup, Verbs

VERBS: Verbs = {
    "budget": ("assay.cli.power_budget:command", "Which caps give the most work under so many watts."),
    "characterize": ("assay.cli.power_characterize:command", "Kernels, watts, clocks and heat, case by case."),
    "sweep": ("assay.cli.power_sweep:command", "Step limits, clocks or load, and find where energy is best spent."),
    "variability": ("assay.cli.power_variability:command", "Which GPUs are slow, hot or hungry."),
}


@click.group("power", cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """How do watts shape performance, and how unequal are my GPUs?"""
