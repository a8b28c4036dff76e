"""The experiment behind ``assay run``: time workloads on devices, sequentially or concurrently."""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.run.plan import RunOptions, next_block
from assay.experiments.run.report import build_report

EXPERIMENT = Experiment(
    "run", RunOptions, step=lambda _, options, records: next_block(options, records), report=build_report
)
