"""The experiment behind ``assay threshold run``: from which size on the fast path is faster by a margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.threshold.options import ThresholdOptions
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.report import build_findings, build_page
from assay.experiments.threshold.results_file import build_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class ThresholdExperiment:
    """Pairs of a reference and a fast path over a grid, measured near the crossover until it is decided."""

    name = "threshold"
    options_type = ThresholdOptions

    def step(self, machine: Machine, options: ThresholdOptions, records: Records) -> Block | Done:
        """Return the next process and the points that it looks at, until all thresholds are decided."""
        return replay_run(options, records).next_step

    def analyse(self, machine: Machine, options: ThresholdOptions, records: Records) -> Findings:
        """Return where each threshold is, by each time, and whether the fast path was right."""
        return build_findings(options, records)

    def page(self, machine: Machine, options: ThresholdOptions, findings: Findings, records: Records) -> Page:
        """Return the answers, the speed-ups over size, and what they rest on."""
        return build_page(machine, options, findings, records)

    def files(
        self, machine: Machine, options: ThresholdOptions, findings: Findings, records: Records
    ) -> Mapping[str, str]:
        """Return the results in the older tool's form, with intervals and the samples behind them."""
        return build_files(machine, options, records)


EXPERIMENT = ThresholdExperiment()
