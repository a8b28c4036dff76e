"""The experiment behind ``assay scaling predict``: the time on GPUs that are not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.scaling_prediction.plan import PredictionOptions, next_block
from assay.experiments.scaling_prediction.report import build_report

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.experiments.base import Report
    from assay.machine.model import Machine
    from assay.store.records import Records


class PredictionExperiment:
    """One device computes its share of every ring alone; a link's α and β say what the others would add."""

    name = "scaling_prediction"
    options_type = PredictionOptions

    def step(self, machine: Machine, options: PredictionOptions, records: Records) -> Block | Done:
        """Return the next sequence length, until all shares are measured."""
        return next_block(options, records)

    def report(self, machine: Machine, options: PredictionOptions, records: Records) -> Report:
        """Return what is predicted of every count of GPUs with its interval, and what it assumes."""
        return build_report(machine, options, records)


EXPERIMENT = PredictionExperiment()
