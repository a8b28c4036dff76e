"""The experiment behind ``assay scaling predict``: what GPUs that are not here would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.scaling_prediction.findings import analyse
from assay.experiments.scaling_prediction.options import PredictionOptions
from assay.experiments.scaling_prediction.page import page
from assay.experiments.scaling_prediction.plan import next_step

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class PredictionExperiment:
    """One device computes its share of every ring alone; a link's α and β say what the others would add."""

    name = "scaling_prediction"
    options_type = PredictionOptions

    def step(self, machine: Machine, options: PredictionOptions, records: Records) -> Block | Done:
        """Return the next sequence length, until all shares are measured."""
        return next_step(options, records)

    def analyse(self, machine: Machine, options: PredictionOptions, records: Records) -> Findings:
        """Return what is predicted of every count of GPUs, and how sure it is."""
        return analyse(options, records)

    def page(self, machine: Machine, options: PredictionOptions, findings: Findings, records: Records) -> Page:
        """Return times, efficiency and memory with their intervals, and what they assume."""
        return page(machine, options, findings, records)


EXPERIMENT = PredictionExperiment()
