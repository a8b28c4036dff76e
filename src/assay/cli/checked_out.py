"""Checkouts for a run that goes on: made anew where they were, set up, and removed again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from assay.core.guardian import Guardian
from assay.core.plan import Done
from assay.core.stopping import stop_on_signals
from assay.experiments.base import NeedsCheckouts
from assay.launch.checkouts import checked_out, set_up
from assay.runner import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.experiments.base import Experiment
    from assay.machine.model import Machine
    from assay.store.runs import RunFolder


@contextmanager
def as_needed(experiment: Experiment[Any], folder: RunFolder, machine: Machine) -> Iterator[None]:
    """Have the checkouts there that what is left of a run is measured in; nothing where it needs none."""
    if not isinstance(experiment, NeedsCheckouts) or _done(experiment, folder, machine):
        yield
        return
    checkouts = experiment.checkouts(options_of(experiment, folder))
    with stop_on_signals(), Guardian(), checked_out(checkouts) as leases:
        set_up(checkouts, leases, lambda line: click.echo(line, err=True))
        yield


def _done(experiment: Experiment[Any], folder: RunFolder, machine: Machine) -> bool:
    """Return whether nothing is left to measure; what failed is measured again."""
    options = options_of(experiment, folder)
    good = folder.of([record for record in folder.counting() if record.status != "failed"])
    return isinstance(experiment.step(machine, options, good), Done)
