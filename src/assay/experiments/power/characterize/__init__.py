"""The experiment behind ``assay power characterize``.

Time, power, clocks and temperature of every GPU, case by case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.power.characterize.export import study_files
from assay.experiments.power.characterize.findings import study_findings
from assay.experiments.power.characterize.options import CharacterizeOptions
from assay.experiments.power.characterize.plan import cases_by_trial, is_idle, next_block
from assay.experiments.power.characterize.report import build_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class CharacterizeExperiment:
    """Every case on every GPU in turn, each repeat in an order drawn by lot."""

    name = "power"
    options_type = CharacterizeOptions

    def step(self, machine: Machine, options: CharacterizeOptions, records: Records) -> Block | Done:
        """Return the next repeat, until all are measured or the budget is spent."""
        return next_block(machine, options, records)

    def analyse(self, machine: Machine, options: CharacterizeOptions, records: Records) -> Findings:
        """Return what each GPU did in each case, what company does, and how unequal they are."""
        return study_findings(machine, options, records)

    def page(self, machine: Machine, options: CharacterizeOptions, findings: Findings, records: Records) -> Page:
        """Return tables and figures."""
        return build_page(machine, options, findings, records)

    def baselines(self, machine: Machine, options: CharacterizeOptions) -> frozenset[str]:
        """Return the trials in which all was idle."""
        cases = cases_by_trial(machine, options, options.repeats)
        return frozenset(trial for trial, where in cases.items() if is_idle(where.case))

    def files(
        self, machine: Machine, options: CharacterizeOptions, findings: Findings, records: Records
    ) -> Mapping[str, str | Iterable[str]]:
        """Return the trace of all kernels, and the rows that other commands read."""
        return study_files(machine, options, records)


EXPERIMENT = CharacterizeExperiment()
