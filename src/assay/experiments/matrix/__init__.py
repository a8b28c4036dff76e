"""The experiment behind ``assay contention matrix``: which aggressor slows which victim; what isolation prevents."""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.matrix.plan import MatrixOptions, next_block
from assay.experiments.matrix.report import build_report

EXPERIMENT = Experiment(
    "matrix", MatrixOptions, step=lambda _, options, records: next_block(options, records), report=build_report
)
