"""The experiment behind ``assay threshold run``: from which size on the fast path is faster by a margin."""

from __future__ import annotations

from assay.experiments.base import Experiment
from assay.experiments.threshold.options import ThresholdOptions
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.report import build_report

EXPERIMENT = Experiment(
    "threshold",
    ThresholdOptions,
    step=lambda _, options, records: replay_run(options, records).next_step,
    report=build_report,
)
