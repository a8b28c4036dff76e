"""The experiment behind ``assay power sweep``: one knob, step by step, and where a call costs the least energy."""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.power.sweep.options import SweepOptions
from assay.experiments.power.sweep.plan import next_block
from assay.experiments.power.sweep.report import build_report

EXPERIMENT = Experiment(
    "power_sweep", SweepOptions, step=lambda _, options, records: next_block(options, records), report=build_report
)
