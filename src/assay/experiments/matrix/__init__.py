"""The experiment behind ``assay contention matrix``: which aggressor slows which victim, and what isolation cures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.matrix.findings import analyse
from assay.experiments.matrix.options import MatrixOptions
from assay.experiments.matrix.page import page
from assay.experiments.matrix.plan import next_step

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class MatrixExperiment:
    """Every victim beside every aggressor, naive and isolated, in blocks of random order."""

    name = "matrix"
    options_type = MatrixOptions

    def step(self, machine: Machine, options: MatrixOptions, records: Records) -> Block | Done:
        """Return the next block, until all are measured or the budget is spent."""
        return next_step(options, records)

    def analyse(self, machine: Machine, options: MatrixOptions, records: Records) -> Findings:
        """Return what each aggressor does to each victim, and whether isolation cures it."""
        return analyse(options, records)

    def page(self, machine: Machine, options: MatrixOptions, findings: Findings, records: Records) -> Page:
        """Return the matrix in colours and numbers, and what it rests on."""
        return page(machine, options, findings, records)


EXPERIMENT = MatrixExperiment()
