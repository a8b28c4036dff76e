"""The experiment behind ``assay power sweep``: one knob, step by step, and where a call costs the least energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.power.sweep.findings import sweep_findings
from assay.experiments.power.sweep.options import SweepOptions
from assay.experiments.power.sweep.plan import next_block
from assay.experiments.power.sweep.report import build_page, sweep_files

if TYPE_CHECKING:
    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.machine.model import Machine
    from assay.store.records import Records


class SweepExperiment:
    """Every step of a limit, a clock or a load on every device, in repeats of random order."""

    name = "power_sweep"
    options_type = SweepOptions

    def step(self, machine: Machine, options: SweepOptions, records: Records) -> Block | Done:
        """Return the next repeat, until all are measured or the budget is spent."""
        return next_block(options, records)

    def analyse(self, machine: Machine, options: SweepOptions, records: Records) -> Findings:
        """Return where each device spends the least energy, and what each step saves and costs."""
        return sweep_findings(options, records)

    def page(self, machine: Machine, options: SweepOptions, findings: Findings, records: Records) -> Page:
        """Return the curves in lines and numbers, and what they rest on."""
        return build_page(machine, options, findings, records)

    def files(self, machine: Machine, options: SweepOptions, findings: Findings, records: Records) -> dict[str, str]:
        """Return a row for each device and step, as JSON lines and as a table."""
        return sweep_files(machine, options, records)


EXPERIMENT = SweepExperiment()
