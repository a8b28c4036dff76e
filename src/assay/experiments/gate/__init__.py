"""The experiment behind ``assay gate``: is one revision slower than another by more than a limit?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.gate.plan import GateOptions, next_restart
from assay.experiments.gate.report import build_report

if TYPE_CHECKING:
    from assay.core.values import Block, Done
    from assay.experiments.base import Report
    from assay.launch.checkouts import Checkouts
    from assay.machine.model import Machine
    from assay.store.records import Records


class GateExperiment:
    """Two revisions in turns on one device, restarted until it is decided which side of the limit head is on."""

    name = "gate"
    options_type = GateOptions

    def step(self, machine: Machine, options: GateOptions, records: Records) -> Block | Done:
        """Return the next restart, until a planned look decides or the budget is spent."""
        return next_restart(options, records)

    def report(self, machine: Machine, options: GateOptions, records: Records) -> Report:
        """Return whether head is within the limit, every restart, and the two revisions."""
        return build_report(machine, options, records)

    def checkouts(self, options: GateOptions) -> Checkouts:
        """Return where the two revisions are checked out while they are measured."""
        return options.checkouts


EXPERIMENT = GateExperiment()
