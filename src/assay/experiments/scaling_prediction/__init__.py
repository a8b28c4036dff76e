"""The experiment behind ``assay scaling predict``: the time on GPUs that are not here."""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.scaling_prediction.plan import PredictionOptions, next_block
from assay.experiments.scaling_prediction.report import build_report

EXPERIMENT = Experiment(
    "scaling_prediction",
    PredictionOptions,
    step=lambda _, options, records: next_block(options, records),
    report=build_report,
)
