"""What does a token cost in joules? One model or server, cell by cell: prefill, decode, whole requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.energy.findings import findings_of
from assay.experiments.energy.options import EnergyOptions
from assay.experiments.energy.page import page_of
from assay.experiments.energy.report_files import report_files
from assay.experiments.energy.result import study_of
from assay.experiments.energy.step import walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class EnergyExperiment:
    """Every phase of every cell in fresh processes, and what is not known well enough for longer."""

    name = "energy"
    options_type = EnergyOptions

    def step(self, machine: Machine, options: EnergyOptions, records: Records) -> Block | Done:
        """Return everything once, then what is not known well enough, while the budget lasts."""
        return walk(options, records).next

    def analyse(self, machine: Machine, options: EnergyOptions, records: Records) -> Findings:
        """Return what a token costs in each cell, and how fast it comes."""
        return findings_of(options, study_of(machine, options, records))

    def page(self, machine: Machine, options: EnergyOptions, findings: Findings, records: Records) -> Page:
        """Return tables and figures."""
        return page_of(machine, options, findings, study_of(machine, options, records), records)

    def files(
        self, machine: Machine, options: EnergyOptions, findings: Findings, records: Records
    ) -> Mapping[str, str]:
        """Return the rows that other commands and other programs read."""
        return report_files(study_of(machine, options, records).result)


EXPERIMENT = EnergyExperiment()
