"""The experiment behind ``assay energy run``: joules per token of one model or server, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.base import Experiment, Report
from assay.experiments.energy.findings import build_findings
from assay.experiments.energy.options import EnergyOptions
from assay.experiments.energy.plan import replay_run
from assay.experiments.energy.report import build_page
from assay.experiments.energy.result import build_report_files
from assay.experiments.energy.study import build_study

if TYPE_CHECKING:
    from assay.machine.model import Machine
    from assay.store.records import Records


def build_report(machine: Machine, options: EnergyOptions, records: Records) -> Report:
    """Return what a token costs in each cell and how fast it comes, and the rows that other programs read."""
    from assay.compat.energy import build_files

    study = build_study(machine, options, records)
    findings = build_findings(options, study)
    page = build_page(machine, options, findings, study, records)
    return Report(findings, page, {**build_report_files(study.result), **build_files(study.result)})


EXPERIMENT = Experiment(
    "energy",
    EnergyOptions,
    step=lambda _, options, records: replay_run(options, records).next_step,
    report=build_report,
)
