"""The experiment behind ``assay power characterize``.

Time, power, clocks and temperature of every GPU, case by case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.base import Report
from assay.experiments.power.characterize.export import study_files
from assay.experiments.power.characterize.findings import build_findings
from assay.experiments.power.characterize.options import CharacterizeOptions
from assay.experiments.power.characterize.plan import is_idle, next_block
from assay.experiments.power.characterize.report import build_page
from assay.experiments.power.characterize.study import analyse_records

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.machine.model import Machine
    from assay.store.records import Records


class CharacterizeExperiment:
    """Every case on every GPU in turn, each repeat in random order."""

    name = "power"
    options_type = CharacterizeOptions

    def step(self, machine: Machine, options: CharacterizeOptions, records: Records) -> Block | Done:
        """Return the next repeat, until all are measured or the budget is spent."""
        return next_block(machine, options, records)

    def report(self, machine: Machine, options: CharacterizeOptions, records: Records) -> Report:
        """Return what each GPU did in each case, what contention does, how unequal they are, and all kernels."""
        study = analyse_records(machine, options, records)
        findings = build_findings(options, study)
        return Report(
            findings,
            build_page(machine, options, study, findings, records),
            study_files(machine, options, study, records),
            baselines=frozenset(record.trial for placed, record in study.pairs if is_idle(placed.case)),
        )


EXPERIMENT = CharacterizeExperiment()
