"""The experiment behind ``assay contention matrix``.

Which aggressor slows which victim, and what isolation prevents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.matrix.plan import MatrixOptions, next_block
from assay.experiments.matrix.report import build_report

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.experiments.base import Report
    from assay.machine.model import Machine
    from assay.store.records import Records


class MatrixExperiment:
    """Every victim beside every aggressor, naive and isolated, in blocks of random order."""

    name = "matrix"
    options_type = MatrixOptions

    def step(self, machine: Machine, options: MatrixOptions, records: Records) -> Block | Done:
        """Return the next block, until all are measured or the budget is spent."""
        return next_block(options, records)

    def report(self, machine: Machine, options: MatrixOptions, records: Records) -> Report:
        """Return what each aggressor does to each victim, whether isolation cures it, and what it rests on."""
        return build_report(machine, options, records)


EXPERIMENT = MatrixExperiment()
