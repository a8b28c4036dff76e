"""The experiment behind ``assay power sweep``: one knob, step by step, and where a call costs the least energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.power.sweep.options import SweepOptions
from assay.experiments.power.sweep.plan import next_block
from assay.experiments.power.sweep.report import build_report

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.experiments.base import Report
    from assay.machine.model import Machine
    from assay.store.records import Records


class SweepExperiment:
    """Every step of a limit, a clock or a load on every device, in repeats of random order."""

    name = "power_sweep"
    options_type = SweepOptions

    def step(self, machine: Machine, options: SweepOptions, records: Records) -> Block | Done:
        """Return the next repeat, until all are measured or the budget is spent."""
        return next_block(options, records)

    def report(self, machine: Machine, options: SweepOptions, records: Records) -> Report:
        """Return where each device spends the least energy, the curves, and a row for each device and step."""
        return build_report(machine, options, records)


EXPERIMENT = SweepExperiment()
