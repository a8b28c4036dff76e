"""The experiment behind ``assay scaling run``: the speedup of more ranks, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.base import Experiment, Report
from assay.experiments.reporting import gather_findings
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling.findings import build_findings, write_headline
from assay.experiments.scaling.forecast import next_block
from assay.experiments.scaling.options import ScalingOptions
from assay.experiments.scaling.report import build_page
from assay.store.identity import machine_model

if TYPE_CHECKING:
    from assay.machine.model import Machine
    from assay.store.records import Records


def build_report(machine: Machine, options: ScalingOptions, records: Records) -> Report:
    """Return what every shape is worth against one rank, where the rest goes, and the older tool's file."""
    from assay.compat.scaling import build_files

    analysis = analyse_scaling(machine, options, records)
    findings = gather_findings(write_headline(options, analysis), build_findings(options, analysis), records)
    return Report(
        findings,
        build_page(machine, options, analysis, findings, records),
        build_files(options, analysis, machine_model(machine)),
    )


EXPERIMENT = Experiment(
    "scaling", ScalingOptions, step=lambda _, options, records: next_block(options, records), report=build_report
)
