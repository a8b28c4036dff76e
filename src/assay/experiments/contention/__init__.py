"""The experiment behind ``assay contention run``: does side by side change what is measured, and what is picked?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Findings
from assay.experiments.contention.analysis import analyse
from assay.experiments.contention.findings import findings_of
from assay.experiments.contention.headline import headline
from assay.experiments.contention.older import older_files
from assay.experiments.contention.options import ContentionOptions
from assay.experiments.contention.page import page
from assay.experiments.contention.step import step

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.machine.model import Machine
    from assay.store.records import Records


class ContentionExperiment:
    """Each device alone, all side by side, all side by side in isolation, each alone again; in blocks."""

    name = "contention"
    options_type = ContentionOptions

    def step(self, machine: Machine, options: ContentionOptions, records: Records) -> Block | Done:
        """Return the next block, then the re-timing of what was picked."""
        return step(machine, options, records)

    def analyse(self, machine: Machine, options: ContentionOptions, records: Records) -> Findings:
        """Return what company does to times, spreads and picks, each held against A/A."""
        analysis = analyse(machine, options, records)
        origin = next((record.origin for record in records if record.origin != "real"), "real")
        findings = tuple(finding.model_copy(update={"origin": origin}) for finding in findings_of(options, analysis))
        return Findings(headline=headline(machine, options, analysis), findings=findings)

    def page(self, machine: Machine, options: ContentionOptions, findings: Findings, records: Records) -> Page:
        """Return the phases side by side, every sample, the picks, the noise budget, and what ran when."""
        return page(machine, options, analyse(machine, options, records), findings, records)

    def files(
        self, machine: Machine, options: ContentionOptions, findings: Findings, records: Records
    ) -> dict[str, str]:
        """Return the same results in the older tool's files."""
        return older_files(machine, options, findings, records)


EXPERIMENT = ContentionExperiment()
