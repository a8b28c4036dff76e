"""The experiment behind ``assay scaling run``: what more ranks really buy, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Findings
from assay.experiments.scaling.analysis import analyse
from assay.experiments.scaling.findings import findings_of
from assay.experiments.scaling.headline import headline
from assay.experiments.scaling.older import older_files
from assay.experiments.scaling.options import ScalingOptions
from assay.experiments.scaling.page import page
from assay.experiments.scaling.step import step
from assay.store.identity import model_of

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
        return step(options, records)

    def analyse(self, machine: Machine, options: ScalingOptions, records: Records) -> Findings:
        """Return what every shape is worth against one rank, and where the rest goes."""
        analysis = analyse(machine, options, records)
        origin = next((record.origin for record in records if record.origin != "real"), "real")
        findings = tuple(finding.model_copy(update={"origin": origin}) for finding in findings_of(options, analysis))
        return Findings(headline=headline(options, analysis), findings=findings)

    def page(self, machine: Machine, options: ScalingOptions, findings: Findings, records: Records) -> Page:
        """Return the shapes side by side, where efficiency goes, communication, memory, errors and every sample."""
        return page(machine, options, analyse(machine, options, records), findings, records)

    def files(self, machine: Machine, options: ScalingOptions, findings: Findings, records: Records) -> dict[str, str]:
        """Return the same results in the older tool's file."""
        return older_files(options, analyse(machine, options, records), model_of(machine))


EXPERIMENT = ScalingExperiment()
