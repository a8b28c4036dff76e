"""The experiment behind ``assay threshold run``: from which size on the fast path is faster by a margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.threshold.options import ThresholdOptions
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.report import build_report

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.experiments.base import Report
    from assay.machine.model import Machine
    from assay.store.records import Records


class ThresholdExperiment:
    """Pairs of a reference and a fast path over a grid, measured near the crossover until it is decided."""

    name = "threshold"
    options_type = ThresholdOptions

    def step(self, machine: Machine, options: ThresholdOptions, records: Records) -> Block | Done:
        """Return the next process and the points that it looks at, until all thresholds are decided."""
        return replay_run(options, records).next_step

    def report(self, machine: Machine, options: ThresholdOptions, records: Records) -> Report:
        """Return where each threshold is, the speed-ups over size, and the results file."""
        return build_report(machine, options, records)


EXPERIMENT = ThresholdExperiment()
