"""The experiment behind ``assay scaling run``: the speedup of more ranks, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.base import Report
from assay.experiments.reporting import gather_findings
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling.findings import build_findings, write_headline
from assay.experiments.scaling.forecast import next_block
from assay.experiments.scaling.plan import ScalingOptions
from assay.experiments.scaling.report import build_page
from assay.store.identity import machine_model

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.machine.model import Machine
    from assay.store.records import Records


class ScalingExperiment:
    """One rank, shares of rings alone, then every number of ranks in every ring; all of it in each repeat."""

    name = "scaling"
    options_type = ScalingOptions

    def step(self, machine: Machine, options: ScalingOptions, records: Records) -> Block | Done:
        """Return the next block, with what is predicted of it where a link is named."""
        return next_block(options, records)

    def report(self, machine: Machine, options: ScalingOptions, records: Records) -> Report:
        """Return what every shape is worth against one rank, where the rest goes, and the older tool's file."""
        from assay.compat.scaling import build_files

        analysis = analyse_scaling(machine, options, records)
        findings = gather_findings(write_headline(options, analysis), build_findings(options, analysis), records)
        return Report(
            findings,
            build_page(machine, options, analysis, findings, records),
            build_files(options, analysis, machine_model(machine)),
        )


EXPERIMENT = ScalingExperiment()
