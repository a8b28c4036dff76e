"""The experiment behind ``assay scaling run``: the speedup of more ranks, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Findings
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling.findings import build_findings, write_headline
from assay.experiments.scaling.forecast import next_block
from assay.experiments.scaling.options import ScalingOptions
from assay.experiments.scaling.report import build_page
from assay.experiments.scaling.results_file import build_older_files
from assay.store.identity import machine_model

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.machine.model import Machine
    from assay.store.records import Records


class ScalingExperiment:
    """One rank, shares of rings alone, then every number of ranks in every ring; all of it in each repeat."""

    name = "scaling"
    options_type = ScalingOptions

    def step(self, machine: Machine, options: ScalingOptions, records: Records) -> Block | Done:
        """Return the next block, with what is predicted of it where a link is named."""
        return next_block(options, records)

    def analyse(self, machine: Machine, options: ScalingOptions, records: Records) -> Findings:
        """Return what every shape is worth against one rank, and where the rest goes."""
        analysis = analyse_scaling(machine, options, records)
        origin = next((record.origin for record in records if record.origin != "real"), "real")
        findings = tuple(finding.model_copy(update={"origin": origin}) for finding in build_findings(options, analysis))
        return Findings(headline=write_headline(options, analysis), findings=findings)

    def page(self, machine: Machine, options: ScalingOptions, findings: Findings, records: Records) -> Page:
        """Return the shapes side by side, where efficiency goes, communication, memory, errors and every sample."""
        return build_page(machine, options, analyse_scaling(machine, options, records), findings, records)

    def files(self, machine: Machine, options: ScalingOptions, findings: Findings, records: Records) -> dict[str, str]:
        """Return the same results in the older tool's file."""
        return build_older_files(options, analyse_scaling(machine, options, records), machine_model(machine))


EXPERIMENT = ScalingExperiment()
