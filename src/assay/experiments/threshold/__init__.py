"""The experiment behind ``assay threshold run``: from which size on the fast path is faster by a margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.base import Experiment, Report
from assay.experiments.threshold.plan import replay_run
from assay.experiments.threshold.report import build_findings, build_page, build_study
from assay.experiments.threshold.results_file import build_files
from assay.experiments.threshold.spec import ThresholdOptions

if TYPE_CHECKING:
    from assay.machine.model import Machine
    from assay.store.records import Records


def build_report(machine: Machine, options: ThresholdOptions, records: Records) -> Report:
    """Return where each threshold is, the speed-ups over size, and the results file."""
    study = build_study(options, records)
    findings = build_findings(options, study.answers, records)
    files = build_files(machine, options, study.answers, records)
    return Report(findings, build_page(machine, options, study, findings, records), files)


EXPERIMENT = Experiment(
    "threshold",
    ThresholdOptions,
    step=lambda _, options, records: replay_run(options, records).next_step,
    report=build_report,
)
