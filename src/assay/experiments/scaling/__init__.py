"""The experiment behind ``assay scaling run``: the speedup of more ranks, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.values import Done
from assay.experiments.base import Experiment, Report
from assay.experiments.reporting import gather_findings
from assay.experiments.scaling.analysis import analyse_scaling, predict_shape
from assay.experiments.scaling.findings import build_findings, write_headline
from assay.experiments.scaling.plan import ScalingOptions, plan_blocks, plan_trials, shape_traffic
from assay.experiments.scaling.report import build_page
from assay.experiments.scaling.timings import collect_timings
from assay.store.identity import machine_model

if TYPE_CHECKING:
    from assay.core.values import Block
    from assay.machine.model import Machine
    from assay.store.records import Records


def _predict_block(options: ScalingOptions, block: Block, records: Records) -> dict[str, float] | None:
    """Return what is predicted of a block of several ranks, as plain numbers; null without a link."""
    ids = {trial.id for trial in block.trials}
    plan = next(planned for planned in plan_trials(options) if planned.trial.id in ids)
    if options.link is None or plan.shape.world == 1:
        return None
    predicted = predict_shape(options, collect_timings(options, records), plan.shape, plan.repeat)
    if predicted is None:
        return None
    sent = shape_traffic(options, plan.shape)
    numbers = {
        "time_s": predicted.time_s.value,
        "time_low_s": predicted.time_s.low,
        "time_high_s": predicted.time_s.high,
        "compute_s": predicted.compute_s,
        "communication_s": predicted.communication_s,
        "received_bytes": float(sent.received_bytes),
        "messages": float(sent.messages),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _estimate_left_s(left: list[Block], records: Records) -> float | None:
    """Return about how long the rest takes, from the longest trial so far; null before the first.

    A trial of more ranks than any so far starts more processes at once, and is given twice the time.
    """
    longest_s = max(((r.window.end_ns - r.window.start_ns) / 1e9 for r in records), default=None)
    if longest_s is None:
        return None
    most = max((1 + series.rank for record in records for series in record.series), default=1)
    ranks = [trial.roles[0].ranks for block in left for trial in block.trials]
    return longest_s * sum(1 if count <= most else 2 for count in ranks)


def next_block(options: ScalingOptions, records: Records) -> Block | Done:
    """Return the next block that has not been measured, with what is predicted of it where a link is named."""
    measured = {record.block for record in records}
    left = [block for block in plan_blocks(options) if block.name not in measured]
    if not left:
        return Done(why=f"all {len(measured)} blocks are measured")
    prediction = _predict_block(options, left[0], records)
    return left[0].model_copy(update={"left_s": _estimate_left_s(left, records), "prediction": prediction})


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
