"""The experiment behind ``assay gate``: is one revision slower than another by more than a limit?"""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.gate.plan import GateOptions, next_restart
from assay.experiments.gate.report import build_report

EXPERIMENT = Experiment(
    "gate",
    GateOptions,
    step=lambda _, options, records: next_restart(options, records),
    report=build_report,
    checkouts=lambda options: options.checkouts,
)
